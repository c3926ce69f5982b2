"""People's verdicts: taken from files by the command, kept for good, and respected by all later negatives."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from penumbra.artifacts.catalogue import to_remove
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.flows.build_negatives import negatives_of
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.negatives import reviewing
from penumbra.tasks.negatives.parameters import NegativeSource, NegativesParameters, QualityConfig
from penumbra.tasks.negatives.providers.settings import Filling
from penumbra.tasks.negatives.reviewing import ReviewError, stage_of
from penumbra.tasks.negatives.reviews import REJECTED, Verdicts
from penumbra.tasks.stage import build
from tests.corner import cut_out, without_prefect
from tests.rows import json_lines
from tests.terminal import penumbra

Row = dict[str, Any]
pytestmark = pytest.mark.slow
LIGHT = QualityConfig(judge=False)


@pytest.fixture(scope="module")
def corner(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset(name="corner", folder=str(cut_out(tmp_path_factory.mktemp("corner"))))


@pytest.fixture(scope="module")
def first_store(corner: Dataset, module_store: Store) -> str:
    """The root of a store with the data set's negatives."""
    made(corner)
    return module_store.root


@pytest.fixture
def built(first_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifact:
    shutil.copytree(first_store, tmp_path / "artifacts")
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", str(tmp_path / "artifacts"))
    monkeypatch.chdir(tmp_path)
    return Store().newest("corner", "negatives")


def made(corner: Dataset, **groups: Any) -> Artifact:
    with without_prefect():
        filling = {"filling": Filling(providers=["corpus"], candidates=8), **groups}
        return negatives_of(corner, NegativesParameters(judging=LIGHT, **filling)).negatives


def texts(negatives: Artifact) -> dict[tuple[str, int], str]:
    return {(row["qid"], row["level"]): row["negative"] for row in rows_of(negatives)}


def rows_of(negatives: Artifact) -> list[Row]:
    return Store().table(negatives).to_pylist()


def verdict(row: Row, kind: str, edited: str | None = None) -> Row:
    about = {name: row[name] for name in ("qid", "level", "query", "negative")}
    return {**about, "verdict": kind, "time": "2026-01-02T03:04:05.678Z"} | ({"edited": edited} if edited else {})


def saved(negatives: Artifact, *rows: Row, reviewer: str = "ann") -> Path:
    header = {"dataset": "corner", "stage": "negatives", "key": negatives.key, "reviewer": reviewer}
    return json_lines(Path(f"{reviewer}{len(list(Path().glob('*.jsonl')))}.jsonl"), (header, *rows))


def review(*files: Path) -> Result:
    return penumbra("review", "corner", *(word for file in files for word in ("--from", str(file))))


def reviewed(*files: Path) -> Artifact:
    """Return the next negatives, whose folder the command prints last."""
    done = review(*files)
    assert done.exit_code == 0, (done.output, done.exception)
    key = Path(done.stdout.splitlines()[-1]).name
    return Store().with_key("corner", "negatives", key)


def test_the_next_negatives_lack_what_was_rejected_and_have_the_edits(built: Artifact, corner: Dataset) -> None:
    assert build(stage_of(Store(), built)) == built, "without reviews"
    before = rows_of(built)
    whole = [row for row in before if (row["qid"], 3) in texts(built) and (row["qid"], 2) in texts(built)]
    bad, good = whole[0], next(row for row in whole if row["qid"] != whole[0]["qid"] and row["level"] == 2)
    changed = next(row for row in whole if row["qid"] not in (bad["qid"], good["qid"]) and row["level"] == 1)
    edit = "Somebody rather juggles   three burning torches."
    file = saved(built, verdict(bad, "reject"), verdict(good, "accept"), verdict(changed, "edit", edit))
    after = reviewed(file)
    assert after == Store().newest("corner", "negatives")
    new = {(row["qid"], row["level"]): row for row in rows_of(after)}
    assert bad["negative"] not in {row["negative"] for row in new.values() if row["qid"] == bad["qid"]}
    assert (bad["qid"], bad["level"]) in new, "the next candidate takes its place"
    row = new[changed["qid"], changed["level"]]
    assert (row["negative"], row["provider"], row["model"]) == (" ".join(edit.split()), "reviewer", "ann")
    assert {"same_video", "test_split"} <= set(row["checks"])
    assert "template" not in row["checks"]
    assert new[good["qid"], 2]["negative"] == good["negative"]
    untouched = {place for place in texts(built) if place[0] not in (bad["qid"], changed["qid"], good["qid"])}
    assert all(new[place]["negative"] == texts(built)[place] for place in untouched)
    notes = Store().manifest(after).notes
    assert sum(count for reason, count in notes.items() if REJECTED in reason) == 1
    assert notes["by a reviewer, level 1: edit"] == 1
    stages = {manifest.stage: manifest for manifest in Store().find("corner")}
    assert len([it for it in Store().find("corner") if it.stage == "fills"]) == 1, "no provider is asked again"
    assert stages["reviews"].reference[2] in {parent.key for parent in Store().manifest(after).parents}
    assert made(corner) == after, "the flow makes the same"
    assert Store().verify(after) == []


def test_what_was_rejected_returns_with_no_seed_ratio_or_provider(built: Artifact, corner: Dataset) -> None:
    """Every sentence is rejected twice over, and edited ones stay."""
    everything = saved(built, *(verdict(row, "reject") for row in rows_of(built)))
    reviewed(everything)
    rejected = {(row["qid"], row["negative"]) for row in rows_of(built)}
    for groups in (
        {"filling": Filling(providers=["corpus"], candidates=8, seed=3)},
        {"filling": Filling(providers=["random", "corpus"], candidates=8)},
        {"masking": {"ratios": [0.3, 0.6, 0.9]}},
    ):
        negatives = made(corner, **groups)
        assert rows_of(negatives)
        assert not rejected & {(row["qid"], row["negative"]) for row in rows_of(negatives)}
        refused = Store().manifest(negatives).notes
        assert any(REJECTED in reason for reason in refused), "candidates were the same texts"


@pytest.mark.parametrize("source", ["nearest", "imported"])
def test_whole_sentences_are_reviewed_too(built: Artifact, corner: Dataset, source: str, tmp_path: Path) -> None:
    sourcing = {"source": source, "ranks": (1, 2, 3)}
    if source == "imported":
        names = ("qid", "level", "query", "negative")
        lines = ({name: row[name] for name in names} for row in rows_of(built))
        sourcing["file"] = str(json_lines(tmp_path / "others.jsonl", lines))
    negatives = made(corner, sourcing=NegativeSource(**sourcing))
    first, second = rows_of(negatives)[0], rows_of(negatives)[-1]
    edits = verdict(first, "reject"), verdict(second, "edit", "a giraffe plays chess with itself.")
    after = reviewed(saved(negatives, *edits))
    new = texts(after)
    assert first["negative"] not in {text for (qid, _), text in new.items() if qid == first["qid"]}
    assert ((first["qid"], first["level"]) in new) == (source == "nearest"), "an import has no next candidate"
    assert new[second["qid"], second["level"]] == "a giraffe plays chess with itself."
    sourcing.pop("file", None)
    assert made(corner, sourcing=NegativeSource(**sourcing)) == after
    again = reviewed(saved(after, verdict(rows_of(after)[-1], "reject"), reviewer="bob"))
    assert new[second["qid"], second["level"]] not in texts(again).values(), "a rejection takes an edit back"


def test_reviewers_disagree_and_a_rejection_wins(built: Artifact) -> None:
    one, two = rows_of(built)[:2]
    ann = saved(built, verdict(one, "accept"), verdict(two, "edit", "a whale sings to the moon."))
    bob = saved(built, verdict(one, "reject"), verdict(two, "accept"), reviewer="bob")
    done = review(ann, bob, ann)
    assert "Reviewers disagree on 2 negatives (a rejection wins, then the last edit):" in done.stdout
    assert f"{one['qid']} {one['negative']!r}: ann accepts, bob rejects" in done.stdout
    after = texts(Store().newest("corner", "negatives"))
    assert after.get((one["qid"], one["level"])) != one["negative"]
    assert after[two["qid"], two["level"]] == "a whale sings to the moon."
    assert len(Store().find("corner", "reviews")) == 2


def test_a_row_that_is_no_verdict_is_refused_with_its_place_and_reason_alone(built: Artifact) -> None:
    first, second = [row for row in rows_of(built) if row["level"] == 1][:2]
    store, good = Store(), verdict(first, "accept")
    queries = store.table(store.newest("corner", "annotations")).to_pylist()
    mine = next(query for query in queries if query["qid"] == first["qid"])
    other = next(q for q in queries if q["vid"] == mine["vid"] and q["query"] != mine["query"])
    training = {q["query"] for q in queries if q["split"] == "train"}
    test = next(q for q in queries if q["split"] == "test" and q["query"] not in training)
    bad = [
        (verdict(first, "edit", "\x07\u202e"), "edited sentence is missing"),
        (verdict(first, "edit", first["query"].upper()), "equals its query"),
        (verdict(first, "edit", other["query"]), "equals a positive of the same video"),
        (verdict(first, "edit", test["query"]), "equals a query of a test split"),
        (verdict(first, "edit", "12 34"), "negative has no letter"),
        ({**good, "verdict": "perhaps\x1b[31m"}, "verdict Input should be 'accept', 'reject' or 'edit'"),
        ({**good, "qid": "nobody"}, "the negatives have no such qid and level"),
        ({**good, "level": 9}, "the negatives have no such qid and level"),
        ({**good, "level": True}, "level Input should be a valid integer"),
        ({**good, "negative": second["negative"]}, "negative is not the text that the negatives have"),
        ({**good, "time": "yesterday"}, "time Input should be a valid datetime"),
        ({**good, "time": "0001-01-01T00:00:00+14:00"}, "time Value error, has no time in UTC"),
        ([1], "Input should be an object"),
    ]
    done = review(saved(built, *(row for row, _ in bad), verdict(second, "accept")))  # type: ignore[misc]
    assert done.exit_code == 0, done.exception
    for number, (line, (_, reason)) in enumerate(zip(done.stderr.splitlines(), bad, strict=True), 2):
        assert line.startswith(f"penumbra: ann0.jsonl, line {number}, by ann (")
        assert reason in line
    assert "\x1b" not in done.stderr
    [manifest] = store.find("corner", "reviews")
    assert (manifest.taken, manifest.kept, manifest.rejected["equals its query"]) == (14, 1, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n\n", "its first line is no header .*: save it again on the page that `penumbra browse corner` writes"),
        ("{}", "its first line is no header of a review .dataset Field required"),
        ("HEADER", "bad.jsonl has no verdict that can be used: save it again"),
        ('HEADER\n{"qid":', "bad.jsonl has no verdict that can be used: bad.jsonl, line 2, by ann .*: Invalid JSON"),
        ('{"dataset":"other","stage":"negatives","key":"1","reviewer":"a"}', "s 'other/negatives/1', but corner/neg"),
        ('{"dataset":"corner","stage":"negatives","key":"../x","reviewer":"a"}', r"'corner/negatives/\.\./x', but"),
        ('{"dataset":"corner","stage":"negatives","key":"KEY","reviewer":" "}', "reviewer String should have at least"),
        ("\udcff", "bad.jsonl is no UTF-8 text"),
        ("HEADER" + "\n" * 1_000, "bad.jsonl has more than 0.001 MB, too much for a review: save it again"),
        (None, "bad.jsonl can't be read .No such file or directory"),
    ],
)
def test_a_file_that_is_no_review_is_one_line_and_not_taken(
    built: Artifact, content: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviewing, "LARGEST", 1_000)
    header = json.dumps({"dataset": "corner", "stage": "negatives", "key": built.key, "reviewer": "ann"})
    if content is not None:
        text = content.replace("HEADER", header).replace("KEY", built.key)
        Path("bad.jsonl").write_bytes(text.encode(errors="surrogateescape"))
    good = saved(built, verdict(rows_of(built)[0], "reject"))
    done = review(good, Path("bad.jsonl"))
    assert isinstance(done.exception, ReviewError)
    with pytest.raises(ReviewError, match=message):
        raise done.exception
    assert "\n" not in str(done.exception)
    assert Store().find("corner", "reviews") == []


def test_reviews_stay_where_the_rest_is_removed(built: Artifact) -> None:
    reviewed(saved(built, verdict(rows_of(built)[0], "reject")))
    store = Store()
    [manifest] = store.find("corner", "reviews")
    kept = store.reference(manifest)
    assert kept not in to_remove(store, "corner", False)
    assert kept not in to_remove(store, None, True)
    assert to_remove(store, "corner/reviews", False) == [kept]


def test_the_last_verdict_of_a_reviewer_counts_and_only_on_the_same_query() -> None:
    row = {"qid": "q", "level": 1, "query": "A dog runs.", "negative": "a cat runs", "edited": None, "source": "fills"}
    row |= {"words": [], "provider": "p", "model": "m", "reviewer": "a"}
    given = [("reject", "2026-01-02"), ("accept", "2026-01-03"), ("reject", "2026-01-01")]
    verdicts = Verdicts([{**row, "verdict": kind, "time": time} for kind, time in given])
    assert not verdicts.rejects("q", "a dog runs", "A cat runs!")

    def approved(query: str, source: str, **texts: str) -> list[int]:
        others = {int(level[1:]): text for level, text in texts.items()}
        return [level for level, _ in verdicts.approved("q", query, source, lambda *_: True, others)]

    assert approved("a dog runs", "fills") == [1]
    assert approved("a dog sits", "fills") == approved("a dog runs", "nearest") == []
    assert approved("a dog runs", "fills", l2="A cat runs.") == [], "another level has it"
    rejected = Verdicts([{**row, "verdict": "reject", "time": ""}])
    assert rejected.rejects("q", "a dog runs", "A cat runs!")
