"""SHINE's coarse ranking (ECCV 2024, Eq. 1 and 2): the moment's best clips above those outside and the negative's."""

import torch
from torch import Tensor

from penumbra.models.losses.targets import Targets


def top_mean(saliency: Tensor, inside: Tensor, quotient: int) -> Tensor:
    """Mean [B] of the k highest scores inside the moment, k = max(1, floor(clips inside / quotient))."""
    count = inside.sum(1)
    k = (count // quotient).clamp(min=1)
    ranked = saliency.masked_fill(~inside, -torch.inf).sort(dim=1, descending=True).values
    chosen = torch.arange(saliency.shape[1], device=saliency.device) < k.minimum(count)[:, None]
    return ranked.masked_fill(~chosen, 0).sum(1) / k


def intra(saliency: Tensor, targets: Targets, margin: float, quotient: int) -> Tensor:
    """Within the video: relu(h1 + S_p(outside) - S_p(inside)), S_p(outside) the highest clip that is not in the moment.

    Where the moment covers the whole video the paper has no case; the published code takes clip 0, and so do we.
    """
    outside = targets.outside
    highest = saliency.masked_fill(~outside, -torch.inf).amax(1)
    highest = highest.where(outside.any(1), saliency[:, 0])
    return (margin + highest - top_mean(saliency, targets.inside, quotient)).relu().mean()


def inter(saliency: Tensor, negative: Tensor, targets: Targets, margin: float, quotient: int) -> Tensor:
    """Between texts: relu(h2 + S_n(inside) - S_p(inside)), S_n under a text of another sample, over the same clips."""
    inside = targets.inside
    return (margin + top_mean(negative, inside, quotient) - top_mean(saliency, inside, quotient)).relu().mean()
