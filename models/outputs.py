"""What a model takes and gives: a batch of videos and texts, and spans, classes and saliency."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


@dataclass
class Inputs:
    """A batch. Masks are boolean, True where a clip or token is no padding.

    video [B, Lv, video_dim] (features, then the two temporal endpoint channels) and video_mask [B, Lv];
    text [B, Lt, text_dim] and text_mask [B, Lt]; hard_text [K, B, Lh, text_dim] and hard_mask [K, B, Lh] are the K
    hard negatives of each query, mildest first.
    """

    video: Tensor
    video_mask: Tensor
    text: Tensor
    text_mask: Tensor
    hard_text: Tensor | None = None
    hard_mask: Tensor | None = None


class Alignment(NamedTuple):
    """Unit vectors of moment queries [layers, B, Q, C], words [B, Lt, C], and clips [B, Lv, C], which no loss reads."""

    queries: Tensor
    words: Tensor
    clips: Tensor


@dataclass
class Outputs:
    """What a model says of a batch.

    logits [layers, B, Q, 2] (class 0 is foreground) and spans [layers, B, Q, 2] as (centre, width), the last layer's
    being the answer; saliency [B, Lv]; saliency_negative [B, Lv] under the next sample's text; saliency_hard
    [K, B, Lv] under the hard negatives. The latter two are None where they were not asked for or can't be had.
    Moment-DETR, where its alignment is on: `align`.
    BM-DETR: the joint probability [B, Lv] of each clip, and unit vectors [B, C] of the weighted clips and the words.
    """

    logits: Tensor
    spans: Tensor
    saliency: Tensor
    saliency_negative: Tensor | None = None
    saliency_hard: Tensor | None = None
    align: Alignment | None = None
    probability: Tensor | None = None
    pooled: tuple[Tensor, Tensor] | None = None

    def split(self, branches: int) -> list["Outputs"]:
        """BM-DETR's outputs for each of the equal batches that its rows are."""
        if branches == 1:
            return [self]
        none = (None,) * branches
        likely = none if self.probability is None else self.probability.chunk(branches)
        pooled = none if self.pooled is None else zip(*(part.chunk(branches) for part in self.pooled), strict=True)
        rows = (self.logits.chunk(branches, 1), self.spans.chunk(branches, 1), self.saliency.chunk(branches))
        return [
            Outputs(logits, spans, saliency, probability=p, pooled=vectors)
            for logits, spans, saliency, p, vectors in zip(*rows, likely, pooled, strict=True)
        ]

    @property
    def scores(self) -> Tensor:
        """Foreground probability [B, Q] of the last layer."""
        return self.logits[-1].float().softmax(-1)[..., 0]


@dataclass
class StackedTexts:
    """All texts of a step stacked along the batch: the positives, the batch's negatives, the hard negatives.

    tokens [G·B, Lt, hidden], mask [G·B, Lt]; group g of B rows is beside the whole batch of videos.
    """

    tokens: Tensor
    mask: Tensor
    negative: bool
    hard: int
    batch: int

    @property
    def groups(self) -> int:
        """How many texts there are for each video."""
        return 1 + self.negative + self.hard

    def split(self, saliency: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Saliency [G·B, Lv] as that of the positives, the negatives and the hard negatives."""
        each = saliency.view(self.groups, self.batch, -1)
        negative = each[1] if self.negative else None
        return each[0], negative, each[1 + self.negative :] if self.hard else None


def stack_texts(inputs: Inputs, text: Tensor, hard: Tensor | None, negative: bool) -> StackedTexts:
    """Stack projected texts [B, Lt, hidden] and hard negatives [K·B, Lh, hidden].

    A sample's negative is the next sample's text, the last one's the first's; a batch of one has none.
    """
    batch, negative = text.shape[0], negative and text.shape[0] > 1
    tokens, masks = [text], [inputs.text_mask]
    if negative:
        tokens.append(text.roll(-1, 0))
        masks.append(inputs.text_mask.roll(-1, 0))
    levels = 0
    if hard is not None and inputs.hard_mask is not None:
        levels = inputs.hard_mask.shape[0]
        tokens.append(hard)
        masks.append(inputs.hard_mask.flatten(0, 1))
    longest = max(mask.shape[1] for mask in masks)
    padded = [functional.pad(token, (0, 0, 0, longest - token.shape[1])) for token in tokens]
    masks = [functional.pad(mask, (0, longest - mask.shape[1])) for mask in masks]
    return StackedTexts(torch.cat(padded), torch.cat(masks), negative, levels, batch)
