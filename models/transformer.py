"""The transformer of Moment-DETR, QD-DETR and BM-DETR: attention, encoder layers, and two decoders.

From top to bottom: small layers and sine positions, dropout, attention, the feed-forward branch, encoder layers,
Moment-DETR's decoder over learned queries, and the decoder over anchors of QD-DETR and BM-DETR.
"""

import math
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from penumbra.models.spans import inverse_sigmoid

Activation = Literal["relu", "prelu"]
TEMPERATURE = 10000.0  # of sine positions


class MLP(nn.Module):
    def __init__(self, width: int, hidden: int, out: int, layers: int) -> None:
        super().__init__()
        sizes = [width, *[hidden] * (layers - 1), out]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, values: Tensor) -> Tensor:
        """[..., width] to [..., out]."""
        *hidden, last = self.layers
        for layer in hidden:
            values = layer(values).relu()
        return last(values)


def clip_positions(mask: Tensor, channels: int) -> Tensor:
    """Return sine positions [batch, clips, channels] of the valid clips of a mask [batch, clips], in float32.

    The last valid clip is at 2 pi whatever the length, so padding does not change a video's positions.
    """
    count = mask.float().cumsum(1)
    share = count / (count[:, -1:] + 1e-6) * (2 * math.pi)
    return _interleave(share[..., None] / _frequencies(channels, mask.device))


def sine_embedding(values: Tensor, channels: int) -> Tensor:
    """Return the sine embedding [..., channels] of numbers in (0, 1), as DAB-DETR embeds anchors (ICLR 2022)."""
    return _interleave(2 * math.pi * values.float()[..., None] / _frequencies(channels, values.device))


def _frequencies(channels: int, device: torch.device) -> Tensor:
    index = torch.arange(channels, dtype=torch.float32, device=device)
    return TEMPERATURE ** (2 * torch.div(index, 2, rounding_mode="floor") / channels)


def _interleave(angles: Tensor) -> Tensor:
    return torch.stack((angles[..., 0::2].sin(), angles[..., 1::2].cos()), dim=-1).flatten(-2)


# -- dropout ----------------------------------------------------------------------------------------------------------


def is_eager_on_cpu(values: Tensor) -> bool:
    """Return whether `keep_mask` is faster: on a CPU, unless a compiler traces the computation."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()


def keep_mask(shape: torch.Size | tuple[int, ...], p: float, dtype: torch.dtype) -> Tensor:
    """Return ones on the CPU, with zeros of probability p, from torch's seeded generator.

    torch draws a Bernoulli number an element with one thread, which takes a tenth of a training step. Here each element
    takes a byte of 64-bit draws. A byte has 256 levels only, so the threshold is rounded up or down at random, once a
    call, and every element is dropped with probability p exactly.
    """
    count = math.prod(shape)
    words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
    threshold = int(256 * p + torch.rand(()).item())
    mask = torch.empty(count, dtype=dtype)
    if threshold > 255:
        return mask.zero_().view(shape)
    return torch.ge(words.view(torch.uint8)[:count], threshold, out=mask).view(shape)


class Dropout(nn.Module):
    """Dropout of values with probability p, in training (Srivastava et al., 2014)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"a dropout probability is at least 0 and below 1, not {p}")
        self.p = p

    @property
    def rate(self) -> float:
        return self.p if self.training else 0.0

    def forward(self, values: Tensor) -> Tensor:
        if self.rate and is_eager_on_cpu(values):
            return values * keep_mask(values.shape, self.rate, values.dtype).mul_(1 / (1 - self.rate))
        return functional.dropout(values, self.rate)

    def add(self, residual: Tensor, branch: Tensor) -> Tensor:
        if self.rate and is_eager_on_cpu(branch):
            kept = branch * keep_mask(branch.shape, self.rate, branch.dtype)
            return torch.add(residual, kept, alpha=1 / (1 - self.rate))
        return residual + functional.dropout(branch, self.rate)


# -- attention --------------------------------------------------------------------------------------------------------


def padding_bias(mask: Tensor) -> Tensor:
    """Return additive logits [batch, 1, 1, tokens] that hide the padding of a boolean mask [batch, tokens]."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -math.inf)[:, None, None]


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, bias: Tensor | None, dropout: float = 0.0) -> Tensor:
    """Return drop(softmax(q kᵀ / √a + bias)) v (Vaswani et al., 2017, Eq. 1) over `heads` slices of the channels.

    query [batch, queries, heads·a], key [batch, keys, heads·a], value [batch, keys, heads·b]; bias broadcasts to
    [batch, heads, queries, keys]. Returns [batch, queries, heads·b]. Dropout falls on the probabilities.
    """
    q, k, v = (x.view(*x.shape[:-1], heads, -1).transpose(1, 2) for x in (query, key, value))  # [batch, heads, …, a]
    bias = None if bias is None else bias.to(q.dtype)
    if dropout and is_eager_on_cpu(q):  # torch's fused kernel has no dropout on a CPU
        logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # [batch, heads, queries, keys]
        weights = (logits if bias is None else logits + bias).softmax(-1)
        read = (weights * keep_mask(weights.shape, dropout, weights.dtype)) @ (v / (1 - dropout))
    else:
        read = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
    return read.transpose(1, 2).flatten(2)  # [batch, queries, heads·b]


class Attention(nn.Module):
    """Multi-head attention with the projections of query, key and value in one matrix, in this order (rows)."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.in_weight = nn.Parameter(torch.empty(3 * hidden, hidden))
        self.in_bias = nn.Parameter(torch.zeros(3 * hidden))
        self.out = nn.Linear(hidden, hidden)
        self.dropout = Dropout(dropout)
        nn.init.xavier_uniform_(self.in_weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Return [batch, queries, hidden] of a query of that shape; key and value [batch, keys, hidden]."""
        d = query.shape[-1]
        if query is key:
            q, k = functional.linear(query, self.in_weight[: 2 * d], self.in_bias[: 2 * d]).chunk(2, dim=-1)
        else:
            q = functional.linear(query, self.in_weight[:d], self.in_bias[:d])
            if len(q) < len(key):  # one video, several texts
                q = q.repeat(len(key) // len(q), 1, 1)
            k = functional.linear(key, self.in_weight[d : 2 * d], self.in_bias[d : 2 * d])
        v = functional.linear(value, self.in_weight[2 * d :], self.in_bias[2 * d :])
        return self.out(attend(q, k, v, self.heads, bias, self.dropout.rate))


class FeedForward(nn.Module):
    """W2 drop(act(W1 x)): act is ReLU in Moment-DETR, a PReLU with one slope a layer in QD-DETR and BM-DETR."""

    def __init__(self, hidden: int, width: int, dropout: float, activation: Activation) -> None:
        super().__init__()
        self.linear1 = nn.Linear(hidden, width)
        self.linear2 = nn.Linear(width, hidden)
        self.dropout = Dropout(dropout)
        self.slope = nn.Parameter(torch.tensor([0.25])) if activation == "prelu" else None

    def forward(self, values: Tensor) -> Tensor:
        """[..., hidden] to [..., hidden]."""
        inner = self.linear1(values)  # [..., width]
        inner = inner.relu() if self.slope is None else functional.prelu(inner, self.slope.to(inner.dtype))
        return self.linear2(self.dropout(inner))


# -- encoder layers ---------------------------------------------------------------------------------------------------


class EncoderLayer(nn.Module):
    """Post-norm layer: self-attention with positions on query and key, then the feed-forward branch."""

    def __init__(self, hidden: int, heads: int, width: int, dropout: float, activation: Activation) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, dropout)
        self.feed_forward = FeedForward(hidden, width, dropout, activation)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Tensor, positions: Tensor, bias: Tensor, wanted: int | None = None) -> Tensor:
        """Return new tokens; tokens and positions [batch, length, hidden]; bias [batch, 1, 1, length] hides padding.

        With `wanted` only the first tokens are computed, [batch, wanted, hidden]; the others are read.
        """
        placed = tokens + positions
        queries = placed if wanted is None else placed[:, :wanted]
        read = self.attention(queries, placed, tokens, bias)
        tokens = self.norm1(self.dropout.add(tokens[:, :wanted], read))
        return self.norm2(self.dropout.add(tokens, self.feed_forward(tokens)))


class TextToVideoLayer(nn.Module):
    """QD-DETR's layer in which every clip reads the text (Moon et al., CVPR 2023, section 3.2); only clips change.

    The first LayerNorm sits on the feed-forward branch alone and the second after the second residual, so it is neither
    a plain pre-norm nor a post-norm layer.
    """

    def __init__(self, hidden: int, heads: int, width: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, dropout)
        self.feed_forward = FeedForward(hidden, width, dropout, "prelu")
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.dropout = Dropout(dropout)

    def forward(self, video: Tensor, video_positions: Tensor, text: Tensor, text_keys: Tensor, bias: Tensor) -> Tensor:
        """Return clips [groups·batch, clips, hidden] after reading `groups` texts a video.

        Text without and with its positions [groups·batch, words, hidden]; clips likewise or, while they are the same
        under all texts, [batch, clips, hidden]; their positions [batch, clips, hidden].
        """
        groups = len(text) // len(video_positions)
        if len(video) == len(video_positions):
            queries, video = video + video_positions, video.repeat(groups, 1, 1)
        else:
            queries = (video.view(groups, *video_positions.shape) + video_positions).flatten(0, 1)
        read = self.attention(queries, text_keys, text, bias)  # [groups·batch, clips, hidden]
        video = self.dropout.add(video, read)
        return self.norm2(self.dropout.add(video, self.feed_forward(self.norm1(video))))


# -- Moment-DETR's decoder: learned moment queries look at the encoded tokens (Lei et al., NeurIPS 2021) --------------


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
        """Return new content; content and queries [batch, queries, hidden], memory and keys [batch, length, hidden]."""
        placed = content + queries
        content = self.norm1(self.dropout.add(content, self.self_attention(placed, placed, content, None)))
        read = self.cross_attention(content + queries, keys, memory, bias)
        content = self.norm2(self.dropout.add(content, read))
        return self.norm3(self.dropout.add(content, self.feed_forward(content)))


class Decoder(nn.Module):
    """Layers over learned queries; one LayerNorm serves the output of every layer and feeds none."""

    def __init__(self, hidden: int, heads: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(hidden, heads, width, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, queries: Tensor, memory: Tensor, positions: Tensor, bias: Tensor) -> Tensor:
        """Return states [layers, batch, queries, hidden]; queries [queries, hidden], memory [batch, length, hidden]."""
        queries = queries.expand(memory.shape[0], -1, -1)  # [batch, queries, hidden]
        content, keys = torch.zeros_like(queries), memory + positions
        states = []
        for layer in self.layers:
            content = layer(content, queries, memory, keys, bias)
            states.append(self.norm(content))
        return torch.stack(states)


# -- the decoder of QD-DETR and BM-DETR: every moment query is an anchor (centre, width), as in DAB-DETR (ICLR 2022)


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
        """Return [batch, queries, hidden], the shape of content and positions."""
        query = self.query_content(content) + self.query_position(positions)
        key = self.key_content(content) + self.key_position(positions)
        return self.out(attend(query, key, self.value(content), self.heads, None, self.dropout.rate))


class AnchorCrossAttention(nn.Module):
    """Attention to the memory by content and place: each head's query and key are the two concatenated."""

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
        """Return [batch, queries, hidden], the shape of content, its positions and the anchors' embeddings.

        memory and its positions [batch, length, hidden].
        """
        query, key, place = self.query_content(content), self.key_content(memory), self.key_position(positions)
        if self.query_position is not None:
            query, key = query + self.query_position(query_positions), key + place
        query, key = self._by_head(query, self.query_anchor(anchors)), self._by_head(key, place)  # [..., 2·hidden]
        return self.out(attend(query, key, self.value(memory), self.heads, bias, self.dropout.rate))

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
        """Return the new content [batch, queries, hidden]; arguments as in `AnchorCrossAttention.forward`."""
        content = self.norm1(self.dropout.add(content, self.self_attention(content, query_positions)))
        read = self.cross_attention(content, query_positions, anchors, memory, positions, bias)
        content = self.norm2(self.dropout.add(content, read))
        return self.norm3(self.dropout.add(content, self.feed_forward(content)))


class AnchorDecoder(nn.Module):
    """Layers over anchors, each of which may refine the anchors.

    An anchor's embedding holds the centre first, then the width. As in BM-DETR's published code, `bm_detr` puts the
    width first, refines no anchor, and gives the modulating head two outputs, of which the first is used.
    """

    def __init__(self, hidden: int, heads: int, width: int, layers: int, dropout: float, bm_detr: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            AnchorDecoderLayer(hidden, heads, width, dropout, first=index == 0) for index in range(layers)
        )
        self.norm = nn.LayerNorm(hidden)
        self.width_first = bm_detr
        self.position_head = MLP(hidden, hidden, hidden, 2)
        self.scale_head = MLP(hidden, hidden, hidden, 2)
        self.width_head = MLP(hidden, hidden, 2 if bm_detr else 1, 2)
        self.refine_head = None if bm_detr else MLP(hidden, hidden, 2, 3)
        for module in self.modules():  # `GroundingModel.initialise` draws the matrices; only these biases start at zero
            if isinstance(module, AnchorSelfAttention | AnchorCrossAttention):
                nn.init.zeros_(module.out.bias)
        if self.refine_head is not None:
            nn.init.zeros_(self.refine_head.layers[-1].bias)  # type: ignore[arg-type]

    def forward(self, anchors: Tensor, memory: Tensor, positions: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return states [layers, batch, queries, hidden] and each layer's incoming anchors [layers, batch, queries, 2].

        anchors [queries, 2] are logits; memory and positions [batch, length, hidden], bias [batch, 1, 1, length].
        """
        reference = anchors.sigmoid().expand(memory.shape[0], -1, -1)  # [batch, queries, 2]
        content = memory.new_zeros(*reference.shape[:2], memory.shape[-1])  # [batch, queries, hidden]
        states, references = [], [reference]
        for index, layer in enumerate(self.layers):
            embedded = self._embed(reference)  # [batch, queries, hidden]
            placed = self.position_head(embedded)
            if index:
                embedded = embedded * self.scale_head(content)
            embedded = embedded * (self.width_head(content)[..., :1].sigmoid() / reference[..., 1:])
            content = layer(content, placed, embedded, memory, positions, bias)
            states.append(self.norm(content))
            if self.refine_head is None:
                references.append(reference)
            else:
                with torch.autocast(content.device.type, enabled=False):  # float32, as `GroundingModel.heads`
                    refined = (self.refine_head(content.float()) + inverse_sigmoid(reference)).sigmoid()
                references.append(refined)  # with its gradient, for the next layer's output
                reference = refined.detach()
        return torch.stack(states), torch.stack(references[:-1])

    def _embed(self, reference: Tensor) -> Tensor:
        channels = self.norm.normalized_shape[0] // 2
        centre, width = (sine_embedding(reference[..., side], channels) for side in (0, 1))
        return torch.cat((width, centre) if self.width_first else (centre, width), dim=-1)
