"""The training loop: same numbers again, after a kill, in two processes; and what goes wrong on the way."""

import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch.utils._python_dispatch import TorchDispatchMode

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Part, Work
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.grounding.batches.device_data import epoch_order
from penumbra.tasks.grounding.configs import Inputs, Ranking, Training
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.base import trained
from penumbra.tasks.grounding.families.detr import QDDETRConfig
from penumbra.tasks.grounding.training import loop
from penumbra.tasks.grounding.training.checkpoints import (
    Checkpoint,
    RunError,
    read_best,
    read_checkpoint,
    write_checkpoint,
)
from penumbra.tasks.grounding.training.logs import Progress
from penumbra.tasks.grounding.training.loop import (
    Job,
    Trainer,
    TrainingError,
    TrainingStep,
    held_out_videos,
    keep_memory,
    make_optimiser,
    train,
)
from penumbra.tasks.grounding.training.presets import Settings, SettingsError, presets, with_preset
from penumbra.tasks.grounding.training.processes import run_job
from penumbra.tasks.grounding.training.stage import chosen_run, settings_of
from tests.cluster import free_port
from tests.grounding_data import TINY, data, job, settings

pytestmark = pytest.mark.slow

Numbers = list[tuple[int, str, str, float]]


def numbers(rows: list[dict[str, Any]]) -> Numbers:
    """What must be the same again: everything but the time it took."""
    return [(row["epoch"], row["split"], row["name"], row["value"]) for row in rows if row["name"] != "seconds"]


def same_weights(first: Path, second: Path) -> bool:
    one, other = (read_checkpoint(folder, "last") for folder in (first, second))
    assert one is not None
    assert other is not None
    return one.tensors.keys() == other.tensors.keys() and all(
        torch.equal(value, other.tensors[name]) for name, value in one.tensors.items()
    )


def padded(columns: Any, **places: tuple[int, int]) -> Any:
    """The same with so many more places, all padding, in a dimension of some tensors."""
    added = {}
    for name, (dimension, count) in places.items():
        if (value := getattr(columns, name)) is not None:
            shape = [count if place == dimension else size for place, size in enumerate(value.shape)]
            added[name] = torch.cat((value, value.new_zeros(shape)), dimension)
    return replace(columns, **added)


@pytest.mark.parametrize("model", ["moment_detr", "qd_detr"])
def test_padding_changes_no_loss_and_no_gradient(tmp_path: Path, model: str) -> None:
    chosen = job(tmp_path, settings(model={"name": model}))
    system = system_of(chosen.settings)
    weights = system.build(chosen.videos.channels, chosen.texts.channels).eval()
    batch = system.data(chosen.train, chosen.videos, chosen.texts, torch.device("cpu")).batch(torch.arange(24))
    words, clips = {"text": (1, 2), "text_mask": (1, 2), "hard_text": (2, 2), "hard_mask": (2, 2)}, (1, 3)
    wider = (
        padded(batch[0], video=clips, video_mask=clips, **words),
        padded(batch[1], clip_scores=clips, video_mask=clips),
    )
    found = []
    for one in (batch, wider):
        total, terms = system.objective(weights)(one)
        found.append((terms, torch.autograd.grad(total, list(trained(weights)), allow_unused=True)))
    (terms, gradients), (again, gradients_again) = found
    assert {"fine_1", "fine_4", "coarse_intra", "span"} <= terms.keys()
    for name, value in terms.items():
        torch.testing.assert_close(again[name], value, atol=1e-5, rtol=1e-5)
    for one, other in zip(gradients, gradients_again, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-4)


def test_training_learns_and_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    chosen = settings({"epochs": 8})
    first, second = train(job(tmp_path / "a", chosen)), train(job(tmp_path / "b", chosen))
    assert numbers(first) == numbers(second)
    assert same_weights(tmp_path / "a", tmp_path / "b")
    totals = [row["value"] for row in first if row["name"] == "total"]
    assert totals[-1] < 0.8 * totals[0]
    other = train(job(tmp_path / "c", settings({"epochs": 1, "seed": 7})))
    assert numbers(other) != numbers(first)[: len(numbers(other))]


@pytest.mark.parametrize(
    ("model", "by_length", "products"),
    [("qd_detr", True, "bf16"), ("qd_detr", False, "none"), ("bm_detr", True, "none"), ("mmn", True, "none")],
)
def test_onednn_multiplies_where_batches_have_few_shapes(
    model: str, by_length: bool, products: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True, "cpu_name": "AMD EPYC"})
    kind: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    seen: list[str] = []
    sizes = {"hidden": 8, "proposal": 8, "joint": 8, "layers": 2} if model == "mmn" else TINY
    chosen = Settings.model_validate(
        {"model": {"name": model, **sizes}, "training": {"epochs": 1, "group_by_length": by_length, "device": "cpu"}}
    )
    train(job(tmp_path, chosen), lambda _: seen.append(kind.fp32_precision))
    assert seen == [products]
    assert kind.fp32_precision == "none"


def run_slowly(work: Job) -> None:
    """Train with a pause after each epoch, so that the parent can kill it in the middle of one."""

    def pause(self: Trainer, seen: Any, sums: Any, look: Any = Trainer._look) -> None:
        look(self, seen, sums)
        time.sleep(0.2)

    Trainer._look = pause  # type: ignore[method-assign]
    train(work)


@pytest.mark.long
def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    chosen = settings({"epochs": 6, "evaluate_every": 2})
    whole = train(job(tmp_path / "whole", chosen))
    killed = tmp_path / "killed"
    process = multiprocessing.get_context("spawn").Process(target=run_slowly, args=(job(killed, chosen),))
    process.start()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        state = json.loads((killed / "last.json").read_text()) if (killed / "last.json").is_file() else {"epoch": 0}
        if state["epoch"] >= 2:
            break
        time.sleep(0.02)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    begun = read_checkpoint(killed, "last")
    assert begun is not None
    assert 2 <= begun.state["epoch"] < 6
    assert numbers(train(job(killed, chosen))) == numbers(whole)
    assert same_weights(killed, tmp_path / "whole")


PLAIN: dict[str, Any] = {
    "model": {"name": "moment_detr", "dropout": 0.0, "input_dropout": 0.0},
    "losses": {"pair_hinge": False},
}


@pytest.mark.parametrize("launch", ["spawn", "torchrun"])
def test_two_processes_take_the_step_that_one_takes(tmp_path: Path, launch: str) -> None:
    """Without dropout and random pairs, half a batch in each of two processes has the whole batch's gradient."""
    one = run_job(job(tmp_path / "one", settings({"epochs": 1, "processes": 1}, **PLAIN), count=8))
    told: list[Progress] = []
    how = {"epochs": 1, "processes": 2, "launch": launch}
    two = run_job(job(tmp_path / "two", settings(how, **PLAIN), count=8), told.append)
    assert [(progress.epoch, progress.history) for progress in told] == [(1, two)], "the main process is observed"
    norms = [row["value"] for rows in (one, two) for row in rows if row["name"] == "gradient_norm"]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    found = read_checkpoint(tmp_path / "two", "last")
    assert found is not None
    assert found.tensors["random.cpu"].shape[0] == 2
    with pytest.raises(RunError, match="begun with 2 processes"):
        train(job(tmp_path / "two", settings({"epochs": 3}, **PLAIN)))


def _as_host(rank: int, rendezvous: str, shared: Path, own: Path) -> None:
    how = {"epochs": 1, "launch": "torchrun", "nodes": 2, "node_rank": rank, "rendezvous": rendezvous}
    try:
        told: Any = run_job(job(shared, settings(how, **PLAIN), count=8))
    except PenumbraError as error:
        told = str(error)
    own.write_text(json.dumps(told), encoding="utf-8")


def _two_hosts(tmp_path: Path, *folders: str) -> list[Any]:
    """What each of two processes, which share a folder of runs where it is the same, makes of one training."""
    port, context = free_port(), multiprocessing.get_context("spawn")
    hosts = [
        context.Process(target=_as_host, args=(rank, f"127.0.0.1:{port}", tmp_path / folder, tmp_path / f"{rank}.json"))
        for rank, folder in enumerate(folders)
    ]
    for host in hosts:
        host.start()
    for host in hosts:
        host.join(240)
    return [json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(len(hosts))]


@pytest.mark.long
def test_two_hosts_take_the_step_that_one_takes(tmp_path: Path) -> None:
    one = run_job(job(tmp_path / "one", settings({"epochs": 1}, **PLAIN), count=8))
    first, second = _two_hosts(tmp_path, "shared", "shared")
    assert first == second
    norms = [row["value"] for rows in (one, first) for row in rows if row["name"] == "gradient_norm"]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


@pytest.mark.long
def test_hosts_that_share_no_folder_are_told(tmp_path: Path) -> None:
    run_job(job(tmp_path / "a" / "key", settings({"epochs": 1, "processes": 2}, **PLAIN), count=8))
    told = _two_hosts(tmp_path, "a/key", "b/key")
    assert all("hosts see different checkpoints" in text for text in told), told


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ({"nodes": 2}, "launch=torchrun and rendezvous=HOST:PORT"),
        ({"nodes": 2, "launch": "torchrun", "rendezvous": "somewhere"}, "rendezvous=HOST:PORT"),
        ({"node_rank": 1}, "count from 0"),
    ],
)
def test_hosts_that_can_t_meet_are_told(said: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ValidationError, match=remedy):
        Training.model_validate(said)


def test_a_loss_that_is_no_number_stops_with_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(job(tmp_path, settings({"epochs": 1})))
    good = read_checkpoint(tmp_path, "last")
    poisoned, calls = loop.TrainingStep.__call__, []

    def step(self: Any, batch: Any) -> Any:
        calls.append(None)
        if len(calls) == 2:
            batch[0].video[0, 0, 0] = torch.nan
        return poisoned(self, batch)

    monkeypatch.setattr(loop.TrainingStep, "__call__", step)
    with pytest.raises(TrainingError, match=r"no number at step 5 \(epoch 2\).*of epoch 1, is kept in"):
        train(job(tmp_path, settings({"epochs": 3})))
    kept = read_checkpoint(tmp_path, "last")
    assert good is not None
    assert kept is not None
    assert kept.state["epoch"] == 1
    assert all(torch.equal(value, kept.tensors[name]) for name, value in good.tensors.items())


def test_training_stops_when_nothing_improves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([10.0, 30.0, 20.0, 20.0, 20.0, 20.0])
    monkeypatch.setattr(loop, "judge", lambda *_: {"chosen_by": next(scores)})
    train(job(tmp_path, settings({"epochs": 20, "patience": 3}), count=8))
    best, last = read_checkpoint(tmp_path, "best"), read_checkpoint(tmp_path, "last")
    assert best is not None
    assert last is not None
    assert (best.state["epoch"], last.state["epoch"]) == (2, 5)
    assert {name.split(".")[0] for name in best.tensors} == {"model"}


def test_the_learning_rate_falls_by_epoch(tmp_path: Path) -> None:
    rows = train(job(tmp_path, settings({"epochs": 3, "learning_rate_drop": 2}), count=8))
    rates = [row["value"] for row in rows if row["name"] == "learning_rate"]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4])


@pytest.mark.parametrize("name", ["moment_detr", "qd_detr"])
@pytest.mark.parametrize("shine", [False, True])
def test_a_last_batch_of_one_query_trains(tmp_path: Path, name: str, shine: bool) -> None:
    rows = train(job(tmp_path, settings({"epochs": 1}, model={"name": name}, losses={"shine": shine}), count=9))
    assert torch.isfinite(torch.tensor([row["value"] for row in rows if row["split"] == "train"])).all()


@pytest.mark.parametrize("change", [{"precision": "bf16"}, {"losses": {"shine": True, "variant": "released"}}])
def test_other_ways_to_train(tmp_path: Path, change: dict[str, Any]) -> None:
    losses = change.pop("losses", {"shine": True})
    rows = train(job(tmp_path, settings({"epochs": 1, **change}, losses=losses), count=8))
    assert torch.isfinite(torch.tensor([row["value"] for row in rows])).all()


class Questions(TorchDispatchMode):
    """Notes what makes the host wait for a device."""

    WAITS = ("_local_scalar_dense", "nonzero", "equal.default", "masked_select", "unique")

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in str(func) for name in self.WAITS):
            self.asked.add(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["moment_detr", "qd_detr", "bm_detr"])
def test_a_step_asks_the_device_for_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # the ways that a GPU goes
    shifted: dict[str, Any] = {"model": {"name": name, "shifting": True}, "losses": {}}
    chosen = settings(**shifted) if name == "bm_detr" else settings(model={"name": name})
    work = job(Path(), chosen)
    system = system_of(work.settings)
    net = system.build(work.videos.channels, work.texts.channels)
    step = TrainingStep(system.objective(net), make_optimiser(system.parameters(net), 1e-4, 1e-4), 0.1)
    batches = system.data(work.train, work.videos, work.texts, torch.device("cpu"))
    step(batches.batch(torch.arange(8)))  # the optimiser's first step sets up
    with Questions() as questions:
        step(batches.batch(torch.arange(8)))
    assert not questions.asked


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    work = job(tmp_path)
    other = system_of(settings(model={"name": "moment_detr"})).build(work.videos.channels, work.texts.channels)
    with pytest.raises(TrainingError, match="another model than QDDETR"):
        train(replace(work, weights=other.state_dict()))
    own = system_of(work.settings).build(97, work.texts.channels).state_dict()
    with pytest.raises(TrainingError, match=r"of another shape: video_projection.*99"):
        train(replace(work, weights=own))


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    train(job(tmp_path, settings({"epochs": 1}), count=8))
    file = next(tmp_path.glob("last-*.safetensors"))
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(RunError, match="damaged"):
        train(job(tmp_path, count=8))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [("last-00001.safetensors", b"\0\0\x80?", b"\0\0\x80@"), ("last.json", b'"loss": 1.5', b'"loss": 2.5')],
)
def test_a_checkpoint_that_was_changed_is_no_other(tmp_path: Path, file: str, old: bytes, new: bytes) -> None:
    """It would load: a weight or a figure is another one."""
    write_checkpoint(tmp_path, "last", Checkpoint({"a": torch.ones(2)}, {"epoch": 1, "loss": 1.5}))
    content = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(content.replace(old, new, 1))
    assert (tmp_path / file).read_bytes() != content
    with pytest.raises(RunError, match=rf"{file} was changed.*train again"):
        read_checkpoint(tmp_path, "last")


def test_the_last_epoch_is_taken_for_the_best_only_where_none_was_chosen(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "last", Checkpoint({"a": torch.ones(2)}, {"epoch": 1, "best": None}))
    assert read_best(tmp_path) is not None
    write_checkpoint(tmp_path, "last", Checkpoint({"a": torch.ones(2)}, {"epoch": 1, "best": 40.0}))
    with pytest.raises(RunError, match=r"best\.json is missing"):
        read_best(tmp_path)


def test_a_checkpoint_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, "last", Checkpoint({"a": torch.ones(2)}, {"epoch": 1}))

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_checkpoint(tmp_path, "last", Checkpoint({"a": torch.zeros(2)}, {"epoch": 2}))
    found = read_checkpoint(tmp_path, "last")
    assert found is not None
    assert found.state["epoch"] == 1
    assert torch.equal(found.tensors["a"], torch.ones(2))


def test_the_order_of_the_data_follows_from_seed_and_epoch() -> None:
    assert torch.equal(epoch_order(50, 1, 3), epoch_order(50, 1, 3))
    assert not torch.equal(epoch_order(50, 1, 3), epoch_order(50, 1, 4))
    assert not torch.equal(epoch_order(50, 1, 3), epoch_order(50, 2, 3))
    assert sorted(epoch_order(50, 1, 3).tolist()) == list(range(50))


def test_validation_holds_out_whole_videos() -> None:
    videos = [f"v{n % 40}" for n in range(200)]
    chosen = held_out_videos(videos, 0.1, seed=0)
    assert len(chosen) == 4
    assert held_out_videos(videos, 0.1, seed=0) == chosen
    assert held_out_videos(videos, 0.0, seed=0) == set()
    assert held_out_videos(["v0"], 0.5, seed=0) == set()


def test_memory_is_kept_where_glibc_is() -> None:
    assert keep_memory() in (True, False)


# -- settings ------------------------------------------------------------------------------------------------------


def groups(**changes: Any) -> dict[str, Any]:
    usual = {"model": QDDETRConfig(), "training": Training(), "inputs": Inputs(), "ranking": Ranking()}
    return {**usual, **changes}


CALLED_BY_PURPOSE = {"charades-cg-simulated": "qd_detr-shine", "scenes-demo": "mmn-shine", "scenes-grounder": "mmn"}


@pytest.mark.parametrize("name", sorted(presets()))
def test_every_preset_is_one_that_can_be_trained(name: str) -> None:
    chosen = with_preset(name, groups())
    told = CALLED_BY_PURPOSE.get(name, name)
    assert chosen.model.loss_settings.needs_hard == ("shine" in told)  # type: ignore[attr-defined]
    assert chosen.model.name in told
    assert {"features", "clip_length"} == set(presets()[name]["needs"])


def test_a_run_of_settings_that_are_no_longer_taken_is_named(store: Store) -> None:
    work = Work("tiny", "metrics", 1, {"settings": {"model": {"name": "gone"}}})
    store.build(work, [lambda: Part(table_of("metrics", []), 0, 0)])
    with pytest.raises(
        RunError, match=rf"run {work.key} of tiny has settings that can't be used \(model: Input tag 'gone'"
    ):
        settings_of(store.find()[0])
    with pytest.raises(ArtifactError, match=f"no tiny/metrics matches 'x'; the newest: {work.key}"):
        chosen_run("tiny", "x")


def test_what_is_said_explicitly_beats_the_preset() -> None:
    chosen = with_preset("charades-cg-moment_detr-shine", groups(training=Training(epochs=3)))
    assert (chosen.training.epochs, chosen.training.learning_rate, chosen.model.reads_negatives) == (3, 2e-4, True)
    with pytest.raises(SettingsError, match="no preset 'charades': did you mean charades-"):
        with_preset("charades", groups())
    with pytest.raises(ValueError, match="multiple of 4"):
        Settings(model=QDDETRConfig(hidden=18, heads=4))


def test_a_query_with_fewer_negatives_trains_and_is_counted(tmp_path: Path) -> None:
    prepared = data(8, levels=2)
    assert prepared.notes == {"query with 2 of 3 hard negatives": 8}
    work = replace(job(tmp_path, settings({"epochs": 1}), count=8), train=prepared)
    terms = {row["name"]: row["value"] for row in train(work)}
    assert terms["fine_2"] > 0
    assert terms["fine_3"] == 0
