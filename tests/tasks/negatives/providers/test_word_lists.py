"""The words on offer, drawn for a corner of the shipped scenes."""

import json
from itertools import combinations

import pyarrow as pa
import pytest
from spacy.language import Language

from penumbra.artifacts.schemas import table_of
from penumbra.tasks.data.dataset import SHIPPED
from penumbra.tasks.negatives.fills import masked_queries, training_tokens
from penumbra.tasks.negatives.providers import MaskedQuery, TrainingText, questions
from penumbra.tasks.negatives.providers.answers import Answers
from penumbra.tasks.negatives.providers.questions import Lists, WordLists
from penumbra.tasks.negatives.providers.settings import Filling
from penumbra.tasks.text.dictionary import Dictionary
from penumbra.tasks.text.masks import Masking, mask_part
from penumbra.tasks.text.tags import tag_part
from penumbra.tasks.text.wordnet import is_entailed
from tests.rows import annotation

VIDEOS = 25


@pytest.fixture(scope="module")
def tagged(nlp: Language) -> tuple[pa.Table, pa.Table]:
    videos = json.loads((SHIPPED / "train.json").read_text())
    rows = [
        annotation(f"{vid}_{n}", text)
        for vid in list(videos)[:VIDEOS]
        for n, text in enumerate([*videos[vid]["sentences"], "person opens it."][-8:])
    ]
    annotations = table_of("annotations", rows)
    return annotations, tag_part(annotations, nlp).rows


@pytest.fixture(scope="module")
def queries(tagged: tuple[pa.Table, pa.Table]) -> list[MaskedQuery]:
    whole = masked_queries(tagged[1], mask_part(*tagged, Masking()).rows)
    return [chain for query in whole for chain in query.chains()]


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
            offered = slot.choice(dictionary).offer.words
            assert set(words) <= set(offered)
            assert not [word for word in words if dictionary.forms[word] & own]
            assert len(set(words)) == len(words)
            slots += 1
    assert slots > 300


def test_words_do_not_depend_on_the_chunk(
    offer: WordLists, drawn: list[Lists], queries: list[MaskedQuery], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = {(query.qid, query.part): lists for query, lists in zip(queries, drawn, strict=True)}
    monkeypatch.setattr(questions, "CELLS", 1)
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
            offered = [w for w in slot.choice(dictionary).offer.words if w not in words]
            if slot in query.levels[0] and len(query.levels[0]) <= 2 and len(words) > 1:
                assert not [word for word in words if is_entailed(word, slot.word, slot.primitive)]
                spared += any(is_entailed(word, slot.word, slot.primitive) for word in offered)
    assert spared > 50
