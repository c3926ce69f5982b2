"""Encoder layers: post-norm self-attention, and QD-DETR's cross-attention from video to text."""

from torch import Tensor, nn

from penumbra.models.dropout import Dropout
from penumbra.models.transformer.attention import Attention
from penumbra.models.transformer.feed_forward import Activation, FeedForward


class EncoderLayer(nn.Module):
    """Post-norm layer: self-attention with positions on query and key, then the feed-forward branch."""

    def __init__(self, hidden: int, heads: int, width: int, dropout: float, activation: Activation) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, dropout)
        self.feed_forward = FeedForward(hidden, width, dropout, activation)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Tensor, positions: Tensor, bias: Tensor, wanted: int | None = None) -> Tensor:
        """Tokens and positions [B, L, hidden]; bias [B, 1, 1, L] hides padding.

        Of the result only the first `wanted` tokens are made, where a number is given: the others are read, no more.
        """
        placed = tokens + positions
        queries = placed if wanted is None else placed[:, :wanted]
        read = self.attention(queries, placed, tokens, bias)
        tokens = self.norm1(self.dropout.onto(tokens[:, :wanted], read))
        out: Tensor = self.norm2(self.dropout.onto(tokens, self.feed_forward(tokens)))
        return out


class TextToVideoLayer(nn.Module):
    """QD-DETR's layer that lets every clip read the text (Moon et al., CVPR 2023, section 3.2).

    Only the clips change. The first LayerNorm sits on the feed-forward branch alone and the second after the second
    residual, so it is neither a plain pre-norm nor a post-norm layer.
    """

    def __init__(self, hidden: int, heads: int, width: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, dropout)
        self.feed_forward = FeedForward(hidden, width, dropout, "prelu")
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.dropout = Dropout(dropout)

    def forward(self, video: Tensor, video_positions: Tensor, text: Tensor, text_keys: Tensor, bias: Tensor) -> Tensor:
        """Clips [G·B, Lv, hidden] after reading G texts a video.

        Text without and with its positions [G·B, Lt, hidden]; clips likewise or, while they are the same under all
        texts, [B, Lv, hidden]; their positions [B, Lv, hidden].
        """
        groups = len(text) // len(video_positions)
        if len(video) == len(video_positions):
            queries, video = video + video_positions, video.repeat(groups, 1, 1)
        else:
            queries = (video.view(groups, *video_positions.shape) + video_positions).flatten(0, 1)
        read = self.attention(queries, text_keys, text, bias)
        video = self.dropout.onto(video, read)
        out: Tensor = self.norm2(self.dropout.onto(video, self.feed_forward(self.norm1(video))))
        return out
