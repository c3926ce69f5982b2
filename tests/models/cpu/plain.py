"""Models run by their plain formulations on a CPU, with the dropout masks that the CPU forms would draw."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from penumbra.models.cpu import dispatch
from penumbra.models.cpu.dropout import keep_mask


def dropout(values: Tensor, p: float) -> Tensor:
    return values * keep_mask(values.shape, p, values.dtype) / (1 - p) if p else values


def attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, dropout_p: float) -> Tensor:
    logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return dropout((logits if attn_mask is None else logits + attn_mask).softmax(-1), dropout_p) @ v


@contextmanager
def plainly() -> Iterator[None]:
    """Plain formulations in here; their torch functions draw the CPU forms' masks, one by one as they are called."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "_is_eager_on_cpu", lambda _: False)
        patch.setattr(functional, "dropout", dropout)
        patch.setattr(functional, "scaled_dot_product_attention", attention)
        yield


def gradients(out: Tensor, net: torch.nn.Module, *values: Tensor) -> list[Tensor]:
    """Of a weighted sum of what a model gives, by the values and the parameters that have any."""
    weight = torch.linspace(-1, 1, out.numel()).view(out.shape)
    wanted = [tensor for tensor in (*values, *net.parameters()) if tensor.requires_grad]
    found = torch.autograd.grad((out.float() * weight).sum(), wanted, allow_unused=True)
    return [torch.zeros_like(of) if by is None else by for by, of in zip(found, wanted, strict=True)]
