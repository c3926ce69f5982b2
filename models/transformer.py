"""The transformer of Moment-DETR, QD-DETR and BM-DETR: its sizes, attention, encoder layers, and two decoders."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from penumbra.models.spans import inverse_sigmoid

Activation = Literal["relu", "prelu"]
TEMPERATURE = 10000.0  # base of the wavelengths of sine positions


@dataclass(frozen=True)
class ModelSettings:
    """Sizes that all DETR-style models share; the defaults are the papers'.

    `video_dim` counts the two temporal endpoint channels. `longest_text` is the size of the text position table, which
    official checkpoints hold even if `text_positions` leaves it unused. `existence` adds a head that predicts whether
    a text's moment is in the video.
    """

    video_dim: int = 1
    text_dim: int = 1
    longest_text: int = 32
    existence: bool = False
    hidden: int = 256
    heads: int = 8  # attention heads
    feed_forward: int = 1024  # width of the feed-forward layers
    encoder_layers: int = 2  # QD-DETR has the same number of text-to-video layers
    decoder_layers: int = 2
    queries: int = 10  # moment queries
    projections: int = 2  # layers of the input projections, 1 to 3
    dropout: float = 0.1  # inside the transformer
    input_dropout: float = 0.5  # of the input projections
    text_positions: bool = False  # learned positions of words

    def __post_init__(self) -> None:
        if self.hidden % self.heads or self.hidden % 4:
            raise ValueError(f"hidden {self.hidden} must be a multiple of 4 and of heads {self.heads}")
        if not 1 <= self.projections <= 3:
            raise ValueError(f"projections must be 1, 2 or 3, not {self.projections}")
        if min(self.video_dim, self.text_dim, self.encoder_layers, self.decoder_layers, self.queries) < 1:
            raise ValueError("dimensions, layers and queries must be at least 1")


class MLP(nn.Module):
    """Linear layers with ReLU between them: [..., width] to [..., out]."""

    def __init__(self, width: int, hidden: int, out: int, layers: int) -> None:
        super().__init__()
        sizes = [width, *[hidden] * (layers - 1), out]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, values: Tensor) -> Tensor:
        *hidden, last = self.layers
        for layer in hidden:
            values = layer(values).relu()
        return last(values)


def clip_positions(mask: Tensor, channels: int) -> Tensor:
    """Return sine positions [batch, clips, channels] of the valid clips of a mask [batch, clips], in float32.

    The last valid clip always has the angle 2 pi, so padding does not change the positions of a video.
    """
    count = mask.float().cumsum(1)
    return sines(count / (count[:, -1:] + 1e-6) * (2 * math.pi), channels)


def sines(angles: Tensor, channels: int) -> Tensor:
    """Return sines and cosines in alternation [..., channels] of angles [...] divided by rising powers."""
    index = torch.arange(channels, dtype=torch.float32, device=angles.device)
    slower = angles[..., None] / TEMPERATURE ** (2 * torch.div(index, 2, rounding_mode="floor") / channels)
    return torch.stack((slower[..., 0::2].sin(), slower[..., 1::2].cos()), dim=-1).flatten(-2)


def is_eager_on_cpu(values: Tensor) -> bool:
    """Return whether `keep_mask` is faster: on a CPU, unless a compiler traces the computation."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()


def keep_mask(shape: torch.Size | tuple[int, ...], p: float, dtype: torch.dtype) -> Tensor:
    """Return a dropout mask on the CPU, zeros with probability p and ones, drawn from torch's global generator.

    torch draws a Bernoulli number per element with one thread, which takes a tenth of a training step. Here each
    element uses one byte of a random 64-bit number. A byte has only 256 levels, so the threshold is randomly rounded up
    or down once per call, which makes the probability exactly p.
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
            raise ValueError(f"a dropout probability must be at least 0 and below 1, not {p}")
        self.p = p

    @property
    def rate(self) -> float:
        return self.p if self.training else 0.0

    def forward(self, values: Tensor) -> Tensor:
        if self.rate and is_eager_on_cpu(values):
            return values * keep_mask(values.shape, self.rate, values.dtype).mul_(1 / (1 - self.rate))
        return functional.dropout(values, self.rate)

    def add(self, residual: Tensor, branch: Tensor) -> Tensor:
        """Return `residual` plus dropout of `branch`, in one operation on a CPU."""
        if self.rate and is_eager_on_cpu(branch):
            kept = branch * keep_mask(branch.shape, self.rate, branch.dtype)
            return torch.add(residual, kept, alpha=1 / (1 - self.rate))
        return residual + functional.dropout(branch, self.rate)


def padding_bias(mask: Tensor) -> Tensor:
    """Return the additive attention bias [batch, 1, 1, tokens]: -inf where the mask [batch, tokens] is False."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -math.inf)[:, None, None]


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, bias: Tensor | None, dropout: float = 0.0) -> Tensor:
    """Return drop(softmax(q kᵀ / √a + bias)) v (Vaswani et al., 2017, Eq. 1) over `heads` slices of the channels.

    query [batch, queries, heads·a], key [batch, keys, heads·a], value [batch, keys, heads·b]; bias broadcasts to
    [batch, heads, queries, keys]. Returns [batch, queries, heads·b]. Dropout is applied to the attention weights.
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
    """Multi-head attention; the rows of one matrix hold the projections of query, key and value, in this order."""

    def __init__(self, s: ModelSettings) -> None:
        super().__init__()
        self.heads = s.heads
        self.in_weight = nn.Parameter(torch.empty(3 * s.hidden, s.hidden))
        self.in_bias = nn.Parameter(torch.zeros(3 * s.hidden))
        self.out = nn.Linear(s.hidden, s.hidden)
        self.dropout = Dropout(s.dropout)
        nn.init.xavier_uniform_(self.in_weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Return [batch, queries, hidden]; query [batch, queries, hidden], key and value [batch, keys, hidden]."""
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
    """W2 dropout(act(W1 x)): act is ReLU in Moment-DETR, PReLU with one slope per layer in QD-DETR and BM-DETR."""

    def __init__(self, s: ModelSettings, activation: Activation) -> None:
        super().__init__()
        self.linear1 = nn.Linear(s.hidden, s.feed_forward)
        self.linear2 = nn.Linear(s.feed_forward, s.hidden)
        self.dropout = Dropout(s.dropout)
        self.slope = nn.Parameter(torch.tensor([0.25])) if activation == "prelu" else None

    def forward(self, values: Tensor) -> Tensor:
        """[..., hidden] to [..., hidden]."""
        inner = self.linear1(values)  # [..., feed_forward]
        inner = inner.relu() if self.slope is None else functional.prelu(inner, self.slope.to(inner.dtype))
        return self.linear2(self.dropout(inner))


class EncoderLayer(nn.Module):
    """Post-norm layer: self-attention with positions on query and key, then the feed-forward branch."""

    def __init__(self, s: ModelSettings, activation: Activation) -> None:
        super().__init__()
        self.attention = Attention(s)
        self.feed_forward = FeedForward(s, activation)
        self.norm1, self.norm2 = nn.LayerNorm(s.hidden), nn.LayerNorm(s.hidden)
        self.dropout = Dropout(s.dropout)

    def forward(self, tokens: Tensor, positions: Tensor, bias: Tensor, wanted: int | None = None) -> Tensor:
        """Return new tokens; tokens, positions [batch, length, hidden]; bias [batch, 1, 1, length] masks padding.

        With `wanted`, return only the first tokens [batch, wanted, hidden], which attend to all tokens.
        """
        placed = tokens + positions
        queries = placed if wanted is None else placed[:, :wanted]
        read = self.attention(queries, placed, tokens, bias)
        tokens = self.norm1(self.dropout.add(tokens[:, :wanted], read))
        return self.norm2(self.dropout.add(tokens, self.feed_forward(tokens)))


class TextToVideoLayer(EncoderLayer):
    """QD-DETR's cross-attention from clips to words (Moon et al., CVPR 2023, section 3.2); only clips change.

    The first LayerNorm is applied to the input of the feed-forward branch only and the second after the second
    residual, so it is neither a pre-norm nor a post-norm layer.
    """

    def forward(self, video: Tensor, positions: Tensor, bias: Tensor, text: Tensor, keys: Tensor) -> Tensor:  # type: ignore[override]
        """Return new clips [texts·batch, clips, hidden].

        text [texts·batch, words, hidden]; keys are text plus its positions. video [texts·batch, clips, hidden], or, in
        the first layer, [batch, clips, hidden], repeated for each text; positions [batch, clips, hidden].
        """
        texts = len(text) // len(positions)
        if len(video) == len(positions):
            queries, video = video + positions, video.repeat(texts, 1, 1)
        else:
            queries = (video.view(texts, *positions.shape) + positions).flatten(0, 1)
        video = self.dropout.add(video, self.attention(queries, keys, text, bias))
        return self.norm2(self.dropout.add(video, self.feed_forward(self.norm1(video))))


class DecoderLayer(nn.Module):
    """Moment-DETR's post-norm layer: self-attention of the moment queries, cross-attention, feed-forward."""

    def __init__(self, s: ModelSettings) -> None:
        super().__init__()
        self.self_attention = Attention(s)
        self.cross_attention = Attention(s)
        self.feed_forward = FeedForward(s, "relu")
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(s.hidden) for _ in range(3))
        self.dropout = Dropout(s.dropout)

    def forward(self, content: Tensor, queries: Tensor, memory: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        """Return new content; content and queries [batch, queries, hidden], memory and keys [batch, length, hidden]."""
        placed = content + queries
        content = self.norm1(self.dropout.add(content, self.self_attention(placed, placed, content, None)))
        read = self.cross_attention(content + queries, keys, memory, bias)
        content = self.norm2(self.dropout.add(content, read))
        return self.norm3(self.dropout.add(content, self.feed_forward(content)))


class Decoder(nn.Module):
    """Moment-DETR's decoder of learned queries; one LayerNorm is applied to each layer's output, not to its input."""

    def __init__(self, s: ModelSettings) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(s) for _ in range(s.decoder_layers))
        self.norm = nn.LayerNorm(s.hidden)

    def forward(self, queries: Tensor, memory: Tensor, positions: Tensor, bias: Tensor) -> Tensor:
        """Return states [layers, batch, queries, hidden]; queries [queries, hidden], memory [batch, length, hidden]."""
        queries = queries.expand(memory.shape[0], -1, -1)  # [batch, queries, hidden]
        content, keys = torch.zeros_like(queries), memory + positions
        states = []
        for layer in self.layers:
            content = layer(content, queries, memory, keys, bias)
            states.append(self.norm(content))
        return torch.stack(states)


class AnchorDecoderLayer(nn.Module):
    """Post-norm layer of QD-DETR and BM-DETR with separate projections of content and position (DAB-DETR, ICLR 2022).

    In the cross-attention, query and key of each head are the concatenation of content and position. The first layer
    also adds the position to the content, which is zero there.
    """

    def __init__(self, s: ModelSettings, first: bool) -> None:
        super().__init__()
        own = ("query_content", "query_position", "key_content", "key_position", "value", "out")
        cross: tuple[str, ...] = ("query_content", "query_anchor", "key_content", "key_position", "value", "out")
        cross += ("query_position",) * first
        self.self_attention, self.cross_attention = (
            nn.ModuleDict({name: nn.Linear(s.hidden, s.hidden) for name in names}) for names in (own, cross)
        )
        self.feed_forward = FeedForward(s, "prelu")
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(s.hidden) for _ in range(3))
        self.dropout, self.heads = Dropout(s.dropout), s.heads
        for attention in (self.self_attention, self.cross_attention):
            nn.init.zeros_(attention["out"].bias)  # type: ignore[arg-type]

    def forward(
        self, content: Tensor, placed: Tensor, anchors: Tensor, memory: Tensor, positions: Tensor, bias: Tensor
    ) -> Tensor:
        """Return new content [batch, queries, hidden]; memory and positions [batch, length, hidden].

        `placed` are the positions of the content and `anchors` the anchor embeddings, both [batch, queries, hidden].
        """
        own, cross, rate = self.self_attention, self.cross_attention, self.dropout.rate
        query = own["query_content"](content) + own["query_position"](placed)
        key = own["key_content"](content) + own["key_position"](placed)
        read = attend(query, key, own["value"](content), self.heads, None, rate)
        content = self.norm1(self.dropout.add(content, own["out"](read)))
        query, key = cross["query_content"](content), cross["key_content"](memory)
        place = cross["key_position"](positions)
        if "query_position" in cross:
            query, key = query + cross["query_position"](placed), key + place
        query, key = self._by_head(query, cross["query_anchor"](anchors)), self._by_head(key, place)  # [..., 2·hidden]
        read = attend(query, key, cross["value"](memory), self.heads, bias, rate)
        content = self.norm2(self.dropout.add(content, cross["out"](read)))
        return self.norm3(self.dropout.add(content, self.feed_forward(content)))

    def _by_head(self, content: Tensor, place: Tensor) -> Tensor:
        both = [x.view(*x.shape[:-1], self.heads, -1) for x in (content, place)]
        return torch.cat(both, dim=-1).flatten(-2)


class AnchorDecoder(nn.Module):
    """Decoder of anchors (centre, width), which each layer may refine, as in DAB-DETR (ICLR 2022).

    An anchor's embedding holds the centre first, then the width. As in BM-DETR's published code, `bm_detr` puts the
    width first, refines no anchor, and gives the modulating head two outputs, of which the first is used.
    """

    def __init__(self, s: ModelSettings, bm_detr: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(AnchorDecoderLayer(s, first=not index) for index in range(s.decoder_layers))
        self.norm = nn.LayerNorm(s.hidden)
        self.width_first = bm_detr
        self.position_head = MLP(s.hidden, s.hidden, s.hidden, 2)
        self.scale_head = MLP(s.hidden, s.hidden, s.hidden, 2)
        self.width_head = MLP(s.hidden, s.hidden, 2 if bm_detr else 1, 2)
        self.refine_head = None if bm_detr else MLP(s.hidden, s.hidden, 2, 3)
        if self.refine_head is not None:  # `GroundingModel.initialise` does not set this bias
            nn.init.zeros_(self.refine_head.layers[-1].bias)  # type: ignore[arg-type]

    def forward(self, anchors: Tensor, memory: Tensor, positions: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return states [layers, batch, queries, hidden] and each layer's incoming anchors [layers, batch, queries, 2].

        anchors [queries, 2] are logits; memory and positions [batch, length, hidden], bias [batch, 1, 1, length].
        """
        reference = anchors.sigmoid().expand(memory.shape[0], -1, -1)  # [batch, queries, 2]
        content = memory.new_zeros(*reference.shape[:2], memory.shape[-1])  # [batch, queries, hidden]
        states, references = [], []
        for index, layer in enumerate(self.layers):
            references.append(reference)  # with its gradient
            reference = reference.detach() if index and self.refine_head is not None else reference
            sides = sines(2 * math.pi * reference.float(), memory.shape[-1] // 2)  # [batch, queries, 2, hidden / 2]
            embedded = (sides.flip(-2) if self.width_first else sides).flatten(-2)
            placed = self.position_head(embedded)
            if index:
                embedded = embedded * self.scale_head(content)
            embedded = embedded * (self.width_head(content)[..., :1].sigmoid() / reference[..., 1:])
            content = layer(content, placed, embedded, memory, positions, bias)
            states.append(self.norm(content))
            if self.refine_head is not None and index + 1 < len(self.layers):
                with torch.autocast(content.device.type, enabled=False):  # float32, as `GroundingModel.heads`
                    reference = (self.refine_head(content.float()) + inverse_sigmoid(reference)).sigmoid()
        return torch.stack(states), torch.stack(references)
