"""Saliency losses of the base models: the pair hinge (Moment-DETR) and the negative pair (QD-DETR, Eq. 5)."""

from torch import Tensor
from torch.nn import functional

from penumbra.models.losses.targets import Targets


def pair_hinge(saliency: Tensor, targets: Targets, margin: float) -> Tensor:
    """A clip inside is to score `margin` more than one outside: twice the mean over pairs of the hinge."""
    high, low = saliency.gather(1, targets.high_clips), saliency.gather(1, targets.low_clips)
    return 2 * (margin + low - high).relu().mean()


def negative_pair(saliency_negative: Tensor, video_mask: Tensor) -> Tensor:
    """Under a text of another sample no clip is salient: -log(1 - sigmoid(S)), summed over clips, mean over samples.

    The paper writes one term; the published code sums over clips. softplus is the same function and never overflows.
    """
    return (functional.softplus(saliency_negative) * video_mask).sum(1).mean()
