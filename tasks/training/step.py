"""One training step: forward, losses, backward, clipping, optimiser, with no wait for the device in between."""

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from models.losses.settings import LossSettings
from models.losses.total import compute_losses
from tasks.training.device_data import Batch


def make_optimiser(model: nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW over everything that can be trained, in one fused kernel where the device has one."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    fused = trained[0].device.type in ("cpu", "cuda")
    return torch.optim.AdamW(trained, learning_rate, weight_decay=weight_decay, fused=fused)


class TrainingStep:
    """Calls add up to training; `forward` is the model, compiled or wrapped as the caller likes.

    A step's positives, the batch's negatives and the hard negatives pass the encoder as one batch, and only the
    positives the decoder (`GroundingModel.forward`).
    """

    def __init__(
        self, model: Any, optimiser: Any, losses: LossSettings, *, clip_norm: float, bf16: bool = False,
        backward: Any = torch.Tensor.backward,
    ) -> None:  # fmt: skip
        self.model, self.optimiser, self.losses = model, optimiser, losses
        self.clip_norm, self.bf16, self.backward = clip_norm, bf16, backward

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Train on a batch; returns the total and each term, on the device."""
        device = batch.inputs.video.device.type
        autocast = torch.autocast(device, torch.bfloat16) if self.bf16 else contextlib.nullcontext()
        with autocast:
            outputs = self.model(batch.inputs, negative=self.losses.needs_negative)
        found = compute_losses(outputs, batch.targets, self.losses)
        self.backward(found.total)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return {"total": found.total.detach(), "gradient_norm": norm.detach(), **found.terms}
