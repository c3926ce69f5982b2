"""A part as a file: Parquet that also tells what was counted while it was made, so that a killed build goes on."""

import hashlib
import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penumbra.artifacts.manifest import Part, PartRecord
from penumbra.artifacts.schemas import conform, fitted, is_features, lengths, table_of

REJECTED = "_rejected"  # folder of the refused rows
TABLE_FILES = {"compression": "zstd"}
# Halves hardly repeat and hardly shrink: plain values, read as they lie (`penumbra.artifacts.pages`).
FEATURE_FILES = {"compression": "none", "use_dictionary": False, "write_statistics": False}
COUNTS = b"penumbra"  # key of the file's metadata


def part_name(index: int) -> str:
    """The name of a part's file."""
    return f"part-{index:05d}.parquet"


def encode(part: Part, stage: str, rejected: str) -> bytes:
    """A part's file; `rejected` is where its refused rows lie, or "". Raises `SchemaError`."""
    rows = conform(part.rows, stage)
    features = {name: lengths(rows[name]) for name in rows.column_names if is_features(rows.schema.field(name).type)}
    counts: dict[str, Any] = {
        "taken": part.taken,
        "kept": part.kept,
        "notes": dict(sorted(part.notes.items())),
        "rejected": rejected,
        "cost_usd": part.cost_usd,
    }
    if features:
        counts["lengths"] = features
    rows = rows.replace_schema_metadata({COUNTS: json.dumps(counts, sort_keys=True)})
    return _parquet(rows, FEATURE_FILES if features else TABLE_FILES)


def encode_rejected(part: Part) -> bytes:
    """The file of a part's refused rows."""
    return _parquet(table_of("rejected", part.rejected), TABLE_FILES)


def decode(data: bytes, columns: list[str] | None = None) -> pa.Table:
    """The rows of a file."""
    return pq.read_table(io.BytesIO(data), columns=columns)


def counts_of(schema: pa.Schema) -> dict[str, Any]:
    """What a part's file tells besides its rows; nothing where another program wrote it."""
    counts: dict[str, Any] = json.loads((schema.metadata or {}).get(COUNTS, b"{}"))
    return counts


def record_of(name: str, data: bytes, stage: str, read: Callable[[str], bytes]) -> PartRecord | None:
    """What a part's file says of itself, or None where it is foreign, cut short or lacks its refused rows.

    `read` gives the content of a file of the artifact and raises `FileNotFoundError`.
    """
    try:
        schema = pq.read_schema(io.BytesIO(data))
        counts = counts_of(schema)
        rejected = counts["rejected"] or None
        rejected_data = read(rejected) if rejected else b""
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if schema.remove_metadata() != fitted(stage, schema):
        return None
    return PartRecord(
        name=name,
        rows=pq.read_metadata(io.BytesIO(data)).num_rows,
        sha256=hashlib.sha256(data).hexdigest(),
        rejected=rejected,
        rejected_sha256=hashlib.sha256(rejected_data).hexdigest() if rejected else None,
        taken=counts["taken"],
        kept=counts["kept"],
        notes=counts["notes"],
        cost_usd=counts["cost_usd"],
    )


def _parquet(table: pa.Table, options: dict[str, Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    data: bytes = sink.getvalue().to_pybytes()
    return data
