"""Moment-DETR's decoder: learned moment queries look at the encoded tokens (Lei et al., NeurIPS 2021)."""

import torch
from torch import Tensor, nn

from penumbra.models.dropout import Dropout
from penumbra.models.transformer.attention import Attention
from penumbra.models.transformer.feed_forward import FeedForward


class DecoderLayer(nn.Module):
    """Post-norm layer: self-attention of the moment queries, attention to the memory, feed-forward."""

    def __init__(self, hidden: int, heads: int, width: int, dropout: float) -> None:
        super().__init__()
        self.self_attention = Attention(hidden, heads, dropout)
        self.cross_attention = Attention(hidden, heads, dropout)
        self.feed_forward = FeedForward(hidden, width, dropout, "relu")
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(hidden) for _ in range(3))
        self.dropout = Dropout(dropout)

    def forward(self, content: Tensor, queries: Tensor, memory: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        """Content and queries [B, Q, hidden], memory without and with positions [B, L, hidden]."""
        placed = content + queries
        content = self.norm1(self.dropout.onto(content, self.self_attention(placed, placed, content, None)))
        seen = self.cross_attention(content + queries, keys, memory, bias)
        content = self.norm2(self.dropout.onto(content, seen))
        out: Tensor = self.norm3(self.dropout.onto(content, self.feed_forward(content)))
        return out


class Decoder(nn.Module):
    """Layers over learned queries; one LayerNorm serves the output of every layer and feeds none."""

    def __init__(self, hidden: int, heads: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(hidden, heads, width, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, queries: Tensor, memory: Tensor, positions: Tensor, bias: Tensor) -> Tensor:
        """Queries [Q, hidden], memory and positions [B, L, hidden]; returns [layers, B, Q, hidden]."""
        queries = queries.expand(memory.shape[0], -1, -1)
        content, keys = torch.zeros_like(queries), memory + positions
        states = []
        for layer in self.layers:
            content = layer(content, queries, memory, keys, bias)
            states.append(self.norm(content))
        return torch.stack(states)
