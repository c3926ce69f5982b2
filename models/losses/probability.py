"""BM-DETR's frame probability loss (WACV 2025, Eq. 16): clips of the moment probable, all others not."""

from torch import Tensor

from models.losses.targets import Targets


def frame_probability(probability: Tensor, targets: Targets) -> Tensor:
    """Mean over samples of 1 - mean p inside the moment + mean p outside; a mean over no clip is 0."""
    inside, outside = probability_inside(probability, targets)
    return (1 - inside + outside).mean()


def probability_inside(probability: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """Mean joint probability [B] of the clips inside the moment and of those outside (Table 9)."""
    inside, outside = (
        (probability * flags).sum(1) / flags.sum(1).clamp(min=1) for flags in (targets.inside, targets.outside)
    )
    return inside, outside
