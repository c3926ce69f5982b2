"""Localisation of the matched moment queries: L1 on (centre, width), and generalised IoU (DETR, ECCV 2020, Eq. 2)."""

from torch import Tensor

from penumbra.models.losses.targets import masked_mean
from penumbra.models.spans import generalised_iou, to_windows


def span_losses(spans: Tensor, assigned: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Mean L1 distance and mean 1 - GIoU over the matched pairs of the batch.

    spans [B, Q, 2]; assigned [B, W] is the query of each window or -1; targets [B, W, 2].
    """
    matched = assigned >= 0
    index = assigned.clamp(min=0)[..., None].expand(-1, -1, 2)
    chosen = spans.float().gather(1, index)
    safe = targets.where(matched[..., None], chosen.detach())  # what is not matched must not make a NaN gradient
    distance = (chosen - safe).abs().mean(-1)
    overlap = generalised_iou(to_windows(chosen), to_windows(safe))
    return masked_mean(distance, matched), masked_mean(1 - overlap, matched)
