"""The decoder of QD-DETR and BM-DETR: every moment query is an anchor (centre, width), as in DAB-DETR (ICLR 2022)."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from penumbra.models.dropout import Dropout
from penumbra.models.layers import MLP
from penumbra.models.positions import span_embedding
from penumbra.models.spans import inverse_sigmoid
from penumbra.models.transformer.attention import attend
from penumbra.models.transformer.feed_forward import FeedForward

Order = Literal["centre, width", "width, centre"]


class Decoded(NamedTuple):
    """States [layers, B, Q, hidden], and the (centre, width) [layers, B, Q, 2] that each layer started from."""

    states: Tensor
    references: Tensor


class AnchorSelfAttention(nn.Module):
    """Self-attention of the moment queries with separate weights for content and position."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query_content, self.query_position, self.key_content, self.key_position, self.value, self.out = (
            nn.Linear(hidden, hidden) for _ in range(6)
        )
        self.dropout = Dropout(dropout)

    def forward(self, content: Tensor, positions: Tensor) -> Tensor:
        """Content and positions [B, Q, hidden]."""
        query = self.query_content(content) + self.query_position(positions)
        key = self.key_content(content) + self.key_position(positions)
        out: Tensor = self.out(attend(query, key, self.value(content), self.heads, None, self.dropout.rate))
        return out


class AnchorCrossAttention(nn.Module):
    """Attention to the memory by content and place: each head's query and key are the two side by side."""

    def __init__(self, hidden: int, heads: int, dropout: float, first: bool) -> None:
        super().__init__()
        self.heads = heads
        self.query_content, self.query_anchor, self.key_content, self.key_position, self.value, self.out = (
            nn.Linear(hidden, hidden) for _ in range(6)
        )
        self.query_position = nn.Linear(hidden, hidden) if first else None  # only the first layer has it
        self.dropout = Dropout(dropout)

    def forward(
        self, content: Tensor, query_positions: Tensor, anchors: Tensor, memory: Tensor, positions: Tensor, bias: Tensor
    ) -> Tensor:
        """Content, positions and anchor embeddings [B, Q, hidden]; memory and its positions [B, L, hidden]."""
        query, key, place = self.query_content(content), self.key_content(memory), self.key_position(positions)
        if self.query_position is not None:
            query, key = query + self.query_position(query_positions), key + place
        query, key = self._by_head(query, self.query_anchor(anchors)), self._by_head(key, place)
        out: Tensor = self.out(attend(query, key, self.value(memory), self.heads, bias, self.dropout.rate))
        return out

    def _by_head(self, content: Tensor, place: Tensor) -> Tensor:
        both = [x.view(*x.shape[:-1], self.heads, -1) for x in (content, place)]
        return torch.cat(both, dim=-1).flatten(-2)


class AnchorDecoderLayer(nn.Module):
    """Post-norm layer: self-attention, attention to the memory, feed-forward with PReLU."""

    def __init__(self, hidden: int, heads: int, width: int, dropout: float, first: bool) -> None:
        super().__init__()
        self.self_attention = AnchorSelfAttention(hidden, heads, dropout)
        self.cross_attention = AnchorCrossAttention(hidden, heads, dropout, first)
        self.feed_forward = FeedForward(hidden, width, dropout, "prelu")
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(hidden) for _ in range(3))
        self.dropout = Dropout(dropout)

    def forward(
        self, content: Tensor, query_positions: Tensor, anchors: Tensor, memory: Tensor, positions: Tensor, bias: Tensor
    ) -> Tensor:
        """As `AnchorCrossAttention.forward`; returns the new content [B, Q, hidden]."""
        content = self.norm1(self.dropout.onto(content, self.self_attention(content, query_positions)))
        seen = self.cross_attention(content, query_positions, anchors, memory, positions, bias)
        content = self.norm2(self.dropout.onto(content, seen))
        out: Tensor = self.norm3(self.dropout.onto(content, self.feed_forward(content)))
        return out


class AnchorDecoder(nn.Module):
    """Layers over anchors that each layer may refine.

    `order` is that of the two halves of an anchor's embedding: QD-DETR puts the centre first, BM-DETR the width.
    BM-DETR refines no anchor (`refine=False`) and its modulating head has two outputs, of which the first is used.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        width: int,
        layers: int,
        dropout: float,
        *,
        order: Order = "centre, width",
        refine: bool = True,
        modulations: int = 1,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            AnchorDecoderLayer(hidden, heads, width, dropout, first=index == 0) for index in range(layers)
        )
        self.norm = nn.LayerNorm(hidden)
        self.order = order
        self.position_head = MLP(hidden, hidden, hidden, 2)
        self.scale_head = MLP(hidden, hidden, hidden, 2)
        self.width_head = MLP(hidden, hidden, modulations, 2)
        self.refine_head = MLP(hidden, hidden, 2, 3) if refine else None
        for module in self.modules():  # xavier for every matrix of the transformer; only these biases start at zero
            if isinstance(module, AnchorSelfAttention | AnchorCrossAttention):
                nn.init.zeros_(module.out.bias)
        if self.refine_head is not None:
            nn.init.zeros_(self.refine_head.layers[-1].bias)  # type: ignore[arg-type]

    def forward(self, anchors: Tensor, memory: Tensor, positions: Tensor, bias: Tensor) -> Decoded:
        """Anchor logits [Q, 2], memory and positions [B, L, hidden]; bias [B, 1, 1, L] hides padding."""
        reference = anchors.sigmoid().expand(memory.shape[0], -1, -1)
        content = memory.new_zeros(*reference.shape[:2], memory.shape[-1])
        states, references = [], [reference]
        for index, layer in enumerate(self.layers):
            embedded = self._embed(reference)
            placed = self.position_head(embedded)
            if index:
                embedded = embedded * self.scale_head(content)
            embedded = embedded * (self.width_head(content)[..., :1].sigmoid() / reference[..., 1:])
            content = layer(content, placed, embedded, memory, positions, bias)
            states.append(self.norm(content))
            if self.refine_head is None:
                references.append(reference)
            else:
                refined = (self.refine_head(content) + inverse_sigmoid(reference)).sigmoid()
                references.append(refined)  # with its gradient, for the next layer's output
                reference = refined.detach()
        return Decoded(torch.stack(states), torch.stack(references[:-1]))

    def _embed(self, reference: Tensor) -> Tensor:
        channels = self.norm.normalized_shape[0] // 2
        centre, width = (span_embedding(reference[..., side], channels) for side in (0, 1))
        return torch.cat((centre, width) if self.order == "centre, width" else (width, centre), dim=-1)
