"""Artifacts of the older schema, in which a negative was called `query` and its query `positive`, are still read."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penumbra.artifacts.manifest import Artifact, Part, Work
from penumbra.artifacts.schemas import RENAMED, table_of
from penumbra.artifacts.store import Store
from penumbra.artifacts.tables import part_name
from tests.rows import filled, negative

TEXTS = {"a person sits.", "a dog sits."}
ROWS = {
    "negatives": [negative("a", 1, "a person sits.", "a person runs."), negative("b", 1, "a dog sits.", "a dog runs.")],
    "fills": [filled("a", 1, "a person sits."), filled("b", 1, "a dog sits.")],
}


class Killed(BaseException):
    """Ends the making of an artifact before its manifest is written."""


def older(table: pa.Table, stage: str) -> pa.Table:
    old_names = {new: old for old, new in RENAMED[stage].items()}
    return table.rename_columns([old_names.get(name, name) for name in table.column_names])


def kill() -> Part:
    raise Killed


def write_older(store: Store, stage: str, *, whole: bool, monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """Write an artifact of two parts as an older version did; of one that is not whole there is the first part."""
    parts = [Part(table_of(stage, [row]), 1, 1) for row in ROWS[stage]]
    works = [lambda: parts[0], (lambda: parts[1]) if whole else kill]
    with monkeypatch.context() as patch:
        patch.setattr("penumbra.artifacts.tables.conform", older)
        patch.setattr("penumbra.artifacts.store.is_older", lambda data, stage: False)
        work = Work("mine", stage, 1)
        if whole:
            return store.build(work, works)
        with pytest.raises(Killed):
            store.build(work, works)
        return store.artifact(work)


def columns_on_disk(artifact: Artifact, part: int) -> list[str]:
    return list(pq.read_schema(Path(artifact.path) / part_name(part)).names)


@pytest.mark.parametrize("stage", ["negatives", "fills"])
def test_an_older_artifact_is_read_with_todays_columns(
    store: Store, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = write_older(store, stage, whole=True, monkeypatch=monkeypatch)
    assert "negative" not in columns_on_disk(artifact, 0)
    assert store.table(artifact) == table_of(stage, ROWS[stage])
    assert set(store.table(artifact, ["negative", "qid"])["negative"].to_pylist()) == TEXTS
    assert store.build(Work("mine", stage, 1), [kill, kill]) == artifact, "nothing is made again"
    assert not store.verify(artifact)


@pytest.mark.parametrize("stage", ["negatives", "fills"])
def test_all_parts_have_the_same_columns_where_an_older_artifact_is_completed(
    store: Store, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = write_older(store, stage, whole=False, monkeypatch=monkeypatch)
    assert "negative" not in columns_on_disk(artifact, 0)
    parts = [Part(table_of(stage, [row]), 1, 1) for row in ROWS[stage]]
    assert store.build(Work("mine", stage, 1), [lambda: parts[0], lambda: parts[1]]) == artifact
    assert columns_on_disk(artifact, 0) == columns_on_disk(artifact, 1)
    assert store.table(artifact) == table_of(stage, ROWS[stage])
    assert not store.verify(artifact)
