"""A training's scalars in the files of TensorBoard and Weights & Biases, read back."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penumbra.tasks.grounding.runs import RunError
from penumbra.tasks.grounding.training.logs import Row, progress_shown
from tests.grounding_data import settings

pytestmark = pytest.mark.slow

EXTRA = "is an extra: pip install 'penumbra[{}]'"


def history(epochs: int) -> list[Row]:
    usual = {"split": "train", "name": "total"}
    return [{**usual, "epoch": epoch, "step": 3 * epoch, "value": 1 / epoch} for epoch in range(1, epochs + 1)]


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")])
def test_a_missing_package_is_named(name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    message = rf"^training\.log={name} needs a package \(.*\): pip install 'penumbra\[{name}\]'$"
    with pytest.raises(RunError, match=message):
        progress_shown(settings({"log": [name]}), tmp_path, "mine", "run").__enter__()


def test_tensorboard_has_every_scalar_and_no_step_twice_after_a_kill(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason=EXTRA.format("tensorboard"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for epochs in ((3, 4), (6,)):  # the fourth is lost by the kill, whose checkpoint is of the third
        with progress_shown(settings({"log": ["tensorboard"]}), tmp_path, "mine", "run") as log:
            for epoch in epochs:
                log(history(epoch), 1.0, 1.0)
    events = EventAccumulator(str(tmp_path / "tensorboard" / "run")).Reload().Scalars("train/total")
    rows = [(row["step"], pytest.approx(row["value"], rel=1e-5)) for row in history(6)]
    assert [(event.step, event.value) for event in events] == rows


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The package, with nothing of this user's, and nothing kept of the test before."""
    package = pytest.importorskip("wandb", reason=EXTRA.format("wandb"))
    for name, value in {"NETRC": str(tmp_path / "none"), "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    package.teardown()
    yield package
    package.teardown()


def test_wandb_writes_offline_and_no_key(wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", "5ecret" * 7)
    folder = tmp_path / "abcd0123abcd0123"
    folder.mkdir()
    chosen = settings({"log": ["wandb"]})
    with progress_shown(chosen, folder, "mine", "qd_detr-abcd01") as log:
        log(history(4), 1.0, 1.0)
    [file] = folder.glob("wandb/offline-run-*/run-abcd0123abcd0123.wandb")
    assert file.stat().st_size
    for path in folder.rglob("*"):
        assert path.is_dir() or b"5ecret" not in path.read_bytes(), path


def test_a_service_without_a_key_is_an_error_at_once(
    wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(RunError, match="set WANDB_API_KEY, or WANDB_MODE=offline"):
        progress_shown(settings({"log": ["wandb"]}), tmp_path, "mine", "run").__enter__()
