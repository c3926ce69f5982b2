"""Features as training reads them: one contiguous array of halves for a whole data set, with the place of each row.

features = read_features(Store().newest("scenes", "video_features"))
features["S0001"]                                # (clips, dimension), a view
features.values, features.offsets, features.names  # everything at once, as for a GPU
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from artifacts.manifest import Artifact
from artifacts.store import Store

Halves = npt.NDArray[np.float16]
NAMES = {"text_features": "text", "video_features": "vid"}
LISTS = {"text_features": "tokens", "video_features": "features"}
READERS = 8


@dataclass(frozen=True)
class Features:
    """All vectors of an artifact in one array.

    `values` (vectors, dimension) holds the vectors of row after row; row i, called `names[i]`, has
    `values[offsets[i] : offsets[i + 1]]`. `pooled` (rows, dimension) is there for texts. `durations` and
    `clip_length`, both in seconds, are there for videos.
    """

    values: Halves
    offsets: npt.NDArray[np.int64]
    names: list[str]
    pooled: Halves | None = None
    durations: npt.NDArray[np.float64] | None = None
    clip_length: float | None = None

    @cached_property
    def index(self) -> dict[str, int]:
        """The row of each video id or text."""
        return {name: row for row, name in enumerate(self.names)}

    def __getitem__(self, name: str) -> Halves:
        """The vectors of a video or text, a view; raises `KeyError` where there are none."""
        row = self.index[name]
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __contains__(self, name: str) -> bool:
        """Whether there are features of a video or text."""
        return name in self.index

    def __len__(self) -> int:
        """How many videos or texts there are."""
        return len(self.names)


def read_features(artifact: Artifact) -> Features:
    """Read an artifact of `text_features` or `video_features` in one pass, its parts side by side.

    Raises:
        ArtifactError: there is no such artifact

    """
    store = Store(artifact.root)
    count = len(store.manifest(artifact).parts)
    with ThreadPoolExecutor(READERS) as readers:
        tables = list(readers.map(lambda index: store.part(artifact, index), range(count)))
    return gather(tables, artifact.stage)


def gather(tables: Sequence[pa.Table], stage: str) -> Features:
    """Bring the rows of several parts together; parts without a row do not count."""
    tables = [table for table in tables if len(table)]
    lists = [_whole(table[LISTS[stage]]) for table in tables]
    lengths = [np.diff(column.offsets.to_numpy()) for column in lists]
    offsets = np.concatenate([[0], *lengths]).cumsum().astype(np.int64)
    dimension = lists[0].type.value_type.list_size if lists else 0
    values = np.empty((offsets[-1], dimension), np.float16)
    start = 0
    for column in lists:
        vectors = halves(column.flatten(), dimension)
        values[start : start + len(vectors)] = vectors
        start += len(vectors)
    names = [name for table in tables for name in table[NAMES[stage]].to_pylist()]
    if stage == "text_features":
        pooled = [halves(_whole(table["pooled"]), dimension) for table in tables]
        return Features(values, offsets, names, np.concatenate(pooled) if pooled else None)
    durations = [table["duration"].to_numpy() for table in tables]
    clip_length = tables[0]["clip_length"][0].as_py() if tables else None
    return Features(values, offsets, names, None, np.concatenate(durations) if durations else None, clip_length)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def halves(vectors: pa.FixedSizeListArray, dimension: int) -> Halves:
    """A column of vectors as (rows, dimension), without a copy."""
    flat: Halves = vectors.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(-1, dimension)


def vectors_of(values: Halves) -> pa.FixedSizeListArray:
    """(rows, dimension) as a column of vectors, without a copy."""
    flat = pa.array(np.ascontiguousarray(values, np.float16).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def lists_of(several: Sequence[Halves], dimension: int) -> pa.ListArray:
    """Arrays (rows, dimension) as a column of lists of vectors."""
    offsets = np.concatenate([[0], [len(values) for values in several]]).cumsum().astype(np.int32)
    values = np.concatenate(several) if several else np.zeros((0, dimension), np.float16)
    return pa.ListArray.from_arrays(pa.array(offsets), vectors_of(values))
