"""Checkpoints of a run: a safetensors file with all tensors, and a JSON file with its name and the training state.

The JSON file is replaced last, in one step, so that a run that is killed at any moment keeps its last checkpoint.
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

from penumbra.artifacts.files import Files
from penumbra.models.checkpoints import CheckpointError, read_official
from penumbra.tasks.grounding.runs import RunError, weights_path


@dataclass
class Checkpoint:
    """Tensors of the model (`model.…`), the optimiser (`optimiser.…`) and random states (`random.…`); other state."""

    tensors: dict[str, Tensor]
    state: dict[str, Any] = field(default_factory=dict)

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names begin with a prefix, by the rest of their names."""
        return {name.removeprefix(prefix): value for name, value in self.tensors.items() if name.startswith(prefix)}


def write_checkpoint(folder: Path, name: str, checkpoint: Checkpoint) -> None:
    """Write `<name>.json` and its tensors, and delete the tensors of the checkpoint that it replaces."""
    folder.mkdir(parents=True, exist_ok=True)
    file = f"{name}-{checkpoint.state['epoch']:05d}.safetensors"
    draft = folder / f".{file}.{os.getpid()}"
    save_file({key: value.detach().cpu().contiguous() for key, value in checkpoint.tensors.items()}, draft)
    with draft.open("rb") as stream:
        os.fsync(stream.fileno())
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    os.replace(draft, folder / file)
    state = {**checkpoint.state, "tensors": file, "tensors_sha256": digest}
    Files(str(folder)).write(f"{name}.json", json.dumps({**state, "sha256": _digest(state)}, indent=1).encode())
    for old in folder.glob(f"{name}-*.safetensors"):
        if old.name != file:
            old.unlink()


def read_checkpoint(folder: Path, name: str) -> Checkpoint | None:
    """Return the checkpoint of this name (shipped ones have no digests) or None; raise `RunError` if it is damaged."""
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
        raise RunError(f"{described} or its tensors are damaged ({error}): remove the folder and train again") from None


def _digest(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def read_best(folder: Path) -> Checkpoint | None:
    """Return the checkpoint of the best epoch, or of the last one if none was chosen; raise `RunError` for damage."""
    if best := read_checkpoint(folder, "best"):
        return best
    last = read_checkpoint(folder, "last")
    if last and last.state.get("best") is not None:
        raise RunError(f"{folder}/best.json is missing: remove the folder and train again")
    return last


def read_weights(source: str) -> dict[str, Tensor]:
    """Return the weights that `training.start_from` names: an official file, a run's folder, or shipped weights.

    Raise `RunError` if there are none.
    """
    path = weights_path(source)
    try:
        if not path.is_dir():
            return read_official(path)
    except CheckpointError as error:
        raise RunError(str(error)) from None
    best = read_best(path)
    if best is None:
        raise RunError(f"{path} holds no checkpoint")
    return best.part("model.")


def optimiser_tensors(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return AdamW's moments and step counts by parameter name."""
    return {
        f"{kind}.{name}": value
        for name, parameter in model.named_parameters()
        for kind, value in optimiser.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(model: nn.Module, optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        kind, _, name = key.partition(".")
        parameter = parameters[name]
        on_cpu = kind == "step" and parameter.device.type == "cpu"
        optimiser.state[parameter][kind] = (value if on_cpu else value.to(parameter.device)).clone()
