"""The choice of negatives: each check can refuse, levels fall and keep each other's words, nothing gets lost."""

import numpy as np
import pyarrow as pa
import pytest

from penumbra.artifacts.schemas import table_of
from penumbra.tasks.negatives import selection as negatives
from penumbra.tasks.negatives.choosing.checks import LeakageFilter
from penumbra.tasks.negatives.choosing.plausibility import HumanText
from penumbra.tasks.negatives.in_video_negatives import Pairing, largest_iou, pair_part
from penumbra.tasks.negatives.selection import Chooser, Choosing
from penumbra.tasks.text.dictionary import Dictionary
from penumbra.tasks.text.embeddings import Encoding, Vectors

TEXT = "person opens door."
WORDS = {
    "noun": ["person", "door", "box", "man", "window"],
    "verb": ["opens", "closes", "takes", "kicks", "unlocks", "tries"],
}
TAG = {"noun": "NN", "verb": "VBZ"}


def token(text: str, primitive: str | None = None, space: bool = True) -> dict[str, object]:
    return {
        "text": text,
        "space_after": space,
        "lemma": text.rstrip("s"),
        "pos": "X",
        "dep": "dep",
        "head": 0,
        "tag": TAG.get(primitive or "", "."),
        "primitive": primitive,
        "is_subject": False,
    }


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
        words = {word: 0.0 for several in WORDS.values() for word in several} | {"opens": 1.0, "unlocks": 1.0}
        known = [table.get(t, words.get(t)) for t in texts]
        assert None not in known, f"nothing is known of {texts}"
        return np.array([[c, (1 - c**2) ** 0.5] for c in known], dtype=np.float32).reshape(-1, 2)

    monkeypatch.setattr(negatives, "encode", encode)
    return table


def annotations(others: tuple[str, ...] = ()) -> pa.Table:
    rows = [
        {
            "qid": f"q{i}",
            "vid": "v",
            "split": "train",
            "query": text,
            "duration": 9.0,
            "windows": [[0.0, 3.0]],
            "novel": [],
            "saliency": None,
        }
        for i, text in enumerate((TEXT, *others))
    ]
    return table_of("annotations", rows)


def masks() -> pa.Table:
    rows = [
        {
            "qid": "q0",
            "level": level,
            "ratio": 0.25 * level,
            "masked_query": "",
            "slots": [
                {"token": i, "primitive": TOKENS[i]["primitive"], "tag": TOKENS[i]["tag"], "word": TOKENS[i]["text"]}
                for i in at
            ],
        }
        for level, at in SLOTS.items()
    ]
    return table_of("masks", rows)


def fills(provider: str, *candidates: tuple[int, str, str]) -> pa.Table:
    rows = [
        {
            "qid": "q0",
            "level": level,
            "provider": provider,
            "model": "m",
            "prompt": None,
            "words": words.split(),
            "negative": text,
            "status": "filled",
            "problem": None,
            "attempts": 1,
            "prompt_tokens": 0,
            "completion_tokens": 0,
            "cost_usd": 0.0,
            "cached": False,
        }
        for level, words, text in candidates
    ]
    return table_of("fills", rows)


GOOD = (
    (1, "closes", "person closes door."),
    (2, "closes box", "person closes box."),
    (3, "man closes box", "man closes box."),
)
FALLING = {"person closes door.": 0.8, "person closes box.": 0.6, "man closes box.": 0.2}


def choose(
    dictionary: Dictionary,
    *tables: pa.Table,
    others: tuple[str, ...] = (),
    tests: tuple[str, ...] = (),
    choosing: Choosing | None = None,
    labels: tuple[list[str], ...] = (),
) -> tuple[dict[int, str], dict[str, str]]:
    """The chosen text by level, and the reason by rejected level."""
    first = annotations(others)
    tags = table_of("tags", [{"qid": q, "tokens": TOKENS if q == "q0" else []} for q in first["qid"].to_pylist()])
    vectors = table_of("embeddings", [{"text": TEXT, "encoder": "e", "embedding": [1.0, 0.0]}])
    choosing = choosing or Choosing()
    rows = [({"split": "train", "query": TEXT, "novel": []}, TOKENS)]
    rows += [({"split": "test", "query": text, "novel": []}, []) for text in tests]
    rows += [({"split": "word", "query": "-", "novel": [{"type": "x", "words": words}]}, []) for words in labels]
    human = HumanText()
    human.add("v", TOKENS)
    guard = LeakageFilter(rows, every=choosing.guard == "all")
    guard.vocabulary |= {word for words in WORDS.values() for word in words} - {"tries"}
    part = Chooser(guard, dictionary, human, choosing, Encoding()).part(first, tags, masks(), vectors, *tables)
    assert part.taken == part.kept + len(part.rejected)
    assert set(part.rows["query"].to_pylist()) <= {TEXT}
    reasons = {row["value"].split(":")[0]: row["reason"] for row in part.rejected}
    return {row["level"]: row["negative"] for row in part.rows.to_pylist()}, reasons


def test_three_that_fall_and_keep_each_others_words(dictionary: Dictionary, cosines: dict[str, float]) -> None:
    other = ((1, "kicks", "person kicks door."), (2, "kicks box", "person kicks box."))
    cosines |= FALLING | {"person kicks door.": 0.5, "person kicks box.": 0.55}
    chosen, reasons = choose(dictionary, fills("a", *other), fills("b", *GOOD))
    assert chosen == {level: text for level, _, text in GOOD}, "kicks: level 2 is no further than level 1"
    assert not reasons


def test_levels_may_be_chosen_apart(dictionary: Dictionary, cosines: dict[str, float]) -> None:
    apart = (GOOD[0], (2, "kicks box", "person kicks box."), (3, "man takes window", "man takes window."))
    cosines |= FALLING | {"person kicks box.": 0.5, "man takes window.": 0.2}
    chosen, _ = choose(dictionary, fills("a", *apart), choosing=Choosing(nested=False))
    assert chosen == {level: text for level, _, text in apart}
    chosen, reasons = choose(dictionary, fills("a", *apart))
    assert len(chosen) == 1, "no two of them keep each other's words"
    assert set(reasons.values()) == {"no candidate keeps the level before and is further from the query than it"}


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
        ((1, "unlocks", "person unlocks door."), "near-synonym of its slot's word"),
        ((1, "tries", "person tries door."), "has a word that the training split lacks"),
    ],
)
def test_each_check_refuses_and_says_why(
    dictionary: Dictionary, cosines: dict[str, float], bad: tuple[int, str, str], reason: str
) -> None:
    cosines |= FALLING
    tables = fills("a", bad, *GOOD[1:])
    chosen, reasons = choose(dictionary, tables, others=("Person takes door",), tests=("person KICKS door.",))
    assert reasons == {"level 1": reason}
    assert chosen.keys() == {2, 3}


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        (["closes", "door"], "has a composition that a test split holds out"),
        (["closes"], "has a word that a test split holds out"),
        (["opens", "door"], ""),  # a training sentence has it: the labelling parser's slip
    ],
)
def test_what_the_test_splits_hold_out_is_not_shown(
    dictionary: Dictionary, cosines: dict[str, float], label: list[str], reason: str
) -> None:
    cosines |= FALLING
    _, reasons = choose(dictionary, fills("a", *GOOD), labels=(label,))
    assert reasons.get("level 1", "") == reason
    allowed, reasons = choose(dictionary, fills("a", *GOOD), labels=(label,), choosing=Choosing(guard="queries"))
    assert allowed.keys() == {1, 2, 3}, "the guard can be turned off"


def test_a_training_query_gives_no_test_query_away() -> None:
    """Unless the guard is told that it does."""
    splits = (("train", "person closes door."), ("test", "A person closes door."), ("test", "Person closes door!"))
    rows = [({"split": split, "query": text, "novel": []}, []) for split, text in splits]
    assert not LeakageFilter(rows, every=False).leaks("person closes door.")
    assert LeakageFilter(rows, every=False).leaks("a person closes door")
    assert LeakageFilter(rows, every=True).leaks("person closes door.")


def test_a_level_that_is_not_further_is_rejected(dictionary: Dictionary, cosines: dict[str, float]) -> None:
    cosines |= FALLING | {"man closes box.": 0.6}
    chosen, reasons = choose(dictionary, fills("a", *GOOD))
    assert chosen.keys() == {1, 2}
    assert reasons.keys() == {"level 3"}


def test_a_first_level_that_is_a_paraphrase_leaves_the_others(
    dictionary: Dictionary, cosines: dict[str, float]
) -> None:
    cosines |= FALLING | {"person closes door.": 0.97}
    chosen, reasons = choose(dictionary, fills("a", *GOOD))
    assert chosen.keys() == {2, 3}
    assert reasons.keys() == {"level 1"}


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
    assert largest_iou(first, second) == pytest.approx(expected)
    assert largest_iou(second, first) == pytest.approx(expected)


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
        {
            "qid": qid,
            "vid": vid,
            "split": "train",
            "query": text,
            "duration": 9.0,
            "windows": windows,
            "novel": [],
            "saliency": None,
        }
        for qid, (vid, text, windows) in spec.items()
    ]
    vectors = {"one": [1.0, 0.0, 0.0], "one too": [0.99, 0.14, 0.0], "two": [0.0, 1.0, 0.0], "three": [0.0, 0.0, 1.0]}
    embeddings = table_of("embeddings", [{"text": t, "encoder": "e", "embedding": v} for t, v in vectors.items()])
    part = pair_part(table_of("annotations", rows), embeddings, Pairing())
    pairs = {(row["qid"], row["negative_qid"]) for row in part.rows.to_pylist()}
    assert {other for qid, other in pairs if qid == "a"} == {"b"}
    assert {other for qid, other in pairs if qid == "c"} == {"b", "d"}
    assert all(row["iou"] < 0.5 and row["similarity"] < 0.9 for row in part.rows.to_pylist())
