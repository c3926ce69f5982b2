"""Negatives as one Parquet file: a row a negative, with the columns of the JSON lines."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penumbra.artifacts.errors import PenumbraError

SCHEMA = pa.schema(
    [
        ("qid", pa.string()),
        ("vid", pa.string()),
        ("level", pa.int8()),
        ("query", pa.string()),
        ("masked_query", pa.string()),
        ("negative", pa.string()),
        ("words", pa.list_(pa.string())),
        ("provider", pa.string()),
        ("model", pa.string()),
        ("similarity", pa.float32()),
    ]
)
COLUMNS = SCHEMA.names
ROWS = 50_000  # in memory at once


def write_parquet(rows: Iterable[Mapping[str, Any]], file: Path) -> int:
    """Write rows of `export_rows`, and return how many; no file is there where they, or writing, fail."""
    return write_tables((pa.Table.from_pylist(several, schema=SCHEMA) for several in _batches(rows)), SCHEMA, file)


def write_tables(tables: Iterable[pa.Table], schema: pa.Schema, file: Path) -> int:
    """Write tables of one schema as one file, and return how many rows they have."""
    draft, written = file.with_name(f".{file.name}.draft"), 0
    try:
        with draft.open("wb") as sink, pq.ParquetWriter(sink, schema, compression="zstd") as writer:
            for table in tables:
                writer.write_table(table)
                written += len(table)
        draft.replace(file)
    except OSError as error:
        raise PenumbraError(f"--output {file} can't be written ({error.strerror or error})") from None
    finally:
        draft.unlink(missing_ok=True)
    return written


def _batches(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    left = iter(rows)
    while several := list(islice(left, ROWS)):
        yield several
