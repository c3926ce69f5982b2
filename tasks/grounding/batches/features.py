"""Features of many videos or texts in one contiguous tensor with offsets, as training reads them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.features.reading import read_features
from penumbra.tasks.grounding.batches.patches import PatchTensors

SMALLEST_NORM = 1e-5


class FeatureError(PenumbraError):
    """Features can't be used; the message names the artifact and the fault."""


@dataclass(frozen=True)
class Features:
    """Rows `values[offsets[i] : offsets[i + 1]]` [clips or tokens, channels] belong to the i-th video or text.

    `index` maps a vid or text to i; `clip_length` (s) is that of videos, 0 of texts. `patches` of the videos are there
    for VDI's motion alone.
    """

    values: Tensor
    offsets: Tensor
    index: dict[str, int]
    clip_length: float = 0.0
    patches: PatchTensors | None = None

    @property
    def channels(self) -> int:
        """Width of a row."""
        return self.values.shape[1]

    @property
    def lengths(self) -> Tensor:
        """Rows of each video or text [n]."""
        return self.offsets.diff()

    def unusable(self) -> set[str]:
        """Those that hold a NaN or an infinity, or no row at all."""
        bad_rows = ~torch.isfinite(self.values.float().sum(1))
        before = torch.cat((torch.zeros(1, dtype=torch.long), bad_rows.long().cumsum(0)))
        bad = (before[self.offsets[1:]] > before[self.offsets[:-1]]) | (self.lengths == 0)
        return {name for name, row in self.index.items() if bad[row]}


def load_features(artifact: Artifact) -> Features:
    """All rows of a features artifact as tensors; raises `FeatureError` where it has none."""
    found = read_features(artifact)
    if not len(found):
        raise FeatureError(f"{artifact.path} holds no features")
    offsets = torch.from_numpy(found.offsets)
    return Features(torch.from_numpy(found.values), offsets, found.index, found.clip_length or 0.0)


def normalised(features: Features, longest: int | None, dtype: torch.dtype = torch.float32) -> Features:
    """Each row divided by its length plus 1e-5, as the published loaders do, after cutting to the first rows."""
    lengths = features.lengths if longest is None else features.lengths.clamp(max=longest)
    kept = _rows(features.offsets[:-1], lengths)
    values = features.values if longest is None else features.values[kept]
    values = values.float()
    values = (values / (values.norm(dim=1, keepdim=True) + SMALLEST_NORM)).to(dtype)
    offsets = torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0)))
    return Features(values, offsets, features.index, features.clip_length)


def joined(sources: Sequence[Features]) -> Features:
    """Several encoders of the same videos side by side; a video is cut to the shortest of its sources.

    Videos that a source lacks are left out. Raises `FeatureError` where the sources' clip lengths differ.
    """
    if len(sources) == 1:
        return sources[0]
    if len({source.clip_length for source in sources}) > 1:
        raise FeatureError(f"features of clips of {sorted({s.clip_length for s in sources})} s can't be put together")
    names = [name for name in sources[0].index if all(name in source.index for source in sources)]
    rows = [torch.tensor([source.index[name] for name in names], dtype=torch.long) for source in sources]
    lengths = torch.stack([s.lengths[r] for s, r in zip(sources, rows, strict=True)]).amin(0)
    parts = [s.values[_rows(s.offsets[r], lengths)] for s, r in zip(sources, rows, strict=True)]
    offsets = torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0)))
    index = {name: row for row, name in enumerate(names)}
    return Features(torch.cat([part.float() for part in parts], 1), offsets, index, sources[0].clip_length)


def _rows(starts: Tensor, lengths: Tensor) -> Tensor:
    """Row numbers of several runs, one after the other."""
    ends = lengths.cumsum(0)
    return torch.arange(int(ends[-1]) if len(ends) else 0) + (starts - ends + lengths).repeat_interleave(lengths)
