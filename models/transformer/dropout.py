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


def kept(shape: torch.Size | tuple[int, ...], p: float, dtype: torch.dtype) -> Tensor:
    """Ones on the CPU, and zeros with probability p."""
    count = math.prod(shape)
    words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(_LOWEST, None)
    threshold = int(256 * p + torch.rand(()).item())
    flags = torch.empty(count, dtype=dtype)
    if threshold > 255:
        return flags.zero_().view(shape)
    return torch.ge(words.view(torch.uint8)[:count], threshold, out=flags).view(shape)


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
        if not cheaply(values):
            return nn.functional.dropout(values, self.p)
        return values * kept(values.shape, self.p, values.dtype).mul_(1 / (1 - self.p))

    def onto(self, residual: Tensor, branch: Tensor) -> Tensor:
        """The residual and what is left of the branch."""
        if not self.training or self.p == 0:
            return residual + branch
        if not cheaply(branch):
            return residual + nn.functional.dropout(branch, self.p)
        return torch.add(residual, branch * kept(branch.shape, self.p, branch.dtype), alpha=1 / (1 - self.p))

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"p={self.p}"


def cheaply(values: Tensor) -> bool:
    """Whether these are numbers of a CPU that no compiler looks at: a GPU and a compiler draw quickly by themselves."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()
