"""The choice among candidates: which come first, which hold together, what is natural."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from spacy.language import Language

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives.choosing.choose import (
    Candidate,
    Candidates,
    Query,
    Similarity,
    first_that_hold,
    level_sets,
)
from penumbra.tasks.negatives.choosing.plausibility import HumanText, Plausibility, causal_log_probability
from penumbra.tasks.negatives.providers import MaskedQuery, Slot
from penumbra.tasks.negatives.providers.corpus import CorpusProvider
from penumbra.tasks.text.dictionary import Dictionary, dictionary_part
from penumbra.tasks.text.embeddings import Vectors
from penumbra.tasks.text.tags import tag_texts
from tests.tiny_llama import build

pytestmark = pytest.mark.slow

SENTENCES = [
    "person washes the cup.",
    "person washes the mug.",
    "person fills the cup.",
    "person fills the mug.",
    "person drops the cup.",
    "person washes the plate in the sink.",
    "person reads the book on the sofa.",
    "person reads the letter on the sofa.",
    "person opens the book.",
    "person opens the letter.",
]


@pytest.fixture(scope="module")
def parsed(nlp: Language) -> list[list[dict[str, object]]]:
    return list(tag_texts(SENTENCES, nlp))


def slot(token: int, word: str = "w") -> Slot:
    return Slot(token, "noun", "NN", word, word)


def query(levels: tuple[tuple[Slot, ...], ...], **candidates: list[str]) -> Query:
    found = {
        int(name[1:]): Candidates([Candidate(word, tuple(word.split()), "p", "m") for word in words])
        for name, words in candidates.items()
    }
    return Query(MaskedQuery("q", [], levels), "text", "v", found)


def test_a_chain_keeps_the_words_of_the_level_before() -> None:
    levels = ((slot(2),), (slot(0), slot(2)), (slot(0), slot(1), slot(2)))
    some = query(levels, l1=["a", "b"], l2=["x a", "y a", "x c"], l3=["x k a", "y k b", "y k a"])
    chains = [tuple(c.text for c in chain) for chain in some.chains((1, 2, 3), nested=True)]
    assert chains == [("a", "x a", "x k a"), ("a", "y a", "y k a")]
    assert [tuple(c.text for c in chain) for chain in some.chains((1, 3), nested=True)] == [
        ("a", "x k a"),
        ("b", "y k b"),
        ("a", "y k a"),
    ]
    apart = some.chains((1, 2), nested=False)
    assert [tuple(c.text for c in chain) for chain in apart] == [("a", "x a"), ("b", "y a"), ("a", "x c")]


def test_levels_of_the_same_slots_take_different_words() -> None:
    levels = ((slot(0),), (slot(0),), (slot(0), slot(1)))
    some = query(levels, l1=["a", "b"], l2=["a", "c"], l3=["a k", "c k"])
    chains = {tuple(c.text for c in chain) for chain in some.chains((1, 2, 3), nested=True)}
    assert chains == {("b", "a", "a k"), ("a", "c", "c k"), ("b", "c", "c k")}


def test_as_many_levels_as_can_be_had_the_mildest_first() -> None:
    assert list(level_sets((3, 1, 2))) == [(1, 2, 3), (1, 2), (1, 3), (2, 3), (1,), (2,), (3,)]


def test_a_fill_is_checked_only_where_one_before_does_not_do() -> None:
    checked: list[str] = []

    def check(fill: Candidate) -> Literal[True] | str:
        checked.append(fill.text)
        return fill.text != "b" or "b is bad"

    fills = [Candidate(word, (word,), "p", "m") for word in "abacd"]
    candidates = Candidates(fills, check)
    assert [fill.text for fill in candidates.first(1)] == checked == ["a"]
    assert candidates.first(1) == fills[:1]
    assert checked == ["a"]
    assert candidates.first(2) == [fills[0], fills[3]]
    assert (checked, candidates.refused) == (["a", "b", "c"], "b is bad")
    assert candidates.first(9) == [fills[0], fills[3], fills[4]], "each text once"


def test_the_next_is_encoded_only_where_one_before_does_not_hold() -> None:
    angles = {"a": 0.95, "b": 0.7, "a x": 0.5, "b x": 0.6, "b y": 0.65, "c": 0.4, "c x": 0.3}
    asked: list[str] = []

    def encode(texts: Sequence[str]) -> Vectors:
        asked.extend(texts)
        return np.array([[angles[text], (1 - angles[text] ** 2) ** 0.5] for text in texts], dtype=np.float32)

    levels = ((slot(0),), (slot(0), slot(1)))
    some = query(levels, l1=["a", "b", "c"], l2=["a x", "b x", "c x"])
    similarity = Similarity({"text": np.array([1.0, 0.0], dtype=np.float32)}, encode)
    [choice] = first_that_hold([(some, some.chains((1, 2), True))], (1, 2), similarity, 0.9)
    assert [candidate.text for candidate in choice.chain] == ["b", "b x"], "a is a paraphrase"
    assert choice.cosines == (0.7, 0.6)
    assert asked == ["a", "b", "b x"], "nor is what comes after a text that does not hold"
    assert first_that_hold([(some, some.chains((1, 2), True))], (1, 2), similarity, 0.3) == []
    some = query(levels, l1=["b"], l2=["b x"])
    rising = {"b": 0.7, "b x": 0.8}
    similarity = Similarity(similarity.queries, lambda texts: np.array([[rising[t], 0.0] for t in texts], np.float32))
    assert first_that_hold([(some, some.chains((1, 2), True))], (1, 2), similarity, 0.9) == [], "it does not fall"


def test_what_people_say_is_more_plausible(parsed: list[list[dict[str, object]]]) -> None:
    human = HumanText()
    for i, tokens in enumerate(parsed):
        human.add(f"v{i}", tokens)
    plausibility = Plausibility(human)
    texts = ["person washes the cup .", "person sofa the washes ."]
    natural, odd = plausibility.score(texts, [text.split() for text in texts])
    assert natural > odd


def test_corpus_keeps_words_from_level_to_level_and_prefers_what_goes_together(
    parsed: list[list[dict[str, object]]], nlp: Language
) -> None:
    import pyarrow as pa

    from penumbra.artifacts.schemas import table_of
    from penumbra.tasks.negatives.fills import masked_queries
    from penumbra.tasks.text.masks import mask_part

    rows = [
        {
            "qid": f"q{i}",
            "vid": f"v{i}",
            "split": "train",
            "query": text,
            "duration": 9.0,
            "windows": [[0.0, 3.0]],
            "novel": [],
            "saliency": None,
        }
        for i, text in enumerate(SENTENCES)
    ]
    annotations = table_of("annotations", rows)
    tags = table_of("tags", [{"qid": f"q{i}", "tokens": tokens} for i, tokens in enumerate(parsed)])
    dictionary = Dictionary(dictionary_part([(annotations, tags)]).rows)
    masks: pa.Table = mask_part(annotations, tags, (0.25, 0.5, 0.75)).rows
    queries = {query.qid: query for query in masked_queries(tags, masks)}
    fills = list(CorpusProvider(parsed, dictionary, 0).fill(list(queries.values()), 12))
    words = {(f.qid, f.level): {g.words for g in fills if (g.qid, g.level) == (f.qid, f.level)} for f in fills}
    for (qid, level), several in words.items():
        assert len(several) > 1
        slots = queries[qid].levels
        if level > 1 and slots[level - 1] != slots[level - 2]:
            at = [slots[level - 1].index(kept) for kept in slots[level - 2]]
            assert {tuple(w[i] for i in at) for w in several} <= words[qid, level - 1]
    first = [f.words[0] for f in fills if f.qid == "q0" and f.level == 1]
    assert len(set(first)) == len(first)


def test_a_causal_model_reads_texts_in_any_order(tmp_path: Path) -> None:
    tiny_llama = build(tmp_path)
    texts = ["person opens the door.", "person", "a person closes the small door of the kitchen."]
    scores = causal_log_probability(texts, str(tiny_llama))
    assert (scores < 0).all()
    assert causal_log_probability(texts[::-1], str(tiny_llama))[::-1] == pytest.approx(scores, abs=1e-5)
    assert causal_log_probability(texts[:1], str(tiny_llama)) == pytest.approx(scores[:1], abs=1e-5), (
        "padding changes nothing"
    )


def test_a_causal_model_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(PenumbraError, match="nothing-here"):
        causal_log_probability(["a"], str(tmp_path / "nothing-here"))
