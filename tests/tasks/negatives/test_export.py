"""Export: the authors' own rows, key for key; tables; a folder that `datasets` opens; and what older versions wrote."""

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.schemas import RENAMED, table_of
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.negatives.export import SCHEMA, export_rows, shortest_float
from penumbra.tasks.negatives.files import read_negatives
from tests import rows
from tests.rows import annotation, files_in, filled, negative
from tests.terminal import penumbra, printed, python

Row = dict[str, Any]
build = partial(rows.build, dataset="scenes")
LISTS = {"masked_queries": "masked", "recomposed_queries": "negative"}


def query(qid: str) -> Row:
    return annotation(qid, f"query {qid} 🐶", duration=12.5, windows=[[0.5, 4.25]])


def masked(qid: str, level: int, text: str = "masked") -> Row:
    return {"qid": qid, "level": level, "ratio": 0.25 * level, "masked_query": f"{text} {qid} {level}", "slots": []}


def chosen(qid: str, level: int, **others: Any) -> Row:
    usual = {"words": ["cup"], "model": "m", "similarity": 0.8765432}
    return negative(qid, level, f"negative {qid} {level}", f"query {qid} 🐶", **{**usual, **others})


@pytest.fixture
def built(store: Store) -> Store:
    """Two parts; of c2 the second level has no negative, d2 has none at all. There are newer masks, too."""
    levels = {"a1": (1, 2, 3), "b1": (3, 2, 1), "c2": (1, 3), "d2": (), "e2": (1, 2, 3)}
    annotations = build(store, "annotations", [query(qid) for qid in levels], cut=2)
    masks = build(store, "masks", [masked(qid, n) for qid in levels for n in (1, 2, 3)], (annotations,), cut=6)
    negatives = [chosen(qid, level) for qid, several in levels.items() for level in several]
    build(store, "negatives", negatives, (annotations, masks), cut=6)
    build(store, "masks", [masked("a1", 1, "newer")], parameters={"newer": True})
    return store


def test_shines_rows(built: Store, shared: Path) -> None:
    rows = list(export_rows(built, built.newest("scenes", "negatives"), "shine"))
    assert [row["qid"] for row in rows] == ["a1", "b1", "e2"], "only queries with all levels, in the annotations' order"
    with (shared / "data" / "charades-cg" / "shine_release_first200.jsonl").open() as lines:
        release = json.loads(next(lines))
    assert all(list(row) == list(release) for row in rows)
    assert [type(value) for value in rows[0].values()] == [type(value) for value in release.values()]
    about = {"qid": "b1", "query": "query b1 🐶", "duration": 12.5, "vid": "b1", "relevant_windows": [[0.5, 4.25]]}
    texts = {kind: [f"{name} b1 {level}" for level in (1, 2, 3)] for kind, name in LISTS.items()}
    assert rows[1] == {**about, **texts}


def one_a_row(built: Store) -> list[Row]:
    return list(export_rows(built, built.newest("scenes", "negatives"), "jsonl"))


def test_one_negative_a_row(built: Store) -> None:
    rows = one_a_row(built)
    levels = [(qid, level) for qid in ("a1", "b1", "c2", "e2") for level in (1, 2, 3) if (qid, level) != ("c2", 2)]
    assert [(row["qid"], row["level"]) for row in rows] == levels
    about = {"qid": "c2", "vid": "c2", "level": 3, "query": "query c2 🐶", "masked_query": "masked c2 3"}
    filled = {"words": ["cup"], "provider": "corpus", "model": "m", "similarity": 0.8765432}
    assert rows[7] == {**about, "negative": "negative c2 3", **filled}


def test_what_can_not_be_exported_is_an_error(store: Store) -> None:
    unnamed, annotations = build(store, "negatives", [chosen("a1", 1)]), build(store, "annotations", [query("a1")])
    with pytest.raises(ArtifactError, match="does not name its annotations and masks"):
        export_rows(store, unnamed, "shine")
    empty = build(store, "negatives", [], (annotations,))
    with pytest.raises(ArtifactError, match="holds no negative: penumbra run build-negatives scenes says why"):
        export_rows(store, empty, "jsonl")


def test_whole_sentences_are_exported_except_to_shines_form(store: Store) -> None:
    negatives = build(store, "negatives", [chosen("a1", 1)], (build(store, "annotations", [query("a1")]),))
    [row] = export_rows(store, negatives, "jsonl")
    assert (row["masked_query"], row["negative"]) == (None, "negative a1 1")
    with pytest.raises(ArtifactError, match=r"holds whole sentences.*choose another --format"):
        export_rows(store, negatives, "shine")


def test_umlauts_are_umlauts_and_no_row_is_lost_to_a_terminal_s_language(built: Store, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penumbra", "export", "scenes", "--format", "jsonl"]
    variables = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=variables, capture_output=True, check=True)
    lines = done.stdout.decode("utf-8").splitlines()
    assert '"query": "query a1 🐶"' in lines[0]
    assert '"similarity": 0.8765432}' in lines[0], "not 0.8765432238578796"
    assert [json.loads(line) for line in lines] == one_a_row(built)
    lack = "2 of 5 training queries lack some of the three levels: only their other levels are written"
    assert done.stderr.decode() == f"penumbra: {lack}\n"


def test_a_parquet_file_has_the_rows_of_the_json_lines(built: Store, tmp_path: Path) -> None:
    printed("export", "scenes", "--format", "parquet", "--output", str(tmp_path / "out"))
    table = pq.read_table(tmp_path / "out")
    assert table.schema.equals(SCHEMA)
    rows = [row | {"similarity": shortest_float(row["similarity"])} for row in table.to_pylist()]
    assert rows == one_a_row(built)
    assert not list(tmp_path.glob(".*")), "no draft is left"


def test_a_cell_of_csv_is_no_formula_and_is_read_back_as_it_was(store: Store, tmp_path: Path) -> None:
    annotations = build(store, "annotations", [query("a1")])
    masks = build(store, "masks", [masked("a1", 1)], (annotations,))
    evil = {"query": "=1+1 opens, the door", "negative": '@SUM(A1) "quoted"', "words": ["-cmd", "Tür"]}
    evil = chosen("a1", 1, similarity=-0.25) | evil
    build(store, "negatives", [evil], (annotations, masks))
    file = tmp_path / "out.csv"
    printed("export", "scenes", "--format", "csv", "--output", str(file))
    [row] = csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))
    assert row["query"] == "'=1+1 opens, the door"
    assert row["negative"] == '\'@SUM(A1) "quoted"'
    assert (row["words"], row["similarity"]) == ('["-cmd", "Tür"]', "-0.25")
    [entry] = read_negatives(file)
    assert (entry.query, entry.negative) == (evil["query"], evil["negative"])


@pytest.mark.parametrize("format_", ["csv", "parquet", "hf"])
def test_a_failed_export_leaves_the_older_one(
    built: Store, tmp_path: Path, format_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["export", "scenes", "--format", format_, "--output", str(tmp_path / "out")]
    printed(*command)

    def parts(store: Store, artifact: Artifact, columns: list[str] | None = None) -> Iterator[pa.Table]:
        for index, table in enumerate(read(store, artifact, columns)):
            if index:
                raise PenumbraError("the disk is gone")
            yield table

    older, read = files_in(tmp_path), Store.parts
    monkeypatch.setattr(Store, "parts", parts)
    assert str(penumbra(*command).exception) == "the disk is gone"
    assert files_in(tmp_path) == older


def test_datasets_opens_the_folder(store: Store, tmp_path: Path) -> None:
    """The first part has no query of the test split: `datasets` reads no file with an empty row group."""
    pytest.importorskip("datasets", reason="is an extra: pip install 'penumbra[test]'")
    test = annotation("b1", "a cup.", "novel-word", duration=12.5, windows=[[0.5, 4.25]])
    annotations = build(store, "annotations", [query("a1"), test])
    masks = build(store, "masks", [masked("a1", 1)], (annotations,), cut=1)
    negatives = build(store, "negatives", [chosen("a1", 1)], (annotations, masks), cut=1)
    folder = tmp_path / "out"
    verdict = [{"level": 1, "provider": "all", "metric": "verdict", "value": 3.0}]
    for parents, expected in (((), "`penumbra quality scenes/"), ((negatives,), "level 1: as natural as the que")):
        build(store, "quality", verdict, parents)
        printed("export", "scenes", "--format", "hf", "--output", str(folder))
        assert f"Quality: {expected}" in (folder / "README.md").read_text(encoding="utf-8")
    files = {"README.md", "negatives/train.parquet", "queries/train.parquet", "queries/novel_word.parquet"}
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == files
    program = (
        "import json, sys\n"
        "from datasets import load_dataset\n"
        "negatives, queries = load_dataset(sys.argv[1], split='train'), load_dataset(sys.argv[1], 'queries')\n"
        "print(json.dumps([negatives.to_list(), {name: rows.to_list() for name, rows in queries.items()}]))"
    )
    home = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    [row], queries = json.loads(python(program, str(folder), **home).stdout)
    assert (row["qid"], row["level"], row["negative"], row["words"]) == ("a1", 1, "negative a1 1", ["cup"])
    assert [row["query"] for row in queries["train"]] == ["query a1 🐶"]
    about = {"qid": "b1", "vid": "b1", "query": "a cup.", "duration": 12.5, "windows": [[0.5, 4.25]]}
    assert queries["novel_word"] == [about]


def older(table: pa.Table, stage: str) -> bytes:
    """Return a Parquet file as an older version wrote it."""
    old_names, sink = {new: old for old, new in RENAMED[stage].items()}, pa.BufferOutputStream()
    pq.write_table(table.rename_columns([old_names.get(name, name) for name in table.column_names]), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(("stage", "row"), [("negatives", chosen), ("fills", partial(filled, text="filled"))])
def test_an_older_artifact_has_todays_columns(
    store: Store, stage: str, row: Callable[[str, int], Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In it a negative was called `query` and its query `positive`."""
    written = [row("a1", 1), row("b1", 1)]
    with monkeypatch.context() as patch:
        patch.setattr("penumbra.artifacts.store.encode", older)
        artifact = build(store, stage, written)
    assert "negative" not in pq.read_schema(Path(artifact.path) / "part-00000.parquet").names
    assert store.table(artifact) == table_of(stage, written)
    texts = [it["negative"] for it in written]
    assert store.table(artifact, ["negative", "qid"])["negative"].to_pylist() == texts
    assert not store.verify(artifact)
