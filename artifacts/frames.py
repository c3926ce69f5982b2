"""Tables as pandas data frames: numbers as NumPy's, nested values as Python's lists and dicts, features as arrays."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penumbra.artifacts.errors import what_there_is
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.schemas import SCHEMAS, is_features
from penumbra.artifacts.store import ArtifactError, Store

if TYPE_CHECKING:
    import pandas as pd


def read_frame(store: Store, artifact: Artifact, columns: Sequence[str] | None = None) -> "pd.DataFrame":
    """An artifact's rows, of these columns or of all; raises `ArtifactError` naming a column that it lacks."""
    there = SCHEMAS[artifact.stage].names
    for column in columns or ():
        if column not in there:
            raise ArtifactError(f"{artifact.stage} has no column {column!r}: {what_there_is(column, there)}")
    return frame_of(store.table(artifact, None if columns is None else list(columns)))


def frame_of(table: pa.Table) -> "pd.DataFrame":
    """The table as a data frame, a row a row.

    A text, a number and a truth value keep their type; a list is a list (`[[0.0, 4.2]]`), a struct a dict, bytes are
    bytes. Features are arrays of halves: [vectors, width], or [width] where a row holds one.
    """
    import pandas as pd

    return pd.DataFrame({name: _values(table[name]) for name in table.column_names})


def _values(column: pa.ChunkedArray) -> Any:
    if is_features(column.type):
        return _objects([vectors for chunk in column.chunks for vectors in _vectors(chunk)])
    if pa.types.is_nested(column.type) or pa.types.is_large_binary(column.type):
        return _objects(column.to_pylist())
    return column.to_pandas()


def _objects(values: list[Any]) -> Any:
    """One object a row: pandas would spread lists of one length over columns."""
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = value
    return column


def _vectors(chunk: pa.Array) -> list[Any]:
    if pa.types.is_fixed_size_list(chunk.type):
        return list(chunk.flatten().to_numpy().reshape(len(chunk), -1))
    flat = chunk.flatten()
    matrix = flat.flatten().to_numpy().reshape(len(flat), chunk.type.value_type.list_size)
    return np.split(matrix, np.cumsum(chunk.value_lengths().to_numpy())[:-1]) if len(chunk) else []
