"""BM-DETR's frame probability loss (WACV 2025, Eq. 16): clips of the moment probable, all others not."""

from torch import Tensor

from models.losses.targets import Targets


def frame_probability(probability: Tensor, targets: Targets) -> Tensor:
    """Mean over samples of 1 - mean p inside the moment + mean p outside; a mean over no clip is 0."""
    inside, outside = mean_probability(probability, targets)
    return (1 - inside + outside).mean()


def mean_probability(probability: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """Mean joint probability [B] of the clips inside the moment and of those outside (the paper's Table 9).

    A clip is inside by its score alone: the published shifting labels padding too, where a moment covers a video.
    """
    inside, outside = (
        (probability * flags).sum(1) / flags.sum(1).clamp(min=1) for flags in (targets.clip_scores > 0, targets.outside)
    )
    return inside, outside
