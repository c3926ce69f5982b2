"""Export: the authors' own rows, key for key, from the very tables that the negatives were made of."""

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from penumbra.artifacts.manifest import Artifact, Part, Work
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.flows.commands.terminal import write_lines
from penumbra.tasks.negatives.export import export_rows, review_sheet

SHINE = ["qid", "query", "duration", "vid", "relevant_windows", "masked_queries", "recomposed_queries"]
Row = dict[str, Any]


def annotation(qid: str) -> Row:
    return {"qid": qid, "vid": qid[:2], "split": "train", "query": f"query {qid} 🐶", "duration": 12.5,
            "windows": [[0.5, 4.25]], "novel": [], "saliency": None}  # fmt: skip


def masked(qid: str, level: int, text: str = "masked") -> Row:
    return {"qid": qid, "level": level, "ratio": 0.25 * level, "masked_query": f"{text} {qid} {level}", "slots": []}


def negative(qid: str, level: int) -> Row:
    return {"qid": qid, "level": level, "positive": f"query {qid} 🐶", "query": f"negative {qid} {level}",
            "words": ["cup"], "provider": "corpus", "model": "m",
            "similarity": 0.8765432, "plausibility": None, "checks": []}  # fmt: skip


def build(
    store: Store, stage: str, parts: list[list[Row]], parents: tuple[Artifact, ...] = (), version: int = 1
) -> Artifact:
    made = [Part(table_of(stage, rows), len(rows), len(rows)) for rows in parts]
    work = Work("scenes", stage, version, parents=parents)
    return store.build(work, [lambda part=part: part for part in made])  # type: ignore[misc]


@pytest.fixture
def built(store: Store) -> Store:
    """Two parts; of c2 the second level has no negative, d2 has none at all. Newer masks lie beside."""
    qids = [["a1", "b1"], ["c2", "d2", "e2"]]
    chosen = {"a1": (1, 2, 3), "b1": (3, 2, 1), "c2": (1, 3), "d2": (), "e2": (1, 2, 3)}
    annotations = build(store, "annotations", [[annotation(qid) for qid in part] for part in qids])
    masks = build(store, "masks", [[masked(qid, level) for qid in part for level in (1, 2, 3)] for part in qids],
                  (annotations,))  # fmt: skip
    negatives = [[negative(qid, level) for qid in part for level in chosen[qid]] for part in qids]
    build(store, "negatives", negatives, (annotations, masks))
    build(store, "masks", [[masked("a1", 1, "newer")]], version=2)
    return store


def test_shines_rows(built: Store) -> None:
    rows = list(export_rows(built, "scenes", "shine"))
    assert [row["qid"] for row in rows] == ["a1", "b1", "e2"], "only queries with all levels, in the annotations' order"
    assert all(list(row) == SHINE for row in rows)
    assert rows[1] == {
        "qid": "b1",
        "query": "query b1 🐶",
        "duration": 12.5,
        "vid": "b1",
        "relevant_windows": [[0.5, 4.25]],
        "masked_queries": ["masked b1 1", "masked b1 2", "masked b1 3"],
        "recomposed_queries": ["negative b1 1", "negative b1 2", "negative b1 3"],
    }


def test_the_keys_are_those_of_the_authors_release(built: Store, shared: Path) -> None:
    with (shared / "data" / "charades-cg" / "shine_release_first200.jsonl").open() as lines:
        theirs = json.loads(next(lines))
    ours = next(export_rows(built, "scenes", "shine"))
    assert list(ours) == list(theirs)
    assert [type(value) for value in ours.values()] == [type(value) for value in theirs.values()]


def test_one_negative_a_row(built: Store) -> None:
    rows = list(export_rows(built, "scenes", "jsonl"))
    assert [(row["qid"], row["level"]) for row in rows] == [
        *[("a1", 1), ("a1", 2), ("a1", 3)],
        *[("b1", 1), ("b1", 2), ("b1", 3)],
        *[("c2", 1), ("c2", 3)],
        *[("e2", 1), ("e2", 2), ("e2", 3)],
    ]
    assert rows[7] == {
        "qid": "c2",
        "vid": "c2",
        "level": 3,
        "query": "query c2 🐶",
        "masked_query": "masked c2 3",
        "negative": "negative c2 3",
        "words": ["cup"],
        "provider": "corpus",
        "model": "m",
        "similarity": 0.8765,
    }


@pytest.mark.parametrize("format_", ["shine", "jsonl"])
def test_what_is_written_is_read_back(
    built: Store, tmp_path: Path, format_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = list(export_rows(built, "scenes", format_))
    write_lines(rows, tmp_path / "out.jsonl")
    text = (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    assert [json.loads(line) for line in text.splitlines()] == rows
    assert text.endswith("}\n")
    write_lines(rows, None)
    assert capsys.readouterr().out == text


def test_without_negatives_the_error_tells_what_there_is(store: Store) -> None:
    build(store, "masks", [[masked("a1", 1)]])
    with pytest.raises(ArtifactError, match=r"no scenes/negatives .*there is: scenes/masks"):
        next(export_rows(store, "scenes", "shine"))


def test_negatives_that_do_not_name_their_sources_are_refused(store: Store) -> None:
    build(store, "negatives", [[negative("a1", 1)]])
    with pytest.raises(ArtifactError, match="does not name its annotations and masks"):
        next(export_rows(store, "scenes", "shine"))


def test_whole_sentences_have_no_masks_to_export(store: Store) -> None:
    annotations = build(store, "annotations", [[annotation("a1")]])
    build(store, "negatives", [[negative("a1", 1)]], (annotations,))
    with pytest.raises(ArtifactError, match="holds whole sentences, which have no masks to export"):
        next(export_rows(store, "scenes", "jsonl"))


def test_sources_that_are_gone_are_named(built: Store) -> None:
    annotations = built.newest("scenes", "annotations")
    shutil.rmtree(annotations.path)
    with pytest.raises(ArtifactError, match=annotations.key):
        next(export_rows(built, "scenes", "shine"))


def test_a_sheet_for_people_has_empty_answers(store: Store) -> None:
    annotations = build(store, "annotations", [[annotation(qid) for qid in ("a1", "b1", "c1")]])
    tags = build(store, "tags", [[{"qid": qid, "tokens": []} for qid in ("a1", "b1", "c1")]], (annotations,))
    masks = build(store, "masks", [[masked(qid, level) for qid in ("a1", "b1", "c1") for level in (1, 2, 3)]], (tags,))
    build(store, "negatives", [[negative(qid, level) for qid in ("a1", "b1", "c1") for level in (1, 2, 3)]], (masks,))
    rows = list(csv.DictReader(io.StringIO(review_sheet(store, "scenes", 6, 0))))
    assert [row["row"] for row in rows] == list("123456")
    assert sorted(row["level"] for row in rows) == list("112233")
    assert all(row["query"] == f"query {row['qid']} 🐶" for row in rows)
    assert {row["false_of_this_moment"] + row["natural_english"] for row in rows} == {""}
    assert review_sheet(store, "scenes", 6, 0) != review_sheet(store, "scenes", 6, 1)
