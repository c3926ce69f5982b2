"""Tables as Parquet files, and as pandas data frames."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penumbra.artifacts.schemas import ADDED, SCHEMAS, conform, is_features, renamed_columns

if TYPE_CHECKING:
    import pandas as pd

REJECTED = "_rejected"  # folder of the rejected rows
TABLE_FILES = {"compression": "zstd"}
FEATURE_FILES = {"compression": "none", "use_dictionary": False, "write_statistics": False}  # half floats don't shrink


def part_name(index: int) -> str:
    return f"part-{index:05d}.parquet"


def encode(table: pa.Table, stage: str) -> bytes:
    """Return a table as a file; raise `ArtifactError` if it does not fit the stage's schema."""
    rows, sink = conform(table, stage).replace_schema_metadata(None), pa.BufferOutputStream()
    pq.write_table(rows, sink, **(FEATURE_FILES if any(is_features(it.type) for it in rows.schema) else TABLE_FILES))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode(data: bytes, columns: list[str] | None = None, stage: str = "") -> pa.Table:
    """Return the rows of a file, of these columns or all. Columns that an older version lacks are null."""
    file = pq.ParquetFile(pa.BufferReader(data))  # `pq.read_table` imports pandas, half a second
    new_names = renamed_columns(stage, file.schema_arrow.names)
    old_names = {new: old for old, new in new_names.items()}
    lacking = ADDED.get(stage, set()) - set(file.schema_arrow.names)
    read = [old_names.get(name, name) for name in columns if name not in lacking] if columns else None
    table = file.read(read)
    table = table.rename_columns([new_names.get(name, name) for name in table.column_names])
    for name in sorted(lacking):
        table = table.append_column(name, pa.nulls(len(table), SCHEMAS[stage].field(name).type))
    return table.select(columns) if columns else table


def frame_of(table: pa.Table) -> "pd.DataFrame":
    """Return the table as a data frame.

    Texts, numbers and booleans keep their type; a list is a list (`[[0.0, 4.2]]`), a struct a dict, bytes are bytes.
    Features are arrays of half floats: [vectors, width], or [width] if a row holds one vector.
    """
    import pandas as pd

    return pd.DataFrame({name: _values(table[name]) for name in table.column_names})


def _values(column: pa.ChunkedArray) -> Any:
    """Return a column as pandas takes it. An array of objects keeps lists of equal length from becoming columns."""
    if is_features(column.type):
        rows = [vectors for chunk in column.chunks for vectors in _vectors(chunk)]
    elif pa.types.is_nested(column.type) or pa.types.is_large_binary(column.type):
        rows = column.to_pylist()
    else:
        return column.to_pandas()
    objects = np.empty(len(rows), dtype=object)
    for index, row in enumerate(rows):
        objects[index] = row
    return objects


def _vectors(chunk: pa.Array) -> list[Any]:
    if pa.types.is_fixed_size_list(chunk.type):
        return list(chunk.flatten().to_numpy().reshape(len(chunk), -1))
    flat = chunk.flatten()
    matrix = flat.flatten().to_numpy().reshape(len(flat), chunk.type.value_type.list_size)
    return np.split(matrix, np.cumsum(chunk.value_lengths().to_numpy())[:-1]) if len(chunk) else []
