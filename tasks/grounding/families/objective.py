"""Model and losses as one module, and the precision that they are computed in."""

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from penumbra.models.grounding import GroundingModel
from penumbra.models.losses.settings import LossSettings
from penumbra.models.losses.total import compute_losses
from penumbra.tasks.grounding.batches.device_data import Batch


def autocast(device: torch.device, bf16: bool) -> contextlib.AbstractContextManager[Any]:
    """bf16 autocast on the device, or nothing."""
    return torch.autocast(device.type, torch.bfloat16) if bf16 else contextlib.nullcontext()


class Objective(nn.Module):
    """A DETR and its losses, so that what several processes share sees which weights a loss really reaches."""

    def __init__(self, model: GroundingModel, losses: LossSettings, bf16: bool = False) -> None:
        super().__init__()
        self.model, self.losses, self.bf16 = model, losses, bf16

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The total with gradient, and all terms without."""
        with autocast(batch.inputs.video.device, self.bf16):
            outputs = self.model(batch.inputs, negative=self.losses.needs_negative)
        found = compute_losses(outputs, batch.targets, self.losses)
        return found.total, found.terms
