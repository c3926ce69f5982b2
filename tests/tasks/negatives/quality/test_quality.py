"""The quality report: of an artifact, of anyone's file, and what it says of a wrong file."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.files import NegativesError
from penumbra.tasks.negatives.quality.negatives import FileNegatives, fills_of
from penumbra.tasks.negatives.quality.page import figures_by_name
from penumbra.tasks.negatives.quality.report import evaluate as report_on
from tests.rows import json_lines

pytestmark = pytest.mark.slow

VERBS, NOUNS = ("opens", "closes", "takes", "holds"), ("door", "box", "bag", "book", "window", "bottle")
Figures = dict[tuple[int, str, str], float]
LIGHT = {"resamples": 20, "language_model": "no/model"}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small compositional data set: 24 training queries of 12 videos, a test query, a novel composition."""
    folder = tmp_path / "data" / "mine"
    folder.mkdir(parents=True)
    queries = [f"a person {verb} the {noun}." for verb in VERBS for noun in NOUNS]
    usual = {"timestamps": [[0, 4]], "duration": 9}
    pairs = [queries[start : start + 2] for start in range(0, len(queries), 2)]
    several = {"timestamps": [[0, 4], [4, 8]], "duration": 9.5}
    files: dict[str, dict[str, Any]] = {
        "train": {f"v{i}": {"sentences": pair, **several} for i, pair in enumerate(pairs)},
        "test_trivial": {"t1": {"sentences": ["a person opens the bag slowly."], **usual}},
        "novel_composition": {
            "t2": {"sentences": ["a person washes the box."], **usual, "novels": [{"v-n": [["wash", "box"]]}]}
        },
    }
    for name, videos in files.items():
        (folder / f"{name}.json").write_text(json.dumps(videos))
    monkeypatch.setenv("PENUMBRA_DATA", str(folder.parent))
    return folder


@pytest.fixture
def shine(data: Path) -> Path:
    """Negatives of the data set in SHINE's form, with one of each fault."""
    rows = []
    for vid, video in json.loads((data / "train.json").read_text()).items():
        for i, query in enumerate(video["sentences"]):
            verb, noun = query.split()[2], query.split()[4].strip(".")
            other = VERBS[(VERBS.index(verb) + 1) % len(VERBS)]
            thing = NOUNS[(NOUNS.index(noun) + 3) % len(NOUNS)]
            masks = [f"a person <mask> the {noun}.", "a person <mask> the <mask>."]
            fills = [f"a person {other} the {noun}.", f"a person {other} the {thing}."]
            about = {"vid": vid, "query": query, "duration": 9.5, "relevant_windows": [[0, 4]]}
            rows.append({"qid": f"{vid}_train_{i}", **about, "masked_queries": masks, "recomposed_queries": fills})
    rows[0]["recomposed_queries"] = ["a person washes the door.", rows[1]["query"].upper()]
    rows[1]["recomposed_queries"][0] = "a person opens the bag slowly"
    rows[2]["recomposed_queries"][0] = "A person washes box."
    return json_lines(data.parent.parent / "negatives.jsonl", rows)


def evaluate(path: Path | str, **settings: Any) -> tuple[Figures, list[str]]:
    store, report = Store(), report_on(path, None, LIGHT | settings)
    return figures_by_name(store.rows(report)), list(store.manifest(report).notes)


def test_a_shine_file_is_evaluated_against_its_data_set(
    store: Store, shine: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penumbra.tasks.negatives.quality.report.MIN_HUMAN", 1)
    figures = figures_by_name(store.rows(report_on(shine, "mine", LIGHT)))
    assert figures[1, "all", "rows"] == 24
    assert figures[1, "all", "template_kept"] == pytest.approx(22 / 24), "two keep none"
    assert figures[2, "all", "template_kept"] == 1
    assert figures[1, "all", "closed_vocabulary"] == pytest.approx(21 / 24)
    assert figures[1, "all", "leaks"] == figures[1, "all", "leaks.test"] == 1
    assert figures[1, "all", "leaks.composition"] == 0
    assert figures[2, "all", "false_negatives"] == 1
    assert figures[1, "all", "held_out.compositions"] == 1, "wash box, by its lemmas"
    assert figures[1, "all", "equal_to_original"] == 0
    assert 0 < figures[1, "all", "may_be_true"] < 1, "some of its verbs entail each other"
    assert figures[2, "all", "may_be_true"] == 0, "the noun is another thing"
    assert figures[0, "all", "hierarchy.low"] <= figures[0, "all", "hierarchy"]
    own, control = (figures[1, name, "attested_relations"] for name in ("all", "control: random fills"))
    assert figures[1, "all", "attested_relations.above_random"] == pytest.approx(own - control, abs=1e-5)
    assert figures[1, "all", "template_kept"] < figures[1, "all", "template_kept.high"]
    assert figures[2, "all", "template_kept.low"] < 1, "also a share of all rows has an interval"
    assert figures[1, "file", "rows"] == 24, "also under the one provider's name"
    assert (1, "all", "blind_auc") not in figures, "24 rows train no classifier"
    assert evaluate(shine)[0] == figures, "the data set is found, and the figures are the same"


def test_a_file_of_no_data_set_is_evaluated_against_itself_and_says_so(store: Store, tmp_path: Path) -> None:
    words = [(verb, noun, other) for verb in VERBS for noun in NOUNS[:4] for other in NOUNS[4:]]
    rows = [
        {"qid": i, "level": 1, "query": f"a man {verb} a {noun}", "negative": f"a man {verb} a {other}"}
        for i, (verb, noun, other) in enumerate(words)
    ]
    path = tmp_path / "flat.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    figures, notes = evaluate(path)
    assert figures[1, "all", "rows"] == len(rows)
    assert not any(metric.startswith("leaks") for _, _, metric in figures)
    for phrase in ("no test split", "no masked query", "no labels of novel", "need 500 other sentences"):
        assert phrase in " ".join(notes)


def test_a_sample_is_the_same_again(store: Store, shine: Path) -> None:
    first, notes = evaluate(shine, sample=8)
    shutil.rmtree(store.root)
    assert evaluate(shine, sample=8)[0] == first
    assert evaluate(shine, sample=12)[0] != first
    assert any("8 of 24 queries" in note for note in notes)
    assert first[1, "all", "rows"] == 24, "counts see every row"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"qid": 1, "query": "a", "negative": "b", "level": 0}', "level is no whole number from 1 on"),
        ('{"qid": 1, "query": 7, "negative": "b", "level": 1}', "its query is missing"),
    ],
)
def test_a_bad_row_is_one_line_with_file_row_and_remedy(tmp_path: Path, line: str, fault: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"qid": 0, "query": "a", "negative": "b", "level": 1}\n' + line + "\n")
    with pytest.raises(NegativesError) as caught:
        _ = FileNegatives(Store(), path).every
    text = str(caught.value)
    assert text.startswith(f"{path}, ")
    assert f"line 2: {fault}: correct the row or delete it" in text
    assert "\n" not in text


@pytest.mark.parametrize("reference", ["nowhere.jsonl", "charades-cg", "mine/negatives", "UP/negatives"])
def test_a_reference_to_nothing_is_a_penumbra_error(store: Store, reference: str) -> None:
    with pytest.raises(PenumbraError):
        report_on(reference, None, {})


def test_the_authors_release_keeps_its_template_as_often_as_they_say(shared: Path) -> None:
    rows = FileNegatives(Store(), shared / "data" / "charades-cg" / "shine_release_first200.jsonl").rows()
    kept = Counter(row.level for row in rows if fills_of(row.masked or "", row.negative) is not None)
    assert kept == {1: 177, 2: 184, 3: 163}  # 87 / 92 / 78 % of all 8,281
