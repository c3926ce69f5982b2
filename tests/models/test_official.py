"""Official checkpoint files as they are published: options of several kinds, wrapped names, and fine-tuning."""

import argparse
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from penumbra.models.checkpoints import read_official
from penumbra.tasks.grounding.runs import RunError
from penumbra.tasks.grounding.training.checkpoints import read_weights
from penumbra.tasks.grounding.training.loop import train
from tests.grounding_data import job, settings


def options_of(kind: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    if kind == "dict":
        return {"nheads": 4}
    if kind == "namespace":
        return argparse.Namespace(nheads=4)
    module = types.ModuleType("easydict")
    exec("class EasyDict(dict):\n    pass", module.__dict__)
    module.EasyDict.__module__ = "easydict"
    monkeypatch.setitem(sys.modules, "easydict", module)
    found = module.EasyDict(nheads=4)
    found.nheads = 4  # the real one keeps its values as attributes too
    return found


@pytest.mark.parametrize("kind", ["dict", "namespace", "easydict"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_options_of_all_kinds_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, wrapped: bool
) -> None:
    name = "module.class_embed.bias" if wrapped else "class_embed.bias"
    content = {"model": {name: torch.ones(2)}, "opt": options_of(kind, monkeypatch), "epoch": 3}
    torch.save(content, tmp_path / "model.ckpt")
    monkeypatch.delitem(sys.modules, "easydict", raising=False)
    weights = read_official(tmp_path / "model.ckpt")
    assert torch.equal(weights["class_head.bias"], torch.ones(2))


def test_fine_tuning_starts_from_a_checkpoint(tmp_path: Path) -> None:
    first = settings({"epochs": 2})
    train(*job(tmp_path / "first", first, count=8))
    weights = read_weights(str(tmp_path / "first"))
    for epochs, tolerance in ((0, 0.0), (1, 1e-6)):
        later_on = {"epochs": epochs, "learning_rate": 1e-9, "start_from": str(tmp_path / "first")}
        train(*job(tmp_path / str(epochs), settings(later_on), count=8))
        later = read_weights(str(tmp_path / str(epochs)))
        for name, value in weights.items():
            torch.testing.assert_close(later[name], value, atol=tolerance, rtol=0)
    with pytest.raises(RunError, match="holds no checkpoint"):
        read_weights(str(tmp_path))
    with pytest.raises(RunError, match="can't be read as weights alone"):
        read_weights(str(tmp_path / "none.ckpt"))
