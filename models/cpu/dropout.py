"""Dropout whose random numbers cost little on a CPU.

Torch draws a Bernoulli number an element with one thread, a fifth to a quarter of a training step. Here one byte an
element is cut from 64-bit draws of the same seeded generator, so that torch's random state is the whole state. A byte
knows 256 levels only; the threshold is therefore rounded up or down at random, once a call, so that every element is
dropped with probability p exactly.
"""

import math

import torch
from torch import Tensor


def keep_mask(shape: torch.Size | tuple[int, ...], p: float, dtype: torch.dtype) -> Tensor:
    """Ones on the CPU, and zeros with probability p."""
    count = math.prod(shape)
    words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
    threshold = int(256 * p + torch.rand(()).item())
    mask = torch.empty(count, dtype=dtype)
    if threshold > 255:
        return mask.zero_().view(shape)
    return torch.ge(words.view(torch.uint8)[:count], threshold, out=mask).view(shape)


def dropout_by_bytes(values: Tensor, p: float) -> Tensor | None:
    """`models.dropout.dropout`."""
    return values * keep_mask(values.shape, p, values.dtype).mul_(1 / (1 - p)) if p else None


def add_dropped_by_bytes(residual: Tensor, branch: Tensor, p: float) -> Tensor | None:
    """`models.dropout.add_dropped`, in one pass over the branch and one over the sum."""
    return torch.add(residual, branch * keep_mask(branch.shape, p, branch.dtype), alpha=1 / (1 - p)) if p else None
