"""Dropout whose random numbers cost little on a CPU.

Torch draws a Bernoulli number an element with one thread, a fifth to a quarter of a training step. Here one byte an
element is cut from 64-bit draws of the same seeded generator, so that torch's random state is the whole state. A byte
knows 256 levels only; the threshold is therefore rounded up or down at random, once a call, so that every element is
dropped with probability p exactly.
"""

import math

import torch
from torch import Tensor, nn

_LOWEST = -(2**63)


def keep_mask(shape: torch.Size | tuple[int, ...], p: float) -> Tensor:
    """A boolean mask of the shape on the CPU: False with probability p."""
    count = math.prod(shape)
    words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(_LOWEST, None)
    threshold = int(256 * p + torch.rand(()).item())
    mask = words.view(torch.uint8)[:count] >= threshold if threshold < 256 else torch.zeros(count, dtype=torch.bool)
    return mask.view(shape)


def scaled_mask(shape: torch.Size | tuple[int, ...], p: float, dtype: torch.dtype) -> Tensor:
    """What dropout multiplies by, on the CPU: 0 with probability p, else 1 / (1 - p)."""
    return keep_mask(shape, p).to(dtype).mul_(1 / (1 - p))


class Dropout(nn.Module):
    """Dropout (Srivastava et al., 2014): drops an element with probability p in training and scales the rest."""

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"a dropout probability is at least 0 and below 1, not {p}")
        self.p = p

    def forward(self, values: Tensor) -> Tensor:
        """The values, or in training some of them."""
        if not self.training or self.p == 0:
            return values
        if values.device.type != "cpu" or torch.compiler.is_compiling():
            return nn.functional.dropout(values, self.p)
        return values * scaled_mask(values.shape, self.p, values.dtype)

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"p={self.p}"
