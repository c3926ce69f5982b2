"""Values read as they lie in a file: the same as through pyarrow, and given up on where they don't lie there."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penumbra.artifacts.pages import plain_values
from penumbra.artifacts.tables import FEATURE_FILES

DIMENSION = 24


def table(rows: list[Any]) -> pa.Table:
    return pa.table(
        {
            "vid": pa.array([str(i) for i in range(len(rows))]),
            "features": pa.array(rows, pa.list_(pa.list_(pa.float16(), DIMENSION))),
        }
    )


def vectors(count: int, seed: int = 0) -> list[list[np.float16]]:
    return list(np.random.default_rng(seed).standard_normal((count, DIMENSION)).astype(np.float16))


def read(data: bytes) -> list[bytes] | None:
    view, metadata = memoryview(data), pq.read_metadata(pa.BufferReader(data))
    found = []
    for group in range(metadata.num_row_groups):
        pages = plain_values(view, metadata.row_group(group).column(1))
        if pages is None:
            return None
        found += [bytes(page) for page in pages]
    return found


def written(rows: list[Any], **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table(rows), sink, **{**FEATURE_FILES, **options})
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"write_statistics": True},
        {"data_page_version": "2.0"},
        {"data_page_size": 500, "write_batch_size": 100},
        {"row_group_size": 2},
        {"write_page_index": True, "write_page_checksum": True},
    ],
)
def test_the_values_are_those_that_pyarrow_reads(options: dict[str, Any]) -> None:
    rows = [vectors(count, count) for count in (1, 7, 300, 2, 40)]
    pages = read(written(rows, **options))
    assert pages is not None
    assert b"".join(pages) == np.concatenate([np.array(row) for row in rows]).tobytes()


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        ([vectors(3), vectors(2)], {"compression": "zstd"}),
        ([vectors(3)] * 9, {"use_dictionary": True}),
        ([vectors(3)], {"column_encoding": {"features.list.element.list.element": "BYTE_STREAM_SPLIT"}}),
        ([vectors(3), [], vectors(1)], {}),
        ([vectors(3), None], {}),
        ([vectors(3), [None]], {}),
        ([vectors(3), [[None] * DIMENSION]], {"data_page_version": "2.0"}),
    ],
)
def test_anything_else_is_left_to_pyarrow(rows: list[Any], options: dict[str, Any]) -> None:
    assert read(written(rows, **options)) is None


def test_damage_is_no_crash() -> None:
    data = written([vectors(30)])
    metadata = pq.read_metadata(pa.BufferReader(data))
    chunk = metadata.row_group(0).column(1)
    chance = np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(data)
        for at in chance.integers(chunk.data_page_offset, chunk.data_page_offset + 40, 3):
            broken[at] = chance.integers(256)
        plain_values(memoryview(broken), chunk)
