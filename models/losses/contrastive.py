"""QD-DETR's rank-aware contrastive loss (CVPR 2023, Eq. 7), and Moment-DETR's optional alignment loss."""

import torch
from torch import Tensor

from penumbra.models.losses.targets import Targets

RANKS = 12  # of the sum of three annotators' scores; single-window data use the first only, at a twelfth


def rank_contrastive(saliency: Tensor, negative: Tensor | None, targets: Targets, temperature: float) -> Tensor:
    """For every rank r, clips of at least that score against all other clips, those under the negative text included.

    saliency and negative [B, Lv]. Samples without a clip of the rank count as 0 and stay in the mean.
    """
    mask, labels, scores = targets.video_mask, targets.clip_scores, saliency
    if negative is not None:
        scores = torch.cat((saliency, negative), dim=1)
        mask = torch.cat((mask, mask), dim=1)
        labels = torch.cat((labels, torch.zeros_like(labels)), dim=1)
    logits = scores.masked_fill(~mask, -1000.0) / temperature
    logits = logits - logits.amax(1, keepdim=True).detach()
    log_share = logits - (logits.exp().sum(1, keepdim=True) + 1e-6).log()
    ranks = torch.arange(1, RANKS, device=labels.device, dtype=labels.dtype)
    reached = ((labels[None] >= ranks[:, None, None]) & mask).to(scores.dtype)
    per_sample = (log_share * reached).sum(-1) / (reached.sum(-1) + 1e-6)
    return -per_sample.mean(1).sum() / RANKS


def alignment(queries: Tensor, words: Tensor, assigned: Tensor, temperature: float) -> Tensor:
    """Matched moment queries are to align with the text (`contrastive_align_loss` of Moment-DETR, off in its recipes).

    queries [B, Q, C] and words [B, Lt, C] are unit vectors, `assigned` [B, W] the query of each window or -1. All words
    count, padding included, as published.
    """
    scores = (queries * words.sum(1)[:, None]).sum(-1) / temperature
    matched = assigned >= 0
    chosen = scores.gather(1, assigned.clamp(min=0)) * matched
    return (scores.logsumexp(1) - chosen.sum(1) / matched.sum(1).clamp(min=1)).mean()
