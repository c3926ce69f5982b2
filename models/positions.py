"""Where a token or a span lies: sine positions of clips, sine embeddings of spans, learned positions of words."""

import math

import torch
from torch import Tensor, nn

from penumbra.models.dropout import Dropout

TEMPERATURE = 10000.0


def _frequencies(channels: int, device: torch.device) -> Tensor:
    index = torch.arange(channels, dtype=torch.float32, device=device)
    return TEMPERATURE ** (2 * torch.div(index, 2, rounding_mode="floor") / channels)


def _interleave(angles: Tensor) -> Tensor:
    """Sine of the even channels, cosine of the odd ones."""
    return torch.stack((angles[..., 0::2].sin(), angles[..., 1::2].cos()), dim=-1).flatten(-2)


def clip_positions(mask: Tensor, channels: int) -> Tensor:
    """Sine positions [B, Lv, channels] of the clips that `mask` [B, Lv] calls valid, in float32.

    The last valid clip is at 2 pi whatever the length, so a padded video has the positions that it has alone.
    """
    count = mask.float().cumsum(1)
    share = count / (count[:, -1:] + 1e-6) * (2 * math.pi)
    return _interleave(share[..., None] / _frequencies(channels, mask.device))


def span_embedding(values: Tensor, channels: int) -> Tensor:
    """Sine embedding [..., channels] of numbers in (0, 1), as DAB-DETR embeds anchors (Liu et al., ICLR 2022)."""
    return _interleave(2 * math.pi * values.float()[..., None] / _frequencies(channels, values.device))


class TextPositions(nn.Module):
    """Learned positions of words: LayerNorm(text + table). They hold the text itself, as in the published models."""

    def __init__(self, longest: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.table = nn.Embedding(longest, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.dropout = Dropout(dropout)

    def forward(self, text: Tensor) -> Tensor:
        """Positions [B, Lt, hidden] of text [B, Lt, hidden]; raises ValueError where it is longer than the table."""
        length = text.shape[1]
        if length > self.table.num_embeddings:
            raise ValueError(f"a text of {length} tokens, but positions for {self.table.num_embeddings}")
        placed: Tensor = self.dropout(self.norm(text + self.table.weight[:length]))
        return placed
