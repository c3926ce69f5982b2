"""Whole sentences as negatives, on real queries: the nearest other ones, and the authors' release."""

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penumbra.artifacts.errors import ArtifactError
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.tasks.data.annotations import Annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.negatives.checks import normal_form
from penumbra.tasks.negatives.files import NegativesError
from penumbra.tasks.negatives.parameters import NegativeSource, NegativesParameters, Queries
from penumbra.tasks.negatives.selection import Choosing
from penumbra.tasks.negatives.sentence_negatives import (
    TOO_FEW,
    ImportedNegatives,
    NearestNegatives,
    SentenceNegatives,
    make_sentence_negatives,
    ranked,
)
from penumbra.tasks.stage import build
from penumbra.tasks.text.dictionary import WordCounts
from penumbra.tasks.text.embeddings import Embeddings, Encoding
from penumbra.tasks.text.tags import Tagging, Tags
from tests.rows import first_videos, json_lines

Make = Callable[[Path], ImportedNegatives]
COSINES = np.array([0.95, 0.9, 0.8, 0.8, 0.7, 0.6], np.float32)
LEMMAS = ["own", "video", "c", "d", "e", "c"]
QID, QUERY = "IGDIE_train_0", "person starts watching television."


def described(dataset: Dataset, rows_a_part: int = 64) -> Callable[[type[SentenceNegatives], NegativeSource], Any]:
    """Return a function that makes a stage of these queries."""
    annotations: Artifact = build(Annotations(dataset, rows_a_part))
    tags = build(Tags(annotations, Tagging()))
    dictionary, embeddings = build(WordCounts(annotations, tags)), build(Embeddings(annotations, Encoding()))
    return lambda kind, sourcing: kind(annotations, tags, dictionary, embeddings, sourcing, Choosing(), Encoding())


@pytest.mark.parametrize(
    ("ranks", "forbidden", "taken"),
    [
        ((1, 2, 3), {"video"}, [2, 4]),  # 3 is no further than 2, 5 says what 2 says, and nothing is left
        ((1, 2, 4), set(), [1, 2, 4]),
        ((2, 3, 4), {"video"}, [3, 4]),
        ((9, 10, 11), set(), []),
    ],
)
def test_paraphrases_and_forbidden_texts_have_no_rank(
    ranks: tuple[int, int, int], forbidden: set[str], taken: list[int]
) -> None:
    assert ranked(COSINES, LEMMAS, forbidden, 0.9, ranks) == taken


def test_every_real_query_has_three_other_real_ones(shared: Path, store: Store, tmp_path: Path) -> None:
    counts = dict.fromkeys(("train", "test_trivial", "novel_composition", "novel_word"), 60)
    first_videos(tmp_path, shared / "data" / "charades-cg", **counts)
    make = described(Dataset(name="corner", folder=str(tmp_path)))
    stage = make(NearestNegatives, NegativeSource(source="nearest", ranks=(1, 5, 20)))
    made = build(stage)
    assert len(store.manifest(made).parts) == len(store.manifest(stage.annotations).parts) > 2
    queries = {row["qid"]: row for row in store.table(stage.annotations).to_pylist()}
    training = {row["query"] for row in queries.values() if row["split"] == "train"}
    tests = {normal_form(row["query"]) for row in queries.values() if row["split"] != "train"}
    tests -= {normal_form(text) for text in training}
    spoken: defaultdict[str, set[str]] = defaultdict(set)
    for row in queries.values():
        spoken[row["vid"]].add(stage.leakage.lemmatised(row["query"]))
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in store.table(made).to_pylist():
        found[row["qid"]].append(row)
    assert found.keys() == {qid for qid, row in queries.items() if row["split"] == "train"}
    for qid, rows in found.items():
        assert [row["level"] for row in rows] == [1, 2, 3]
        assert {row["negative"] for row in rows} <= training
        assert not {normal_form(row["negative"]) for row in rows} & tests
        assert not {stage.leakage.lemmatised(row["negative"]) for row in rows} & spoken[queries[qid]["vid"]]
        nearness = [row["similarity"] for row in rows]
        assert 0.9 >= nearness[0] > nearness[1] > nearness[2]
        assert all({"same_video", "test_split", "ceiling", "falling"} <= set(row["checks"]) for row in rows)
    manifest = store.manifest(build(make(NearestNegatives, NegativeSource(source="nearest", ranks=(1, 2, 9_999)))))
    assert manifest.rejected == {TOO_FEW: manifest.taken // 3}
    assert set(store.table(store.reference(manifest))["level"].to_pylist()) == {1, 2}


@pytest.fixture
def make(shared: Path, store: Store, tmp_path: Path) -> Make:
    """A stage that imports a file for the release's first videos, and some of a test split."""
    release = shared / "data/charades-cg/shine_release_first200.jsonl"
    vids = list(dict.fromkeys(json.loads(line)["vid"] for line in release.read_text().splitlines()))[:40]
    for name, wanted in (("train", vids), ("test_trivial", None)):
        videos = json.loads((shared / f"data/charades-cg/{name}.json").read_text())
        some = {vid: videos[vid] for vid in wanted or list(videos)[:20]}
        (tmp_path / f"{name}.json").write_text(json.dumps(some))
    stages = described(Dataset(name="corner", folder=str(tmp_path)), rows_a_part=30)
    return lambda file: stages(ImportedNegatives, NegativeSource(source="imported", file=str(file)))


@pytest.fixture
def release(shared: Path) -> list[dict[str, Any]]:
    lines = (shared / "data/charades-cg/shine_release_first200.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_release_is_taken_as_it_is(make: Make, store: Store, release: list[dict[str, Any]], tmp_path: Path) -> None:
    stage = make(json_lines(tmp_path / "release.jsonl", release))
    made = build(stage)
    assert len(store.manifest(made).parts) == len(store.manifest(stage.annotations).parts) > 2
    there = {qid for qid, split in stage.splits.items() if split == "train"}
    mine = [row for row in release if row["qid"] in there]
    assert len(mine) >= 40
    rows = {(row["qid"], row["level"]): row for row in store.table(made).to_pylist()}
    assert {place: row["negative"] for place, row in rows.items()} == {
        (row["qid"], level): text for row in mine for level, text in enumerate(row["recomposed_queries"], 1)
    }
    assert store.manifest(made).rejected == {"no query has its qid": 3 * (len(release) - len(mine))}
    first = rows["IGDIE_train_0", 1]
    assert first["words"] == ["stops"]
    assert (first["provider"], first["model"]) == ("imported", "release.jsonl")
    assert {"template", "ceiling", "falling"} <= set(first["checks"])
    assert first["similarity"] == pytest.approx(0.8603, abs=1e-3)
    assert all(isinstance(row["plausibility"], float) for row in rows.values())
    assert not all("known_words" in row["checks"] for row in rows.values()), "noted, and not enforced"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"qid": "nobody"}, "no query has its qid"),
        ({"qid": "TEST"}, "its query is of split test, not of train"),
        ({"level": 4}, "level is not 1, 2 or 3"),
        ({"level": 1}, "its query has another of this level"),
        ({"negative": "  "}, "negative is empty"),
        ({"negative": "Person starts watching television"}, "equals its query"),
        ({"query": "person eats."}, "its query is not what the data set has under its qid"),
    ],
)
def test_what_is_no_negative_is_refused(
    make: Make, store: Store, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    good = {"qid": QID, "level": 1, "query": QUERY, "negative": "person stops watching television."}
    stage = make(tmp_path / "mixed.jsonl")
    other = {**good, "level": 2, "negative": "person stops eating."} | changes
    if other["qid"] == "TEST":
        other["qid"] = next(qid for qid in stage.splits if "_test_" in qid)
    json_lines(tmp_path / "mixed.jsonl", [good, other])
    made = build(stage)
    assert store.manifest(made).rejected == {reason: 1}
    assert [row["negative"] for row in store.table(made).to_pylist()] == [good["negative"]]
    [refused] = [row for part in store.rejected(made) for row in part.to_pylist()]
    assert refused["qid"] == other["qid"]


def test_an_imported_negative_is_cleaned_and_the_changes_are_counted(make: Make, store: Store, tmp_path: Path) -> None:
    query = QUERY.replace(" ", "\u200b  ", 1)
    row = {"qid": QID, "level": 1, "query": query, "negative": "person\u200b stops  watching\x07 television."}
    made = build(make(json_lines(tmp_path / "dirty.jsonl", [row])))
    assert [row["negative"] for row in store.table(made).to_pylist()] == ["person stops watching television."]
    changes = ("control or format characters removed", "blanks between words made single spaces")
    assert store.manifest(made).notes == {f"negative: {change}": 1 for change in changes}


def test_a_file_of_another_data_set_is_an_error(make: Make, tmp_path: Path) -> None:
    file = json_lines(tmp_path / "other.jsonl", [{"qid": "x_1", "level": 1, "negative": "a dog eats."}])
    with pytest.raises(NegativesError, match="no qid is of a training query of corner, the first is 'x_1'"):
        build(make(file))


def test_without_a_file_it_is_what_was_imported_last(make: Make, store: Store, tmp_path: Path) -> None:
    stage = make(json_lines(tmp_path / "one.csv", [{}]))
    (tmp_path / "one.csv").write_text(f"qid,level,negative\n{QID},2,person eats.\n")
    queries = Queries(stage.annotations, stage.tags, stage.embeddings, stage.annotations)
    asked = queries, stage.dictionary, NegativesParameters(sourcing=NegativeSource(source="imported"))
    with pytest.raises(ArtifactError, match="no negatives of corner were imported: penumbra run import-negatives"):
        make_sentence_negatives(*asked)
    assert build(stage) == make_sentence_negatives(*asked)
