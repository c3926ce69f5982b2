"""The sizes and switches of a DETR-style grounding model."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ModelSettings:
    """What a model is built from; the defaults are the papers'.

    `video_dim` counts the two temporal endpoint channels. `longest_text` is the size of the text position table, which
    official checkpoints hold even where `text_positions` leaves it unused.

    `text_attention` concerns QD-DETR only. Its published code masks head h of sample n with the padding of sample
    (n·heads + h) mod batch, so that a sample's output depends on its neighbours. "official" does the same, for parity
    with checkpoints trained so; "fixed" gives the same output alone and in any batch. `frame_weights` is that choice
    for BM-DETR, whose published code gives padded clips a share of the weights of clips.

    `frame_matcher`, `learnable_spans` and `align_dim` (0: none) are BM-DETR's components; `align_dim` is also the width
    of Moment-DETR's optional alignment (`contrastive_hdim`, published as 64).
    """

    video_dim: int
    text_dim: int
    hidden: int = 256
    heads: int = 8
    feed_forward: int = 1024
    encoder_layers: int = 2
    decoder_layers: int = 2
    queries: int = 10
    projections: int = 2
    dropout: float = 0.1
    input_dropout: float = 0.5
    longest_text: int = 32
    text_positions: bool = False
    text_attention: Literal["fixed", "official"] = "fixed"
    align_dim: int = 0
    frame_matcher: bool = True
    learnable_spans: bool = True
    frame_weights: Literal["fixed", "official"] = "fixed"

    def __post_init__(self) -> None:
        """Refuse sizes that no model can have."""
        if self.hidden % self.heads or self.hidden % 4:
            raise ValueError(f"hidden {self.hidden} must be a multiple of 4 and of heads {self.heads}")
        if not 1 <= self.projections <= 3:
            raise ValueError(f"projections is 1, 2 or 3, not {self.projections}")
        if self.text_attention not in ("fixed", "official"):
            raise ValueError(f"text_attention is fixed or official, not {self.text_attention!r}")
        if self.frame_weights not in ("fixed", "official"):
            raise ValueError(f"frame_weights is fixed or official, not {self.frame_weights!r}")
        if min(self.video_dim, self.text_dim, self.encoder_layers, self.decoder_layers, self.queries) < 1:
            raise ValueError("dimensions, layers and queries are at least 1")
