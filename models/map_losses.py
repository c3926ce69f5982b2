"""Losses of MMN and VDI on the map of candidate moments, also with SHINE's hard negatives.

From top to bottom: the ground truth (`MapTargets`), weights and options, the weighted total (`mmn_losses`), the IoU
branch, mutual matching, hard negatives. VDI's two injections are in `vdi`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from penumbra.models.losses import Losses, existence, masked_mean
from penumbra.models.mmn import IOU_SCALE, MapOutputs
from penumbra.models.spans import iou

EXISTENCE = 0.1  # factor of the existence loss: with 1, MMN's mIoU is 10 points lower (docs/does-it-help.md)


@dataclass
class MapTargets:
    overlap: Tensor  # [sentences, candidates], highest hull IoU of each candidate with the sentence's windows
    windows: Tensor  # [sentences, windows, 2] in seconds
    window_mask: Tensor  # [sentences, windows], False for padding
    hard_present: Tensor | None = None  # [levels, sentences], True where a sentence has a hard negative of this level
    late: bool = False  # whether `full_epochs` epochs are over
    false: Tensor | None = None  # [texts, sentences], True where a text is false of the video: `existence[1:]`


@dataclass(frozen=True)
class MMNLosses:
    """Weights and options of MMN's losses; the defaults are those of Charades-STA.

    `contrastive` is the weight of both mutual matching losses in the first `full_epochs` epochs; later epochs multiply
    it by `late`. `shine` adds generated hard negatives to `among_sentences`. `hard_order` is the weight of the ranking
    of hard negatives, and `hard_overlap` the weight of a loss that lowers their overlap in the IoU branch. The paper
    does not have these three options.
    """

    lowest: float = 0.5  # overlap up to which the IoU target of a candidate is 0
    highest: float = 1.0  # overlap from which the IoU target is 1
    positives: int = 1  # number of candidates with the highest overlap that are positives of a sentence
    negative_overlap: float = 0.5  # overlap below which a candidate is a negative of a sentence
    removal_overlap: float = 0.5  # overlap of windows from which sentences of one video are not negatives
    temperature_video: float = 0.1  # temperature of `among_sentences`
    temperature_sentence: float = 0.1  # temperature of `among_moments`
    margin: float = 0.4  # subtracted from the cosine of a positive
    contrastive: float = 0.05
    late: float = 0.01
    full_epochs: int = 7
    hard_order: float = 0.0
    hard_margin: float = 0.1
    hard_overlap: float = 0.0
    existence: float = 0.0  # weight of the existence loss (`losses.existence`), multiplied by `EXISTENCE`
    shine: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.lowest < self.highest <= 1:
            raise ValueError(f"0 <= lowest < highest <= 1 must hold, not {self.lowest} and {self.highest}")
        if self.positives < 1:
            raise ValueError(f"positives must be at least 1, not {self.positives}")


def mmn_losses(outputs: MapOutputs, targets: MapTargets, settings: MMNLosses) -> Losses:
    """Return the weighted total and each loss, without VDI's injections."""
    s, video_of, present = settings, outputs.video_of, targets.hard_present
    cells, sentences, hard = outputs.cell_contrast, outputs.text_contrast[0], outputs.text_contrast[1:]
    best = targets.overlap.topk(s.positives, dim=1).indices  # [sentences, positives]
    positives = cells[video_of[:, None], best]  # [sentences, positives, joint]
    kept = kept_sentences(targets, video_of, s.removal_overlap)
    scores = torch.einsum("bmc,sc->sbm", cells, sentences)  # [sentences, videos, candidates]
    own = torch.einsum("skc,sc->sk", positives, sentences)
    terms = {
        "iou": candidate_iou_loss(outputs.iou_logits(), targets.overlap, s.lowest, s.highest),
        "among_sentences": among_sentences(positives, sentences, kept, hard, present, s),
        "among_moments": among_moments(scores, own, targets.overlap, video_of, s),
    }
    mutual = s.contrastive * (s.late if targets.late else 1.0)
    total = terms["iou"] + mutual * (terms["among_sentences"] + terms["among_moments"])
    others, weights = dict[str, Tensor](), {"existence": EXISTENCE * s.existence}
    if s.hard_order and present is not None:
        others["hard_order"] = hard_order(positives, sentences, hard, present, s.hard_margin)
    if s.hard_overlap and present is not None:
        logits = IOU_SCALE * torch.einsum("smc,ksc->ksm", outputs.cell_iou[video_of], outputs.text_iou[1:])
        others["hard_overlap"] = masked_mean(functional.softplus(logits).mean(-1), present)
    if s.existence and outputs.existence is not None and targets.false is not None:
        others["existence"] = existence(outputs.existence, targets.false)
    total = total + sum(weights.get(name, getattr(s, name)) * value for name, value in others.items())
    return Losses(total, {name: value.detach() for name, value in (terms | others).items()})


def candidate_iou_loss(logits: Tensor, overlap: Tensor, lowest: float, highest: float) -> Tensor:
    """Return the mean binary cross entropy of logits and scaled overlap [sentences, candidates].

    The scaled overlap is 0 up to `lowest`, 1 from `highest`, and linear between (2D-TAN, AAAI 2020, Eq. 4).
    """
    scaled = ((overlap - lowest) / (highest - lowest)).clamp(0, 1)
    return functional.binary_cross_entropy_with_logits(logits, scaled)


# -- mutual matching (MMN, AAAI 2022, Eq. 4 to 6) ---------------------------------------------------------------------
#
# A sentence's positives are the K candidates that overlap most with its window. `among_sentences` contrasts them with
# the other sentences of the batch, `among_moments` contrasts each sentence with the other candidates of all videos.
# One matrix product computes all cosines of sentences and candidates, without a loop over videos or sentences.


def kept_sentences(targets: MapTargets, video_of: Tensor, highest: float) -> Tensor:
    """Return a mask [sentences, sentences] of the sentences that each sentence's positives are contrasted with.

    It is False for other sentences of the same video whose windows overlap by `highest` or more (false negatives).
    """
    same = video_of[:, None] == video_of
    windows, present = targets.windows, targets.window_mask
    overlap = iou(windows[:, None, :, None], windows[None, :, None])  # [sentences, sentences, windows, windows]
    both = present[:, None, :, None] & present[None, :, None]
    apart = torch.where(both, overlap, 0).flatten(2).amax(-1) < highest
    return ~same | apart | torch.eye(len(video_of), dtype=torch.bool, device=video_of.device)


def among_sentences(
    positives: Tensor, sentences: Tensor, kept: Tensor, hard: Tensor, hard_present: Tensor | None, settings: MMNLosses
) -> Tensor:
    """Return the video-side loss: the cross entropy of each positive moment over the kept sentences.

    positives [sentences, K, joint], sentences [sentences, joint], kept [sentences, sentences]. The margin is subtracted
    from the positive's cosine in numerator and denominator. The hard negatives of a sentence, `hard` [levels,
    sentences, joint], are added to its denominator where `hard_present` [levels, sentences].
    """
    cosines = positives @ sentences.T  # [sentences, K, sentences]
    own = torch.eye(len(sentences), dtype=torch.bool, device=cosines.device)[:, None]
    logits = (cosines - settings.margin * own) / settings.temperature_video
    logits = logits.masked_fill(~kept[:, None], -torch.inf)
    if hard_present is not None:
        more = torch.einsum("skc,lsc->skl", positives, hard) / settings.temperature_video
        logits = torch.cat((logits, more.masked_fill(~hard_present.T[:, None], -torch.inf)), dim=-1)
    chosen = logits.diagonal(dim1=0, dim2=2).T
    return (logits.logsumexp(-1) - chosen).mean()


def among_moments(scores: Tensor, positives: Tensor, overlap: Tensor, video_of: Tensor, settings: MMNLosses) -> Tensor:
    """Return the sentence-side loss: the cross entropy of each sentence over the candidates of all videos.

    scores [sentences, videos, candidates] are cosines, positives [sentences, K] those of the positive candidates,
    overlap [sentences, candidates]. Candidates of the sentence's video that overlap by `negative_overlap` or more are
    not negatives; as published, each adds exp(0) = 1 to the denominator, which also has a constant 1e-6.
    """
    rows = torch.arange(len(scores), device=scores.device)
    own = torch.zeros(scores.shape[:2], dtype=torch.bool, device=scores.device)
    own[rows, video_of] = True
    false = own[..., None] & (overlap >= settings.negative_overlap)[:, None]
    logits = (scores / settings.temperature_sentence).masked_fill(false, 0.0)
    negatives = logits.flatten(1).logsumexp(1)
    chosen = (positives - settings.margin) / settings.temperature_sentence
    constant = torch.tensor(1e-6, device=scores.device).log()
    total = chosen.logaddexp(negatives[:, None]).logaddexp(constant)
    return (total - chosen).mean()


# -- hard negatives of sentences: SHINE's order (ECCV 2024) on MMN's moments ------------------------------------------


def hard_order(positives: Tensor, sentences: Tensor, hard: Tensor, present: Tensor, margin: float) -> Tensor:
    """Return the mean hinge, with `margin`, of neighbours in sentence > level 1 > level 2 > level 3 (cosines).

    positives [sentences, K, joint], sentences [sentences, joint], hard [levels, sentences, joint]. A hinge is left out
    of the mean if the sentence lacks a hard negative of it (`present` [levels, sentences]).
    """
    texts = torch.cat((sentences[None], hard))
    cosines = torch.einsum("skc,lsc->lsk", positives, texts)  # [1 + levels, sentences, K]
    hinges = (margin + cosines[1:] - cosines[:-1]).relu().mean(-1)
    both = present & torch.cat((torch.ones_like(present[:1]), present[:-1]))
    return masked_mean(hinges, both)
