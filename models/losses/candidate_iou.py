"""MMN's IoU branch: each candidate's score against its overlap with the truth, scaled (2D-TAN, AAAI 2020, Eq. 4)."""

from torch import Tensor
from torch.nn import functional


def scaled_overlap(overlap: Tensor, lowest: float, highest: float) -> Tensor:
    """0 up to the lowest overlap, 1 from the highest, linear between."""
    return ((overlap - lowest) / (highest - lowest)).clamp(0, 1)


def candidate_iou_loss(logits: Tensor, overlap: Tensor, lowest: float, highest: float) -> Tensor:
    """Binary cross entropy between logits [S, M] and the scaled overlap [S, M], mean over all candidates."""
    return functional.binary_cross_entropy_with_logits(logits, scaled_overlap(overlap, lowest, highest))
