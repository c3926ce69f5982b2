"""Losses of Moment-DETR, QD-DETR and BM-DETR, and SHINE's rankings. BM-DETR's additional losses are in `bm_detr`.

From top to bottom: weights and options, the ground truth (`Targets`), the weighted total (`compute_losses`),
localisation, existence, saliency, SHINE's coarse and fine ranking.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from penumbra.models.detr import Outputs
from penumbra.models.matcher import MatchingCosts, match
from penumbra.models.spans import generalised_iou, to_windows

RANKS = 12  # highest score of a clip, the sum of three annotators' scores (0 to 4); other data sets use rank 1 only


@dataclass(frozen=True)
class LossSettings:
    """Weights and options of the losses that all DETR models share. The defaults are those of Moment-DETR."""

    span: float = 10.0  # weight of the L1 distance
    giou: float = 1.0
    label: float = 4.0
    background: float = 0.1  # weight of the background class within the class loss
    auxiliary: bool = True  # whether the localisation losses are also computed for the earlier decoder layers
    costs: MatchingCosts = field(default_factory=MatchingCosts)
    saliency: float = 1.0  # weight of the sum of all saliency losses
    pair_hinge: bool | None = None  # use `pair_hinge`; None: only without SHINE, whose intra term replaces it
    pair_margin: float = 0.2
    existence: float = 0.0  # weight of the existence loss (`existence`)

    @property
    def needs_negative(self) -> bool:
        """Whether each video of a batch is also encoded with a negative query: the query of the next sample."""
        return self.existence > 0

    @property
    def hard_levels(self) -> int:
        """Number of hard negatives per query in a training step."""
        return 0

    def own_terms(self, outputs: Outputs, targets: "Targets", terms: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the additional losses of a model, by the names of their weights; `terms` are the shared losses."""
        return {}


@dataclass(frozen=True)
class ShineLosses(LossSettings):
    """Losses of a model that can be trained with SHINE's hard negatives.

    `variant` "paper" trains the whole model. "released" computes only the saliency losses and the rankings, like the
    criterion that the authors released: without matching, the decoder, the anchors, the span head and the class head
    get no gradient, and the model's windows are meaningless.

    Where the paper leaves a choice open, both variants follow the released code: see `divergence`, `coarse_intra`,
    `negative_pair` and `rank_contrastive`. The negative query is the query of the next sample of the batch. Each
    ranking is multiplied by its own weight and by `saliency`.
    """

    shine: bool = False
    variant: Literal["paper", "released"] = "paper"
    negative_pair: bool | None = None  # None: with SHINE only (paper, 3.4)
    coarse: float = 1.0  # weight of the coarse ranking (with SHINE)
    coarse_terms: tuple[Literal["intra", "inter"], ...] = ("intra", "inter")
    coarse_margins: tuple[float, float] = (1.0, 2.0)  # h1 and h2
    quotient: int = 8  # q: the score of a moment of T clips is the mean of its T/q highest clip scores
    fine: float = 1.0  # weight of the fine ranking (with SHINE)
    levels_a_step: int = 3  # hard negatives per query and training step; if 1 or 2, they are drawn at random
    hard_every: int = 1  # hard negatives are ranked in the first of every n training steps of an epoch
    fine_terms: tuple[bool, bool, bool, bool] = (True, True, True, True)
    fine_margins: tuple[float, float, float, float] = (0.25, 0.25, 0.25, 0.25)
    ranking_weights: tuple[float, float] = (1.0, 0.0)  # weights of the relative and the absolute ranking

    def __post_init__(self) -> None:
        for name, value in {"quotient": self.quotient, "hard_every": self.hard_every}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.levels_a_step not in (1, 2, 3):
            raise ValueError(f"levels_a_step must be 1, 2 or 3, not {self.levels_a_step}")

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
    """Losses of Moment-DETR. `align` is the weight of the contrastive alignment, 0 in the published code."""

    align: float = 0.0
    align_temperature: float = 0.07


@dataclass(frozen=True)
class QDDETRLosses(ShineLosses):
    """Losses of QD-DETR, with its rank-aware contrastive loss and its negative-pair loss."""

    negative_pair: bool | None = True
    rank_contrastive: bool = True
    temperature: float = 0.5

    @property
    def needs_negative(self) -> bool:
        return self.rank_contrastive or super().needs_negative


@dataclass
class Targets:
    """The ground truth of a batch."""

    spans: Tensor  # [batch, windows, 2], (centre, width) as fractions; the end of a window may exceed 1
    span_mask: Tensor  # [batch, windows], False for padding
    clip_scores: Tensor  # [batch, clips], 0 outside the moment; inside 1, or the sum of annotators' scores (to 12)
    video_mask: Tensor  # [batch, clips], False for padding
    high_clips: Tensor  # [batch, pairs], clips that should have a higher saliency than `low_clips` (`pair_hinge`)
    low_clips: Tensor  # [batch, pairs]
    hard_present: Tensor | None = None  # [levels, batch], True where a query has a hard negative of this level
    false: Tensor | None = None  # [texts, batch], True where a text is false of the video: `Outputs.existence[1:]`

    @property
    def inside(self) -> Tensor:
        """Mask of the clips inside the moment [batch, clips]."""
        return (self.clip_scores > 0) & self.video_mask

    @property
    def outside(self) -> Tensor:
        """Mask of the clips outside the moment, without padding [batch, clips]."""
        return (self.clip_scores <= 0) & self.video_mask


@dataclass
class Losses:
    """The weighted total (with gradient), and each loss without its weight (detached, on the device)."""

    total: Tensor
    terms: dict[str, Tensor]


def compute_losses(outputs: Outputs, targets: Targets | tuple[Targets, ...], settings: LossSettings) -> Losses:
    """Return the weighted total and each loss. The losses of earlier decoder layers are numbered, such as `span_0`.

    A tuple of targets belongs to equal parts of the batch (temporal shifting); each loss is the mean over the parts.
    """
    if isinstance(targets, tuple):
        parts = zip(outputs.split(len(targets)), targets, strict=True)
        several = [compute_losses(*part, settings) for part in parts]
        terms = {name: torch.stack([losses.terms[name] for losses in several]).mean() for name in several[0].terms}
        return Losses(torch.stack([losses.total for losses in several]).mean(), terms)
    terms, saliency = _saliency_losses(outputs, targets, settings)
    total, terms["saliency"] = settings.saliency * saliency, saliency
    if not isinstance(settings, ShineLosses) or settings.variant == "paper":  # the released criterion has no matching
        total = total + _localisation_losses(outputs, targets, settings, terms)
    others: dict[str, Tensor] = {}
    if settings.existence and outputs.existence is not None and targets.false is not None:
        others["existence"] = existence(outputs.existence, targets.false)
    others |= settings.own_terms(outputs, targets, terms)
    for name, value in others.items():
        total = total + getattr(settings, name) * value
    return Losses(total, {name: value.detach() for name, value in (terms | others).items()})


def _localisation_losses(
    outputs: Outputs, targets: Targets, settings: LossSettings, terms: dict[str, Tensor]
) -> Tensor:
    layers = outputs.logits.shape[0] if settings.auxiliary else 1
    logits, spans = outputs.logits[-layers:], outputs.spans[-layers:]  # [layers, batch, queries, 2]
    truth, present = targets.spans.repeat(layers, 1, 1), targets.span_mask.repeat(layers, 1)
    matched = match(logits.flatten(0, 1), spans.flatten(0, 1), truth, present, settings.costs)
    total = torch.zeros((), device=logits.device)
    for layer, assigned in enumerate(matched.view(layers, -1, matched.shape[-1])):  # [batch, windows]
        suffix = "" if layer == layers - 1 else f"_{layer}"
        distance, overlap = span_losses(spans[layer], assigned, targets.spans)
        label, error = label_losses(logits[layer], assigned, settings.background)
        total = total + settings.span * distance + settings.giou * overlap + settings.label * label
        found = {"span": distance, "giou": overlap, "label": label, "class_error": error}
        terms |= {name + suffix: value for name, value in found.items()}
        if isinstance(settings, MomentDETRLosses) and outputs.align is not None:
            queries, words, _ = outputs.align
            terms[f"align{suffix}"] = alignment(queries[layer - layers], words, assigned, settings.align_temperature)
            total = total + settings.align * terms[f"align{suffix}"]
    return total


def _saliency_losses(outputs: Outputs, targets: Targets, settings: LossSettings) -> tuple[dict[str, Tensor], Tensor]:
    """Return the saliency losses and rankings, and their weighted sum; a loss without its negative is left out."""
    s, scores, negative = settings, outputs.saliency.float(), outputs.saliency_negative  # [batch, clips]
    negative = None if negative is None else negative.float()
    terms, shine = dict[str, Tensor](), isinstance(s, ShineLosses) and s.shine
    has_pair_hinge = s.pair_hinge if s.pair_hinge is not None else not shine
    if has_pair_hinge:
        terms["pair_hinge"] = pair_hinge(scores, targets, s.pair_margin)
    if isinstance(s, QDDETRLosses) and s.rank_contrastive:
        terms["rank_contrastive"] = rank_contrastive(scores, negative, targets, s.temperature)
    if isinstance(s, ShineLosses) and s.has_negative_pair and negative is not None:
        terms["negative_pair"] = negative_pair(negative, targets.video_mask)
    total = torch.stack([*terms.values(), scores.new_zeros(())]).sum()
    if not (isinstance(s, ShineLosses) and shine):
        return terms, total
    coarse, fine, (h1, h2) = dict[str, Tensor](), dict[str, Tensor](), s.coarse_margins
    if s.coarse and "intra" in s.coarse_terms:
        coarse["coarse_intra"] = coarse_intra(scores, targets, h1, s.quotient)
    if s.coarse and "inter" in s.coarse_terms and negative is not None:
        coarse["coarse_inter"] = coarse_inter(scores, negative, targets, h2, s.quotient)
    if s.fine and outputs.saliency_hard is not None and targets.hard_present is not None:
        hard = outputs.saliency_hard.float()
        hinges = fine_hinges(scores, hard, targets.hard_present, negative, targets, s)
        wanted = (*s.fine_terms[: len(hard)], s.fine_terms[-1])  # the last hinge is of the negative query
        fine = {f"fine_{i + 1}": hinge for i, (hinge, on) in enumerate(zip(hinges, wanted, strict=False)) if on}
    return terms | coarse | fine, total + s.coarse * sum(coarse.values()) + s.fine * sum(fine.values())


# -- localisation (Carion et al., DETR, ECCV 2020) --------------------------------------------------------------------


def span_losses(spans: Tensor, assigned: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean L1 distance and the mean 1 - GIoU (DETR, Eq. 2) of the matched pairs of the batch.

    spans [batch, queries, 2]; assigned [batch, windows] from `match`; targets [batch, windows, 2].
    """
    matched = assigned >= 0
    index = assigned.clamp(min=0)[..., None].expand(-1, -1, 2)
    chosen = spans.float().gather(1, index)  # [batch, windows, 2]
    truth = targets.where(matched[..., None], chosen.detach())  # unmatched windows must not give a NaN gradient
    distance = (chosen - truth).abs().mean(-1)
    overlap = generalised_iou(to_windows(chosen), to_windows(truth))
    return masked_mean(distance, matched), masked_mean(1 - overlap, matched)


def label_losses(logits: Tensor, assigned: Tensor, background_weight: float) -> tuple[Tensor, Tensor]:
    """Return the weighted cross entropy, and the percentage of matched queries classified as background (a metric).

    logits [batch, queries, 2]: class 0 is the foreground, class 1 the background; assigned [batch, windows] from
    `match`. As published, the sum is divided by the number of queries, not by the sum of their weights.
    """
    batch, queries = logits.shape[:2]
    index = assigned.where(assigned >= 0, queries)  # unmatched windows set an extra column, which is cut off
    flags = torch.zeros(batch, queries + 1, dtype=torch.bool, device=assigned.device)
    foreground = flags.scatter(1, index, True)[:, :queries]
    entropy = functional.cross_entropy(logits.float().flatten(0, 1), (~foreground).long().flatten(), reduction="none")
    weight = torch.where(foreground, 1.0, background_weight).flatten()
    right = (logits.argmax(-1) == 0) & foreground
    return (entropy * weight).mean(), 100 - 100 * right.sum() / foreground.sum().clamp(min=1)


def alignment(queries: Tensor, words: Tensor, assigned: Tensor, temperature: float) -> Tensor:
    """Return Moment-DETR's `contrastive_align_loss`, which aligns matched moment queries with the words of the text.

    queries [batch, queries, channels] and words [batch, words, channels] are unit vectors; assigned [batch, windows]
    comes from `match`. As published, the sum over words includes padding.
    """
    scores = (queries * words.sum(1)[:, None]).sum(-1) / temperature  # [batch, queries]
    matched = assigned >= 0
    chosen = scores.gather(1, assigned.clamp(min=0)) * matched  # [batch, windows]
    return (scores.logsumexp(1) - chosen.sum(1) / matched.sum(1).clamp(min=1)).mean()


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Return the mean of the elements where the mask is True, over `dim` or all dimensions; 0 if there are none."""
    weight = mask.to(values.dtype)
    return (torch.where(mask, values, 0) * weight).sum(dim) / weight.sum(dim).clamp(min=1)


def existence(logits: Tensor, false: Tensor) -> Tensor:
    """Return the mean of two binary cross entropies: of the true sentences, and of the false ones.

    logits [1 + texts, batch]: row 0 is of each sample's own sentence, which is true of its video; the other rows are of
    other texts. Texts that may be true of the video (not `false` [texts, batch]) are left out.
    """
    if not len(false):  # a batch of one, without hard negatives
        return logits.sum() * 0
    return (functional.softplus(-logits[0]).mean() + masked_mean(functional.softplus(logits[1:]), false)) / 2


# -- saliency of the base models --------------------------------------------------------------------------------------


def pair_hinge(saliency: Tensor, targets: Targets, margin: float) -> Tensor:
    """Return Moment-DETR's saliency loss, 2 · mean relu(margin + S(low) - S(high)), of saliency S [batch, clips]."""
    high, low = saliency.gather(1, targets.high_clips), saliency.gather(1, targets.low_clips)  # [batch, pairs]
    return 2 * (margin + low - high).relu().mean()


def negative_pair(saliency_negative: Tensor, video_mask: Tensor) -> Tensor:
    """Return QD-DETR's negative-pair loss -log(1 - sigmoid(S)) (CVPR 2023, Eq. 5), as softplus, which can't overflow.

    saliency_negative [batch, clips] is predicted for the query of another sample. The paper writes a single term; the
    published code takes the sum over clips and the mean over samples.
    """
    return (functional.softplus(saliency_negative) * video_mask).sum(1).mean()


def rank_contrastive(saliency: Tensor, negative: Tensor | None, targets: Targets, temperature: float) -> Tensor:
    """Return QD-DETR's rank-aware contrastive loss (CVPR 2023, Eq. 7).

    saliency [batch, clips], negative [batch, clips] with the negative query. For each rank r, the positives are the
    clips with a score of r or more; all other clips, and all clips of `negative`, are negatives. A sample without
    positives counts as 0 in the mean. As published, the sum over ranks is divided by twelve on every data set.
    """
    mask, labels, scores = targets.video_mask, targets.clip_scores, saliency
    if negative is not None:
        pairs = (mask, mask), (labels, torch.zeros_like(labels)), (saliency, negative)
        mask, labels, scores = (torch.cat(pair, dim=1) for pair in pairs)  # [batch, 2·clips]
    logits = scores.masked_fill(~mask, -1000.0) / temperature
    logits = logits - logits.amax(1, keepdim=True).detach()
    log_share = logits - (logits.exp().sum(1, keepdim=True) + 1e-6).log()
    ranks = torch.arange(1, RANKS, device=labels.device, dtype=labels.dtype)
    reached = ((labels[None] >= ranks[:, None, None]) & mask).to(scores.dtype)  # [ranks, batch, 2·clips]
    per_sample = (log_share * reached).sum(-1) / (reached.sum(-1) + 1e-6)  # [ranks, batch]
    return -per_sample.mean(1).sum() / RANKS


# -- SHINE's coarse ranking (ECCV 2024, Eq. 1 and 2) and fine ranking (Eq. 3 and 4) -----------------------------------


def top_mean(saliency: Tensor, inside: Tensor, quotient: int) -> Tensor:
    """Return the mean [batch] of the k highest scores inside the moment, k = max(1, floor(clips inside / quotient))."""
    count = inside.sum(1)
    k = (count // quotient).clamp(min=1)
    ranked = saliency.masked_fill(~inside, -torch.inf).sort(dim=1, descending=True).values
    chosen = torch.arange(saliency.shape[1], device=saliency.device) < k.minimum(count)[:, None]
    return ranked.masked_fill(~chosen, 0).sum(1) / k


def coarse_intra(saliency: Tensor, targets: Targets, margin: float, quotient: int) -> Tensor:
    """Return the mean of relu(h1 + S_p(outside) - S_p(inside)) (Eq. 1), S_p(outside) the highest score outside.

    saliency [batch, clips]. If the moment covers the whole video, S_p(outside) is the score of clip 0, as published.
    """
    highest = saliency.masked_fill(~targets.outside, -torch.inf).amax(1)
    highest = highest.where(targets.outside.any(1), saliency[:, 0])
    return (margin + highest - top_mean(saliency, targets.inside, quotient)).relu().mean()


def coarse_inter(saliency: Tensor, negative: Tensor, targets: Targets, margin: float, quotient: int) -> Tensor:
    """Return the mean of relu(h2 + S_n(inside) - S_p(inside)) (Eq. 2); S_p, S_n: saliency, negative [batch, clips]."""
    other, own = (top_mean(scores, targets.inside, quotient) for scores in (negative, saliency))
    return (margin + other - own).relu().mean()


def divergence(reference: Tensor, saliency: Tensor, mask: Tensor) -> Tensor:
    """Return d(y, s) = -(1/T) sum_t y_t log s_t [..., batch] (Eq. 3) of `reference` y and `saliency` s [..., clips].

    The paper takes the logarithm of s, which may be negative. As in the authors' code, s is sigmoid(saliency) + 1e-9,
    and y has no gradient.
    """
    log_share = (saliency.float().sigmoid() + 1e-9).log()
    return -(reference.detach() * log_share * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def fine_hinges(
    saliency: Tensor, hard: Tensor, present: Tensor, negative: Tensor | None, targets: Targets, settings: ShineLosses
) -> list[Tensor]:
    """Return the hinges of Eq. 4 between neighbours of d(Y, Sp) < d(Sp, S1) < d(Sp, S2) < d(Sp, S3) < d(Sp, Sn).

    saliency and negative [batch, clips], hard [levels, batch, clips], present [levels, batch]. `ranking_weights` weight
    the relative ranking (paper), which compares each level with the previous level, and the absolute ranking
    (supplement), which compares each level with level 1. A hinge whose negative is missing is left out of the mean.
    """
    mask, (relative, absolute) = targets.video_mask, settings.ranking_weights
    margins = (*settings.fine_margins[: len(hard)], settings.fine_margins[-1])  # the last margin is of Sn
    truth = divergence((targets.clip_scores > 0).float(), saliency, mask)  # [batch]
    if negative is not None:
        hard, present = torch.cat((hard, negative[None])), torch.cat((present, torch.ones_like(present[:1])))
    levels = divergence(saliency.float().sigmoid(), hard, mask)  # [levels, batch]

    def hinge(level: int, lower: int) -> Tensor:
        both = present[level] & present[lower]
        return masked_mean((margins[level] + levels[lower] - levels[level]).relu(), both)

    def ranked(level: int) -> Tensor:
        anchors = ((relative, level - 1), (absolute, 0))
        return sum((weight * hinge(level, lower) for weight, lower in anchors if weight), truth.new_zeros(()))

    first = (relative + absolute) * masked_mean((margins[0] + truth - levels[0]).relu(), present[0])
    return [first, *map(ranked, range(1, len(levels)))]
