"""Checkpoints of a run: one safetensors file with everything that is numbers, and a JSON file that names it.

The JSON file is replaced last and in one go, so that a run killed at any moment leaves the checkpoint before, whole.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from penumbra.artifacts.errors import PenumbraError


class RunError(PenumbraError):
    """A run's files are missing or damaged."""


@dataclass
class Checkpoint:
    """Weights under "model.", the optimiser's state under "optimiser.", random states under "random.", and the rest."""

    tensors: dict[str, Tensor]
    state: dict[str, Any] = field(default_factory=dict)

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors below a prefix, without it."""
        return {name.removeprefix(prefix): value for name, value in self.tensors.items() if name.startswith(prefix)}


def write_checkpoint(folder: Path, name: str, checkpoint: Checkpoint) -> None:
    """Write `<name>.json` and the tensors that it names; what it named before is taken away afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    described = folder / f"{name}.json"
    file = f"{name}-{checkpoint.state['epoch']:05d}.safetensors"
    draft = folder / f".{file}.{os.getpid()}"
    save_file({key: value.detach().cpu().contiguous() for key, value in checkpoint.tensors.items()}, draft)
    with draft.open("rb") as stream:
        os.fsync(stream.fileno())
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    os.replace(draft, folder / file)
    state = {**checkpoint.state, "tensors": file, "tensors_sha256": digest}
    draft = folder / f".{name}.json.{os.getpid()}"
    draft.write_text(json.dumps({**state, "sha256": _digest(state)}, indent=1), encoding="utf-8")
    os.replace(draft, described)
    for old in folder.glob(f"{name}-*.safetensors"):
        if old.name != file:
            old.unlink()


def read_checkpoint(folder: Path, name: str) -> Checkpoint | None:
    """The checkpoint of this name, or None where there is none; raises `RunError` where it is damaged.

    Those of older versions have no digests.
    """
    described = folder / f"{name}.json"
    if not described.is_file():
        return None
    try:
        state = json.loads(described.read_text(encoding="utf-8"))
        tensors = folder / state["tensors"]
        if state.pop("sha256", None) not in (None, _digest(state)):
            raise ValueError(f"{described.name} was changed")
        with tensors.open("rb") as stream:
            if state.get("tensors_sha256") not in (None, hashlib.file_digest(stream, "sha256").hexdigest()):
                raise ValueError(f"{tensors.name} was changed")
        return Checkpoint(load_file(tensors), state)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise RunError(
            f"{described} or its tensors are damaged ({error}): take the folder away and train again"
        ) from None


def read_best(folder: Path) -> Checkpoint | None:
    """The checkpoint of the best epoch, or the last one's where none was chosen; raises `RunError` for damage."""
    found = read_checkpoint(folder, "best")
    if found is None:
        found = read_checkpoint(folder, "last")
        if found and found.state.get("best") is not None:
            raise RunError(f"{folder}/best.json is missing: take the folder away and train again")
    return found


def _digest(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def optimiser_tensors(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """AdamW's moments and step counts by parameter name."""
    return {
        f"{kind}.{name}": value
        for name, parameter in model.named_parameters()
        for kind, value in optimiser.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(model: nn.Module, optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimiser_tensors` gave."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        kind, _, name = key.partition(".")
        parameter = parameters[name]
        place = value if kind == "step" and parameter.device.type == "cpu" else value.to(parameter.device)
        optimiser.state[parameter][kind] = place.clone()
