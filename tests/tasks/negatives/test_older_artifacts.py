"""Artifacts of the older schema, in which a negative was called `query` and its query `positive`, are still read."""

from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penumbra.artifacts.manifest import Part, Work
from penumbra.artifacts.schemas import RENAMED, table_of
from penumbra.artifacts.store import Store
from tests.rows import filled, negative

ROWS = {
    "negatives": [negative("a", 1, "a person sits.", "a person runs."), negative("b", 1, "a dog sits.", "a dog runs.")],
    "fills": [filled("a", 1, "a person sits."), filled("b", 1, "a dog sits.")],
}


def older(table: pa.Table, stage: str) -> bytes:
    """Return a Parquet file as an older version wrote it."""
    old_names, sink = {new: old for old, new in RENAMED[stage].items()}, pa.BufferOutputStream()
    pq.write_table(table.rename_columns([old_names.get(name, name) for name in table.column_names]), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("stage", ["negatives", "fills"])
def test_an_older_artifact_has_todays_columns(store: Store, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("penumbra.artifacts.store.encode", older)
        parts = [partial(Part, table_of(stage, [row]), 1, 1) for row in ROWS[stage]]
        artifact = store.build(Work("mine", stage, 1), parts)
    assert "negative" not in pq.read_schema(Path(artifact.path) / "part-00000.parquet").names
    assert store.table(artifact) == table_of(stage, ROWS[stage])
    assert set(store.table(artifact, ["negative", "qid"])["negative"].to_pylist()) == {"a person sits.", "a dog sits."}
    assert not store.verify(artifact)
