"""One training step: forward, losses, backward, clipping, optimiser, with no wait for the device in between."""

from typing import Any

import torch
from torch import Tensor, nn


def make_optimiser(
    groups: list[dict[str, Any]], learning_rate: float, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999)
) -> torch.optim.AdamW:
    """AdamW over groups of weights (`System.parameters`), in one fused kernel where the device has one."""
    fused = groups[0]["params"][0].device.type in ("cpu", "cuda")
    return torch.optim.AdamW(groups, learning_rate, betas, weight_decay=weight_decay, fused=fused)


class TrainingStep:
    """Calls add up to training; `objective` (`System.objective`) may be compiled, or wrapped for several devices."""

    def __init__(self, objective: Any, optimiser: Any, clip_norm: float, backward: Any = torch.Tensor.backward) -> None:
        self.objective, self.optimiser, self.clip_norm, self.backward = objective, optimiser, clip_norm, backward

    def __call__(self, batch: Any) -> dict[str, Tensor]:
        """Train on a batch; returns the total, each term and the gradient's norm, on the device."""
        total, terms = self.objective(batch)
        self.backward(total)
        norm = nn.utils.clip_grad_norm_(self.objective.parameters(), self.clip_norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return {"total": total.detach(), "gradient_norm": norm.detach(), **terms}
