"""Batches of clips: some patches of each, what is known of them, sentences; varied, lest any be learned by heart."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from workshop.tiny_clip.clips import Clip
from workshop.tiny_clip.model import Patches, stirring
from workshop.tiny_clip.patches import GRID, PATCH

BATCH = 96  # clips
MIXED, MIRRORED = 0.8, 0.5  # shares of clips with another's furniture, and of mirrored batches

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """What a step takes: clips with some patches of each, at `places` of the grid; `busy` have a sentence."""

    patches: Tensor
    places: Tensor
    stirs: Tensor
    maps: Tensor
    owners: Tensor
    numbers: Tensor
    attributes: Tensor
    busy: list[int]
    sentences: list[str]


class Batches:
    """Draws batches of clips, all of them once before any is drawn again.

    A scene is soon known by its furniture, and then everything about it: so most clips get what rests, far from what
    moves, from another clip; half of the batches are mirrored, and each clip is moved by a patch to a side, or not.
    """

    def __init__(self, several: Sequence[Clip], patches: Patches, seed: int) -> None:
        self.chance, self._order = np.random.default_rng(seed), list[int]()
        self.stirs = stirring(patches)
        self.near = _grown(self.stirs)
        self.sentences = [clip.sentences for clip in several]
        self.attributes = np.stack([clip.attributes for clip in several]).astype(np.int64)
        self.patches, size = patches, (len(several), GRID * GRID, -1)
        self.maps = np.stack([clip.maps for clip in several]).reshape(size)
        self.owners = np.stack([clip.states.owners for clip in several]).reshape(size[:2])
        self.numbers = np.stack([clip.states.numbers for clip in several]).reshape(size)

    def draw(self, kept: int) -> Batch:
        """A batch with so many patches of each clip, those that stir first, then those about them."""
        while len(self._order) < BATCH:
            self._order += self.chance.permutation(len(self.sentences)).tolist()
        rows, self._order = np.array(self._order[:BATCH]), self._order[BATCH:]
        wanted = 2 * self.stirs[rows] + 0.3 * self.near[rows] + self.chance.random((BATCH, GRID * GRID))
        places = np.argsort(-wanted, 1)[:, :kept]
        sources = self._sources(rows, places)
        seen, maps, owners, numbers, stirs = (
            torch.from_numpy(values[sources, places])
            for values in (self.patches, self.maps, self.owners, self.numbers, self.stirs)
        )
        if self.chance.random() < MIRRORED:
            seen = seen.reshape(*seen.shape[:2], -1, PATCH).flip(-1).flatten(-2)
            places = places // GRID * GRID + GRID - 1 - places % GRID
            owners = torch.zeros_like(owners)  # states tell left from right
        columns = places % GRID + self.chance.integers(-1, 2, (BATCH, 1))
        places = places // GRID * GRID + np.clip(columns, 0, GRID - 1)
        of_rows = [self.sentences[row] for row in rows]
        busy = [place for place, several in enumerate(of_rows) if several]
        texts = [str(self.chance.choice(of_rows[i][self.chance.integers(len(of_rows[i]))])) for i in busy]
        attributes = torch.from_numpy(self.attributes[rows])
        return Batch(seen, torch.from_numpy(places), stirs, maps.long(), owners, numbers, attributes, busy, texts)

    def _sources(self, rows: Rows, places: Rows) -> Rows:
        """The clip that each patch is taken from (clips, kept)."""
        order = self.chance.permutation(BATCH)
        mixed = (self.chance.random(BATCH) < MIXED)[:, None] & ~self.near[rows] & ~self.near[rows[order]]
        taken = np.where(mixed, rows[order][:, None], rows[:, None])
        return np.take_along_axis(taken, places, 1)


def _grown(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Patches (clips, GRID · GRID) that are flagged, or beside one that is."""
    padded = np.pad(flags.reshape(-1, GRID, GRID), ((0, 0), (1, 1), (1, 1)))
    around = [padded[:, down : down + GRID, across : across + GRID] for down in range(3) for across in range(3)]
    grown: npt.NDArray[np.bool_] = np.any(around, axis=0).reshape(-1, GRID * GRID)
    return grown
