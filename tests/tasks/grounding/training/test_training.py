"""The training loop: same numbers again, also after a stop; and what goes wrong on the way."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.grounding.configs import Training
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.prediction import Grounder
from penumbra.tasks.grounding.runs import RunError
from penumbra.tasks.grounding.training import loop
from penumbra.tasks.grounding.training.checkpoints import Checkpoint, read_best, read_checkpoint, write_checkpoint
from penumbra.tasks.grounding.training.loop import TrainingStep, train
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.grounding.training.stage import held_out_videos, settings_of
from tests.grounding_data import CHANNELS, job, settings
from tests.rows import build

pytestmark = pytest.mark.slow


def numbers(rows: list[dict[str, Any]]) -> list[tuple[int, str, str, float]]:
    """Everything that must be the same again: all but the time it took."""
    return [(row["epoch"], row["split"], row["name"], row["value"]) for row in rows if row["name"] != "seconds"]


def last(folder: Path) -> Checkpoint:
    return read_checkpoint(folder, "last")


def test_training_learns_and_the_seed_decides_the_numbers(tmp_path: Path) -> None:
    first, second = (train(*job(tmp_path / name, settings({"epochs": 8}))) for name in "ab")
    assert [row[:3] for row in numbers(first)] == [row[:3] for row in numbers(second)]
    assert [row[3] for row in numbers(first)] == pytest.approx([row[3] for row in numbers(second)], rel=1e-4, abs=1e-5)
    totals = [row["value"] for row in first if row["name"] == "total"]
    assert totals[-1] < 0.8 * totals[0]
    other_seed = train(*job(tmp_path / "c", settings({"epochs": 1, "seed": 7})))
    assert [row["value"] for row in other_seed if row["name"] == "total"] != pytest.approx(totals[:1], rel=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_step_that_is_replayed_on_a_gpu_gives_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    graphed = train(*job(tmp_path / "graphed", settings({"epochs": 8})))
    monkeypatch.setattr(loop, "GraphedStep", lambda step: step)
    plain = train(*job(tmp_path / "plain", settings({"epochs": 8})))
    assert [row[3] for row in numbers(graphed)] == pytest.approx([row[3] for row in numbers(plain)], rel=1e-3, abs=1e-4)


def test_a_run_that_is_resumed_ends_with_the_same_bytes(tmp_path: Path) -> None:
    chosen = settings({"epochs": 6, "evaluate_every": 3})
    whole = train(*job(tmp_path / "whole", chosen))
    train(*job(tmp_path / "parts", settings({"epochs": 3, "evaluate_every": 3})))
    assert numbers(train(*job(tmp_path / "parts", chosen))) == numbers(whole)
    one, other = (last(tmp_path / name).tensors for name in ("parts", "whole"))
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_loss_that_is_not_finite_keeps_the_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(*job(tmp_path, settings({"epochs": 1})))
    good, whole_step, calls = last(tmp_path), TrainingStep.__call__, []

    def step(self: Any, batch: Any) -> Any:
        calls.append(None)
        if len(calls) == 2:
            batch[0].video[0, 0, 0] = torch.nan
        return whole_step(self, batch)

    monkeypatch.setattr(TrainingStep, "__call__", step)
    with pytest.raises(RunError, match=r"not a finite number at step 5 \(epoch 2\).*of epoch 1 is kept in"):
        train(*job(tmp_path, settings({"epochs": 3})))
    kept = last(tmp_path)
    assert kept.state["epoch"] == 1
    assert all(torch.equal(value, kept.tensors[name]) for name, value in good.tensors.items())


def test_training_stops_when_nothing_improves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([10.0, 30.0, 20.0, 20.0, 20.0, 20.0])
    monkeypatch.setattr(loop, "validation_metrics", lambda *_: {"chosen_by": next(scores)})
    train(*job(tmp_path, settings({"epochs": 20, "patience": 3}), count=8))
    best = read_best(tmp_path)
    assert (best.state["epoch"], last(tmp_path).state["epoch"]) == (2, 5)
    assert {name.split(".")[0] for name in best.tensors} == {"model"}


def test_the_learning_rate_falls_at_milestones() -> None:
    for milestones, rates in ((2, [1, 1, 0.1, 0.1, 0.01]), ((1, 3), [1, 0.1, 0.1, 0.01, 0.01])):
        config = Training(learning_rate=1.0, milestones=milestones)
        assert [config.learning_rate_at(epoch) for epoch in range(5)] == pytest.approx(rates)


@pytest.mark.parametrize("name", ["moment_detr", "qd_detr"])
@pytest.mark.parametrize(("training", "shine"), [({}, False), ({"precision": "bf16"}, True)])
def test_a_last_batch_of_one_query_trains(tmp_path: Path, name: str, shine: bool, training: dict[str, Any]) -> None:
    chosen = settings({"epochs": 1, **training}, model={"name": name}, losses={"shine": shine})
    rows = train(*job(tmp_path, chosen, count=9))
    assert torch.isfinite(torch.tensor([row["value"] for row in rows if row["split"] == "train"])).all()


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    others = (
        (settings(model={"name": "moment_detr"}), CHANNELS, r"another model than QDDETR: missing: .*; unknown: "),
        (settings(), 97, r"of another shape: video_projection.*99"),
    )
    for number, (chosen, width, message) in enumerate(others):
        weights = system_of(chosen).build(width, CHANNELS).state_dict()
        start = tmp_path / f"start {number}"
        write_checkpoint(start, "best", Checkpoint({f"model.{name}": it for name, it in weights.items()}, {"epoch": 1}))
        with pytest.raises(RunError, match=message):
            train(*job(tmp_path / "run", settings({"start_from": str(start)})))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("last-00001.safetensors", b"\0\0\x80?", b"\0\0\x80@"),
        ("last-00001.safetensors", b"\0\0\x80?\0\0\x80?", b""),
        ("last.json", b'"loss": 1.5', b'"loss": 2.5'),
    ],
)
def test_a_checkpoint_that_was_changed_is_refused(tmp_path: Path, file: str, old: bytes, new: bytes) -> None:
    write_checkpoint(tmp_path, "last", Checkpoint({"a": torch.ones(2)}, {"epoch": 1, "loss": 1.5}))
    content = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(content.replace(old, new, 1))
    assert (tmp_path / file).read_bytes() != content
    with pytest.raises(RunError, match=rf"{file} was changed.*train again"):
        read_checkpoint(tmp_path, "last")


def test_the_best_epoch_is_not_lost_silently(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "last", Checkpoint({"a": torch.ones(2)}, {"epoch": 1, "best": 40.0}))
    with pytest.raises(RunError, match=r"best\.json is missing"):
        read_best(tmp_path)


def test_a_checkpoint_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, "last", Checkpoint({"a": torch.ones(2)}, {"epoch": 1}))

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_checkpoint(tmp_path, "last", Checkpoint({"a": torch.zeros(2)}, {"epoch": 2}))
    assert last(tmp_path).state["epoch"] == 1
    assert torch.equal(last(tmp_path).tensors["a"], torch.ones(2))


def test_validation_holds_out_whole_videos() -> None:
    videos = [f"v{n % 40}" for n in range(200)]
    chosen = held_out_videos(videos, 0.1, seed=0)
    assert len(chosen) == 4
    assert held_out_videos(videos, 0.1, seed=0) == chosen
    assert held_out_videos(videos, 0.0, seed=0) == set()
    assert held_out_videos(["v0"], 0.5, seed=0) == set()


def test_keys_hold_parameters_under_their_first_names() -> None:
    training, inputs = {"milestones": 150, "validation": 0.1}, {"video_features": ["i3d"], "text_features": "words"}
    first = Settings.model_validate({"training": training, "inputs": inputs}).key_parameters()
    assert (first["model"], first["training"]) == ({"name": "qd_detr"}, {"learning_rate_drop": 150, "held_out": 0.1})
    assert first["inputs"] == {"video_encoders": ["i3d"], "text_encoder": "words"}
    named = Settings.model_validate({"inputs": {"video_features": ["0123abcd"], "text_features": "beef"}})
    assert named.key_parameters() == Settings().key_parameters(), "artifacts are parents"


def test_a_run_whose_settings_can_not_be_used_is_named(store: Store) -> None:
    run = build(store, "metrics", [], parameters={"settings": {"model": {"name": "gone"}}}, dataset="tiny")
    with pytest.raises(RunError, match=rf"run {run.key} of tiny has settings .* can't use \(model: Input tag 'gone'"):
        settings_of(store.find()[0])
    with pytest.raises(ArtifactError, match="no run is called '99999999'"):
        Grounder.of_run(99999999)  # type: ignore[arg-type]
