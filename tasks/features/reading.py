"""Read the features of a data set into one contiguous float16 array, as training needs them.

features = read_features(Store().newest("scenes", "video_features"))
features["S0001"]                                # (clips, dimension), a view
features.values, features.offsets, features.names  # everything at once, as for a GPU
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.schemas import SCHEMAS, is_features, lengths
from penumbra.artifacts.store import Store
from penumbra.artifacts.tables import lengths_of

Float16Array = npt.NDArray[np.float16]
NAMES = {"text_features": "text", "video_features": "vid"}
LISTS = {"text_features": "tokens", "video_features": "features"}
READERS = 8
BATCH = 256  # rows that are copied at once


@dataclass(frozen=True)
class FeatureArrays:
    """All vectors of an artifact in one array.

    `values` (vectors, dimension) holds the vectors of row after row; row i, called `names[i]`, has
    `values[offsets[i] : offsets[i + 1]]`. Texts have `pooled` (rows, dimension); videos have `durations` and
    `clip_length`, both in seconds.
    """

    values: Float16Array
    offsets: npt.NDArray[np.int64]
    names: list[str]
    pooled: Float16Array | None = None
    durations: npt.NDArray[np.float64] | None = None
    clip_length: float | None = None

    @cached_property
    def index(self) -> dict[str, int]:
        """The row of each video id or text."""
        return {name: row for row, name in enumerate(self.names)}

    def __getitem__(self, name: str) -> Float16Array:
        """Return the vectors of a video or text, as a view; raise `KeyError` if there are none."""
        row = self.index[name]
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __contains__(self, name: str) -> bool:
        """Return whether a video or text has features."""
        return name in self.index

    def __len__(self) -> int:
        """Return the number of videos or texts."""
        return len(self.names)


def read_features(artifact: Artifact) -> FeatureArrays:
    """Read an artifact of `text_features` or `video_features`, several parts in parallel."""
    store, stage = Store(artifact.root), artifact.stage
    records = store.manifest(artifact).parts
    with ThreadPoolExecutor(READERS) as readers:
        parts = [part for part in readers.map(partial(_Part, store, artifact), range(len(records))) if part.names]
        counts = np.concatenate([[0], *(part.lengths(LISTS[stage]) for part in parts)])
        offsets = counts.cumsum().astype(np.int64)
        rows = np.cumsum([0, *(len(part.names) for part in parts)])
        dimension = parts[0].dimension(LISTS[stage]) if parts else 0
        values = np.empty((offsets[-1], dimension), np.float16)
        targets = [values[offsets[start] : offsets[end]] for start, end in pairwise(rows)]
        list(readers.map(lambda part, target: part.copy(LISTS[stage], target), parts, targets))
        pooled = None
        if stage == "text_features":
            pooled = np.empty((rows[-1], parts[0].dimension("pooled") if parts else 0), np.float16)
            slices = [pooled[start:end] for start, end in pairwise(rows)]
            list(readers.map(lambda part, target: part.copy("pooled", target), parts, slices))
    names = [name for part in parts for name in part.names]
    if stage == "text_features":
        return FeatureArrays(values, offsets, names, pooled)
    durations = np.concatenate([np.zeros(0), *(part.table["duration"].to_numpy() for part in parts)])
    return FeatureArrays(
        values, offsets, names, None, durations, parts[0].table["clip_length"][0].as_py() if parts else None
    )


class _Part:
    """One part: its small columns are read, its features are not."""

    def __init__(self, store: Store, artifact: Artifact, index: int) -> None:
        self._data = store.raw(artifact, index)
        self._file = pq.ParquetFile(pa.BufferReader(self._data))
        small = [field.name for field in SCHEMAS[artifact.stage] if not is_features(field.type)]
        self.table = self._file.read(small)
        self.names: list[str] = self.table[NAMES[artifact.stage]].to_pylist()
        self._lengths = lengths_of(self._file.schema_arrow)
        self._read: dict[str, pa.Array] = {}

    def lengths(self, column: str) -> npt.NDArray[np.int64]:
        """Return the number of vectors of each row."""
        if column not in self._lengths:
            self._lengths[column] = lengths(self._column(column))
        return np.array(self._lengths[column], np.int64)

    def dimension(self, column: str) -> int:
        """Return the dimension of a vector."""
        kind = self._file.schema_arrow.field(column).type
        width: int = (kind.value_type if pa.types.is_list(kind) else kind).list_size
        return width

    def _column(self, column: str) -> pa.Array:
        if column not in self._read:
            self._read[column] = self._file.read([column])[column].combine_chunks()
        return self._read[column]

    def copy(self, column: str, target: Float16Array) -> None:
        """Copy the vectors of a column into (vectors, dimension)."""
        start, batches = 0, self._file.iter_batches(BATCH, columns=[column])
        for vectors in [self._read[column]] if column in self._read else (batch[column] for batch in batches):
            matrix = matrix_of(vectors.flatten() if pa.types.is_list(vectors.type) else vectors, target.shape[1])
            target[start : start + len(matrix)] = matrix
            start += len(matrix)


def matrix_of(vectors: pa.FixedSizeListArray, dimension: int) -> Float16Array:
    """Return a column of vectors as (rows, dimension), without a copy."""
    flat: Float16Array = vectors.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(-1, dimension)


def vectors_of(values: Float16Array) -> pa.FixedSizeListArray:
    """Return (rows, dimension) as a column of vectors, without a copy."""
    flat = pa.array(np.ascontiguousarray(values, np.float16).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def lists_of(several: Sequence[Float16Array], dimension: int) -> pa.ListArray:
    """Return arrays (rows, dimension) as a column of lists of vectors."""
    offsets = np.concatenate([[0], [len(values) for values in several]]).cumsum().astype(np.int32)
    values = np.concatenate(several) if several else np.zeros((0, dimension), np.float16)
    return pa.ListArray.from_arrays(pa.array(offsets), vectors_of(values))
