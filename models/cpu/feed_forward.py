"""The feed-forward branch as one function with its own backward.

Activation and dropout are together one factor an element, which is multiplied in where the numbers lie, forth and back.
Torch's separate operations pass ten times over what is the largest tensor of a model, and a PReLU's backward alone
costs a twentieth of a training step.
"""

from typing import Any

import torch
from torch import Tensor, nn

from penumbra.models.cpu.dropout import keep_mask


def fused_feed_forward(
    values: Tensor, linear1: nn.Linear, linear2: nn.Linear, slope: Tensor | None, p: float
) -> Tensor | None:
    """`models.transformer.feed_forward.feed_forward`; None without gradients, or where a PReLU's slope is not positive.

    The backward reads the sign of the activation's input from its output.
    """
    if not torch.is_grad_enabled():
        return None
    below = 0.0 if slope is None else slope.item()
    if slope is not None and below <= 0:
        return None
    tensors = values, linear1.weight, linear1.bias, linear2.weight, linear2.bias
    if torch.is_autocast_enabled("cpu"):
        lower = torch.get_autocast_dtype("cpu")
        tensors = tuple(tensor.to(lower) for tensor in tensors)  # type: ignore[assignment]
    with torch.autocast("cpu", enabled=False):
        out: Tensor = _FeedForward.apply(*tensors, slope, below, p)  # type: ignore[no-untyped-call]
    return out


class _FeedForward(torch.autograd.Function):
    """(h f) W2 / (1 - p) + b2 with h = x W1 + b1; f is 0 where dropped, else 1 for h > 0 and the slope below."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        w1: Tensor,
        b1: Tensor,
        w2: Tensor,
        b2: Tensor,
        parameter: Tensor | None,
        slope: float,
        p: float,
    ) -> Tensor:
        rows = values.reshape(-1, values.shape[-1])
        inner = torch.addmm(b1, rows, w1.t())
        factor = keep_mask(inner.shape, p, inner.dtype) if p else torch.ones_like(inner)
        torch.ops.aten.leaky_relu_backward.grad_input(factor, inner, slope, False, grad_input=factor)
        inner = inner * factor
        scaled = w2 / (1 - p)
        ctx.save_for_backward(rows, inner, factor, w1, scaled)
        ctx.slope, ctx.p, ctx.has_parameter, ctx.shape = slope, p, parameter is not None, values.shape
        return torch.addmm(b2, inner, scaled.t()).view(*values.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        rows, inner, factor, w1, scaled = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, gradients[0].shape[-1])
        by_w2 = (gradient.t() @ inner) / (1 - ctx.p)
        by_inner = gradient @ scaled
        by_slope = _slope_gradient(by_inner, inner, ctx.slope) if ctx.has_parameter else None
        by_inner = by_inner * factor
        by_rows = (by_inner @ w1).view(ctx.shape)
        return by_rows, by_inner.t() @ rows, by_inner.sum(0), by_w2, gradient.sum(0), by_slope, None, None


def _slope_gradient(by_inner: Tensor, inner: Tensor, slope: float) -> Tensor:
    """The sum [1] of gradient times input over what was negative; there the output is the slope times the input."""
    total = torch.zeros(1, dtype=torch.float32)
    for start in range(0, len(inner), 512):  # small enough for the cache
        below = inner[start : start + 512].clamp(max=0) * by_inner[start : start + 512]
        total += below.sum(dtype=torch.float32)
    return total / slope
