"""What the losses on a map of candidate moments compare with: how well each candidate overlaps with the truth."""

from dataclasses import dataclass

import torch
from torch import Tensor

from penumbra.models.moment_map import candidate_windows
from penumbra.models.spans import hull_iou, iou


@dataclass
class MapTargets:
    """The truth about S sentences.

    overlap [S, M] is the hull IoU of each candidate with the sentence's windows, the best of them where there are
    several; windows [S, W, 2] in seconds with window_mask [S, W]. negative_of [S, S] says whether the second sentence
    is known to be a negative of the first (None: whatever overlaps little is); hard_present [K, S] which hard
    negatives a sentence really has (None: all).
    """

    overlap: Tensor
    windows: Tensor
    window_mask: Tensor
    negative_of: Tensor | None = None
    hard_present: Tensor | None = None
    late: bool = False


def candidate_overlap(cells: Tensor, clips: int, durations: Tensor, windows: Tensor, present: Tensor) -> Tensor:
    """Hull IoU [S, M] of the candidates `cells` [M, 2] with windows [S, W, 2] of videos of `durations` [S]."""
    candidates = candidate_windows(cells, clips, durations)
    found = hull_iou(candidates[:, :, None], windows[:, None])
    return found.masked_fill(~present[:, None], 0).amax(-1)


def window_overlap(windows: Tensor, present: Tensor) -> Tensor:
    """The highest IoU [S, S] between windows of two sentences, on the same video's time line."""
    found = iou(windows[:, None, :, None], windows[None, :, None])
    both = present[:, None, :, None] & present[None, :, None]
    return torch.where(both, found, 0).flatten(2).amax(-1)
