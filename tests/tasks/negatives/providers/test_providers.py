"""Providers: seeded, independent of chunks, inside the dictionary; the language model is a distribution."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from spacy.language import Language

from penumbra.artifacts.schemas import table_of
from penumbra.tasks.negatives.fills import fill_part, make_provider
from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Provider
from penumbra.tasks.negatives.providers.kneser_ney import NOTHING, KneserNey, Plausibility, SlotScorer, Trigrams
from penumbra.tasks.negatives.providers.random import row_seed, uniform
from penumbra.tasks.negatives.providers.settings import Filling
from penumbra.tasks.text.dictionary import Dictionary, dictionary_part
from penumbra.tasks.text.masks import Masking, mask_part
from penumbra.tasks.text.tags import tag_part
from tests.rows import annotation

TEXTS = [
    "a person opens the door.",
    "a person closes the window.",
    "person opens a box.",
    "a woman throws the red ball under the table.",
    "a man puts the blue cup on the table.",
    "person slowly closes the green box.",
    "a man takes the ball from the chair.",
    "the woman quickly puts a cup under the chair.",
    "person throws a pillow on the bed.",
    "a person takes the red pillow from the bed.",
]
SENTENCES = {f"q{i}": text for i, text in enumerate(TEXTS)}


@pytest.fixture(params=["corpus", "random"])
def provider(request: pytest.FixtureRequest, dictionary: Dictionary, tagged: tuple[pa.Table, pa.Table]) -> Provider:
    return make_provider(request.param, dictionary, [tagged], Filling(seed=3))


def by_place(fills: Iterable[Fill]) -> dict[tuple[str, int], list[Fill]]:
    found: dict[tuple[str, int], list[Fill]] = {}
    for fill in fills:
        found.setdefault((fill.qid, fill.level), []).append(fill)
    return found


def test_every_level_is_filled_from_its_offer(
    provider: Provider, queries: list[MaskedQuery], dictionary: Dictionary
) -> None:
    filled = by_place(provider.fill(queries, 2))
    assert filled.keys() == {(query.qid, level) for query in queries for level in (1, 2, 3)}
    for query in queries:
        for level, slots in enumerate(query.levels, 1):
            for fill in filled[query.qid, level]:
                for slot, word in zip(slots, fill.words, strict=True):
                    assert word in slot.allowed(dictionary).offer.words
                    assert word != slot.word.lower()
                    assert not dictionary.forms[word] & (dictionary.forms.get(slot.word.lower(), frozenset()))


def test_a_subjects_slot_takes_subjects_of_verbs_alone(provider: Provider, queries: list[MaskedQuery]) -> None:
    filled = by_place(provider.fill(queries, 8))
    subjects = {
        word
        for query in queries
        for level, slots in enumerate(query.levels, 1)
        for fill in filled[query.qid, level]
        for slot, word in zip(slots, fill.words, strict=True)
        if slot.is_subject
    }
    assert subjects == {"man", "woman"}


@pytest.mark.parametrize("name", ["corpus", "random"])
def test_a_level_whose_subject_has_no_other_word_is_rejected_and_no_other_level(nlp: Language, name: str) -> None:
    texts = ["person opens the door.", "person closes the box."]
    annotations = table_of("annotations", [annotation(text, text) for text in texts])
    tagged = annotations, tag_part(annotations, nlp).rows
    provider = make_provider(name, Dictionary(dictionary_part([tagged]).rows), [tagged], Filling())
    part = fill_part(tagged[1], mask_part(*tagged, Masking()).rows, provider, 1)
    reason = f"{name}: no other noun than 'person' that is a verb's subject in the training split"
    assert [(row["reason"], row["value"]) for row in part.rejected] == [(reason, "level 3")] * 2
    assert set(part.rows.filter(pc.equal(part.rows["status"], "filled"))["level"].to_pylist()) == {1, 2}


def test_the_same_seed_gives_the_same_fills_whatever_the_chunk(provider: Provider, queries: list[MaskedQuery]) -> None:
    together = by_place(provider.fill(queries, 3))
    alone: dict[tuple[str, int], list[Fill]] = {}
    for query in reversed(queries):
        alone |= by_place(provider.fill([query], 3))
    assert alone == together


def test_corpus_keeps_the_words_of_the_level_before(
    dictionary: Dictionary, tagged: tuple[pa.Table, pa.Table], queries: list[MaskedQuery]
) -> None:
    provider = make_provider("corpus", dictionary, [tagged], Filling())
    words = {place: {fill.words for fill in fills} for place, fills in by_place(provider.fill(queries, 12)).items()}
    for query in queries:
        for level, (before, slots) in enumerate(pairwise(query.levels), 2):
            if slots != before:
                places = [slots.index(slot) for slot in before]
                kept = {tuple(several[place] for place in places) for several in words[query.qid, level] if several}
                assert kept <= words[query.qid, level - 1]


def test_a_part_costs_what_was_paid_for_it_and_not_what_was_there(tagged: tuple[pa.Table, pa.Table]) -> None:
    class Hosted:
        name, model, prompt = "openai", "m", None

        def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
            yield Fill("q0", 1, (), "no word", cost_usd=0.5)
            yield Fill("q0", 1, (), "no word", cost_usd=0.25)
            yield Fill("q0", 2, (), "no word", cost_usd=4.0, cached=True)

    masks = mask_part(*tagged, Masking()).rows
    assert fill_part(tagged[1], masks, Hosted(), 1).cost_usd == 0.75


def test_the_trigram_model_is_a_distribution() -> None:
    model = KneserNey(Trigrams([text.split() for text in TEXTS]))
    words = np.arange(model.size)
    for before in (["a", "person"], ["the", "red"], ["never", "seen"], ["person", "never"]):
        u, v = (np.full(model.size, i) for i in model.ids(before))
        assert model.trigram(u, v, words).sum() == pytest.approx(1.0)
    assert model.first.sum() == pytest.approx(1.0)


def test_slot_scores_are_the_products_of_the_three_trigrams() -> None:
    """The sparse tables against the plain definition, for every word in contexts seen and unseen."""
    model = KneserNey(Trigrams([text.split() for text in TEXTS]))
    words = np.array(sorted(model.ids(["opens", "closes", "ball", "the", "box."])))
    scorer = SlotScorer(model, words)
    for text in (*TEXTS, "the the a bed. person"):
        ids = [1, 1, *model.ids(text.split()), 2, NOTHING]
        for i in range(2, len(ids) - 2):
            u, v, x, y = ids[i - 2], ids[i - 1], ids[i + 1], ids[i + 2]
            got = scorer.score(*(np.array([value]) for value in (u, v, x, y)))[0]
            same = [np.full(len(words), value) for value in (u, v, x, max(y, 0))]
            expected = model.trigram(same[0], same[1], words) * model.trigram(same[1], words, same[2])
            if y != NOTHING:
                expected = expected * model.trigram(words, same[2], same[3])
            np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_human_text_is_more_plausible_than_its_words_in_disorder(tagged: tuple[pa.Table, pa.Table]) -> None:
    plausibility = Plausibility()
    for number, tokens in enumerate(tagged[1]["tokens"].to_pylist()):
        plausibility.add(f"v{number}", tokens)
    texts = ("a person takes the cup .", "cup a the takes person .")
    natural, odd = plausibility.score({text: text.split() for text in texts}).values()
    assert natural > odd


def test_draws_are_the_same_everywhere() -> None:
    """Golden numbers: a change here changes every user's negatives."""
    seed = np.array([row_seed(0, "IGDIE_train_0", 1, 0)], dtype=np.uint64)
    assert seed[0] == 8927135526775749005
    assert uniform(seed, 0)[0] == 0.31168332829514034
