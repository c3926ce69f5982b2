"""The map of candidate moments (2D-TAN, AAAI 2020; MMN, AAAI 2022): cell (i, j) is the moment from clip i to clip j.

All short moments are candidates, long moments at coarser and coarser steps: only the cells of this schedule exist.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from penumbra.models.spans import hull_iou

Kind = Literal["pool", "conv"]


@dataclass(frozen=True)
class Step:
    """Step to longer moments: windows of `width`, `stride` apart, give the cells (start, start + offset)."""

    width: int
    stride: int
    offset: int
    starts: range


def schedule(clips: int, counts: Sequence[int]) -> list[Step]:
    """Return the steps of a map: `counts[g]` of 2^g clips each; raise `ValueError` if they exceed the map."""
    if clips <= sum(count * 2**group for group, count in enumerate(counts)):
        raise ValueError(f"a map of {clips} clips is too narrow for steps {tuple(counts)}")
    steps, offset = [], 0
    for group, count in enumerate(counts):
        apart = 2**group
        for number in range(count):
            offset += apart
            first_of_later = group > 0 and number == 0
            width, stride = (3, 2) if first_of_later else (2, 1)
            steps.append(Step(width, stride, offset, range(0, clips - offset, apart)))
    return steps


def cells_by_step(clips: int, steps: Sequence[Step]) -> list[tuple[int, int]]:
    """Return the first and last clip of every candidate: those of one clip, then those of each step."""
    longer = [(start, start + step.offset) for step in steps for start in step.starts]
    return [(clip, clip) for clip in range(clips)] + longer


def candidate_cells(clips: int, counts: Sequence[int]) -> Tensor:
    """Return the first and last clip [candidates, 2] of every candidate, in the order of the map's rows."""
    return torch.tensor(sorted(cells_by_step(clips, schedule(clips, counts))))


def candidate_windows(cells: Tensor, clips: int, durations: Tensor) -> Tensor:
    """Return windows [sentences, candidates, 2] in seconds of `cells` [candidates, 2]; durations [sentences]."""
    bounds = cells + cells.new_tensor([0, 1])
    return bounds * durations[:, None, None].float() / clips


class MomentMap(nn.Module):
    """Module that lays clips out on the map: the diagonal, then longer and longer moments.

    "pool" takes the maximum over a moment's clips, "conv" learns the same steps as convolutions. Cells that are no
    candidate are 0.
    """

    places: Tensor

    def __init__(self, clips: int, counts: Sequence[int], hidden: int, kind: Kind) -> None:
        super().__init__()
        self.clips, self.steps = clips, schedule(clips, counts)
        self.convolutions = (
            nn.ModuleList(nn.Conv1d(hidden, hidden, step.width, step.stride) for step in self.steps)
            if kind == "conv"
            else None
        )
        index = torch.tensor([start * clips + end for start, end in cells_by_step(clips, self.steps)])
        self.register_buffer("places", index, persistent=False)

    def forward(self, clips: Tensor) -> Tensor:
        """[batch, hidden, clips] to [batch, hidden, clips, clips]."""
        values, levels = clips, [clips]
        for number, step in enumerate(self.steps):
            if self.convolutions is None:
                values = functional.max_pool1d(values, step.width, step.stride)
            else:
                values = self.convolutions[number](values)
            levels.append(values)  # [batch, hidden, starts]
        everything = torch.cat(levels, dim=-1)  # [batch, hidden, candidates]
        empty = everything.new_zeros(*clips.shape[:2], self.clips**2)
        return empty.index_copy(2, self.places, everything).view(*clips.shape[:2], self.clips, self.clips)


def candidate_overlap(cells: Tensor, clips: int, durations: Tensor, windows: Tensor, present: Tensor) -> Tensor:
    """Return the best hull IoU [sentences, candidates] of `cells` with windows [sentences, windows, 2] in seconds."""
    candidates = candidate_windows(cells, clips, durations)
    overlap = hull_iou(candidates[:, :, None], windows[:, None])  # [sentences, candidates, windows]
    return overlap.masked_fill(~present[:, None], 0).amax(-1)


def segment_means(video: Tensor, lengths: Tensor, segments: int) -> Tensor:
    """Return means [batch, segments, channels] of equal parts of videos [batch, clips, channels]; lengths [batch].

    Bounds are i/segments of the length, rounded half to even and at most the last clip, so that the last clip of a
    video with more clips than segments counts for nothing, as published. A segment without a clip is the clip at which
    it begins: a video shorter than the map repeats its clips.
    """
    parts = torch.arange(segments + 1, device=video.device, dtype=torch.float64) / segments
    bounds = (parts * lengths[:, None]).round().long().minimum(lengths[:, None] - 1)
    first, after = bounds[:, :-1], bounds[:, 1:].maximum(bounds[:, :-1] + 1)
    place = torch.arange(video.shape[1], device=video.device)
    inside = (place >= first[..., None]) & (place < after[..., None])
    return (inside / (after - first)[..., None]) @ video
