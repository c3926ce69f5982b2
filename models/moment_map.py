"""The map of candidate moments (2D-TAN, AAAI 2020; MMN, AAAI 2022): cell (i, j) is the moment from clip i to clip j.

Short moments are all there, long ones at coarser and coarser steps: only the cells of this schedule are candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Kind = Literal["pool", "conv"]


@dataclass(frozen=True)
class Step:
    """One step to longer moments: windows of `width`, `stride` apart, give the cells (start, start + offset)."""

    width: int
    stride: int
    offset: int
    starts: range


def schedule(clips: int, counts: Sequence[int]) -> list[Step]:
    """The steps of a map of so many clips: `counts[g]` steps of group g, each making moments 2^g clips longer.

    Raises ValueError where the moments get longer than the map is wide.
    """
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


def candidate_cells(clips: int, counts: Sequence[int]) -> Tensor:
    """First and last clip [M, 2] of every candidate, in the order of the map's rows."""
    found = {(clip, clip) for clip in range(clips)}
    found |= {(start, start + step.offset) for step in schedule(clips, counts) for start in step.starts}
    return torch.tensor(sorted(found))


def candidate_windows(cells: Tensor, clips: int, durations: Tensor) -> Tensor:
    """Windows [S, M, 2] in seconds of the candidates `cells` [M, 2] in videos of `durations` [S]."""
    bounds = cells + cells.new_tensor([0, 1])
    return bounds * durations[:, None, None].float() / clips


class MomentMap(nn.Module):
    """Clips [B, hidden, N] laid out on the map [B, hidden, N, N]: the diagonal, then longer and longer moments.

    "pool" takes the maximum over a moment's clips, "conv" learns the same steps as convolutions. What is no candidate
    is 0.
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
        places = [(clip, clip) for clip in range(clips)]
        places += [(start, start + step.offset) for step in self.steps for start in step.starts]
        index = torch.tensor([start * clips + end for start, end in places])
        self.register_buffer("places", index, persistent=False)

    def forward(self, clips: Tensor) -> Tensor:
        """[B, hidden, N] to [B, hidden, N, N]."""
        values, found = clips, [clips]
        for number, step in enumerate(self.steps):
            if self.convolutions is None:
                values = functional.max_pool1d(values, step.width, step.stride)
            else:
                values = self.convolutions[number](values)
            found.append(values)
        everything = torch.cat(found, dim=-1)
        empty = everything.new_zeros(*clips.shape[:2], self.clips**2)
        return empty.index_copy(2, self.places, everything).view(*clips.shape[:2], self.clips, self.clips)
