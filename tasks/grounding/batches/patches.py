"""Patch features of videos as training reads them: bytes on the host, states of a batch where they are needed."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store


@dataclass(frozen=True)
class PatchTensors:
    """Frames `offsets[i]` to `offsets[i + 1]` belong to the i-th video, which may have none.

    values [frames, patches, width] are bytes that scale [frames] makes states of; seconds [frames] are their times.
    """

    values: Tensor
    scale: Tensor
    seconds: Tensor
    offsets: Tensor

    def gather(self, videos: Tensor, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """States [B, F, patches, width], seconds [B, F] and mask [B, F] of videos [B]; padding is any frame."""
        starts, lengths = self.offsets[videos], self.offsets.diff()[videos]
        place = torch.arange(max(1, int(lengths.max())))
        mask = place < lengths[:, None]
        index = torch.where(mask, starts[:, None] + place, 0)
        values, scale, seconds = (part[index].to(device) for part in (self.values, self.scale, self.seconds))
        return values * scale[..., None, None], seconds, mask.to(device)


def load_patches(artifact: Artifact, index: Mapping[str, int]) -> PatchTensors | None:
    """The patches of the videos that `index` numbers; None where there are none of any."""
    store, counts, shape = Store(), np.zeros(len(index) + 1, np.int64), (0, 0)
    for part in store.parts(artifact, ["vid", "seconds"]):
        for vid, seconds in zip(part["vid"].to_pylist(), part["seconds"].to_pylist(), strict=True):
            if vid in index:
                counts[index[vid] + 1] = len(seconds)
    offsets = counts.cumsum()
    frames = int(offsets[-1])
    values, scale, times = np.zeros((0, 0, 0), np.int8), np.ones(frames, np.float32), np.zeros(frames, np.float32)
    for part in store.parts(artifact):
        for row in zip(*(part[name] for name in ("vid", "grid", "scale", "seconds", "patches")), strict=True):
            vid, grid, own, seconds, data = row
            if vid.as_py() not in index:
                continue
            states = np.frombuffer(data.as_buffer(), np.int8)
            states = states.reshape(len(seconds), int(np.prod(grid.as_py())), -1)
            if not values.size:
                shape = states.shape[1:]
                values = np.zeros((frames, *shape), np.int8)
            place = slice(offsets[index[vid.as_py()]], offsets[index[vid.as_py()] + 1])
            values[place], scale[place], times[place] = states, own.as_py(), seconds.as_py()
    if not frames:
        return None
    return PatchTensors(*map(torch.from_numpy, (values, scale, times, offsets)))
