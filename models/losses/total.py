"""The whole loss of a step: what is switched on, each term by its name, and their weighted sum."""

from dataclasses import dataclass

import torch
from torch import Tensor

from penumbra.models.losses import coarse, contrastive, saliency
from penumbra.models.losses.fine import fine_terms
from penumbra.models.losses.label import class_error, label_loss
from penumbra.models.losses.probability import frame_probability
from penumbra.models.losses.semantic import semantic_alignment
from penumbra.models.losses.settings import LossSettings
from penumbra.models.losses.span import span_losses
from penumbra.models.losses.targets import Targets
from penumbra.models.matching import match
from penumbra.models.outputs import Outputs


@dataclass
class Losses:
    """The weighted total (with gradient), and each term before its weight (detached, on the device)."""

    total: Tensor
    terms: dict[str, Tensor]


def compute_losses(outputs: Outputs, targets: Targets, settings: LossSettings) -> Losses:
    """All losses of a batch. Auxiliary terms carry their decoder layer's number: `span_0`, `giou_0`, `label_0`.

    Of several branches the mean: each has its own matching and its own negatives.
    """
    parts = zip(outputs.split(targets.branches), targets.split(), strict=True)
    found = [_of_branch(*part, settings) for part in parts]
    terms = {name: torch.stack([losses.terms[name] for losses in found]).mean() for name in found[0].terms}
    return Losses(torch.stack([losses.total for losses in found]).mean(), terms)


def _of_branch(outputs: Outputs, targets: Targets, settings: LossSettings) -> Losses:
    terms, total = _saliency_terms(outputs, targets, settings)
    total = settings.saliency * total
    terms["saliency"] = total / settings.saliency if settings.saliency else total
    if settings.variant == "paper":
        total = total + _set_losses(outputs, targets, settings, terms)
    total = total + _background_terms(outputs, targets, settings, terms)
    return Losses(total, {name: value.detach() for name, value in terms.items()})


def _set_losses(outputs: Outputs, targets: Targets, settings: LossSettings, terms: dict[str, Tensor]) -> Tensor:
    """Span, GIoU, class and alignment losses of the last decoder layer and of the earlier ones, each matched afresh."""
    layers = outputs.logits.shape[0] if settings.auxiliary else 1
    logits, spans = outputs.logits[-layers:], outputs.spans[-layers:]
    truth, present = targets.spans.repeat(layers, 1, 1), targets.span_mask.repeat(layers, 1)
    assigned = match(logits.flatten(0, 1), spans.flatten(0, 1), truth, present, settings.costs)
    total = torch.zeros((), device=logits.device)
    for layer, choice in enumerate(assigned.view(layers, -1, assigned.shape[-1])):
        suffix = "" if layer == layers - 1 else f"_{layer}"
        distance, overlap = span_losses(spans[layer], choice, targets.spans)
        label = label_loss(logits[layer], choice, settings.background)
        total = total + settings.span * distance + settings.giou * overlap + settings.label * label
        terms |= {f"span{suffix}": distance, f"giou{suffix}": overlap, f"label{suffix}": label}
        terms[f"class_error{suffix}"] = class_error(logits[layer], choice)
        if not suffix and settings.class_error:
            total = total + settings.class_error * terms["class_error"]
        if outputs.align is not None:
            queries, temperature = outputs.align.queries[layer - layers], settings.align_temperature
            terms[f"align{suffix}"] = contrastive.alignment(queries, outputs.align.words, choice, temperature)
            total = total + settings.align * terms[f"align{suffix}"]
    return total


def _background_terms(outputs: Outputs, targets: Targets, settings: LossSettings, terms: dict[str, Tensor]) -> Tensor:
    """BM-DETR's losses of clips' probabilities and of pooled video and text."""
    total = torch.zeros((), device=outputs.logits.device)
    if settings.probability and outputs.probability is not None:
        terms["probability"] = frame_probability(outputs.probability, targets)
        total = total + settings.probability * terms["probability"]
    if settings.semantic and outputs.pooled is not None:
        terms["semantic"] = semantic_alignment(*outputs.pooled, settings.align_temperature)
        total = total + settings.semantic * terms["semantic"]
    return total


def _saliency_terms(outputs: Outputs, targets: Targets, settings: LossSettings) -> tuple[dict[str, Tensor], Tensor]:
    """Everything that ranks clips; a term that needs a negative is left out where the batch has none."""
    scores, negative = outputs.saliency.float(), outputs.saliency_negative
    negative = None if negative is None else negative.float()
    terms: dict[str, Tensor] = {}
    if settings.pair_hinge:
        terms["pair_hinge"] = saliency.pair_hinge(scores, targets, settings.pair_margin)
    if settings.rank_contrastive:
        terms["rank_contrastive"] = contrastive.rank_contrastive(scores, negative, targets, settings.temperature)
    if settings.negative_pair and negative is not None:
        terms["negative_pair"] = saliency.negative_pair(negative, targets.video_mask)
    total = torch.stack([*terms.values(), scores.new_zeros(())]).sum()
    if settings.coarse:
        found = _coarse(scores, negative, targets, settings)
        terms |= found
        total = total + settings.coarse * sum(found.values())
    if settings.fine and outputs.saliency_hard is not None:
        hinges = fine_terms(
            scores, outputs.saliency_hard.float(), negative, targets, settings.fine_margins, settings.ranking
        )
        used = {f"fine_{i + 1}": hinge for i, hinge in enumerate(hinges) if settings.fine_terms[i]}
        terms |= used
        total = total + settings.fine * sum(used.values())
    return terms, total


def _coarse(scores: Tensor, negative: Tensor | None, targets: Targets, settings: LossSettings) -> dict[str, Tensor]:
    found, margins = {}, settings.coarse_margins
    if "intra" in settings.coarse_terms:
        found["coarse_intra"] = coarse.intra(scores, targets, margins[0], settings.quotient)
    if "inter" in settings.coarse_terms and negative is not None:
        found["coarse_inter"] = coarse.inter(scores, negative, targets, margins[1], settings.quotient)
    return found
