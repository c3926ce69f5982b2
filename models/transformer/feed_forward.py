"""The feed-forward branch of a layer: linear, ReLU or PReLU with one slope, dropout, linear."""

from typing import Literal

import torch
from torch import Tensor, nn

from models.transformer.dropout import Dropout

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
        inner = self.linear1(values)
        inner = inner.relu() if self.slope is None else inner.relu() + self.slope * inner.clamp(max=0)
        out: Tensor = self.linear2(self.dropout(inner))
        return out
