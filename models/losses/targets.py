"""What the losses compare with."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass
class Targets:
    """The truth about a batch.

    spans [B, W, 2] are the windows as (centre, width), fractions of the video, and span_mask [B, W] says which are
    there; a window that ends after the video gives a span that ends after 1. clip_scores [B, Lv] is 0 outside the
    moment, else 1 or the annotators' sum (0 to 12); video_mask [B, Lv]. high_clips and low_clips [B, P] are the clip
    pairs of the saliency hinge: the first is to score higher than the second. hard_present [K, B] says which hard
    negatives a query really has (None: all). The rows are `branches` batches of one size, one after the other: of
    BM-DETR's temporal shifting the videos as they are, then shifted.
    """

    spans: Tensor
    span_mask: Tensor
    clip_scores: Tensor
    video_mask: Tensor
    high_clips: Tensor
    low_clips: Tensor
    hard_present: Tensor | None = None
    branches: int = 1

    def split(self) -> list["Targets"]:
        """The targets of each branch."""
        parts = zip(*(column.chunk(self.branches) for column in self._columns()), strict=True)
        return [self] if self.branches == 1 else [Targets(*part) for part in parts]

    def beside(self, other: "Targets") -> "Targets":
        """Two branches: these targets, then those."""
        columns: Any = (torch.cat(pair) for pair in zip(self._columns(), other._columns(), strict=True))
        return replace(Targets(*columns), branches=2)

    def _columns(self) -> list[Tensor]:
        return [self.spans, self.span_mask, self.clip_scores, self.video_mask, self.high_clips, self.low_clips]

    @property
    def inside(self) -> Tensor:
        """Clips of the moment [B, Lv]."""
        return (self.clip_scores > 0) & self.video_mask

    @property
    def outside(self) -> Tensor:
        """Valid clips outside the moment [B, Lv]."""
        return (self.clip_scores <= 0) & self.video_mask


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the elements that the mask calls present; 0 where there are none."""
    if mask is None:
        return values.mean()
    weight = mask.to(values.dtype)
    return (torch.where(mask, values, 0) * weight).sum() / weight.sum().clamp(min=1)
