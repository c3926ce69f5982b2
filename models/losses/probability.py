"""BM-DETR's frame probability loss (WACV 2025, Eq. 16): clips of the moment probable, all others not."""

from torch import Tensor

from penumbra.models.losses.targets import Targets


def frame_probability(probability: Tensor, targets: Targets) -> Tensor:
    """Mean over samples of 1 - mean p inside the moment + mean p outside; a mean over no clip is 0.

    A clip is inside by its score alone: the published shifting labels padding too, where a moment covers a video.
    """
    inside = mean_over(probability, targets.clip_scores > 0)
    return (1 - inside + mean_over(probability, targets.outside)).mean()


def mean_over(probability: Tensor, clips: Tensor) -> Tensor:
    """Mean [B] of the probabilities [B, Lv] of some clips [B, Lv]; 0 where there are none."""
    mean: Tensor = (probability * clips).sum(1) / clips.sum(1).clamp(min=1)
    return mean
