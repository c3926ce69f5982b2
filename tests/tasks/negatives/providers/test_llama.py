"""Provider `llama` with a tiny real Llama: which words it may take, how levels hang together, and what a seed does."""

import shutil
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penumbra.artifacts.schemas import table_of
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.negatives import fills as fills_module
from penumbra.tasks.negatives.fills import with_order, with_provider
from penumbra.tasks.negatives.language_model_weights import SMALL_MODEL
from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Slot, TrainingText
from penumbra.tasks.negatives.providers import beam as beam_module
from penumbra.tasks.negatives.providers import llama as llama_module
from penumbra.tasks.negatives.providers.beam import State
from penumbra.tasks.negatives.providers.llama import MEASURED, SENTENCES, LlamaProvider, example_sentences
from penumbra.tasks.negatives.providers.settings import FEW, Filling, Llama
from penumbra.tasks.negatives.providers.vocabulary import Context
from penumbra.tasks.text.dictionary import Dictionary
from penumbra.tasks.text.masks import NOUNS_FIRST, Masking
from penumbra.tasks.text.relations import edges
from penumbra.tasks.text.wordnet import forms, is_entailed
from tests.rows import json_lines, token
from tests.tasks.negatives.providers.test_providers import by_place
from tests.tiny_llama import build

pytestmark = pytest.mark.slow

NO_WORDS = table_of("dictionary", [])
TAGS = {"verb": "VBZ", "noun": "NN", "adjective": "JJ", "preposition": "IN"}
WORDS = {
    "verb": ("closes", "takes", "throws", "holds", "extinguishes", "opens", "puts"),
    "noun": ("door", "window", "pillow", "refrigerator", "cup", "table", "box"),
    "adjective": ("red", "green", "wooden"),
    "preposition": ("on", "under", "throughout"),
}
TEXTS = (
    "opens|verb the door|noun .",
    "person puts|verb the red|adjective cup|noun on|preposition the table|noun .",
    "a man takes|verb the pillow|noun under|preposition it",
    "Holds|verb it",
)


def dictionary() -> Dictionary:
    rows = [
        {"primitive": primitive, "tag": TAGS[primitive], "word": word, "lemma": word.removesuffix("s"), "count": 1}
        for primitive, words in WORDS.items()
        for word in words
    ]
    return Dictionary(pa.Table.from_pylist([{**row, "is_subject": False} for row in rows], NO_WORDS.schema))


def small_model(*texts: str, words: Dictionary | None = None) -> LlamaProvider:
    """The real model, with an open vocabulary, after these training sentences."""
    training = TrainingText(words or Dictionary(NO_WORDS), [masked("", text).tokens for text in texts])
    return LlamaProvider(training, Filling(), SMALL_MODEL, 0.0)


def masked(qid: str, text: str) -> MaskedQuery:
    """A query from words and `word|class`; the levels take a third, two thirds and all of the slots from the left."""
    parts = text.split()
    words, classes = [part.partition("|")[0] for part in parts], [part.partition("|")[2] for part in parts]
    pairs = list(enumerate(zip(words, classes, strict=True)))
    tokens = [token(word, cls, lemma=word.lower(), head=i, dep="ROOT") for i, (word, cls) in pairs]
    slots = [Slot(i, cls, TAGS[cls], word, word.lower().removesuffix("s")) for i, (word, cls) in pairs if cls]
    counts = [max(1, len(slots) * level // 3) for level in (1, 2, 3)]
    return MaskedQuery(qid, tokens, tuple(tuple(slots[:count]) for count in counts))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def any_word_may_cost_what_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model's weights are random, so its words differ by dozens of nats."""
    monkeypatch.setattr(beam_module, "COST", 1e9)


QUERIES = [masked(f"q{i}", TEXTS[i % len(TEXTS)]) for i in range(8)]


def provider(folder: Path, vocabulary: str = "dictionary", seed: int = 0) -> LlamaProvider:
    training = TrainingText(dictionary(), [query.tokens for query in QUERIES])
    filling = Filling(vocabulary=vocabulary, seed=seed)  # type: ignore[arg-type]
    return LlamaProvider(training, filling, str(folder), 1.0)


@pytest.mark.parametrize("vocabulary", ["dictionary", "open"])
def test_words_have_the_slot_s_tag_are_new_and_keep_the_level_before(
    folder: Path, vocabulary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beam_module, "MUCH_WORSE", inf)  # false words alone
    filled = by_place(provider(folder, vocabulary).fill(QUERIES, 16))
    assert filled.keys() == {(query.qid, level) for query in QUERIES for level in (1, 2, 3)}
    assert sum(any(fill.words for fill in fills) for fills in filled.values()) > 16
    others = set[str]()
    for query in QUERIES:
        before: set[frozenset[tuple[int, str]]] = {frozenset()}
        for level, slots in enumerate(query.levels, 1):
            given = [fill for fill in filled[query.qid, level] if fill.words]
            assert len(given) <= beam_module.BEAM
            assert len({fill.words for fill in given}) == len(given)
            now = {frozenset(zip((slot.token for slot in slots), fill.words, strict=True)) for fill in given}
            if len(slots) > len(query.levels[level - 2]) or level == 1:
                assert all(any(kept <= words for kept in before) for words in now)
            else:
                assert not now & before, "levels with the same slots take different words"
            before = now
            for fill in given:
                for slot, word in zip(slots, fill.words, strict=True):
                    assert not is_entailed(word, slot.word, slot.primitive)
                    assert word not in {token["text"].lower() for token in query.tokens}
                    if word not in WORDS[slot.primitive]:
                        others.add(word)
                        assert (slot.primitive, slot.tag) in forms(word)
    assert bool(others) == (vocabulary == "open")


def test_the_same_seed_gives_the_same_fills_in_any_company(folder: Path) -> None:
    together = by_place(provider(folder, seed=3).fill(QUERIES, 16))
    alone: dict[tuple[str, int], list[Fill]] = {}
    for query in reversed(QUERIES):
        alone |= by_place(provider(folder, seed=3).fill([query], 16))
    assert alone == together
    assert by_place(provider(folder, seed=4).fill(QUERIES, 16)) != together


def test_a_word_that_costs_too_much_leaves_its_level_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_module, "COST", -1e9)
    fills = [*provider(folder).fill(QUERIES[:2], 16)]
    assert [fill.problem for fill in fills if fill.qid == "q0"] == ["no other word for 'opens' reads naturally"] * 3
    assert all(not fill.words for fill in fills)


def test_a_level_counts_at_most_as_much_as_the_level_before_it() -> None:
    mended, good = State(finished=(-6.0,), score=-1.0), State(finished=(-3.0,), score=-5.0)
    assert (mended.rank, good.rank) == (-6.0, -4.0)
    assert State(score=-2.0, preference=1.0).rank == -1.0


def test_a_slot_without_words_and_a_sentence_too_long_say_so(folder: Path) -> None:
    training = TrainingText(Dictionary(NO_WORDS), [QUERIES[0].tokens])
    empty = LlamaProvider(training, Filling(vocabulary="dictionary"), str(folder), 0.0)
    problems = {fill.problem for fill in empty.fill(QUERIES[:1], 1)}
    assert problems == {"no other verb than 'opens' in the training split"}
    long = masked("long", "opens|verb the door|noun " + "and then again " * 400)
    assert {fill.problem for fill in provider(folder).fill([long], 1)} == {"the sentence is too long for the model"}


def test_example_sentences_depend_on_the_seed_alone() -> None:
    texts = [[{"text": f"person opens door {i}", "space_after": False}] for i in range(40)]
    chosen = example_sentences(texts, 1)
    assert chosen == example_sentences(texts[::-1] + texts, 1)
    assert len(chosen) == len(texts) <= SENTENCES + MEASURED
    assert chosen != example_sentences(texts, 2)


def test_what_determines_the_fills_is_not_how_they_are_computed(folder: Path, tmp_path: Path) -> None:
    shared, settings = Filling(), Llama(model=str(folder))
    moved = Path(shutil.copytree(folder, tmp_path / "elsewhere" / folder.name))
    assert settings.key_parameters(shared) == Llama(model=str(moved)).key_parameters(shared)
    assert settings.key_parameters(shared) != Llama(model=str(build(tmp_path / folder.name, seed=1))).key_parameters(
        shared
    )
    assert settings.key_parameters(shared) != Llama(model=str(folder), temperature=0).key_parameters(shared)
    assert settings.key_parameters(shared) != settings.key_parameters(Filling(vocabulary="dictionary"))


@pytest.mark.parametrize(
    ("queries", "at_hand", "provider", "line"),
    [
        (999, True, "llama", "999 training queries: the language model"),
        (999, False, "corpus", "nearly at random"),
        (1001, True, "corpus", ""),
    ],
)
def test_the_default_depends_on_the_number_of_queries_and_on_the_model(
    queries: int,
    at_hand: bool,
    provider: str,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    row = {"qid": "q", "query": "person opens door", "vid": "v", "duration": 10, "relevant_windows": [[0, 5]]}
    json_lines(tmp_path / "train.jsonl", ({**row, "qid": i} for i in range(queries)))
    monkeypatch.setattr(fills_module, "is_at_hand", lambda model: at_hand)
    dataset = Dataset(name="mine", folder=str(tmp_path))
    with caplog.at_level("INFO"):
        assert with_provider(Filling(), dataset).providers == [provider]
    assert line in caplog.text
    assert with_provider(Filling(providers=["random"]), dataset).providers == ["random"]
    order = NOUNS_FIRST if queries < FEW else None
    assert with_order(Masking(), Filling(providers=["llama"]), dataset).primitives == order
    assert with_order(Masking(), Filling(providers=["corpus"]), dataset).primitives is None
    assert with_order(Masking(primitives=("verb",)), Filling(providers=["llama"]), dataset).primitives == ("verb",)


def test_a_modifier_takes_the_words_that_stand_before_its_noun() -> None:
    tokens = [{"text": "soy", "dep": "compound", "head": 1}, {"text": "sauce", "dep": "ROOT", "head": 1}]
    context = Context([])
    assert "tomato" in context.in_terms(tokens, {}, 0)
    assert "knife" not in context.in_terms(tokens, {}, 0)
    assert "bread" in context.in_terms(tokens, {1: "knife"}, 0)
    assert "juice" in context.in_terms(tokens, {0: "lemon"}, 1)


def test_words_that_the_data_set_or_captions_have_in_a_relation_are_preferred() -> None:
    verb = {"text": "opens", "lemma": "open", "pos": "VERB", "dep": "ROOT", "head": 0, "primitive": "verb"}
    noun = {"text": "door", "lemma": "door", "pos": "NOUN", "dep": "obj", "head": 0, "primitive": "noun"}
    (without,) = Context([]).relations([verb, noun], edges([verb, noun]), {}, 0)
    assert without["open"] == without["close"] > 0
    assert "eat" not in without
    context = Context([[verb, noun]] * 3)
    (verbs,) = context.relations([verb, noun], edges([verb, noun]), {}, 0)
    assert verbs["open"] > verbs["close"]
    (nouns,) = context.relations([verb, noun], edges([verb, noun]), {0: "eats"}, 1)
    assert "cake" in nouns
    assert "door" not in nouns


@pytest.mark.usefixtures("small_model")
def test_a_verb_is_proposed_by_what_follows_it() -> None:
    lines = ("a man washes|verb a plate", "she opens|verb the door", "a boy eats|verb an apple", "he holds|verb a book")
    fills = small_model(*lines).fill([masked("q", "a person paints|verb the floor with a mop")], 16)
    mop = {word for fill in fills for word in fill.words}
    assert mop & {"cleans", "mops", "scrubs", "sweeps", "washes", "wipes"}


@pytest.mark.usefixtures("small_model")
def test_a_word_that_may_be_true_begins_further_levels_if_false_ones_are_much_worse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = ("she pours|verb the milk|noun", "a man stirs|verb the soup|noun", "he washes|verb a pan|noun")
    real, query = small_model(*lines), masked("q", "a cook spoons|verb the sauce|noun into a bowl|noun")
    # no false word is so much worse; each is; each is, but nothing around it makes it unlikely
    for much_worse, fits, begins in ((inf, 2.0, False), (-inf, 2.0, True), (-inf, 0.0, False)):
        monkeypatch.setattr(beam_module, "MUCH_WORSE", much_worse)
        monkeypatch.setattr(beam_module, "FITS", fits)
        words = [fill.words for fill in real.fill([query], 16) if fill.words]
        assert {is_entailed(it[0], "spoons", "verb") for it in words} == {begins}
        assert not [it for it in words if len(it) > 1 and is_entailed(it[1], "sauce", "noun")]


@pytest.mark.usefixtures("small_model")
def test_plausible_sentences_are_preferred_and_others_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ("she pours|verb the milk|noun", "a man stirs|verb the soup|noun", "he washes|verb a pan|noun")
    real, query = small_model(*lines), masked("q", "a cook ladles|verb the sauce|noun into a small jar|noun")
    means = []
    for weight in (0.0, 100.0):
        monkeypatch.setattr(llama_module, "PLAUSIBLE", weight)
        filled = [fill.words for fill in real.fill([query], 4) if fill.level == 3]
        texts = [f"a cook {verb} the {noun} into a small {place}" for verb, noun, place in filled]
        means.append(np.mean(real.language_model.plausibilities(texts)))
    assert means[0] < means[1]
    monkeypatch.setattr(beam_module, "IMPLAUSIBLE", (-inf, inf, inf))
    assert {fill.level for fill in real.fill([query], 4) if not fill.problem} == {1}
    monkeypatch.setattr(beam_module, "IMPLAUSIBLE", (inf, inf, inf))
    assert {fill.problem for fill in real.fill([query], 4)} == {"no other word for 'ladles' reads naturally"}


@pytest.mark.usefixtures("small_model")
def test_another_noun_at_level_1_may_be_as_plausible_as_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ("she pours the milk|noun", "a man stirs the soup|noun", "he washes a pan|noun")
    real, query = small_model(*lines), masked("q", "a cook ladles the sauce|noun into a small jar|noun")
    monkeypatch.setattr(beam_module, "IMPLAUSIBLE", (inf, inf, inf))
    fills = [fill for fill in real.fill([query], 8) if not fill.problem]
    texts = [f"a cook ladles the {fill.words[0]} into a small jar" for fill in fills if fill.level == 1]
    own, *others = real.language_model.plausibilities(["a cook ladles the sauce into a small jar", *texts])
    assert min(others) >= own - 0.01
    assert {fill.level for fill in fills} > {1}
    monkeypatch.setattr(beam_module, "LATER", (inf, inf))
    assert {fill.level for fill in real.fill([query], 8) if not fill.problem} == {1}


@pytest.mark.usefixtures("small_model")
@pytest.mark.parametrize(("article", "vowels"), [("a", "hubcdfgjklmnpqrstvwxyz"), ("an", "huaeio")])
def test_an_article_stays_right(article: str, vowels: str) -> None:
    lines = ("she peels an apple|noun", "a man eats an orange|noun", "he cuts a pear|noun", "he cuts a lemon|noun")
    fills = small_model(*lines).fill([masked("q", f"a girl eats {article} nectarine|noun")], 16)
    first = {word[0] for fill in fills for word in fill.words}
    assert first
    assert first <= set(vowels)


@pytest.mark.usefixtures("small_model")
def test_a_general_verb_replaces_no_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ("a man takes|verb a plate", "she puts|verb an apple away", "a boy holds|verb a book", "he makes|verb tea")
    real, query = small_model(*lines), masked("q", "a person peels|verb a banana")

    def general_verbs() -> set[str]:
        words = {word for fill in real.fill([query], 16) for word in fill.words}
        assert words
        return {"takes", "puts", "holds", "makes"} & words

    assert not general_verbs()
    monkeypatch.setattr(beam_module, "GENERAL", frozenset())
    assert general_verbs()


@pytest.mark.usefixtures("small_model")
def test_a_subject_may_be_a_more_special_one_where_another_word_is_false_already() -> None:
    nouns = [{"primitive": "noun", "tag": "NN", "word": word, "lemma": word, "count": 1} for word in ("man", "woman")]
    words = Dictionary(pa.Table.from_pylist([{**noun, "is_subject": True} for noun in nouns], NO_WORDS.schema))
    query = masked("q", "person|noun opens|verb a window|noun")
    person, opens, window = query.levels[-1]
    levels = ((opens,), (opens, window), (opens, window, replace(person, is_subject=True)))
    real = small_model("person|noun opens|verb a window|noun", words=words)
    third = [fill.words for fill in real.fill([replace(query, levels=levels)], 16) if fill.level == 3]
    assert {words[2] for words in third} <= {"man", "woman"}
    assert third


@pytest.mark.usefixtures("small_model")
def test_a_sentence_less_likely_than_most_of_the_data_set_is_left_out() -> None:
    objects = ("door", "window", "box", "bag", "book", "drawer", "laptop", "fridge")
    texts = [f"a person {verb} the {noun}." for noun in objects for verb in ("opens", "closes", "holds", "takes")]
    real = small_model(*texts, words=dictionary())
    likely = masked("likely", "a person opens|verb the cupboard.")
    odd = masked("odd", "gravel opens|verb seven of loud it")
    fills = {fill.qid: fill for fill in real.fill([likely, odd], 16) if fill.level == 1}
    assert fills["likely"].words
    assert fills["odd"].problem == "no other word for 'opens' reads naturally"
