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
    small = [field.name for field in SCHEMAS[stage] if not is_features(field.type)]
    with ThreadPoolExecutor(READERS) as readers:
        raw = readers.map(partial(store.raw, artifact), range(len(store.manifest(artifact).parts)))
        files = [file for data in raw if (file := pq.ParquetFile(pa.BufferReader(data))).metadata.num_rows]
        tables = [file.read(small) for file in files]
        rows = np.cumsum([0, *(len(table) for table in tables)])
        counts = [np.zeros(1, np.int64), *readers.map(partial(_lengths, LISTS[stage]), files)]
        offsets = np.concatenate(counts).cumsum()

        def gathered(column: str, ends: npt.NDArray[np.int64]) -> Float16Array:
            """Return the vectors of a column; those of file i end at `ends[i + 1]`."""
            kind = files[0].schema_arrow.field(column).type if files else pa.list_(pa.float16(), 0)
            width = (kind.value_type if pa.types.is_list(kind) else kind).list_size
            values = np.empty((ends[-1], width), np.float16)
            list(readers.map(partial(_copy, column), files, [values[start:end] for start, end in pairwise(ends)]))
            return values

        values = gathered(LISTS[stage], offsets[rows])
        pooled = gathered("pooled", rows) if stage == "text_features" else None
    columns = pa.concat_tables([pa.schema([SCHEMAS[stage].field(name) for name in small]).empty_table(), *tables])
    names = columns[NAMES[stage]].to_pylist()
    if stage == "text_features":
        return FeatureArrays(values, offsets, names, pooled)
    clip_length = columns["clip_length"][0].as_py() if names else None
    return FeatureArrays(values, offsets, names, None, columns["duration"].to_numpy(), clip_length)


def _lengths(column: str, file: pq.ParquetFile) -> npt.NDArray[np.int64]:
    """Return the number of vectors of each row: from the file's metadata, or counted if another program wrote it."""
    counts = lengths_of(file.schema_arrow).get(column) or lengths(file.read([column])[column].combine_chunks())
    return np.array(counts, np.int64)


def _copy(column: str, file: pq.ParquetFile, target: Float16Array) -> None:
    """Copy the vectors of a column into (vectors, dimension)."""
    start = 0
    for batch in file.iter_batches(BATCH, columns=[column]):
        vectors = batch[column].flatten() if pa.types.is_list(batch[column].type) else batch[column]
        target[start : start + len(vectors)] = matrix_of(vectors, target.shape[1])
        start += len(vectors)


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
