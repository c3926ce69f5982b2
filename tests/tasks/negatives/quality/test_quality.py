"""The quality report: of an artifact and of anyone's file, the sheet for people, and what a wrong file says."""

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.quality import assessment as stage
from penumbra.tasks.negatives.quality.command import judge_reference
from penumbra.tasks.negatives.quality.file import FileNegatives
from penumbra.tasks.negatives.quality.negative import Negative, NegativesError
from penumbra.tasks.negatives.quality.page import known
from penumbra.tasks.negatives.quality.review import COLUMNS, Sheet, as_written, inert, sheet_rows, sheet_text, wilson
from penumbra.tasks.negatives.quality.texts import fills_of

pytestmark = pytest.mark.slow

VERBS, NOUNS = ("opens", "closes", "takes", "holds"), ("door", "box", "bag", "book", "window", "bottle")
Figures = dict[tuple[int, str, str], float]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small compositional data set: 24 training queries of 12 videos, a test query, a novel composition."""
    folder = tmp_path / "data" / "mine"
    folder.mkdir(parents=True)
    queries = [f"a person {verb} the {noun}." for verb in VERBS for noun in NOUNS]
    videos = {
        f"v{i}": {"sentences": queries[2 * i : 2 * i + 2], "timestamps": [[0, 4], [4, 8]], "duration": 9.5}
        for i in range(12)
    }
    (folder / "train.json").write_text(json.dumps(videos))
    test = {"t1": {"sentences": ["a person opens the bag slowly."], "timestamps": [[0, 4]], "duration": 9}}
    (folder / "test_trivial.json").write_text(json.dumps(test))
    novel = {
        "t2": {
            "sentences": ["a person washes the box."],
            "timestamps": [[0, 4]],
            "duration": 9,
            "novels": [{"v-n": [["wash", "box"]]}],
        }
    }
    (folder / "novel_composition.json").write_text(json.dumps(novel))
    monkeypatch.setenv("PENUMBRA_DATA", str(folder.parent))
    return folder


@pytest.fixture
def shine(data: Path) -> Path:
    """Negatives of it in SHINE's form, with one of each fault."""
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
    path = data.parent.parent / "negatives.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def judged(path: Path | str, **settings: Any) -> tuple[Figures, list[str]]:
    store = Store()
    report = judge_reference(str(path), None, {"classifiers": ["words"], "resamples": 20, **settings}, None, None)
    return known(store.table(report.artifact).to_pylist()), report.notes


def test_a_shine_file_is_judged_by_the_data_set_that_has_its_queries(store: Store, shine: Path, data: Path) -> None:
    report = judge_reference(str(shine), "mine", {"classifiers": ["words"], "resamples": 20}, None, None)
    figures = known(store.table(report.artifact).to_pylist())
    assert figures[1, "all", "rows"] == 24
    assert figures[1, "all", "template_kept"] == pytest.approx(22 / 24), "two keep none"
    assert figures[2, "all", "template_kept"] == 1
    assert figures[1, "all", "closed_vocabulary"] == pytest.approx(21 / 24)
    assert figures[1, "all", "leaks"] == figures[1, "all", "leaks.test"] == 1
    assert figures[1, "all", "leaks.composition"] == 0
    assert figures[2, "all", "false_negatives"] == 1
    assert figures[1, "all", "held_out.compositions"] == 1, "wash box, by its lemmas"
    assert figures[1, "all", "equal_to_original"] == 0
    assert 0 <= figures[0, "all", "hierarchy.low"] <= figures[0, "all", "hierarchy"] <= 1
    assert figures[1, "control: random fills", "template_kept"] == 1
    assert figures[1, "file", "rows"] == 24, "also under the one provider's name"
    assert figures[0, "control: nearest query", "similarity"] > 0.5
    assert "![blind AUC](data:image" not in report.page, "24 rows train no classifier"
    assert "![cosine to the query](data:image" in report.page
    assert judged(shine)[0] == figures, "the data set is found, and the figures are the same"


def test_a_file_of_no_data_set_is_judged_by_itself_and_says_so(store: Store, tmp_path: Path) -> None:
    words = [(verb, noun, other) for verb in VERBS for noun in NOUNS[:4] for other in NOUNS[4:]]
    rows = [
        {"qid": i, "level": 1, "query": f"a man {verb} a {noun}", "negative": f"a man {verb} a {other}"}
        for i, (verb, noun, other) in enumerate(words)
    ]
    path = tmp_path / "flat.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    figures, notes = judged(path)
    assert figures[1, "all", "rows"] == len(rows)
    assert not any(metric.startswith("leaks") for _, _, metric in figures)
    said = " ".join(notes)
    for words in ("no test split", "no masked query", "one level only", "no labels of novel", "other folds"):
        assert words in said


def test_samples_and_figures_depend_on_the_seed_alone(store: Store, shine: Path) -> None:
    first, notes = judged(shine, sample=8, queries=12)
    shutil.rmtree(store.root)
    assert judged(shine, sample=8, queries=12)[0] == first
    assert judged(shine, sample=8, queries=12, sampling_seed=1)[0] != first
    assert any("8 of 24 queries" in note for note in notes)
    assert first[1, "all", "rows"] == 24, "counts see every row"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "row 2 is not JSON"),
        ("[]", "row 2: no object"),
        ('{"qid": 1, "query": "a"}', "row 2: lacks recomposed_queries, or level and negative"),
        ('{"qid": 1, "recomposed_queries": ["b"]}', "row 2: lacks query"),
        ('{"qid": 1, "query": "a", "recomposed_queries": "b"}', "no list of texts"),
        ('{"qid": 1, "query": "a", "recomposed_queries": ["b"], "masked_queries": []}', "no list of 1 texts"),
        ('{"qid": 1, "query": "a", "negative": "b", "level": 0}', "level 0 is no whole number"),
        ('{"qid": 1, "query": 7, "negative": "b", "level": 1}', "query is no text"),
        ('{"qid": 1, "query": "a", "negative": "", "level": 1}', "negative is no text"),
    ],
)
def test_a_bad_row_is_one_line_with_file_row_and_remedy(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"qid": 0, "query": "a", "negative": "b", "level": 1}\n' + line + "\n")
    with pytest.raises(NegativesError) as caught:
        _ = FileNegatives(path).rows
    text = str(caught.value)
    assert text.startswith(f"{path} row 2")
    assert said in text
    assert ": " in text
    assert "\n" not in text


@pytest.mark.parametrize("reference", ["nowhere.jsonl", "a/b/c/d", "charades-cg", "mine/negatives", "UP/negatives"])
def test_what_is_not_there_is_a_penumbra_error(store: Store, reference: str) -> None:
    with pytest.raises(PenumbraError):
        judge_reference(reference, None, {}, None, None)


def test_wrong_settings_are_named(store: Store, shine: Path) -> None:
    with pytest.raises(NegativesError, match="classifiers"):
        judge_reference(str(shine), None, {"classifiers": ["bert"]}, None, None)
    with pytest.raises(NegativesError, match="no file"):
        judge_reference(str(shine), None, {}, shine.parent / "none.txt", None)


def rows_of(count: int) -> Iterator[Negative]:
    for i in range(count):
        for level in (1, 2, 3):
            yield Negative(f"q{i}", f"v{i}", level, f"query, {i}", f'negative "{i}" {level}', "corpus")


FORMULAS = [
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "＝1",
    "'=1",
    "''+1",
    '=cmd|" /C calc"!A0',
    '=HYPERLINK("a")',
]


@pytest.mark.parametrize("text", [*FORMULAS, "a person sits.", "'s", "", "a = b", "1", "'"])
def test_no_cell_is_a_formula_and_each_comes_back(text: str) -> None:
    assert as_written(inert(text)) == text
    assert not inert(text).startswith(("=", "+", "-", "@", "\t", "\r", "＝"))
    assert (inert(text) == text) is (text not in FORMULAS)


def test_a_sheet_of_formulas_holds_none_and_comes_back(tmp_path: Path) -> None:
    texts = [text for text in FORMULAS if "\r" not in text]
    rows = [Negative(f"={n}", "v", 1, f"+{n}", text, "corpus") for n, text in enumerate(texts)]
    path = tmp_path / "sheet.csv"
    path.write_text(sheet_text(sheet_rows(rows)), encoding="utf-8")
    with path.open(encoding="utf-8", newline="") as stream:
        cells = [row[name] for row in csv.DictReader(stream) for name in COLUMNS]
    assert len(cells) == len(rows) * len(COLUMNS)
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "＝"))]
    Sheet(path).check(rows, "mine")


def test_a_sheet_comes_back(tmp_path: Path) -> None:
    rows = sheet_rows(rows_of(80), 100)
    assert len(rows) == 100
    assert sorted([row["level"] for row in rows].count(level) for level in (1, 2, 3)) == [33, 33, 34]
    assert sheet_rows(rows_of(80), 100) == rows
    assert sheet_rows(rows_of(80), 100, seed=1) != rows
    assert len(sheet_rows(rows_of(3), 100)) == 9
    for i, row in enumerate(rows):
        row["false_of_this_moment"] = "" if i < 10 else "Yes" if i < 90 else "no"
        row["natural_english"] = "" if i < 20 else "y"
    path = tmp_path / "sheet.csv"
    path.write_text("\ufeff" + sheet_text(rows), encoding="utf-8")
    sheet = Sheet(path)
    sheet.check(rows_of(80), "mine")
    figures = known(sheet.figures())
    assert figures[0, "all", "review.false_of_this_moment"] == pytest.approx(80 / 90)
    assert figures[0, "all", "review.false_of_this_moment.low"] == pytest.approx(0.8074, abs=1e-3)
    assert figures[0, "all", "review.natural_english.answers"] == 80
    assert figures[0, "all", "review.empty_rows"] == 10
    assert sum(figures[level, "all", "review.empty_rows"] for level in (1, 2, 3)) == 10
    with pytest.raises(NegativesError, match=r"row \d+: mine has no such negative"):
        sheet.check(rows_of(2), "mine")


def test_bad_answers_are_named_by_row(tmp_path: Path) -> None:
    rows = sheet_rows(rows_of(3), 9)
    rows[3]["natural_english"], rows[7]["false_of_this_moment"] = "maybe", "2"
    path = tmp_path / "sheet.csv"
    path.write_text(sheet_text(rows).replace(",yes", ";"))
    with pytest.raises(NegativesError, match=r"row 4: natural_english is 'maybe'; row 8: false_of_this_moment is '2'"):
        _ = Sheet(path).rows
    path.write_text("qid,level\nq,1\n")
    with pytest.raises(NegativesError, match="lacks row, query, negative, false_of_this_moment, natural_english"):
        _ = Sheet(path).rows


def test_wilson() -> None:
    assert wilson(0, 10).low == pytest.approx(0)
    assert wilson(0, 10).high == pytest.approx(0.2775, abs=1e-3)
    assert wilson(5, 10).value == 0.5


def test_the_authors_release_keeps_its_template_as_often_as_they_say(shared: Path) -> None:
    rows = FileNegatives(shared / "data" / "charades-cg" / "shine_release_first200.jsonl").rows
    kept = [
        [fills_of(row.masked or "", row.negative) is not None for row in rows if row.level == at] for at in (1, 2, 3)
    ]
    assert [sum(several) for several in kept] == [177, 184, 163]  # 87 / 92 / 78 % of all 8,281


def test_the_stage_is_in_the_schemas() -> None:
    from penumbra.artifacts.schemas import SCHEMAS

    assert SCHEMAS[stage.STAGE].names == ["level", "provider", "metric", "value"]
