"""One training step: forward, losses, backward, clipping, optimiser, with no wait for the device in between."""

import contextlib
from typing import Any

import torch
from penumbra.models.grounding import GroundingModel
from penumbra.models.losses.settings import LossSettings
from penumbra.models.losses.total import compute_losses
from penumbra.tasks.grounding.batches.device_data import Batch
from torch import Tensor, nn


def make_optimiser(
    groups: list[dict[str, Any]], learning_rate: float, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999)
) -> torch.optim.AdamW:
    """AdamW over groups of weights (`System.parameters`), in one fused kernel where the device has one."""
    fused = groups[0]["params"][0].device.type in ("cpu", "cuda")
    return torch.optim.AdamW(groups, learning_rate, betas, weight_decay=weight_decay, fused=fused)


def autocast(device: torch.device, bf16: bool) -> contextlib.AbstractContextManager[Any]:
    """bf16 autocast on the device, or nothing."""
    return torch.autocast(device.type, torch.bfloat16) if bf16 else contextlib.nullcontext()


class Objective(nn.Module):
    """Model and losses as one module, so that what several processes share sees which weights a loss really reaches."""

    def __init__(self, model: GroundingModel, losses: LossSettings, bf16: bool = False) -> None:
        super().__init__()
        self.model, self.losses, self.bf16 = model, losses, bf16

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The total with gradient, and all terms without."""
        with autocast(batch.inputs.video.device, self.bf16):
            outputs = self.model(batch.inputs, negative=self.losses.needs_negative)
        found = compute_losses(outputs, batch.targets, self.losses)
        return found.total, found.terms


class TrainingStep:
    """Calls add up to training; `objective` may be compiled, or wrapped for several devices.

    A step's positives, the batch's negatives and the hard negatives pass the encoder as one batch, and only the
    positives the decoder (`GroundingModel.forward`).
    """

    def __init__(
        self, objective: Any, optimiser: Any, clip_norm: float, backward: Any = torch.Tensor.backward
    ) -> None:  # fmt: skip
        self.objective, self.optimiser, self.clip_norm, self.backward = objective, optimiser, clip_norm, backward

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Train on a batch; returns the total, each term and the gradient's norm, on the device."""
        total, terms = self.objective(batch)
        self.backward(total)
        norm = nn.utils.clip_grad_norm_(self.objective.parameters(), self.clip_norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return {"total": total.detach(), "gradient_norm": norm.detach(), **terms}
