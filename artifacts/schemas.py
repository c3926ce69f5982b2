"""Tables: the definition of each (`schemas.yaml`), its rows as an Arrow table, a Parquet file and a data frame."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from penumbra.artifacts.errors import ArtifactError

if TYPE_CHECKING:
    import pandas as pd

TEXT, BOOL, INT32, FLOAT64 = pa.string(), pa.bool_(), pa.int32(), pa.float64()
TOKEN = {"text": TEXT, "space_after": BOOL, "lemma": TEXT, "pos": TEXT, "tag": TEXT, "dep": TEXT, "head": INT32}
FEATURE = pa.list_(pa.float16(), 0)  # the width is the encoder's: `conform` replaces 0
TYPES = {
    **{str(it): it for it in (BOOL, pa.int8(), pa.int16(), INT32, pa.int64())},
    "float32": pa.float32(),
    "float64": FLOAT64,
    "text": TEXT,
    "texts": pa.list_(TEXT),
    "numbers": pa.list_(pa.float32()),
    "pair": pa.list_(INT32, 2),
    "bytes": pa.large_binary(),
    "windows": pa.list_(pa.list_(FLOAT64, 2)),
    "novel": pa.list_(pa.struct({"type": TEXT, "words": pa.list_(TEXT)})),
    "saliency": pa.list_(pa.struct({"clip": INT32, "scores": pa.list_(pa.int8())})),
    "tokens": pa.list_(pa.struct({**TOKEN, "primitive": TEXT, "is_subject": BOOL})),
    "slots": pa.list_(pa.struct({"token": INT32, "primitive": TEXT, "tag": TEXT, "word": TEXT})),
    "moments": pa.list_(pa.struct({"start": FLOAT64, "end": FLOAT64, "score": FLOAT64})),
    "feature": FEATURE,
    "features": pa.list_(FEATURE),
}
TABLE_FILES = {"compression": "zstd"}
FEATURE_FILES = {"compression": "none", "use_dictionary": False, "write_statistics": False}  # half floats don't shrink
RENAMED = {  # names of columns in artifacts that an older version made, and their names today
    "negatives": {"positive": "query", "query": "negative"},
    "fills": {"query": "negative"},
}


class Column(NamedTuple):
    """A column of a table. `description` is markdown."""

    type: pa.DataType
    description: str
    nullable: bool


class Table(NamedTuple):
    """A table: what one row is, the columns by name, and the command that makes it for a data set `{}`."""

    row: str
    columns: dict[str, Column]
    command: str = "penumbra run build-negatives {}"


def _read_tables() -> dict[str, Table]:
    content = yaml.load(Path(__file__).with_suffix(".yaml").read_text("utf-8"), yaml.CSafeLoader)
    for about in content.values():
        about["columns"] = {
            name: Column(TYPES[type_], description, bool(nullable))
            for name, (type_, description, *nullable) in about["columns"].items()
        }
    return {stage: Table(**about) for stage, about in content.items()}


TABLES = _read_tables()
SCHEMAS: dict[str, pa.Schema] = {
    stage: pa.schema([pa.field(name, it.type, it.nullable) for name, it in table.columns.items()])
    for stage, table in TABLES.items()
}


def is_features(type_: pa.DataType) -> bool:
    """Return whether a column holds features: vectors of half floats, one or a list of them in a row."""
    value = type_.value_type if pa.types.is_list(type_) else type_
    return bool(pa.types.is_fixed_size_list(value) and value.value_type == pa.float16())


def conform(table: pa.Table, stage: str) -> pa.Table:
    """Return the table with its stage's exact schema; raise `ArtifactError` naming a column that does not fit."""
    schema = SCHEMAS[stage]
    missing = [name for name in schema.names if name not in table.column_names]
    unknown = [name for name in table.column_names if name not in schema.names]
    if missing or unknown:
        raise ArtifactError(f"{stage}: missing columns {missing}, unknown columns {unknown}")
    fields, columns = [], []
    for field in schema:
        column, type_ = table[field.name], field.type
        if not field.nullable and column.null_count:
            raise ArtifactError(f"{stage}: column {field.name} holds {column.null_count} nulls")
        if is_features(type_) and is_features(column.type) and pa.types.is_list(type_) == pa.types.is_list(column.type):
            type_ = column.type  # has the encoder's width
        try:
            columns.append(column.cast(type_))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError) as error:
            raise ArtifactError(f"{stage}: column {field.name} is no {type_} ({error})") from error
        fields.append(field.with_type(type_))
    return pa.table(columns, schema=pa.schema(fields))


def table_of(stage: str, rows: Sequence[Mapping[str, object]]) -> pa.Table:
    """Return a list of dictionaries as a table with the stage's schema; raise `ArtifactError` if they do not fit it."""
    try:
        return conform(pa.Table.from_pylist(list(rows), schema=SCHEMAS[stage]), stage)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ArtifactError(f"{stage}: {error}") from error


def encode(table: pa.Table, stage: str) -> bytes:
    """Return a table as a Parquet file; raise `ArtifactError` if it does not fit the stage's schema."""
    rows, sink = conform(table, stage).replace_schema_metadata(None), pa.BufferOutputStream()
    pq.write_table(rows, sink, **(FEATURE_FILES if any(is_features(it.type) for it in rows.schema) else TABLE_FILES))
    return bytes(sink.getvalue())


def decode(data: bytes, columns: list[str] | None = None, stage: str = "") -> pa.Table:
    """Return the rows of a Parquet file; `columns` (None: all) are present names, also of renamed ones."""
    file = pq.ParquetFile(pa.BufferReader(data))  # `pq.read_table` imports pandas, half a second
    new_names = {} if "negative" in file.schema_arrow.names else RENAMED.get(stage, {})
    old_names = {new: old for old, new in new_names.items()}
    table = file.read([old_names.get(name, name) for name in columns] if columns else None)
    table = table.rename_columns([new_names.get(name, name) for name in table.column_names])
    return table.select(columns) if columns else table


def for_display(table: pa.Table) -> pa.Table:
    """Return the table with features as their shape, such as "62 × 512", and bytes as their number."""
    import pyarrow.compute as pc

    for index, field in enumerate(table.schema):
        column = table[field.name]
        if pa.types.is_large_binary(field.type):
            texts = [f"{size} bytes" for size in pc.binary_length(column).to_pylist()]
        elif is_features(field.type) and pa.types.is_list(field.type):
            texts = [f"{rows} × {field.type.value_type.list_size}" for rows in pc.list_value_length(column).to_pylist()]
        elif is_features(field.type):
            texts = [str(field.type.list_size)] * len(column)
        else:
            continue
        table = table.set_column(index, field.name, pa.array(texts, TEXT))
    return table


def frame_of(table: pa.Table) -> "pd.DataFrame":
    """Return the table as a data frame.

    Texts, numbers and booleans keep their type; a list is a list (`[[0.0, 4.2]]`), a struct a dict, bytes are bytes.
    Features are arrays of half floats: [vectors, width], or [width] if a row holds one vector.
    """
    import pandas as pd

    return pd.DataFrame({name: _values(table[name]) for name in table.column_names})


def _values(column: pa.ChunkedArray) -> Any:
    """Return a column for a data frame; lists are a series of objects, which pandas does not split into columns."""
    import pandas as pd

    if is_features(column.type) and pa.types.is_list(column.type):
        width = column.type.value_type.list_size
        rows = [row.values.flatten().to_numpy().reshape(len(row.values), width) for row in column]
    elif is_features(column.type):
        rows = [row.values.to_numpy() for row in column]
    elif pa.types.is_nested(column.type) or pa.types.is_large_binary(column.type):
        rows = column.to_pylist()
    else:
        return column.to_pandas()
    return pd.Series(rows, dtype=object)
