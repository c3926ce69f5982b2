"""Provider `llama`: a language model on this machine proposes words for a slot and scores the sentences with them.

Some of the data set's own sentences stand before each sentence, so the model expects sentences of their kind. For a
slot, it proposes the likeliest next words of the slot's primitive class and fine tag: those of the dictionary and, with
an open vocabulary, other English words (`penumbra.tasks.text.wordnet`). Words that may be true of the same moment, that
repeat a word of the sentence, or that do not go with the verb's object are left out. Then log P(sentence) decides.

A beam of fillings is kept from slot to slot and from level to level. A filling is ranked by the mean log P of its
levels, so a word of level 1 that leaves no good word for level 2 is dropped. Gumbel noise makes the choice a draw
without replacement (Kool et al., ICML 2019): several good fillings, and the same ones for the same seed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from heapq import nsmallest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penumbra.tasks.negatives.language_model import LanguageModel, Scores
from penumbra.tasks.negatives.providers import Fill, MaskedQuery, SharedSettings, Slot, TrainingText, has_valence
from penumbra.tasks.negatives.providers.questions import load_prompt
from penumbra.tasks.negatives.providers.random import row_seed, uniform
from penumbra.tasks.text import wordnet
from penumbra.tasks.text.dictionary import Dictionary
from penumbra.tasks.text.masks import render
from penumbra.tasks.text.relations import Tokens

PROMPT = "sentence-2"
SENTENCES = 8  # of the data set before each sentence
LONGEST = 20  # tokens that such a sentence may have
BEAM = 6  # fillings of a query that are kept
CHILDREN = 2  # of these, the most that continue the same filling
FIRST = 14  # words that are scored for a query's first slot: more, as they were proposed without the words that follow
FURTHER = 3  # words that are scored for each further slot of each filling
CONSIDERED = 200  # likeliest next words among which these are chosen
QUERIES = 512  # filled at once: bounds the memory whatever the size of a part

# In nats of log P(sentence):
COST = 6.0  # the most that a word may cost; a slot for which every word costs more is not filled
KNOWN = 1.0  # preference for a word of the dictionary
ALIKE = 4.0  # preference for a noun that is of the same kind as the query's, by `wordnet.likeness`
LONGER = 1.5  # proposed words are ranked by their first token: what each further one costs
EXPECTED = 0.5  # share of log P(word | the words before it) that does not count: else common verbs fill all slots
RAREST = -8.0  # log P(word | the words before it) from which it is no less expected


class LlamaProvider:
    """Fills slots with words that a local language model finds likely; the same seed gives the same fills.

    Raises `PenumbraError` if the model cannot be loaded or there is no such device.
    """

    name = "llama"

    def __init__(
        self, training: TrainingText, filling: SharedSettings, model: str, device: str, temperature: float
    ) -> None:
        prompt = load_prompt(PROMPT, "sentences")
        sentences = "\n".join(example_sentences(training.tokens, filling.seed))
        before = f"{prompt.static}\n{prompt.fill(sentences=sentences)}\n"
        self.language_model = LanguageModel.load(model, device, before)
        self.vocabulary = Vocabulary(training.dictionary, self.language_model, filling.vocabulary == "open")
        self.model, self.prompt = self.language_model.name, prompt.label
        self.temperature, self.seed = temperature, filling.seed

    def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        """Yield the distinct fills of each level, the best ones first: at most six for each level."""
        chains = [chain for query in queries for chain in query.chains()]
        for start in range(0, len(chains), QUERIES):
            beams = [Beam(chain, self.vocabulary) for chain in chains[start : start + QUERIES]]
            scores = self.language_model.log_probabilities([beam.text({}) for beam in beams])
            for beam, (score, _) in zip(beams, scores, strict=True):
                beam.begin(score)
            for turn in range(max((len(beam.turns) for beam in beams), default=0)):
                self._fill([beam for beam in beams if turn < len(beam.turns)], turn)
            for beam in beams:
                yield from beam.fills(candidates)

    def _fill(self, beams: Sequence["Beam"], turn: int) -> None:
        """Fill the same turn of several queries; what several of them ask the model is asked once."""
        states = [(beam, state) for beam in beams for state in beam.states]
        lefts = [beam.left(state, turn) for beam, state in states]
        words = [
            self.vocabulary.words(beam.turns[turn].slot, left) for (beam, _), left in zip(states, lefts, strict=True)
        ]
        keys = [(left, id(own)) for left, own in zip(lefts, words, strict=True)]
        asked = dict(zip(keys, words, strict=True))
        next_words = self.language_model.next_tokens(
            [left.rstrip() for left, _ in asked], [own.first for own in asked.values()]
        )
        expected = dict(zip(asked, next_words, strict=True))
        proposed = [
            beam.propose(state, turn, own, expected[key])
            for (beam, state), own, key in zip(states, words, keys, strict=True)
        ]
        choices = [
            tuple(beam.text(state.words | {beam.turns[turn].slot.token: word}) for word in preferences)
            for (beam, state), preferences in zip(states, proposed, strict=True)
        ]
        distinct = [choice for choice in dict.fromkeys(choices) if choice]
        scores = {(): np.zeros(0), **dict(zip(distinct, self.language_model.compare(distinct), strict=True))}
        children: dict[int, list[State]] = {id(beam): [] for beam in beams}
        for (beam, state), preferences, choice in zip(states, proposed, choices, strict=True):
            children[id(beam)] += beam.children(state, turn, preferences, scores[choice])
        for beam in beams:
            beam.select(turn, children[id(beam)], self.temperature, self.seed)


def example_sentences(queries: Iterable[Tokens], seed: int) -> list[str]:
    """Return some different sentences that are not long, drawn by their digests."""

    def digest(text: str) -> bytes:
        return blake2b(f"{seed} {text}".encode(), digest_size=8).digest()

    texts = {render(list(tokens), {}) for tokens in queries if len(tokens) <= LONGEST}  # type: ignore[arg-type]
    return nsmallest(SENTENCES, sorted(texts), key=digest)


# -- words ------------------------------------------------------------------------------------------------------------


class Words(NamedTuple):
    """The words that a slot may take: for each its first token, its number of tokens, and if the dictionary has it."""

    texts: list[str]
    first: NDArray[np.int64]
    tokens: NDArray[np.int64]
    known: NDArray[np.bool_]


class Vocabulary:
    """The words that slots may take: the dictionary's, and with an open vocabulary English words that are a token."""

    def __init__(self, dictionary: Dictionary, model: LanguageModel, is_open: bool) -> None:
        self.dictionary, self.model = dictionary, model
        self.english: dict[tuple[str, str], list[str]] = {}
        for token in sorted(model.tokenizer.get_vocab()) if is_open else ():
            word = token[1:]
            if token[:1] in "Ġ▁" and word.isascii() and word.isalpha() and word.islower():  # a blank and a word
                for form in wordnet.forms(word):
                    self.english.setdefault(form, []).append(word)
        self._texts: dict[Any, list[str]] = {}
        self._words: dict[tuple[Any, bool], Words] = {}

    def texts(self, slot: Slot) -> list[str]:
        """Return the words that a slot may take, those of the dictionary first; a subject's slot takes no others."""
        if slot.kind not in self._texts:
            offer, own = slot.choice(self.dictionary)
            lemma = wordnet.lemma(slot.word, slot.primitive)
            others = () if slot.is_subject else self.english.get((slot.primitive, slot.tag), ())
            self._texts[slot.kind] = [word for i, word in enumerate(offer.words) if i not in own] + [
                word for word in others if word not in offer.places and wordnet.lemma(word, slot.primitive) != lemma
            ]
        return self._texts[slot.kind]

    def words(self, slot: Slot, left: str) -> Words:
        """Return the words that a slot may take as they stand after the text `left`."""
        key = (slot.kind, left.endswith(" "))
        if key not in self._words:
            texts, (offer, _) = self.texts(slot), slot.choice(self.dictionary)
            # a blank belongs to the token of the word that follows it
            tokens = self.model.tokens([f"{' ' * left.endswith(' ')}{slot.surface(word)}" for word in texts])
            first, lengths = [ids[0] for ids in tokens], [len(ids) for ids in tokens]
            known = np.array([word in offer.places for word in texts], np.bool_)
            self._words[key] = Words(texts, np.array(first, np.int64), np.array(lengths, np.int64), known)
        return self._words[key]


# -- fillings ---------------------------------------------------------------------------------------------------------


class Turn(NamedTuple):
    """A slot to fill, the first level that has it, and whether it is the last one of the level."""

    level: int
    slot: Slot
    is_last: bool


@dataclass(frozen=True)
class State:
    """A filling: its words by token, log P of each finished level and of the sentence as it is, the sum of preferences.

    `parent` is the id of the filling that it continues.
    """

    words: dict[int, str] = field(default_factory=dict)
    finished: tuple[float, ...] = ()
    score: float = 0.0
    preference: float = 0.0
    parent: int = 0

    @property
    def rank(self) -> float:
        """The mean log P of its levels and the preference for its words: higher is better."""
        return (sum(self.finished) + self.score) / (len(self.finished) + 1) + self.preference


class Beam:
    """The fillings of one query: `turns` are its slots in the order of filling."""

    def __init__(self, query: MaskedQuery, vocabulary: Vocabulary) -> None:
        self.query = query
        self.turns: list[Turn] = []
        self.states: list[State] = []
        self.problems: dict[int, str] = {}
        self.slots = {slot.token: slot for slot in query.levels[-1]}
        self.lemmas = {form.lower() for token in query.tokens for form in (token["lemma"], token["text"])}
        filled: set[int] = set()
        for level, slots in enumerate(query.levels, query.first):
            empty = next((slot for slot in slots if not vocabulary.texts(slot)), None)
            if empty:
                self.problems[level] = empty.no_word_problem()
            else:
                new = [slot for slot in slots if slot.token not in filled]
                self.turns += [Turn(level, slot, slot is new[-1]) for slot in new]
                filled.update(slot.token for slot in slots)

    def begin(self, score: float) -> None:
        """Begin with the query, of log P `score`: NaN if it is too long for the model."""
        self.states = [State(score=score)]
        if self.turns and not np.isfinite(score):
            self._give_up(0, "the sentence is too long for the model")

    def text(self, words: Mapping[int, str]) -> str:
        """Return the query with words in some of its slots."""
        return render(self.query.tokens, {token: self.slots[token].surface(word) for token, word in words.items()})

    def left(self, state: State, turn: int) -> str:
        """Return the sentence up to a turn's slot, with the blank before it."""
        tokens = self.query.tokens[: self.turns[turn].slot.token]
        words = {token: self.slots[token].surface(word) for token, word in state.words.items()}
        return "".join(words.get(i, t["text"]) + " " * t["space_after"] for i, t in enumerate(tokens)).lstrip()

    def propose(self, state: State, turn: int, words: Words, expected: Scores) -> dict[str, float]:
        """Return the likeliest words for a turn's slot, and the preference for each, from log P after the words before.

        If every other word may be true of the moment, the slot takes one of those, for another word is already false.
        """
        slot, (index, number) = self.turns[turn].slot, self.query.part
        count = number * (FURTHER if turn else FIRST)
        present = self.lemmas | {wordnet.lemma(word, self.slots[at].primitive) for at, word in state.words.items()}
        false, entailed = list[int](), list[int]()
        ranks = expected + KNOWN * words.known - LONGER * (words.tokens - 1)
        considered = np.argsort(-ranks, kind="stable")[:CONSIDERED].tolist()
        is_noun = slot.primitive == "noun"
        alike = {
            at: ALIKE * wordnet.likeness(words.texts[at], slot.word, "noun") if is_noun else 0.0 for at in considered
        }
        for place in sorted(considered, key=lambda at: -ranks[at] - alike[at]):
            word = words.texts[place]
            lemma = wordnet.lemma(word, slot.primitive)
            if {lemma, word} & present or not has_valence(self.query.tokens, slot, word):
                continue
            (entailed if wordnet.is_entailed(word, slot.word, slot.primitive) else false).append(place)
            if len(false) == count:
                break
        places = (false or entailed[:count] * (turn > 0))[index::number]
        return {
            words.texts[at]: float(KNOWN * words.known[at] + alike[at] - EXPECTED * max(expected[at], RAREST))
            for at in places
        }

    def children(self, state: State, turn: int, preferences: Mapping[str, float], scores: Scores) -> list[State]:
        """Return the filling with each of these words in a turn's slot, but for those that cost too much."""
        token = self.turns[turn].slot.token
        return [
            State(state.words | {token: word}, state.finished, float(score), state.preference + preference, id(state))
            for (word, preference), score in zip(preferences.items(), scores, strict=True)
            if score >= state.score - COST
        ]

    def select(self, turn: int, children: Sequence[State], temperature: float, seed: int) -> None:
        """Keep the best fillings by their ranks with Gumbel noise."""
        _, slot, is_last = self.turns[turn]
        if not children:
            self._give_up(turn, f"no other word for {slot.word!r} reads naturally")
            return
        names = [f"llama {self.query.qid} {' '.join(child.words.values())}" for child in children]
        seeds = np.array([row_seed(seed, name, self.query.first, slot.token) for name in names], np.uint64)
        noise = -np.log(-np.log(np.clip(uniform(seeds, 0), 1e-12, 1 - 1e-12)))
        ranks = np.array([child.rank for child in children]) + temperature * noise
        kept: list[State] = []
        for place in np.argsort(-ranks, kind="stable").tolist():
            child = children[place]
            if turn == 0 or sum(other.parent == child.parent for other in kept) < CHILDREN:
                kept.append(child)
        kept = kept[:BEAM]
        self.states = [replace(it, finished=(*it.finished, it.score)) for it in kept] if is_last else kept

    def _give_up(self, turn: int, problem: str) -> None:
        """Leave out the levels from a turn's on."""
        later = range(self.turns[turn].level, self.query.first + len(self.query.levels))
        self.problems |= dict.fromkeys(later, problem)
        del self.turns[turn:]

    def fills(self, candidates: int) -> Iterator[Fill]:
        """Yield the distinct fills of each level, or its problem."""
        for level, slots in enumerate(self.query.levels, self.query.first):
            if problem := self.problems.get(level):
                yield Fill(self.query.qid, level, (), problem)
            else:
                filled = [tuple(state.words[slot.token] for slot in slots) for state in self.states[:candidates]]
                yield from (Fill(self.query.qid, level, words) for words in dict.fromkeys(filled))
