"""The choice of negatives: each check can refuse, levels fall and keep each other's words, nothing gets lost."""

from itertools import count

import numpy as np
import pytest
from spacy.language import Language

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives import selection
from penumbra.tasks.negatives.checks import Candidate, LeakageFilter, has_valence
from penumbra.tasks.negatives.in_video_negatives import InVideoNegatives, Pairing
from penumbra.tasks.negatives.providers import MaskedQuery, Slot
from penumbra.tasks.negatives.selection import Candidates, Choosing, ChosenNegatives, Query
from penumbra.tasks.text.embeddings import Encoding, Vectors
from penumbra.tasks.text.tags import tag_texts
from tests import rows as rows_module
from tests.rows import Row, annotation, filled, token

TEXT = "person opens door."
WORDS = {
    "noun": ["person", "door", "box", "man", "window"],
    "verb": ["opens", "closes", "takes", "kicks", "unlocks", "tries", "pulls", "sits"],
}
TAG = {"noun": "NN", "verb": "VBZ"}
SLOTS = {1: [1], 2: [1, 2], 3: [0, 1, 2]}
DICTIONARY = [
    {"primitive": kind, "tag": TAG[kind], "word": word, "lemma": word.rstrip("s"), "count": 2, "is_subject": True}
    for kind, words in WORDS.items()
    for word in words
]
GOOD = (
    (1, "closes", "person closes door."),
    (2, "closes box", "person closes box."),
    (3, "man closes box", "man closes box."),
)
FALLING = {"person closes door.": 0.8, "person closes box.": 0.6, "man closes box.": 0.2}
TURNS = count()


def tagged(word: str, primitive: str | None = None, **others: object) -> dict[str, object]:
    return token(word, primitive, lemma=word.rstrip("s"), tag=TAG.get(primitive or "", "."), **others)


TOKENS = [
    tagged("person", "noun", dep="nsubj", head=1),
    tagged("opens", "verb", dep="ROOT", head=1),
    tagged("door", "noun", dep="dobj", head=1, space_after=False),
    tagged("."),
]
SLOT = [{"token": i, "primitive": it["primitive"], "tag": it["tag"], "word": it["text"]} for i, it in enumerate(TOKENS)]
MASKS = [
    {"qid": "q0", "level": level, "ratio": 0.25 * level, "masked_query": "", "slots": [SLOT[i] for i in places]}
    for level, places in SLOTS.items()
]


@pytest.fixture
def cosines(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A stand-in for the sentence encoder: the cosine of each text to the query, as the test sets it."""
    table: dict[str, float] = {}

    def encode(texts: list[str], encoding: Encoding) -> Vectors:
        words = {word: 0.0 for several in WORDS.values() for word in several} | {"opens": 1.0, "unlocks": 1.0}
        known = [table.get(t, words.get(t)) for t in texts]
        assert None not in known, f"nothing is known of {texts}"
        return np.array([[c, (1 - c**2) ** 0.5] for c in known], dtype=np.float32).reshape(-1, 2)

    monkeypatch.setattr(selection, "encode", encode)
    return table


def fills(provider: str, *candidates: tuple[int, str, str]) -> list[Row]:
    return [
        {**filled("q0", level, text, provider), "words": words.split(), "model": "m"}
        for level, words, text in candidates
    ]


def build(store: Store, stage: str, rows: list[Row]) -> Artifact:
    """Store rows in the first part of an artifact with a key of its own."""
    return rows_module.build(store, stage, rows, parameters={"turn": next(TURNS)}, cut=len(rows))


def chosen_of(
    store: Store,
    *candidates: list[Row],
    others: tuple[str, ...] = (),
    tests: tuple[str, ...] = (),
    choosing: Choosing = Choosing(),
    labels: tuple[list[str], ...] = (),
    notes: dict[str, int] | None = None,
) -> tuple[dict[int, str], dict[str, str]]:
    """Return the chosen text by level, and the reason by rejected level."""
    queries = [annotation(f"q{i}", text, vid="v") for i, text in enumerate((TEXT, *others))]
    queries += [annotation(f"t{i}", text, "test") for i, text in enumerate(tests)]
    novel = [{"novel": [{"type": "x", "words": words}]} for words in labels]
    queries += [annotation(f"w{i}", "-", "word", **label) for i, label in enumerate(novel)]
    tokens = [{"qid": row["qid"], "tokens": TOKENS if row["qid"] == "q0" else []} for row in queries]
    annotations, tags = build(store, "annotations", queries), build(store, "tags", tokens)
    parents = annotations, tags, build(store, "masks", MASKS), build(store, "dictionary", DICTIONARY)
    fills = tuple(build(store, "fills", rows) for rows in candidates)
    embeddings = build(store, "embeddings", [{"text": TEXT, "encoder": "e", "embedding": [1.0, 0.0]}])
    stage = ChosenNegatives(*parents, fills, embeddings, choosing, Encoding())
    stage.leakage.vocabulary.update({word for words in WORDS.values() for word in words} - {"tries"})
    part = stage.part(0)
    assert part.taken == part.kept + len(part.rejected)
    assert set(part.rows["query"].to_pylist()) <= {TEXT}
    if notes is not None:
        notes.update(part.notes)
    reasons = {row["value"].split(":")[0]: row["reason"] for row in part.rejected}
    return {row["level"]: row["negative"] for row in part.rows.to_pylist()}, reasons


def test_three_that_fall_and_keep_each_others_words(store: Store, cosines: dict[str, float]) -> None:
    other = ((1, "kicks", "person kicks door."), (2, "kicks box", "person kicks box."))
    cosines |= FALLING | {"person kicks door.": 0.5, "person kicks box.": 0.55}
    chosen, reasons = chosen_of(store, fills("a", *other), fills("b", *GOOD))
    assert chosen == {level: text for level, _, text in GOOD}, "kicks: level 2 is no further than level 1"
    assert not reasons


def test_a_level_that_keeps_no_words_is_rejected(store: Store, cosines: dict[str, float]) -> None:
    apart = (GOOD[0], (2, "kicks box", "person kicks box."), (3, "man takes window", "man takes window."))
    cosines |= FALLING | {"person kicks box.": 0.5, "man takes window.": 0.2}
    chosen, reasons = chosen_of(store, fills("a", *apart))
    assert len(chosen) == 1, "no two of them keep each other's words"
    assert set(reasons.values()) == {"no candidate keeps the level before and is further from the query than it"}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ((1, "closes", "a person closes door."), "template is not kept"),
        ((1, "closes now", "person closes now door."), "template is not kept"),
        ((1, "blorps", "person blorps door."), "word is not on offer for its slot"),
        ((1, "box", "person box door."), "word is not on offer for its slot"),
        ((1, "opens", "person opens door."), "word is not on offer for its slot"),
        ((1, "takes", "person takes door."), "equals a positive of the same video"),
        ((1, "kicks", "person kicks door."), "equals a query of a test split"),
        ((1, "unlocks", "person unlocks door."), "near-synonym of its slot's word"),
        ((1, "pulls", "person pulls door."), "may be true of the moment: its words are entailed"),
        ((1, "sits", "person sits door."), "verb with an object that it cannot take, or without one that it needs"),
        ((1, "tries", "person tries door."), "has a word of a test split that the training split lacks"),
    ],
)
def test_each_check_says_why(store: Store, cosines: dict[str, float], bad: tuple[int, str, str], reason: str) -> None:
    cosines |= FALLING
    others, tests = ("Person takes door",), ("person KICKS door.", "man tries.")
    chosen, reasons = chosen_of(store, fills("a", bad, *GOOD[1:]), others=others, tests=tests)
    assert reasons == {"level 1": reason}
    assert chosen.keys() == {2, 3}


def test_a_candidate_that_may_be_true_is_replaced_and_counted(store: Store, cosines: dict[str, float]) -> None:
    cosines |= FALLING
    notes: dict[str, int] = {}
    true = [(1, "pulls", "person pulls door."), *GOOD, (3, "man pulls door", "man pulls door.")]
    chosen, reasons = chosen_of(store, fills("a", *true), notes=notes)
    assert (chosen, reasons) == ({level: text for level, _, text in GOOD}, {})
    assert notes == {"candidate refused, level 1: may be true of the moment: its words are entailed": 1}


@pytest.mark.parametrize(
    ("text", "verb", "word", "expected"),
    [
        ("A person gently sits up in a chair.", "sits", "puts", False),
        ("A person gently sits up in a chair.", "sits", "lies", True),
        ("A person puts a book on the table.", "puts", "sits", False),
        ("A person puts a book on the table.", "puts", "throws", True),
        ("The door is closed by a man.", "closed", "washed", True),
    ],
)
def test_a_verb_needs_the_valence_of_the_other(nlp: Language, text: str, verb: str, word: str, expected: bool) -> None:
    (tokens,) = tag_texts([text], nlp)
    (place,) = [place for place, token in enumerate(tokens) if token["text"] == verb]
    slot = Slot(place, "verb", tokens[place]["tag"], verb, tokens[place]["lemma"])
    assert has_valence(tokens, slot, word) == expected


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        (["closes", "door"], "has a composition that a test split holds out"),
        (["closes"], "has a word that a test split holds out"),
        (["opens", "door"], ""),  # a training sentence has it: an error of the labelling parser
    ],
)
def test_what_tests_hold_out_is_not_shown(
    store: Store, cosines: dict[str, float], label: list[str], reason: str
) -> None:
    cosines |= FALLING
    _, reasons = chosen_of(store, fills("a", *GOOD), labels=(label,))
    assert reasons.get("level 1", "") == reason
    allowed, reasons = chosen_of(store, fills("a", *GOOD), labels=(label,), choosing=Choosing(guard="queries"))
    assert allowed.keys() == {1, 2, 3}, "the guard can be turned off"


def test_a_training_query_is_a_leak_only_if_the_guard_is_for_all() -> None:
    splits = (("train", "person closes door."), ("test", "A person closes door."), ("test", "Person closes door!"))
    rows = [({"split": split, "query": text, "novel": []}, []) for split, text in splits]
    assert not LeakageFilter(rows, every=False).leaks("person closes door.")
    assert LeakageFilter(rows, every=False).leaks("a person closes door")
    assert LeakageFilter(rows, every=True).leaks("person closes door.")


@pytest.mark.parametrize(
    ("cosine", "kept", "rejected"),
    [({"man closes box.": 0.6}, {1, 2}, {"level 3"}), ({"person closes door.": 0.97}, {2, 3}, {"level 1"})],
)
def test_a_refused_level_leaves_the_others(
    store: Store, cosines: dict[str, float], cosine: dict[str, float], kept: set[int], rejected: set[str]
) -> None:
    cosines |= FALLING | cosine
    chosen, reasons = chosen_of(store, fills("a", *GOOD))
    assert (chosen.keys(), reasons.keys()) == (kept, rejected)


def test_levels_of_the_same_slots_take_different_words() -> None:
    first, second = (Slot(place, "noun", "NN", "w", "w") for place in range(2))
    texts = {1: ("a", "b"), 2: ("a", "c"), 3: ("a k", "c k")}
    candidates = {
        level: Candidates([Candidate(text, tuple(text.split()), "p", "m") for text in several], lambda *_: "")
        for level, several in texts.items()
    }
    query = Query(MaskedQuery("q", [], ((first,), (first,), (first, second))), "text", candidates)
    chains = {tuple(candidate.text for candidate in chain) for chain in query.candidate_chains((1, 2, 3))}
    assert chains == {("b", "a", "a k"), ("a", "c", "c k"), ("b", "c", "c k")}


def test_pairs_are_of_one_video_apart_in_time_and_meaning(store: Store) -> None:
    queries = {
        "a": ("v1", "one", [[0.0, 4.0]]),
        "b": ("v1", "two", [[5.0, 9.0]]),
        "c": ("v1", "three", [[0.0, 5.0]]),  # overlaps a
        "d": ("v1", "one too", [[6.0, 9.0]]),  # means what a means
        "e": ("v2", "two", [[5.0, 9.0]]),  # another video
        "f": ("v1", "two", [[5.0, 9.0]]),  # b once more
    }
    rows = [annotation(qid, text, vid=vid, windows=windows) for qid, (vid, text, windows) in queries.items()]
    vectors = {"one": [1.0, 0.0, 0.0], "one too": [0.99, 0.14, 0.0], "two": [0.0, 1.0, 0.0], "three": [0.0, 0.0, 1.0]}
    embeddings = build(store, "embeddings", [{"text": t, "encoder": "e", "embedding": v} for t, v in vectors.items()])
    part = InVideoNegatives(build(store, "annotations", rows), embeddings, Pairing()).part(0)
    pairs = {(row["qid"], row["negative_qid"]) for row in part.rows.to_pylist()}
    assert {other for qid, other in pairs if qid == "a"} == {"b"}
    assert {other for qid, other in pairs if qid == "c"} == {"b", "d"}
    assert all(row["iou"] < 0.5 and row["similarity"] < 0.9 for row in part.rows.to_pylist())
