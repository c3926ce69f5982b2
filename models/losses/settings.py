"""Which losses a training adds up, with what weights; the defaults are the papers'."""

from dataclasses import dataclass, field
from typing import Literal

from penumbra.models.losses.fine import Ranking
from penumbra.models.matching import MatchingCosts

Variant = Literal["paper", "released"]


@dataclass(frozen=True)
class LossSettings:
    """Weights and switches.

    `variant` chooses between SHINE's paper and the authors' released code where they differ:

    - "paper" trains everything: the base model's span, GIoU and class losses at every decoder layer, its saliency
      losses, and the two rankings.
    - "released" is what the released criterion computes: the saliency losses and the rankings alone. It never
      matches, so decoder, anchors, span and class heads get no gradient and what such a model localises is noise.

    Where the paper leaves something open, both follow the released code: the divergence of the fine ranking squashes
    saliency with a sigmoid and stops the gradient of its first argument (`fine.divergence`); a moment that covers the
    whole video is compared with clip 0 (`coarse.intra`); the negative-pair loss is a sum over clips
    (`saliency.negative_pair`); the contrastive loss keeps QVHighlights' twelve ranks on data with one, which divides
    it by twelve (`contrastive.rank_contrastive`); the negative query is the next sample of the shuffled batch; both
    rankings share the saliency loss's weight, beside their own coefficients.

    `align` is the weight of Moment-DETR's alignment, at every decoder layer, where the model has one; its published
    default is 0. `probability` and `semantic` are BM-DETR's; its frame margin loss is the pair hinge. Its published
    code adds the class error, a percentage without gradient, to the total: `class_error` 1 does the same. It changes
    no weight and hides what the total does, so it is off.
    """

    span: float = 10.0
    giou: float = 1.0
    label: float = 4.0
    background: float = 0.1
    saliency: float = 1.0
    align: float = 0.0
    probability: float = 0.0
    semantic: float = 0.0
    class_error: float = 0.0
    auxiliary: bool = True
    costs: MatchingCosts = field(default_factory=MatchingCosts)

    pair_hinge: bool = True
    pair_margin: float = 0.2
    negative_pair: bool = False
    rank_contrastive: bool = False
    temperature: float = 0.5
    align_temperature: float = 0.07

    coarse: float = 0.0
    coarse_terms: tuple[str, ...] = ("intra", "inter")
    coarse_margins: tuple[float, float] = (1.0, 2.0)
    quotient: int = 8
    fine: float = 0.0
    fine_terms: tuple[bool, ...] = (True, True, True, True)
    fine_margins: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25)
    ranking: Ranking = "relative"
    variant: Variant = "paper"

    def __post_init__(self) -> None:
        """Refuse what no loss can be."""
        if self.ranking not in ("relative", "absolute") or self.variant not in ("paper", "released"):
            raise ValueError("ranking is relative or absolute, variant is paper or released")
        if set(self.coarse_terms) - {"intra", "inter"}:
            raise ValueError(f"coarse terms are intra and inter, not {self.coarse_terms}")
        if len(self.fine_margins) != len(self.fine_terms):
            raise ValueError("the fine ranking needs a margin for each of its terms")

    @property
    def needs_negative(self) -> bool:
        """Whether a step must encode the batch's negatives."""
        return self.negative_pair or self.rank_contrastive or bool(self.coarse and "inter" in self.coarse_terms)

    @property
    def needs_hard(self) -> bool:
        """Whether a step must encode the hard negatives."""
        return self.fine > 0
