"""What is asked with which words on offer, and that whatever comes back is read rightly or not at all."""

import json
from itertools import combinations
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penumbra.tasks.data.dataset import SHIPPED
from penumbra.tasks.negatives.fills import training_tokens
from penumbra.tasks.negatives.providers import MaskedQuery, TrainingText
from penumbra.tasks.negatives.providers import questions as questions_module
from penumbra.tasks.negatives.providers.answers import Answers
from penumbra.tasks.negatives.providers.questions import LETTERS, Lists, Question, WordLists, parse, read
from penumbra.tasks.negatives.providers.settings import Filling
from penumbra.tasks.text.dictionary import Dictionary
from penumbra.tasks.text.wordnet import is_entailed
from tests.hosted import masked, question, question_about

VIDEOS = 25
SENTENCES = {
    f"{vid}_{n}": text
    for vid, video in list(json.loads((SHIPPED / "train.json").read_text()).items())[:VIDEOS]
    for n, text in enumerate([*video["sentences"], "person opens it."][-8:])
}
QUERY = masked("q", "Person opens|verb the red|adjective door|noun on|preposition it slowly.")
OPTIONS = (("closes", "fixes"), ("green", "old", "wet"), ("window", "box"), ("under",))
ASKED = Question(QUERY, OPTIONS[:3], 0)
FORMS = [
    ASKED,
    ASKED.after({1: "old"}),
    question(3),
    question_about(masked("q", "opens|verb on|preposition"), offered=2),
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
)


def test_the_text_numbers_slots_in_the_masking_order_and_keeps_the_rest_to_the_character() -> None:
    assert [slot.word for slot in QUERY.levels[-1]] == ["opens", "red", "door"]
    assert ASKED.text() == (
        "Person [1 opens: A closes B fixes] the [3 red: A green B old C wet] [2 door: A window B box] on it slowly."
    )
    assert ASKED.text(7).startswith("Person [7 opens: ")


def test_settled_words_stand_in_the_text_with_the_capital_of_the_word_before() -> None:
    query = masked("q", "Opening|verb the red|adjective door|noun on it.")
    asked = Question(query, (("closing", "fixing"), ("green", "old"), ("window", "box")), 0)
    again = asked.after({0: "closing", 2: "box"})
    assert again.text() == "Closing the [1 red: A green B old] box on it."
    assert (again.attempt, asked.attempt) == (2, 1)
    assert again.after({1: "old"}).text() == "Closing the old box on it."
    assert again.after({1: "old"}).chosen == {0: "closing", 1: "old", 2: "box"}


@pytest.mark.parametrize(
    ("text", "chains"),
    [
        ("person opens|verb it", [(1, 1, (0, 3)), (2, 1, (1, 3)), (3, 1, (2, 3))]),
        ("person opens|verb the door|noun", [(1, 1, (0, 2)), (2, 2, (1, 2))]),
        ("person opens|verb the red|adjective door|noun", [(1, 3, (0, 1))]),
    ],
)
def test_a_query_is_cut_where_a_level_masks_no_more(text: str, chains: list[tuple[int, int, tuple[int, int]]]) -> None:
    query = masked("q", text)
    found = query.chains()
    assert [(chain.first, len(chain.levels), chain.part) for chain in found] == chains
    assert sum((chain.levels for chain in found), ()) == query.levels


def test_the_key_is_the_digest_of_the_content_and_of_nothing_else() -> None:
    asked: dict[str, Any] = {"model": "m", "prompt": "p"}
    key = ASKED.key(asked)
    same = MaskedQuery("another id", QUERY.tokens, QUERY.levels)
    assert Question(same, OPTIONS[:3], candidate=5).key({"prompt": "p", "model": "m"}) == key
    others = [
        ASKED.key({**asked, "model": "n"}),
        ASKED.after({}).key(asked),
        Question(QUERY, (("fixes", "closes"), *OPTIONS[1:3]), 0).key(asked),
        Question(
            masked("q", "Person opens|verb a red|adjective door|noun on|preposition it slowly."), OPTIONS[:3], 0
        ).key(asked),
    ]
    assert len({key, *others}) == 5


@pytest.mark.parametrize(
    ("text", "found", "problem"),
    [
        ('{"1": "B", "2": "A", "3": "C"}', {0: "fixes", 1: "wet", 2: "window"}, ""),
        ('```json\n{"1": "B", "2": "A", "3": "C"}\n```', {0: "fixes", 1: "wet", 2: "window"}, ""),
        ('\ufeff {"1": "B", "2": "A", "3": "C"}', {}, "answer is no JSON object with words"),
        ('{"1": " b ", "2": "Window", "3": "OLD"}', {0: "fixes", 1: "old", 2: "window"}, ""),
        ('{"1": "B", "2": "A", "3": "C", "4": "A", "99z": "xylophone"}', {0: "fixes", 1: "wet", 2: "window"}, ""),
        ('{"1": "B", "2": "A"}', {0: "fixes", 2: "window"}, "answer lacks a slot"),
        ('{"1": "B", "2": null, "3": "A"}', {0: "fixes", 1: "green"}, "answer lacks a slot"),
        ('{"1": "B", "2": "A", "3": "C", "1": "B"}', {1: "wet", 2: "window"}, "answer lacks a slot"),
        ('{"1": "C", "2": "box", "3": "closes"}', {2: "box"}, "word was not on offer"),
        ('{"1": 1, "2": ["A"], "3": {"A": "A"}}', {}, "word was not on offer"),
        ('{"1": {"1": "B"}, "answer": {"1": "B", "2": "A", "3": "C"}}', {}, "word was not on offer"),
        ('["A", "B", "C"]', {}, "answer is no JSON object with words"),
        ("", {}, "answer is no JSON object with words"),
        ('Sure! {"1": "B", "2": "A", "3": "C"}', {}, "answer is no JSON object with words"),
        ('{"1": NaN, "2": Infinity, "3": 1e999}', {}, "word was not on offer"),
        ('{"1": ' + "9" * 5000 + "}", {}, "answer is no JSON object with words"),
        ("[" * 100_000, {}, "answer is no JSON object with words"),
    ],
)
def test_an_answer_is_read_slot_by_slot(text: str, found: dict[int, str], problem: str) -> None:
    assert read(ASKED, 1, text) == (found, problem)


@pytest.mark.parametrize("character", ["\ufb06", "\u0131", "\u0410", "\uff21"])  # the first one's capitals are "ST"
def test_a_character_that_only_resembles_a_letter_is_none(character: str) -> None:
    words = tuple(f"word{letter.lower()}" for letter in LETTERS)
    asked = Question(masked("q", "he opens|verb"), (words,), 0)
    assert read(asked, 1, json.dumps({"1": character})) == ({}, "word was not on offer")


@given(st.sampled_from(FORMS), st.integers(1, 40), st.text() | JSON.map(json.dumps), st.booleans())
@example(ASKED, 1, '{"1": "\\ud800"}', False)
@example(ASKED, 1, "```\n" * 3, False)
def test_any_text_and_any_json_is_read_without_an_error(asked: Question, first: int, text: str, fenced: bool) -> None:
    """No word is accepted that was not offered for its slot, and no problem means that no slot is open."""
    text = f"```json\n{text}\n```" if fenced else text
    words, problem = read(asked, first, text)
    assert all(word in asked.options[place] for place, word in words.items())
    assert set(words) <= set(asked.open)
    assert (problem == "") == (set(words) == set(asked.open))
    assert isinstance(parse(text), dict)


@pytest.fixture(scope="module", name="queries")
def chains(queries: list[MaskedQuery]) -> list[MaskedQuery]:
    return [chain for query in queries for chain in query.chains()]


@pytest.fixture(scope="module")
def offer(
    dictionary: Dictionary, tagged: tuple[pa.Table, pa.Table], tmp_path_factory: pytest.TempPathFactory
) -> WordLists:
    text = TrainingText(dictionary, training_tokens([tagged]))
    return WordLists(text, Filling(options=8), Answers(tmp_path_factory.mktemp("answers")))


@pytest.fixture(scope="module")
def drawn(offer: WordLists, queries: list[MaskedQuery]) -> list[Lists]:
    return offer.draw(queries, 0)


def test_every_word_is_of_its_class_and_tag_and_another(
    drawn: list[Lists], queries: list[MaskedQuery], dictionary: Dictionary
) -> None:
    slots = 0
    for query, lists in zip(queries, drawn, strict=True):
        for slot, words in zip(query.levels[-1], lists, strict=True):
            own = dictionary.forms.get(slot.word.lower(), frozenset()) | {slot.lemma, slot.word.lower()}
            offered = slot.allowed(dictionary).offer.words
            assert set(words) <= set(offered)
            assert not [word for word in words if dictionary.forms[word] & own]
            assert len(set(words)) == len(words)
            slots += 1
    assert slots > 300


def test_words_do_not_depend_on_the_chunk(
    offer: WordLists, drawn: list[Lists], queries: list[MaskedQuery], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = {(query.qid, query.part): lists for query, lists in zip(queries, drawn, strict=True)}
    monkeypatch.setattr(questions_module, "CELLS", 1)
    for start in range(0, len(queries), 7):
        some = queries[start : start + 7][::-1]
        for query, lists in zip(some, offer.draw(some, 0), strict=True):
            assert lists == together[query.qid, query.part]


def test_the_chains_of_a_query_are_offered_different_words(drawn: list[Lists], queries: list[MaskedQuery]) -> None:
    words: dict[tuple[str, int], list[set[str]]] = {}
    for query, lists in zip(queries, drawn, strict=True):
        for slot, offered in zip(query.levels[-1], lists, strict=True):
            words.setdefault((query.qid, slot.token), []).append(set(offered))
    several = [sets for sets in words.values() if len(sets) > 1]
    assert len(several) >= VIDEOS
    assert all(not one & two for sets in several for one, two in combinations(sets, 2))


def test_few_slots_get_no_words_that_may_be_true(
    drawn: list[Lists], queries: list[MaskedQuery], dictionary: Dictionary
) -> None:
    spared = 0
    for query, lists in zip(queries, drawn, strict=True):
        for slot, words in zip(query.levels[-1], lists, strict=True):
            offered = [w for w in slot.allowed(dictionary).offer.words if w not in words]
            if slot in query.levels[0] and len(query.levels[0]) <= 2 and len(words) > 1:
                assert not [word for word in words if is_entailed(word, slot.word, slot.primitive)]
                spared += any(is_entailed(word, slot.word, slot.primitive) for word in offered)
    assert spared > 50
