"""The feed-forward branch of a layer: linear, ReLU or PReLU with one slope, dropout, linear.

On a CPU it is one function with its own backward: activation and dropout are together one factor an element, which is
multiplied in where the numbers lie, forth and back. Torch's separate operations pass ten times over what is the largest
tensor of a model, and a PReLU's backward alone costs a twentieth of a training step.
"""

from typing import Any, Literal

import torch
from penumbra.models.transformer.dropout import Dropout, kept
from torch import Tensor, nn
from torch.nn import functional

Activation = Literal["relu", "prelu"]


class FeedForward(nn.Module):
    """W2 drop(act(W1 x)); Moment-DETR uses ReLU, QD-DETR and BM-DETR a PReLU with one learned slope a layer."""

    def __init__(self, hidden: int, width: int, dropout: float, activation: Activation) -> None:
        super().__init__()
        self.linear1 = nn.Linear(hidden, width)
        self.linear2 = nn.Linear(width, hidden)
        self.dropout = Dropout(dropout)
        self.slope = nn.Parameter(torch.tensor([0.25])) if activation == "prelu" else None

    def forward(self, values: Tensor) -> Tensor:
        """[..., hidden] to [..., hidden]."""
        if values.device.type == "cpu" and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            slope = 0.0 if self.slope is None else self.slope.item()
            if self.slope is None or slope > 0:  # its backward reads the sign of what went in from what came out
                return self._in_place(values, slope)
        inner = self.linear1(values)
        inner = inner.relu() if self.slope is None else functional.prelu(inner, self.slope.to(inner.dtype))
        out: Tensor = self.linear2(self.dropout(inner))
        return out

    def _in_place(self, values: Tensor, slope: float) -> Tensor:
        tensors = values, self.linear1.weight, self.linear1.bias, self.linear2.weight, self.linear2.bias
        if torch.is_autocast_enabled("cpu"):
            lower = torch.get_autocast_dtype("cpu")
            tensors = tuple(tensor.to(lower) for tensor in tensors)  # type: ignore[assignment]
        p = self.dropout.p if self.training else 0.0
        with torch.autocast("cpu", enabled=False):
            found: Tensor = _FeedForward.apply(*tensors, self.slope, slope, p)  # type: ignore[no-untyped-call]
        return found


class _FeedForward(torch.autograd.Function):
    """(h f) W2 / (1 - p) + b2 with h = x W1 + b1; f is 0 where dropped, else 1 for h > 0 and the slope below."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, parameter: Tensor | None,
        slope: float, p: float,
    ) -> Tensor:  # fmt: skip
        rows = values.reshape(-1, values.shape[-1])
        inner = torch.addmm(b1, rows, w1.t())
        factor = kept(inner.shape, p, inner.dtype) if p else torch.ones_like(inner)
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
