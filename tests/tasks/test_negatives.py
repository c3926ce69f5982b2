"""The choice of negatives: each check can refuse, the order of preference holds, nothing gets lost."""

import numpy as np
import pyarrow as pa
import pytest

from artifacts.schemas import table_of
from tasks import negatives
from tasks.dictionary import Dictionary
from tasks.embeddings import Encoding, Vectors
from tasks.in_video_negatives import Pairing, iou, pair_part
from tasks.negatives import Candidate, Choosing, falling, negatives_part, normal_form

TEXT = "person opens door."
WORDS = {"noun": ["person", "door", "box", "man", "window"], "verb": ["opens", "closes", "takes", "kicks"]}
TAG = {"noun": "NN", "verb": "VBZ"}


def token(text: str, primitive: str | None = None, space: bool = True) -> dict[str, object]:
    return {"text": text, "space_after": space, "lemma": text.rstrip("s"), "pos": "X", "dep": "dep", "head": 0,
            "tag": TAG.get(primitive or "", "."), "primitive": primitive, "is_subject": False}  # fmt: skip


TOKENS = [token("person", "noun"), token("opens", "verb"), token("door", "noun", space=False), token(".")]
SLOTS = {1: [1], 2: [1, 2], 3: [0, 1, 2]}


@pytest.fixture
def dictionary() -> Dictionary:
    rows = [
        {"primitive": kind, "tag": TAG[kind], "word": word, "lemma": word.rstrip("s"), "count": 2}
        for kind, words in WORDS.items()
        for word in words
    ]
    return Dictionary(table_of("dictionary", rows))


@pytest.fixture(autouse=True)
def cosines(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A stand-in for the sentence encoder: the cosine of each text to the positive is what the test says."""
    table: dict[str, float] = {}

    def encode(texts: list[str], encoding: Encoding) -> Vectors:
        return np.array([[table[t], (1 - table[t] ** 2) ** 0.5] for t in texts], dtype=np.float32).reshape(-1, 2)

    monkeypatch.setattr(negatives, "encode", encode)
    return table


def annotations(others: tuple[str, ...] = ()) -> pa.Table:
    rows = [
        {"qid": f"q{i}", "vid": "v", "split": "train", "query": text, "duration": 9.0, "windows": [[0.0, 3.0]],
         "novel": [], "saliency": None}
        for i, text in enumerate((TEXT, *others))
    ]  # fmt: skip
    return table_of("annotations", rows)


def masks() -> pa.Table:
    rows = [
        {"qid": "q0", "level": level, "ratio": 0.25 * level, "masked_query": "",
         "slots": [{"token": i, "primitive": TOKENS[i]["primitive"], "tag": TOKENS[i]["tag"], "word": TOKENS[i]["text"]}
                   for i in at]}
        for level, at in SLOTS.items()
    ]  # fmt: skip
    return table_of("masks", rows)


def fills(provider: str, *candidates: tuple[int, str, str]) -> pa.Table:
    rows = [
        {"qid": "q0", "level": level, "provider": provider, "model": "m", "prompt": None, "words": words.split(),
         "query": text, "status": "filled", "problem": None, "attempts": 1, "prompt_tokens": 0, "completion_tokens": 0,
         "cost_usd": 0.0, "cached": False}
        for level, words, text in candidates
    ]  # fmt: skip
    return table_of("fills", rows)


GOOD = (
    (1, "closes", "person closes door."),
    (2, "closes box", "person closes box."),
    (3, "man takes window", "man takes window."),
)


def choose(
    dictionary: Dictionary, *tables: pa.Table, others: tuple[str, ...] = (), tests: tuple[str, ...] = ()
) -> tuple[dict[int, str], dict[str, str]]:
    """The chosen text by level, and the reason by rejected level."""
    first = annotations(others)
    tags = table_of("tags", [{"qid": q, "tokens": TOKENS if q == "q0" else []} for q in first["qid"].to_pylist()])
    vectors = table_of("embeddings", [{"text": TEXT, "encoder": "e", "embedding": [1.0, 0.0]}])
    part = negatives_part(
        first, tags, masks(), tables, vectors, dictionary, frozenset(map(normal_form, tests)), Choosing(), Encoding()
    )
    assert part.taken == part.kept + len(part.rejected)
    reasons = {row["value"].split(":")[0]: row["reason"] for row in part.rejected}
    return {row["level"]: row["query"] for row in part.rows.to_pylist()}, reasons


def test_the_first_candidates_that_fall_win(dictionary: Dictionary, cosines: dict[str, float]) -> None:
    later = ((1, "kicks", "person kicks door."), (2, "kicks box", "person kicks box."))
    cosines |= {"person closes door.": 0.8, "person closes box.": 0.6, "man takes window.": 0.2}
    cosines |= {"person kicks door.": 0.9, "person kicks box.": 0.5}
    chosen, reasons = choose(dictionary, fills("a", *GOOD, *later))
    assert chosen == {level: text for level, _, text in GOOD}
    assert not reasons


def test_the_first_provider_is_preferred(dictionary: Dictionary, cosines: dict[str, float]) -> None:
    cosines |= {"person closes door.": 0.8, "person closes box.": 0.6, "man takes window.": 0.2}
    cosines |= {"person kicks door.": 0.9}
    chosen, _ = choose(dictionary, fills("a", *GOOD[1:], (1, "kicks", "person kicks door.")), fills("b", GOOD[0]))
    assert chosen[1] == "person kicks door."


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ((1, "closes", "a person closes door."), "template is not kept"),
        ((1, "closes now", "person closes now door."), "template is not kept"),
        ((1, "hovers", "person hovers door."), "word is not on offer for its slot"),
        ((1, "box", "person box door."), "word is not on offer for its slot"),
        ((1, "opens", "person opens door."), "word is not on offer for its slot"),
        ((1, "takes", "person takes door."), "equals a positive of the same video"),
        ((1, "kicks", "person kicks door."), "equals a query of a test split"),
    ],
)
def test_each_check_refuses_and_says_why(
    dictionary: Dictionary, cosines: dict[str, float], bad: tuple[int, str, str], reason: str
) -> None:
    cosines |= {"person closes box.": 0.6, "man takes window.": 0.2}
    tables = fills("a", bad, *GOOD[1:])
    chosen, reasons = choose(dictionary, tables, others=("Person takes door",), tests=("person KICKS door.",))
    assert reasons == {"level 1": reason}
    assert chosen.keys() == {2, 3}


def test_a_refused_candidate_gives_way_to_the_next(dictionary: Dictionary, cosines: dict[str, float]) -> None:
    cosines |= {"person closes door.": 0.8, "person closes box.": 0.6, "man takes window.": 0.2}
    chosen, reasons = choose(
        dictionary, fills("a", (1, "kicks", "person kicks door."), *GOOD), tests=("person kicks door",)
    )
    assert chosen[1] == "person closes door."
    assert not reasons


def test_a_level_that_is_not_further_is_rejected(dictionary: Dictionary, cosines: dict[str, float]) -> None:
    cosines |= {"person closes door.": 0.8, "person closes box.": 0.6, "man takes window.": 0.6}
    chosen, reasons = choose(dictionary, fills("a", *GOOD))
    assert chosen.keys() == {1, 2}
    assert reasons == {"level 3": "no candidate is further from the query than the level above"}


def test_a_paraphrase_is_no_negative(dictionary: Dictionary, cosines: dict[str, float]) -> None:
    cosines |= {"person closes door.": 0.97, "person closes box.": 0.6, "man takes window.": 0.2}
    chosen, _ = choose(dictionary, fills("a", *GOOD))
    assert 1 not in chosen


def test_a_level_nobody_filled_is_not_counted_twice(dictionary: Dictionary, cosines: dict[str, float]) -> None:
    """`fills` has rejected it already."""
    cosines |= {"person closes door.": 0.8, "person closes box.": 0.6}
    chosen, reasons = choose(dictionary, fills("a", *GOOD[:2]))
    assert chosen.keys() == {1, 2}
    assert not reasons


def test_falling_looks_through_all_combinations() -> None:
    def several(*similarities: float) -> list[Candidate]:
        return [Candidate(str(s), [], "p", "m", s) for s in similarities]

    levels = {1: several(0.3, 0.9), 2: several(0.95, 0.5), 3: several(0.6, 0.4)}
    assert [c.similarity for c in falling(levels, 1.0).values()] == [0.9, 0.5, 0.4]
    assert falling(levels, 0.8) == {}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([[0, 2]], [[1, 3]], 1 / 3),
        ([[0, 2]], [[2, 3]], 0.0),
        ([[0, 2]], [[0, 2]], 1.0),
        ([[0, 1], [5, 6]], [[5, 7]], 0.5),
    ],
)
def test_iou(first: list[list[float]], second: list[list[float]], expected: float) -> None:
    assert iou(first, second) == pytest.approx(expected)
    assert iou(second, first) == pytest.approx(expected)


def test_pairs_are_of_one_video_apart_in_time_and_meaning() -> None:
    spec = {
        "a": ("v1", "one", [[0.0, 4.0]]),
        "b": ("v1", "two", [[5.0, 9.0]]),
        "c": ("v1", "three", [[0.0, 5.0]]),  # overlaps a
        "d": ("v1", "one too", [[6.0, 9.0]]),  # means what a means
        "e": ("v2", "two", [[5.0, 9.0]]),  # another video
        "f": ("v1", "two", [[5.0, 9.0]]),  # b once more
    }
    rows = [
        {"qid": qid, "vid": vid, "split": "train", "query": text, "duration": 9.0, "windows": windows, "novel": [],
         "saliency": None}
        for qid, (vid, text, windows) in spec.items()
    ]  # fmt: skip
    vectors = {"one": [1.0, 0.0, 0.0], "one too": [0.99, 0.14, 0.0], "two": [0.0, 1.0, 0.0], "three": [0.0, 0.0, 1.0]}
    embeddings = table_of("embeddings", [{"text": t, "encoder": "e", "embedding": v} for t, v in vectors.items()])
    part = pair_part(table_of("annotations", rows), embeddings, Pairing())
    pairs = {(row["qid"], row["negative_qid"]) for row in part.rows.to_pylist()}
    assert {other for qid, other in pairs if qid == "a"} == {"b"}
    assert {other for qid, other in pairs if qid == "c"} == {"b", "d"}
    assert all(row["iou"] < 0.5 and row["similarity"] < 0.9 for row in part.rows.to_pylist())


def test_a_level_without_a_choice_leaves_the_others(dictionary: Dictionary, cosines: dict[str, float]) -> None:
    cosines |= {"person closes door.": 0.97, "person closes box.": 0.6, "man takes window.": 0.2}
    chosen, reasons = choose(dictionary, fills("a", *GOOD))
    assert chosen.keys() == {2, 3}
    assert reasons.keys() == {"level 1"}
