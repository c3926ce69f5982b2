"""The whole loss of MMN: overlap of all candidates, and mutual matching; weighted anew from an epoch on."""

from dataclasses import dataclass

import torch
from torch import Tensor

from penumbra.models.losses.candidate_iou import candidate_iou_loss
from penumbra.models.losses.candidates import MapTargets
from penumbra.models.losses.hard_moments import hard_order, hard_overlap
from penumbra.models.losses.mutual import among_moments, among_sentences, kept_sentences
from penumbra.models.losses.total import Losses
from penumbra.models.mmn import MapOutputs


@dataclass(frozen=True)
class MMNLossSettings:
    """Weights and switches; the defaults are those of Charades-STA.

    `lowest` and `highest` scale the IoU branch's targets. `contrastive` is the weight of both mutual terms for the
    first epochs, and times `late` afterwards: the branch is to be found early and then left alone. `hard` puts
    generated negatives among the sentences that a moment must tell from its own, `hard_order` is the weight of their
    ranking there and `hard_overlap` that of their overlap with any moment in the IoU branch (`hard_moments`): all three
    are this project's, off as the paper has none.
    """

    lowest: float = 0.5
    highest: float = 1.0
    positives: int = 1
    negative_overlap: float = 0.5
    removal_overlap: float = 0.5
    temperature_video: float = 0.1
    temperature_sentence: float = 0.1
    margin: float = 0.4
    contrastive: float = 0.05
    late: float = 0.01
    hard: bool = False
    hard_order: float = 0.0
    hard_margin: float = 0.1
    hard_overlap: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no loss can be."""
        if not 0 <= self.lowest < self.highest <= 1:
            raise ValueError(f"0 <= lowest < highest <= 1, not {self.lowest} and {self.highest}")

    @property
    def needs_hard(self) -> bool:
        """Whether a step must encode the hard negatives."""
        return self.hard or self.hard_order > 0 or self.hard_overlap > 0


def mmn_losses(outputs: MapOutputs, targets: MapTargets, settings: MMNLossSettings) -> Losses:
    """Return all losses of a batch."""
    s, video_of = settings, outputs.video_of
    overlap = candidate_iou_loss(outputs.iou_logits(), targets.overlap, s.lowest, s.highest)
    cells, sentences = outputs.cell_contrast, outputs.sentence_contrast
    best = targets.overlap.topk(s.positives, dim=1).indices
    positives = cells[video_of[:, None], best]
    scores = torch.einsum("bmc,sc->sbm", cells, sentences)
    kept = kept_sentences(targets, video_of, s.removal_overlap)
    hard = outputs.hard_contrast if s.hard else None
    terms = {
        "iou": overlap,
        "among_sentences": among_sentences(
            positives, sentences, kept, s.margin, s.temperature_video, hard, targets.hard_present
        ),
        "among_moments": among_moments(
            scores,
            _positive_scores(positives, sentences),
            targets.overlap,
            video_of,
            s.margin,
            s.temperature_sentence,
            s.negative_overlap,
        ),
    }
    weight = s.contrastive * (s.late if targets.late else 1.0)
    total = overlap + weight * (terms["among_sentences"] + terms["among_moments"])
    if s.hard_order and outputs.hard_contrast is not None:
        terms["hard_order"] = hard_order(
            positives, sentences, outputs.hard_contrast, targets.hard_present, s.hard_margin
        )
        total = total + s.hard_order * terms["hard_order"]
    if s.hard_overlap and outputs.hard_iou is not None:
        terms["hard_overlap"] = hard_overlap(outputs.hard_iou_logits(), targets.hard_present)
        total = total + s.hard_overlap * terms["hard_overlap"]
    return Losses(total, {name: value.detach() for name, value in terms.items()})


def _positive_scores(positives: Tensor, sentences: Tensor) -> Tensor:
    """Cosines [S, K] of positive moments [S, K, C] and their sentence [S, C]."""
    return torch.einsum("skc,sc->sk", positives, sentences)
