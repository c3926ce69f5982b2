"""Read the rows of a Parquet file of unknown origin."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

LARGEST = 500_000_000  # bytes that a file may unpack to: one of 600 kB can hold 30 million equal rows
ROWS = 1024  # that are unpacked at once


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows; raise `ValueError` with the reason if they can't be read or unpack to more than `LARGEST`."""
    size = 0
    try:
        for batch in parquet.ParquetFile(path).iter_batches(ROWS):
            size += batch.nbytes
            if size > LARGEST:
                raise ValueError(f"it unpacks to more than {LARGEST / 1e6:.0f} MB")
            yield from batch.to_pylist()
    except (pa.ArrowException, OverflowError) as error:  # a date may be later than Python's
        raise ValueError(str(error).partition("\n")[0]) from None
