"""A training's scalars in the files of TensorBoard and Weights & Biases, read back."""

import json
import struct
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from penumbra.tasks.grounding.runs import RunError
from penumbra.tasks.grounding.training.logs import Progress, Row, progress_shown
from penumbra.tasks.grounding.training.loop import train
from tests.grounding_data import job, settings

pytestmark = pytest.mark.slow

EXTRA = "is an extra: pip install 'penumbra[{}]'"


def expected(rows: list[Row]) -> dict[str, list[tuple[int, float]]]:
    ordered = sorted(rows, key=lambda row: (row["split"], row["name"], row["step"]))
    return {
        "/".join(name): [(row["step"], pytest.approx(row["value"], rel=1e-5)) for row in several]
        for name, several in groupby(ordered, key=lambda row: (row["split"], row["name"]))
    }


def history(epochs: int) -> list[Row]:
    return [
        {"epoch": epoch, "step": 3 * epoch, "split": "train", "name": "total", "value": 1 / epoch}
        for epoch in range(1, epochs + 1)
    ]


def told(log: Any, rows: list[Row]) -> None:
    log(Progress(rows[-1]["epoch"], 9, rows, None, 1.0, 1.0))


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")])
def test_a_package_that_is_not_there_is_named_with_its_remedy(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        RunError, match=rf"^training\.log={name} needs a package \(.*\): pip install 'penumbra\[{name}\]'$"
    ):
        progress_shown(settings({"log": [name]}), tmp_path, "mine", "run").__enter__()


class Events:
    """TensorBoard's own reader."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        self.events = EventAccumulator(str(folder)).Reload()

    def scalars(self) -> Mapping[str, list[tuple[int, float]]]:
        names = set(self.events.Tags()["scalars"]) - {"epoch"}
        return {name: [(event.step, event.value) for event in self.events.Scalars(name)] for name in names}


def test_tensorboard_reads_every_scalar_of_a_training(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason=EXTRA.format("tensorboard"))
    chosen = settings({"epochs": 3, "log": ["tensorboard"]})
    with progress_shown(chosen, tmp_path, "mine", "qd_detr-ab12cd") as log:
        rows = train(job(tmp_path, chosen), log)
    found = Events(tmp_path / "tensorboard" / "qd_detr-ab12cd").scalars()
    assert found == expected(rows)
    assert {"train/total", "validation/mIoU"} <= found.keys()


def test_a_run_that_goes_on_has_no_step_twice(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason=EXTRA.format("tensorboard"))
    chosen = settings({"log": ["tensorboard"]})
    with progress_shown(chosen, tmp_path, "mine", "run") as log:
        told(log, history(3))
        told(log, history(4))  # lost by the kill, whose checkpoint is of the third
    with progress_shown(chosen, tmp_path, "mine", "run") as log:
        told(log, history(6))
    assert Events(tmp_path / "tensorboard" / "run").scalars() == expected(history(6))


def records(data: bytes) -> Iterator[Any]:
    """The records of a .wandb file: a log as LevelDB writes it, after a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    block, header, whole = 1 << 15, 7, b""
    at = header
    while at + header <= len(data):
        if block - at % block < header:
            at += block - at % block  # nothing begins so near to a block's end
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + header : at + header + size]
        at += header + size
        if kind in (1, 4):  # whole, or its last piece
            yield Record.FromString(whole)
            whole = b""


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The package, with nothing of this user's, and nothing kept of the test before."""
    package = pytest.importorskip("wandb", reason=EXTRA.format("wandb"))
    for name, value in {"NETRC": str(tmp_path / "none"), "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    package.teardown()
    yield package
    package.teardown()


def test_wandb_writes_offline_every_scalar_and_no_key(
    wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", "5ecret" * 7)
    folder = tmp_path / "abcd0123abcd0123"
    folder.mkdir()
    chosen = settings({"log": ["wandb"]})
    with progress_shown(chosen, folder, "mine", "qd_detr-abcd01") as log:
        told(log, history(2))
        told(log, history(4))
    [file] = folder.glob("wandb/offline-run-*/run-abcd0123abcd0123.wandb")
    found, name = [], ""
    for record in records(file.read_bytes()):
        name = record.run.display_name or name
        row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        found += [(row["_step"], row["train/total"], row["epoch"])] if row else []
    assert name == "qd_detr-abcd01"
    assert found == [(row["step"], row["value"], row["epoch"]) for row in history(4)]
    for path in folder.rglob("*"):
        assert path.is_dir() or b"5ecret" not in path.read_bytes(), path


def test_a_service_that_takes_nothing_is_told_before_the_first_epoch(
    wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(RunError, match="set WANDB_API_KEY, or WANDB_MODE=offline"):
        progress_shown(settings({"log": ["wandb"]}), tmp_path, "mine", "run").__enter__()
