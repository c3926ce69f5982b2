"""Read the features of a data set into one contiguous float16 array, as training needs them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store

Float16Array = npt.NDArray[np.float16]
READERS = 8


@dataclass(frozen=True)
class FeatureArrays:
    """All vectors of an artifact in one array `values` (vectors, dimension).

    Row i = `index[name]` of a video id or text has `values[offsets[i] : offsets[i + 1]]`; videos have a `clip_length`.
    """

    values: Float16Array
    offsets: npt.NDArray[np.int64]
    index: dict[str, int]
    clip_length: float = 0.0

    def __getitem__(self, name: str) -> Float16Array:
        """Return the vectors of a video or text, as a view; raise `KeyError` if there are none."""
        row = self.index[name]
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __contains__(self, name: str) -> bool:
        return name in self.index

    def __len__(self) -> int:
        return len(self.index)


def read_features(artifact: Artifact) -> FeatureArrays:
    """Read an artifact of `text_features`, `judging_texts` or `video_features`, several parts in parallel."""
    store, of_videos = Store(artifact.root), artifact.stage == "video_features"
    item, column = ("vid", "features") if of_videos else ("text", "tokens")
    with ThreadPoolExecutor(READERS) as readers:
        tables = list(readers.map(lambda i: store.part(artifact, i), range(len(store.manifest(artifact).parts))))
    tables = [table for table in tables if len(table)]
    names = [name for table in tables for name in table[item].to_pylist()]
    clip_length = tables[0]["clip_length"][0].as_py() if of_videos and tables else 0.0
    lists = [chunk for table in tables for chunk in table[column].chunks]
    del tables
    offsets = np.concatenate([[0], *(chunk.value_lengths().to_numpy() for chunk in lists)]).cumsum(dtype=np.int64)
    values, start = np.empty((offsets[-1], lists[0].type.value_type.list_size if lists else 0), np.float16), 0
    while lists:  # the memory of a part is released when its vectors have been copied
        vectors = matrix_of(lists.pop(0).flatten())
        values[start : start + len(vectors)] = vectors
        start += len(vectors)
    return FeatureArrays(values, offsets, {name: row for row, name in enumerate(names)}, clip_length)


def matrix_of(vectors: pa.FixedSizeListArray) -> Float16Array:
    """Return a column of vectors as (rows, dimension), without a copy."""
    flat: Float16Array = vectors.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(-1, vectors.type.list_size)


def vectors_of(values: Float16Array) -> pa.FixedSizeListArray:
    """Return (rows, dimension) as a column of vectors, without a copy."""
    flat = pa.array(np.ascontiguousarray(values, np.float16).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def lists_of(several: Sequence[Float16Array], dimension: int) -> pa.ListArray:
    """Return arrays (rows, dimension) as a column of lists of vectors."""
    offsets = np.concatenate([[0], [len(values) for values in several]]).cumsum().astype(np.int32)
    values = np.concatenate(several) if several else np.zeros((0, dimension), np.float16)
    return pa.ListArray.from_arrays(pa.array(offsets), vectors_of(values))
