"""The feed-forward branch of a layer: linear, ReLU or PReLU with one slope, dropout, linear."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from penumbra.models.cpu.dispatch import on_cpu
from penumbra.models.cpu.feed_forward import fused_feed_forward
from penumbra.models.dropout import Dropout, dropout

Activation = Literal["relu", "prelu"]


@on_cpu(fused_feed_forward)
def feed_forward(values: Tensor, linear1: nn.Linear, linear2: nn.Linear, slope: Tensor | None, p: float) -> Tensor:
    """W2 drop(act(W1 x)); on a CPU `penumbra.models.cpu.feed_forward` computes the same faster.

    The activation is PReLU with a slope [1], else ReLU; p is dropout's probability.
    """
    inner = linear1(values)
    inner = inner.relu() if slope is None else functional.prelu(inner, slope.to(inner.dtype))
    out: Tensor = linear2(dropout(inner, p))
    return out


class FeedForward(nn.Module):
    """`feed_forward` with its weights; Moment-DETR uses ReLU, QD-DETR and BM-DETR a PReLU with one slope a layer."""

    def __init__(self, hidden: int, width: int, dropout: float, activation: Activation) -> None:
        super().__init__()
        self.linear1 = nn.Linear(hidden, width)
        self.linear2 = nn.Linear(width, hidden)
        self.dropout = Dropout(dropout)
        self.slope = nn.Parameter(torch.tensor([0.25])) if activation == "prelu" else None

    def forward(self, values: Tensor) -> Tensor:
        """[..., hidden] to [..., hidden]."""
        return feed_forward(values, self.linear1, self.linear2, self.slope, self.dropout.rate)
