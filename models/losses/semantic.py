"""BM-DETR's semantic alignment (WACV 2025, Eq. 17): a video's weighted clips say what its query says."""

import torch
from torch import Tensor
from torch.nn import functional


def semantic_alignment(video: Tensor, text: Tensor, temperature: float) -> Tensor:
    """Cross entropy of each video [B, C] over the batch's texts [B, C], its own being right; unit vectors.

    The paper's denominator leaves the own text out; the published code, as is usual, does not.
    """
    scores = video @ text.T / temperature
    return functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))
