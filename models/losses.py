"""Losses of Moment-DETR, QD-DETR and BM-DETR, with SHINE's rankings, and the matching that they rest on.

From top to bottom: weights and options, the ground truth (`Targets`), the weighted total (`compute_losses`), matching
and localisation, existence, saliency, SHINE's coarse and fine ranking. BM-DETR's own are in `bm_detr`.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from penumbra.models.detr import Outputs
from penumbra.models.spans import generalised_iou, to_windows

RANKS = 12  # a clip's score is the sum of three annotators' (0 to 12); other data sets use the first rank only


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
    pair_hinge: bool | None = None  # hinge of clip pairs; None: without SHINE, whose intra term replaces it
    pair_margin: float = 0.2
    existence: float = 0.0  # weight of the loss that tells true sentences from false ones

    @property
    def needs_negative(self) -> bool:
        """Whether a step asks every video for the text of the batch's next sample, too."""
        return self.existence > 0

    @property
    def hard_levels(self) -> int:
        """The number of hard negatives of a query that a step reads."""
        return 0

    def own_terms(self, outputs: Outputs, targets: "Targets", terms: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a model's own terms, by the names of their weights; `terms` are those that all models share."""
        return {}


@dataclass(frozen=True)
class ShineLosses(LossSettings):
    """Losses of a model that SHINE's hard negatives may train.

    `variant` chooses between SHINE's paper and the authors' released code where they differ. "paper" trains everything.
    "released" is what the released criterion computes: the saliency losses and the rankings alone. It never matches, so
    decoder, anchors, span and class heads get no gradient, and the windows of such a model are meaningless.

    Where the paper leaves something open, both follow the released code: the divergence of the fine ranking squashes
    saliency with a sigmoid and stops the gradient of its first argument (`divergence`); a moment that covers the whole
    video is compared with clip 0 (`coarse_intra`); the negative-pair loss is a sum over clips; the contrastive loss
    keeps QVHighlights' twelve ranks on data with one rank (`rank_contrastive`); the negative query is the next sample
    of the batch; both rankings have the weight of the saliency loss as a factor, and one of their own.
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
        for name, value in {"quotient": self.quotient, "hard_every": self.hard_every}.items():
            if value < 1:
                raise ValueError(f"{name} is at least 1, not {value}")
        if self.levels_a_step not in (1, 2, 3):
            raise ValueError(f"levels_a_step is 1, 2 or 3, not {self.levels_a_step}")

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


@dataclass
class Targets:
    """The ground truth of a batch."""

    spans: Tensor  # [batch, windows, 2], (centre, width) as fractions; a window may end after the video, at more than 1
    span_mask: Tensor  # [batch, windows], True where a window exists
    clip_scores: Tensor  # [batch, clips], 0 outside the moment, else 1 or the annotators' sum (0 to 12)
    video_mask: Tensor  # [batch, clips], True where a clip is no padding
    high_clips: Tensor  # [batch, pairs], clips of the saliency hinge that are to score higher than `low_clips`
    low_clips: Tensor  # [batch, pairs]
    hard_present: Tensor | None = None  # [levels, batch], True where a query has the hard negative, if any is read
    false: Tensor | None = None  # [texts, batch], which texts of `Outputs.existence` after the first have no moment

    @property
    def inside(self) -> Tensor:
        """Clips of the moment [batch, clips]."""
        return (self.clip_scores > 0) & self.video_mask

    @property
    def outside(self) -> Tensor:
        """Valid clips outside the moment [batch, clips]."""
        return (self.clip_scores <= 0) & self.video_mask


@dataclass
class Losses:
    """The weighted total (with gradient), and each term before its weight (detached, on the device)."""

    total: Tensor
    terms: dict[str, Tensor]


def compute_losses(outputs: Outputs, targets: Targets | tuple[Targets, ...], settings: LossSettings) -> Losses:
    """Return the weighted total and all terms; those of earlier decoder layers are numbered, as in `span_0`.

    Several targets are those of equal parts of the batch, as with temporal shifting: each loss is the mean over them.
    """
    if isinstance(targets, tuple):
        parts = zip(outputs.split(len(targets)), targets, strict=True)
        several = [compute_losses(*part, settings) for part in parts]
        terms = {name: torch.stack([losses.terms[name] for losses in several]).mean() for name in several[0].terms}
        return Losses(torch.stack([losses.total for losses in several]).mean(), terms)
    terms, saliency = _saliency_losses(outputs, targets, settings)
    total = settings.saliency * saliency
    terms["saliency"] = total / settings.saliency if settings.saliency else total
    if not isinstance(settings, ShineLosses) or settings.variant == "paper":  # the released criterion never matches
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
    """Return the terms that rank clips, and their weighted sum; terms that need a negative may be left out."""
    s, scores, negative = settings, outputs.saliency.float(), outputs.saliency_negative  # [batch, clips]
    negative = None if negative is None else negative.float()
    terms, shine = dict[str, Tensor](), isinstance(s, ShineLosses) and s.shine
    if not shine if s.pair_hinge is None else s.pair_hinge:
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
        wanted = (*s.fine_terms[: len(hard)], s.fine_terms[-1])  # the last one is the random text's
        fine = {f"fine_{i + 1}": hinge for i, (hinge, on) in enumerate(zip(hinges, wanted, strict=False)) if on}
    return terms | coarse | fine, total + s.coarse * sum(coarse.values()) + s.fine * sum(fine.values())


# -- matching and localisation (Carion et al., DETR, ECCV 2020) -------------------------------------------------------


def cost_matrix(logits: Tensor, spans: Tensor, targets: Tensor, costs: MatchingCosts) -> Tensor:
    """Return the cost [batch, queries, windows] of giving a window to a moment query, float32, without gradient.

    logits and spans [batch, queries, 2], targets [batch, windows, 2] as (centre, width). The published code computes
    costs across samples and uses the diagonal blocks, which is the same.
    """
    with torch.no_grad():
        logits, spans = logits.float(), spans.float()
        foreground = logits.softmax(-1)[..., :1]  # [batch, queries, 1]
        distance = (spans[:, :, None] - targets[:, None]).abs().sum(-1)  # [batch, queries, windows]
        overlap = generalised_iou(to_windows(spans)[:, :, None], to_windows(targets)[:, None])
        return costs.span * distance - costs.giou * overlap - costs.label * foreground


def match(logits: Tensor, spans: Tensor, targets: Tensor, present: Tensor, costs: MatchingCosts) -> Tensor:
    """Return the query [batch, windows] that each window is given to: the cheapest one-to-one assignment.

    It is -1 for windows that are not `present` [batch, windows] or left over. If no sample can have more than one
    window, this is an argmin on the device and nothing goes to the host; otherwise scipy solves each sample.
    """
    from scipy.optimize import linear_sum_assignment

    cost = cost_matrix(logits, spans, targets, costs)
    if targets.shape[1] == 1:
        return cost.argmin(1).masked_fill(~present, -1)
    cost, assigned = cost.cpu(), torch.full(present.shape, -1)
    for sample, windows in enumerate(present.cpu()):
        places = windows.nonzero()[:, 0]
        queries, columns = linear_sum_assignment(cost[sample][:, places].numpy())
        assigned[sample, places[torch.from_numpy(columns)]] = torch.from_numpy(queries)
    return assigned.to(targets.device)


def span_losses(spans: Tensor, assigned: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean L1 distance and the mean 1 - GIoU (DETR, Eq. 2) of the matched pairs of the batch.

    spans [batch, queries, 2]; assigned [batch, windows] is the query of each window or -1; targets [batch, windows, 2].
    """
    matched = assigned >= 0
    index = assigned.clamp(min=0)[..., None].expand(-1, -1, 2)
    chosen = spans.float().gather(1, index)  # [batch, windows, 2]
    truth = targets.where(matched[..., None], chosen.detach())  # a window without a query must not give a NaN gradient
    distance = (chosen - truth).abs().mean(-1)
    overlap = generalised_iou(to_windows(chosen), to_windows(truth))
    return masked_mean(distance, matched), masked_mean(1 - overlap, matched)


def label_losses(logits: Tensor, assigned: Tensor, background_weight: float) -> tuple[Tensor, Tensor]:
    """Return the weighted cross entropy, and the percentage of matched queries classified as background (no loss).

    logits [batch, queries, 2]: class 0 is foreground, class 1 background with the lesser weight; assigned [batch,
    windows]. The mean is over all queries, not divided by the sum of weights, as published.
    """
    batch, queries = logits.shape[:2]
    index = assigned.where(assigned >= 0, queries)  # windows without a query fall into a column that is cut off
    flags = torch.zeros(batch, queries + 1, dtype=torch.bool, device=assigned.device)
    foreground = flags.scatter(1, index, True)[:, :queries]
    entropy = functional.cross_entropy(logits.float().flatten(0, 1), (~foreground).long().flatten(), reduction="none")
    weight = torch.where(foreground, 1.0, background_weight).flatten()
    right = (logits.argmax(-1) == 0) & foreground
    return (entropy * weight).mean(), 100 - 100 * right.sum() / foreground.sum().clamp(min=1)


def alignment(queries: Tensor, words: Tensor, assigned: Tensor, temperature: float) -> Tensor:
    """Return Moment-DETR's `contrastive_align_loss`: matched moment queries align with the text.

    queries [batch, queries, channels] and words [batch, words, channels] are unit vectors, `assigned` [batch, windows]
    the query of each window or -1. All words count, padding included, as published.
    """
    scores = (queries * words.sum(1)[:, None]).sum(-1) / temperature  # [batch, queries]
    matched = assigned >= 0
    chosen = scores.gather(1, assigned.clamp(min=0)) * matched  # [batch, windows]
    return (scores.logsumexp(1) - chosen.sum(1) / matched.sum(1).clamp(min=1)).mean()


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Return the mean, along a dimension or of all, of the elements where the mask is True; 0 if there are none."""
    weight = mask.to(values.dtype)
    return (torch.where(mask, values, 0) * weight).sum(dim) / weight.sum(dim).clamp(min=1)


def existence(logits: Tensor, false: Tensor) -> Tensor:
    """Return the binary cross entropy of true and false sentences, which weigh as much as each other in all.

    logits [1 + texts, batch] are those of each sample's own sentence, which is true, and of other texts; `false`
    [texts, batch] says which of these have no moment in the sample's video. The others are left out of the mean.
    """
    if not len(false):  # a batch of one, without hard negatives
        return logits.sum() * 0
    return (functional.softplus(-logits[0]).mean() + masked_mean(functional.softplus(logits[1:]), false)) / 2


# -- saliency of the base models --------------------------------------------------------------------------------------


def pair_hinge(saliency: Tensor, targets: Targets, margin: float) -> Tensor:
    """Return Moment-DETR's hinge, twice its mean: a clip inside scores `margin` more than one outside."""
    high, low = saliency.gather(1, targets.high_clips), saliency.gather(1, targets.low_clips)  # [batch, pairs]
    return 2 * (margin + low - high).relu().mean()


def negative_pair(saliency_negative: Tensor, video_mask: Tensor) -> Tensor:
    """Return QD-DETR's -log(1 - sigmoid(S)) (CVPR 2023, Eq. 5): under another sample's text no clip is salient.

    The paper writes one term; the published code sums over clips and takes the mean over samples. softplus is the same
    function and never overflows.
    """
    return (functional.softplus(saliency_negative) * video_mask).sum(1).mean()


def rank_contrastive(saliency: Tensor, negative: Tensor | None, targets: Targets, temperature: float) -> Tensor:
    """Return QD-DETR's rank-aware contrastive loss (CVPR 2023, Eq. 7).

    For every rank r it compares clips of at least that score with all other clips, those under the negative text
    included. saliency and negative [batch, clips]. Samples without a clip of the rank count as 0 in the mean.
    """
    mask, labels, scores = targets.video_mask, targets.clip_scores, saliency
    if negative is not None:
        scores = torch.cat((saliency, negative), dim=1)  # [batch, 2·clips]
        mask = torch.cat((mask, mask), dim=1)
        labels = torch.cat((labels, torch.zeros_like(labels)), dim=1)
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
    """Return relu(h1 + S_p(outside) - S_p(inside)), S_p(outside) the highest clip outside the moment (Eq. 1).

    The paper has no case for a moment that covers the whole video; the published code takes clip 0, and so do we.
    """
    highest = saliency.masked_fill(~targets.outside, -torch.inf).amax(1)
    highest = highest.where(targets.outside.any(1), saliency[:, 0])
    return (margin + highest - top_mean(saliency, targets.inside, quotient)).relu().mean()


def coarse_inter(saliency: Tensor, negative: Tensor, targets: Targets, margin: float, quotient: int) -> Tensor:
    """Return relu(h2 + S_n(inside) - S_p(inside)), S_n under another sample's text, over the same clips (Eq. 2)."""
    other, own = (top_mean(scores, targets.inside, quotient) for scores in (negative, saliency))
    return (margin + other - own).relu().mean()


def divergence(reference: Tensor, saliency: Tensor, mask: Tensor) -> Tensor:
    """Return d(y, s) = -(1/T) sum_t y_t log s_t (Eq. 3) [..., batch] over the valid clips; y has no gradient.

    The paper takes the logarithm of s itself, which may be negative, and says nothing of gradients. As in the authors'
    code s goes through a sigmoid, 1e-9 is added, and y is detached.
    """
    log_share = (saliency.float().sigmoid() + 1e-9).log()
    return -(reference.detach() * log_share * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def fine_hinges(
    saliency: Tensor, hard: Tensor, present: Tensor, negative: Tensor | None, targets: Targets, settings: ShineLosses
) -> list[Tensor]:
    """Return the hinges of Eq. 4, one a neighbouring pair: (Y, Sp) < (Sp, S1) < (Sp, S2) < (Sp, S3) < (Sp, Sn).

    saliency and negative [batch, clips], hard [levels, batch, clips], present [levels, batch]. The `ranking_weights`
    are of two rankings: the relative one compares each level with the one before it, as in the paper; the absolute one
    compares every level with level 1, as in its supplement. A hinge that needs a hard negative that a query lacks, or a
    negative that the batch lacks, is left out of the mean.
    """
    mask, weights = targets.video_mask, settings.ranking_weights
    margins = (*settings.fine_margins[: len(hard)], settings.fine_margins[-1])  # the last one is the random text's
    truth = divergence((targets.clip_scores > 0).float(), saliency, mask)  # [batch]
    share = saliency.float().sigmoid()
    levels = list(divergence(share, hard, mask))  # a tensor [batch] for each level
    if negative is not None:
        levels.append(divergence(share, negative, mask))
        present = torch.cat((present, torch.ones_like(present[:1])))
    hinges = [sum(weights) * masked_mean((margins[0] + truth - levels[0]).relu(), present[0])]
    for index in range(1, len(levels)):
        total = torch.zeros((), device=saliency.device)
        for weight, anchor in zip(weights, (index - 1, 0), strict=True):
            both = present[index] & present[anchor]
            hinge = masked_mean((margins[index] + levels[anchor] - levels[index]).relu(), both)
            total = total + weight * hinge if weight else total
        hinges.append(total)
    return hinges
