"""A part as a file."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penumbra.artifacts.manifest import Part
from penumbra.artifacts.schemas import conform, is_features, lengths, table_of

REJECTED = "_rejected"  # folder of the refused rows
TABLE_FILES = {"compression": "zstd"}
# Halves hardly repeat and hardly shrink: plain values, read as they lie (`penumbra.artifacts.pages`).
FEATURE_FILES = {"compression": "none", "use_dictionary": False, "write_statistics": False}
LENGTHS = b"penumbra.lengths"  # key of the file's metadata


def part_name(index: int) -> str:
    """The name of a part's file."""
    return f"part-{index:05d}.parquet"


def encode(part: Part, stage: str) -> bytes:
    """A part's file. Raises `SchemaError`."""
    rows = conform(part.rows, stage)
    features = {name: lengths(rows[name]) for name in rows.column_names if is_features(rows.schema.field(name).type)}
    if not features:
        return _parquet(rows.replace_schema_metadata(None), TABLE_FILES)
    return _parquet(rows.replace_schema_metadata({LENGTHS: json.dumps(features, sort_keys=True)}), FEATURE_FILES)


def encode_rejected(part: Part) -> bytes:
    """The file of a part's refused rows."""
    return _parquet(table_of("rejected", part.rejected), TABLE_FILES)


def decode(data: bytes, columns: list[str] | None = None) -> pa.Table:
    """The rows of a file, of these columns in this order, or of all."""
    table = pq.ParquetFile(pa.BufferReader(data)).read(columns)  # `pq.read_table` imports pandas, half a second
    return table.select(columns) if columns else table


def lengths_of(schema: pa.Schema) -> dict[str, list[int]]:
    """How many vectors each row of a column of features has, by column; empty where another program wrote it."""
    found: dict[str, list[int]] = json.loads((schema.metadata or {}).get(LENGTHS, b"{}"))
    return found


def _parquet(table: pa.Table, options: dict[str, Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    data: bytes = sink.getvalue().to_pybytes()
    return data
