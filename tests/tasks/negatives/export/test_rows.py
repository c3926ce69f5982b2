"""Export: the authors' own rows, key for key, from the very tables that the negatives were made of."""

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact, Part, Work
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.flows.commands import app
from penumbra.tasks.negatives.export import SCHEMA, SENTENCE_FORMATS, export_rows, shortest_float
from penumbra.tasks.negatives.files import read_entries
from tests.rows import annotation, negative

Row = dict[str, Any]


def query(qid: str, text: str = "") -> Row:
    return annotation(qid, text or f"query {qid} 🐶", duration=12.5, windows=[[0.5, 4.25]])


def masked(qid: str, level: int, text: str = "masked") -> Row:
    return {"qid": qid, "level": level, "ratio": 0.25 * level, "masked_query": f"{text} {qid} {level}", "slots": []}


def chosen(qid: str, level: int, **others: Any) -> Row:
    usual = {"words": ["cup"], "model": "m", "similarity": 0.8765432}
    return negative(qid, level, f"negative {qid} {level}", f"query {qid} 🐶", **{**usual, **others})


def build(
    store: Store, stage: str, parts: list[list[Row]], parents: tuple[Artifact, ...] = (), version: int = 1
) -> Artifact:
    made = [Part(table_of(stage, rows), len(rows), len(rows)) for rows in parts]
    work = Work("scenes", stage, version, parents=parents)
    return store.build(work, [lambda part=part: part for part in made])  # type: ignore[misc]


@pytest.fixture
def built(store: Store) -> Store:
    """Two parts; of c2 the second level has no negative, d2 has none at all. There are newer masks, too."""
    qids = [["a1", "b1"], ["c2", "d2", "e2"]]
    levels = {"a1": (1, 2, 3), "b1": (3, 2, 1), "c2": (1, 3), "d2": (), "e2": (1, 2, 3)}
    annotations = build(store, "annotations", [[query(qid) for qid in part] for part in qids])
    masks = build(
        store, "masks", [[masked(qid, level) for qid in part for level in (1, 2, 3)] for part in qids], (annotations,)
    )
    negatives = [[chosen(qid, level) for qid in part for level in levels[qid]] for part in qids]
    build(store, "negatives", negatives, (annotations, masks))
    build(store, "masks", [[masked("a1", 1, "newer")]], version=2)
    return store


def test_shines_rows(built: Store, shared: Path) -> None:
    rows = list(export_rows(built, built.newest("scenes", "negatives"), "shine"))
    assert [row["qid"] for row in rows] == ["a1", "b1", "e2"], "only queries with all levels, in the annotations' order"
    with (shared / "data" / "charades-cg" / "shine_release_first200.jsonl").open() as lines:
        release = json.loads(next(lines))
    assert all(list(row) == list(release) for row in rows)
    assert [type(value) for value in rows[0].values()] == [type(value) for value in release.values()]
    assert rows[1] == {
        "qid": "b1",
        "query": "query b1 🐶",
        "duration": 12.5,
        "vid": "b1",
        "relevant_windows": [[0.5, 4.25]],
        "masked_queries": ["masked b1 1", "masked b1 2", "masked b1 3"],
        "recomposed_queries": ["negative b1 1", "negative b1 2", "negative b1 3"],
    }


def test_one_negative_a_row(built: Store) -> None:
    rows = list(export_rows(built, built.newest("scenes", "negatives"), "jsonl"))
    levels = [(qid, level) for qid in ("a1", "b1", "c2", "e2") for level in (1, 2, 3) if (qid, level) != ("c2", 2)]
    assert [(row["qid"], row["level"]) for row in rows] == levels
    about = {"qid": "c2", "vid": "c2", "level": 3, "query": "query c2 🐶", "masked_query": "masked c2 3"}
    filled = {"words": ["cup"], "provider": "corpus", "model": "m", "similarity": 0.8765432}
    assert rows[7] == {**about, "negative": "negative c2 3", **filled}


def test_negatives_that_do_not_name_their_sources_are_refused(store: Store) -> None:
    build(store, "negatives", [[chosen("a1", 1)]])
    with pytest.raises(ArtifactError, match="does not name its annotations and masks"):
        next(export_rows(store, store.newest("scenes", "negatives"), "shine"))


def test_whole_sentences_are_exported_except_to_formats_with_masks(store: Store) -> None:
    annotations = build(store, "annotations", [[query("a1")]])
    build(store, "negatives", [[chosen("a1", 1)]], (annotations,))
    for format_ in SENTENCE_FORMATS:
        [row] = export_rows(store, store.newest("scenes", "negatives"), format_)
        assert (row["masked_query"], row["negative"]) == (None, "negative a1 1")
    for format_ in ("shine", "hf"):
        with pytest.raises(
            ArtifactError, match=r"holds whole sentences.*choose another --format \(jsonl, csv, parquet\)"
        ):
            next(export_rows(store, store.newest("scenes", "negatives"), format_))


def test_umlauts_are_umlauts_and_no_row_is_lost_to_a_terminal_s_language(built: Store, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penumbra", "export", "scenes", "--format", "jsonl"]
    variables = {**os.environ, "PENUMBRA_ARTIFACTS": built.root, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=variables, capture_output=True, check=True)
    lines = done.stdout.decode("utf-8").splitlines()
    assert '"query": "query a1 🐶"' in lines[0]
    assert '"similarity": 0.8765432}' in lines[0], "not 0.8765432238578796"
    assert [json.loads(line) for line in lines] == list(
        export_rows(built, built.newest("scenes", "negatives"), "jsonl")
    )
    assert done.stderr.decode() == (
        "penumbra: 2 of 5 training queries lack some of the three levels: only what they have is written\n"
    )


def test_a_parquet_file_has_the_rows_of_the_json_lines(built: Store, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", "scenes", "--format", "parquet", "--output", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert pq.read_schema(tmp_path / "out").equals(SCHEMA)
    rows = [
        row | {"similarity": shortest_float(row["similarity"])} for row in pq.read_table(tmp_path / "out").to_pylist()
    ]
    assert rows == list(export_rows(built, built.newest("scenes", "negatives"), "jsonl"))
    assert [path.name for path in tmp_path.glob("*out*")] == ["out"], "no draft is left"


def test_a_cell_of_csv_is_no_formula_and_is_read_back_as_it_was(store: Store, tmp_path: Path) -> None:
    annotations = build(store, "annotations", [[query("a1", "=1+1 opens, the door")]])
    masks = build(store, "masks", [[masked("a1", 1)]], (annotations,))
    evil = chosen("a1", 1, words=["-cmd", "Tür"], similarity=-0.25) | {"negative": '@SUM(A1) "quoted"'}
    build(store, "negatives", [[evil]], (annotations, masks))
    file = tmp_path / "out.csv"
    assert CliRunner().invoke(app, ["export", "scenes", "--format", "csv", "--output", str(file)]).exit_code == 0
    [row] = csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))
    assert row["query"] == "'=1+1 opens, the door"
    assert row["negative"] == '\'@SUM(A1) "quoted"'
    assert (row["words"], row["similarity"]) == ('["-cmd", "Tür"]', "-0.25")
    [entry] = read_entries(file)
    assert (entry.qid, entry.level, entry.query, entry.text) == ("a1", 1, "=1+1 opens, the door", '@SUM(A1) "quoted"')


@pytest.mark.parametrize("format_", ["csv", "parquet", "hf"])
def test_an_export_that_fails_leaves_the_older_one_as_it_was(
    built: Store, tmp_path: Path, format_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["export", "scenes", "--format", format_, "--output", str(tmp_path / "out")]
    assert CliRunner().invoke(app, command).exit_code == 0

    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def parts(store: Store, artifact: Artifact, columns: list[str] | None = None) -> Iterator[pa.Table]:
        for index, table in enumerate(read(store, artifact, columns)):
            if index:
                raise PenumbraError("the disk is gone")
            yield table

    older, read = content(), Store.parts
    monkeypatch.setattr(Store, "parts", parts)
    assert str(CliRunner().invoke(app, command).exception) == "the disk is gone"
    assert content() == older


@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_a_file_that_can_not_be_written_is_one_line(built: Store, tmp_path: Path, format_: str) -> None:
    file = tmp_path / "nowhere" / "out"
    done = CliRunner().invoke(app, ["export", "scenes", "--format", format_, "--output", str(file)])
    assert str(done.exception) == f"--output {file} can't be written (No such file or directory)"
