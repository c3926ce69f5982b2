"""Weights and options of the losses of Moment-DETR, QD-DETR and BM-DETR; the defaults are the papers'."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class MatchingCosts:
    span: float = 10.0
    giou: float = 1.0
    label: float = 4.0


@dataclass(frozen=True)
class LossSettings:
    """Weights and options of the losses that all DETR models share; the defaults are Moment-DETR's."""

    span: float = 10.0  # weight of the L1 distance
    giou: float = 1.0
    label: float = 4.0
    background: float = 0.1  # weight of the background class within the class loss
    auxiliary: bool = True  # the earlier decoder layers have losses, too
    costs: MatchingCosts = MatchingCosts()
    saliency: float = 1.0  # weight of all saliency losses together
    pair_hinge: bool | None = None  # hinge of clip pairs; None: without SHINE only
    pair_margin: float = 0.2
    existence: float = 0.0  # weight of the loss that tells true sentences from false ones

    @property
    def has_pair_hinge(self) -> bool:
        return self.pair_hinge is not False

    @property
    def needs_negative(self) -> bool:
        return self.existence > 0

    @property
    def hard_levels(self) -> int:
        """The number of hard negatives of a query that a step reads."""
        return 0


@dataclass(frozen=True)
class ShineLosses(LossSettings):
    """Losses of a model that SHINE's hard negatives may train.

    `variant` chooses between SHINE's paper and the authors' released code where they differ. "paper" trains everything.
    "released" is what the released criterion computes: the saliency losses and the rankings alone. It never matches, so
    decoder, anchors, span and class heads get no gradient, and the windows of such a model are meaningless.

    Where the paper leaves something open, both follow the released code: the divergence of the fine ranking squashes
    saliency with a sigmoid and stops the gradient of its first argument (`losses.divergence`); a moment that covers the
    whole video is compared with clip 0 (`losses.coarse_intra`); the negative-pair loss is a sum over clips; the
    contrastive loss keeps QVHighlights' twelve ranks on data with one rank (`losses.rank_contrastive`); the negative
    query is the next sample of the batch; both rankings share the saliency loss's weight, beside their own.
    """

    shine: bool = False
    variant: Literal["paper", "released"] = "paper"
    negative_pair: bool | None = None  # None: with SHINE only (paper, 3.4)
    coarse: float = 1.0  # weight of the coarse ranking (with SHINE)
    coarse_terms: tuple[Literal["intra", "inter"], ...] = ("intra", "inter")
    coarse_margins: tuple[float, float] = (1.0, 2.0)  # h1 and h2
    quotient: int = 8  # q: a moment of T clips is judged by its T/q best
    fine: float = 1.0  # weight of the fine ranking (with SHINE)
    levels_a_step: int = 3  # hard negatives of a query that a step ranks; below 3 they are drawn anew at each step
    hard_every: int = 1  # one of so many steps ranks hard negatives, the first of an epoch being one
    fine_terms: tuple[bool, bool, bool, bool] = (True, True, True, True)
    fine_margins: tuple[float, float, float, float] = (0.25, 0.25, 0.25, 0.25)
    ranking_weights: tuple[float, float] = (1.0, 0.0)  # a level compared with the one before, and with level 1

    def __post_init__(self) -> None:
        if self.quotient < 1:
            raise ValueError(f"quotient is at least 1, not {self.quotient}")
        if self.levels_a_step not in (1, 2, 3):
            raise ValueError(f"levels_a_step is 1, 2 or 3, not {self.levels_a_step}")
        if self.hard_every < 1:
            raise ValueError(f"hard_every is at least 1, not {self.hard_every}")

    @property
    def has_pair_hinge(self) -> bool:
        """Whether the hinge of clip pairs is a loss; SHINE's intra term takes its place (paper, 3.4)."""
        return not self.shine if self.pair_hinge is None else self.pair_hinge

    @property
    def has_negative_pair(self) -> bool:
        return self.shine if self.negative_pair is None else self.negative_pair

    @property
    def needs_negative(self) -> bool:
        inter = self.shine and self.coarse and "inter" in self.coarse_terms
        return self.has_negative_pair or bool(inter) or super().needs_negative

    @property
    def hard_levels(self) -> int:
        return self.levels_a_step if self.shine and (self.fine > 0 or self.existence > 0) else 0


@dataclass(frozen=True)
class MomentDETRLosses(ShineLosses):
    """Moment-DETR's losses; `align` is the weight of its optional alignment, published as 0."""

    align: float = 0.0
    align_temperature: float = 0.07


@dataclass(frozen=True)
class QDDETRLosses(ShineLosses):
    """QD-DETR's losses, with its contrastive loss over clips' ranks."""

    negative_pair: bool | None = True
    rank_contrastive: bool = True
    temperature: float = 0.5

    @property
    def needs_negative(self) -> bool:
        return self.rank_contrastive or super().needs_negative


@dataclass(frozen=True)
class BMDETRLosses(LossSettings):
    """BM-DETR's losses: no auxiliary ones, GIoU before L1, and the pair hinge as frame margin loss.

    The published code adds the class error, a percentage without gradient, to the total; `class_error` 1 does the same.
    It changes no gradient and obscures the total, so it is off. `negatives` are other queries of the video, generated
    hard negatives, both, or none.
    """

    span: float = 1.0
    giou: float = 8.0
    label: float = 8.0
    auxiliary: bool = False
    costs: MatchingCosts = MatchingCosts(span=1.0, giou=8.0, label=8.0)
    saliency: float = 4.0
    pair_hinge: bool | None = True
    probability: float = 2.0  # weight of the frame probability loss
    semantic: float = 1.0  # weight of the semantic alignment
    align_temperature: float = 0.07
    class_error: float = 0.0
    negatives: Literal["in_video", "generated", "both", "none"] = "in_video"
