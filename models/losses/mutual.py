"""Mutual matching (MMN, AAAI 2022, Eq. 4 to 6): moments among sentences, and sentences among moments.

A sentence's positives are the K candidates that overlap most with its window. For each, the other sentences of the
batch are negatives (`among_sentences`); for each sentence, the other candidates of all videos are (`among_moments`).
All products of S sentences and B·M candidates are one matrix product, and no loop runs over videos or sentences.
"""

import torch
from torch import Tensor

from penumbra.models.losses.candidates import MapTargets, window_overlap


def kept_sentences(targets: MapTargets, video_of: Tensor, highest: float) -> Tensor:
    """Which sentences [S, S] count beside a sentence's positives: itself, and all but false negatives of its video.

    A sentence of the same video is a false negative where its window overlaps by `highest` or more, or where the
    negatives are listed and it is not among them.
    """
    same = video_of[:, None] == video_of
    apart = window_overlap(targets.windows, targets.window_mask) < highest
    if targets.negative_of is not None:
        apart = apart & targets.negative_of
    return ~same | apart | torch.eye(len(video_of), dtype=torch.bool, device=video_of.device)


def among_sentences(
    positives: Tensor,
    sentences: Tensor,
    kept: Tensor,
    margin: float,
    temperature: float,
    hard: Tensor | None = None,
    hard_present: Tensor | None = None,
) -> Tensor:
    """Video-side loss: positive moments [S, K, C] find their sentence [S, C] among those `kept` [S, S].

    The positive's cosine is lowered by the margin, above and below the line. `hard` [levels, S, C] are generated
    negatives of each sentence: its own stand in its denominator, where `hard_present` [levels, S].
    """
    found = positives @ sentences.T
    own = torch.eye(len(sentences), dtype=torch.bool, device=found.device)[:, None]
    logits = (found - margin * own) / temperature
    logits = logits.masked_fill(~kept[:, None], -torch.inf)
    if hard is not None:
        more = torch.einsum("skc,lsc->skl", positives, hard) / temperature
        if hard_present is not None:
            more = more.masked_fill(~hard_present.T[:, None], -torch.inf)
        logits = torch.cat((logits, more), dim=-1)
    chosen = logits.diagonal(dim1=0, dim2=2).T
    return (logits.logsumexp(-1) - chosen).mean()


def among_moments(
    scores: Tensor,
    positives: Tensor,
    overlap: Tensor,
    video_of: Tensor,
    margin: float,
    temperature: float,
    highest: float,
) -> Tensor:
    """Sentence-side loss: a sentence finds its moments among the candidates of all videos.

    scores [S, B, M] are the cosines of sentences and all candidates, positives [S, K] those of the positive ones,
    overlap [S, M]. Candidates of the own video that overlap by `highest` or more are no negatives; as published they
    stay in the sum with exp(0) = 1, and so does a constant 1e-6.
    """
    rows = torch.arange(len(scores), device=scores.device)
    own = torch.zeros(scores.shape[:2], dtype=torch.bool, device=scores.device)
    own[rows, video_of] = True
    false = own[..., None] & (overlap >= highest)[:, None]
    logits = (scores / temperature).masked_fill(false, 0.0)
    negatives = logits.flatten(1).logsumexp(1)
    chosen = (positives - margin) / temperature
    constant = torch.tensor(1e-6, device=scores.device).log()
    total = chosen.logaddexp(negatives[:, None]).logaddexp(constant)
    return (total - chosen).mean()
