"""Provider `llama`: a language model on this machine proposes words for a slot and scores the sentences with them.

Some of the data set's own sentences stand before each sentence, so the model expects similar sentences. For a slot, it
proposes the likeliest words of the slot's primitive class and fine tag: words of the dictionary and, with an open
vocabulary, other English words (`penumbra.tasks.text.wordnet`). It reads from left to right, so a verb, adjective or
adverb is proposed as the missing word of the whole sentence: a line with a blank, after lines that show the word for a
blank. Words that repeat a word, or verbs that can't take the object, are left out; so are words that may be true of
the same moment, if others fit. The others are scored by the change of log P up to a few words after the slot, and by
the largest fall of one of these words, such as the object of an odd verb. Words that the data set or captions have in
the same relations ("closes", "door"), words of a term and nouns of the same kind are preferred.

A beam of fillings is kept from slot to slot and from level to level. A filling is ranked by the mean log P of its
levels, so a word of level 1 that leaves no good word for level 2 is dropped. Gumbel noise makes the choice a draw
without replacement (Kool et al., ICML 2019): several good fillings, and the same ones for the same seed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from heapq import nlargest, nsmallest
from itertools import accumulate
from math import inf, isnan, nan
from typing import Any, NamedTuple

import numpy as np

from penumbra.tasks.negatives.language_model import LanguageModel, Scores
from penumbra.tasks.negatives.providers import (
    Fill,
    MaskedQuery,
    Provider,
    SharedSettings,
    Slot,
    TrainingText,
    has_valence,
    load_prompt,
)
from penumbra.tasks.negatives.providers.random import row_seed, uniform
from penumbra.tasks.negatives.providers.vocabulary import MODIFIERS, Context, Vocabulary, Words
from penumbra.tasks.progress import counting
from penumbra.tasks.text import wordnet
from penumbra.tasks.text.masks import render
from penumbra.tasks.text.relations import Tokens, edges

PROMPT, MISSING_WORD = "sentence-2", "missing-word-1"
SENTENCES = 16  # sentences of the data set before each sentence
MEASURED = 48  # further sentences of the data set, whose log P gives a threshold for filled sentences (`LIKELIER`)
FEW = 16  # with fewer measured sentences, there is no threshold
EXAMPLES = 16  # lines with a missing word and its answer, before a line that asks for one
LONGEST = 20  # tokens of these sentences and lines, at most
BLANK = "___"
# Verbs that are often true where a more exact one is: who peels a banana also holds it. Level 1 would then be true.
GENERAL = frozenset(("do", "get", "have", "hold", "make", "move", "place", "prepare", "put", "set", "take", "use"))
MISSING = ("verb", "adjective", "adverb")  # the classes whose words are proposed as the missing word of the sentence
WRONG_ARTICLES = {("a", True), ("an", False)}  # and whether the word after it begins with a vowel
EITHER_ARTICLE = "hu"  # "an hour", "a house"; "a unicorn", "an umbrella"
BEAM = 8  # fillings of a query that are kept
CHILDREN = 2  # kept fillings that continue the same filling, at most
FIRST = 20  # words that are scored for a query's first slot
ENTAILED = 3  # words that may be true of the moment, which are scored in addition for the first slot
FURTHER = 3  # words that are scored for each further slot of each filling
AHEAD = 5  # words after the slot that are read to score a word in it
READ = 8  # fillings of a query whose plausibility is read at the end of a level
CONSIDERED = 200  # likeliest words, from which the scored words are chosen
QUERIES = 512  # filled at once: bounds the memory whatever the size of a part

PLAUSIBLE = 3.0  # weight of a sentence's plausibility, in nats of log P for each nat of log-odds
# The least plausibility (log-odds) of a filled sentence, by level. Of the fills that were read, two in three near these
# limits were natural at level 1, half at the others.
IMPLAUSIBLE = (-0.5, 0.0, 0.0)
# Where level 1 changes a noun, fills that are as plausible as the query are natural as often, and are kept, too. At
# levels 2 and 3 the change of log P is added to the plausibility: both together tell natural fills from odd ones.
LATER = (0.5, 1.5)  # the least plausibility at these levels
WITH_CHANGE = 1.25  # the least sum at these levels
CHANGE = 0.2  # weight of the change of log P in this sum

# In nats of log P(sentence):
COST = 6.0  # the most that a word may cost; a slot for which every word costs more is not filled
TOTAL = 9.0  # the most that all words of a filling may cost
LEAST = -20.0  # the least log P plus number of words of a filled sentence; the quantile LIKELIER replaces it if lower
LIKELIER = 0.25  # quantile of the measured sentences; of fills below both limits, one in five reads naturally
KNOWN = 1.0  # preference for a word of the dictionary
ALIKE = 4.0  # preference for a noun that is of the same kind as the query's, by `wordnet.likeness`
FITS = 2.0  # weight of the largest fall of log P of one token after the slot, in addition to the change of the sum
TERM = 3.0  # preference for a word that forms a term with the noun after it or the modifier before it
MUCH_WORSE = 2.0  # an entailed word is kept for levels 2 and 3 if the best false word ranks so much lower
LONGER = 1.5  # cost of each further token of a proposed word, as words are ranked by their first token
EXPECTED = 0.2  # share of log P(word | the words before it) that is subtracted: else common verbs fill all slots
EXPECTED_MODIFIER = 0.5  # this share for modifiers, which should fit their noun ("glass bowl", not "cake bowl")
RAREST = -8.0  # the least log P(word | the words before it) that `EXPECTED` counts


class LlamaProvider(Provider):
    """Fills slots with words that a local language model finds likely; raises `PenumbraError` if it can't be loaded."""

    name = "llama"

    def __init__(self, training: TrainingText, filling: SharedSettings, model: str, temperature: float) -> None:
        queries = list(training.tokens)
        prompt = load_prompt(PROMPT, "sentences")
        sentences = example_sentences(queries, filling.seed)
        before = _text(prompt, sentences=sentences[:SENTENCES])
        self.language_model = LanguageModel.load(model, before)
        self.least = self._least(sentences[SENTENCES:])
        missing = load_prompt(MISSING_WORD, "examples")
        self.missing_word = dict[str, LanguageModel]()
        for primitive in MISSING:
            examples = missing_words(queries, primitive, filling.seed)
            self.missing_word[primitive] = self.language_model.after(_text(missing, examples=examples))
        self.vocabulary = Vocabulary(training.dictionary, self.language_model, filling.vocabulary == "open")
        self.context = Context(queries)
        self.model, self.prompt = self.language_model.name, prompt.label
        self.temperature, self.seed = temperature, filling.seed

    def _least(self, sentences: Sequence[str]) -> float:
        """Return the least log P plus number of words of a filled sentence; `sentences` are of the data set."""
        scores = self.language_model.log_probabilities(sentences) if len(sentences) >= FEW else []
        values = [score + len(sentence.split()) for sentence, score in zip(sentences, scores, strict=False)]
        return min(LEAST, float(np.nanquantile(values, LIKELIER))) if values else -inf

    def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        """Yield the distinct fills of each level, the best ones first: at most eight for each level."""
        chains = [chain for query in queries for chain in query.chains()]
        for start in range(0, len(chains), QUERIES):
            beams = [Beam(chain, self.vocabulary, self.context) for chain in chains[start : start + QUERIES]]
            texts = [beam.text({}) for beam in beams]
            if self.least > -inf:
                scores = self.language_model.log_probabilities(texts)
            else:  # without a threshold, the score only says whether a sentence is too long (NaN)
                lines = self.language_model.tokens([f"{text}\n" for text in texts])
                scores = [nan if len(line) > self.language_model.longest else 0.0 for line in lines]
            for beam, score in zip(beams, scores, strict=True):
                beam.begin(score, self.least)
            report = counting("slots", sum(len(beam.turns) for beam in beams))
            for turn in range(max((len(beam.turns) for beam in beams), default=0)):
                open_beams = [beam for beam in beams if turn < len(beam.turns)]
                self._fill(open_beams, turn)
                report(len(open_beams))
            for beam in beams:
                yield from beam.fills(candidates)

    def _fill(self, beams: Sequence["Beam"], turn: int) -> None:
        """Fill the same turn of several queries; texts that several queries share are scored once."""
        states = [(beam, state) for beam in beams for state in beam.states]
        proposed = self._propose(states, turn)
        choices = [
            tuple(beam.text_up_to(state, turn, word) for word in ("", *words)) if words else ()
            for (beam, state), words in zip(states, proposed, strict=True)
        ]
        distinct = [choice for choice in dict.fromkeys(choices) if choice]
        changes = dict(zip(distinct, self.language_model.compare(distinct), strict=True))
        children: dict[int, list[State]] = {id(beam): [] for beam in beams}
        for (beam, state), words, choice in zip(states, proposed, choices, strict=True):
            if choice:
                children[id(beam)] += beam.children(state, turn, words, *changes[choice])
        if hasattr(self.language_model.model, "plausibility"):  # the adapter's head
            self._keep_plausible([beam for beam in beams if beam.turns[turn].is_last], children, turn)
        for beam in beams:
            beam.select(turn, children[id(beam)], self.temperature, self.seed)

    def _keep_plausible(self, beams: Sequence["Beam"], children: dict[int, list["State"]], turn: int) -> None:
        """Leave out the implausible fillings at the end of a level, and set the plausibility of the others."""
        best = [nlargest(READ, children[id(beam)], key=lambda child: child.rank) for beam in beams]
        texts = [
            beam.text(words)
            for beam, own in zip(beams, best, strict=True)
            for words in ({}, *(child.words for child in own))
        ]
        values = iter(self.language_model.plausibilities(texts))
        for beam, own in zip(beams, best, strict=True):
            query, pairs = next(values), [(child, next(values)) for child in own]
            children[id(beam)] = [
                replace(child, plausibility=PLAUSIBLE * (value - query))
                for child, value in pairs
                if beam.is_plausible(turn, child, value, query)
            ]

    def _propose(self, states: Sequence[tuple["Beam", "State"]], turn: int) -> list[dict[str, float]]:
        """Return for each filling the words to score in a turn's slot, with the preference for each."""
        lefts = [beam.left(state, turn) for beam, state in states]
        words = [
            self.vocabulary.words(beam.turns[turn].slot, left) for (beam, _), left in zip(states, lefts, strict=True)
        ]
        asked = [(left.rstrip(), own.first) for left, own in zip(lefts, words, strict=True)]
        expected = self.language_model.next_tokens(asked)
        fitting = list[Scores | None]([None] * len(states))
        for primitive, model in self.missing_word.items():
            places = [i for i, (beam, _) in enumerate(states) if beam.turns[turn].slot.primitive == primitive]
            asked = [(question(states[i][0].masked(states[i][1], turn)), words[i].missing) for i in places]
            for i, scores in zip(places, model.next_tokens(asked), strict=True):
                fitting[i] = scores
        return [
            beam.propose(state, turn, own, likely, fits)
            for (beam, state), own, likely, fits in zip(states, words, expected, fitting, strict=True)
        ]


def highest(ranks: Scores, count: int) -> list[int]:
    """Return the indices of the `count` highest ranks, the highest first; of equal ranks, the lowest index first."""
    least = np.partition(ranks, -count)[-count] if len(ranks) > count else -inf
    places = np.flatnonzero(ranks >= least)
    return [*places[np.argsort(-ranks[places], kind="stable")][:count].tolist()]


# -- the lines before a sentence --------------------------------------------------------------------------------------


def _text(prompt: Any, **lines: list[str]) -> str:
    return f"{prompt.static}\n{prompt.fill(**{name: chr(10).join(several) for name, several in lines.items()})}\n"


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=8).digest()


def example_sentences(queries: Iterable[Tokens], seed: int) -> list[str]:
    """Return distinct short sentences, drawn by their digests: `SENTENCES` examples, then `MEASURED` further ones."""
    texts = {render(list(tokens), {}) for tokens in queries if len(tokens) <= LONGEST}  # type: ignore[arg-type]
    return nsmallest(SENTENCES + MEASURED, sorted(texts), key=lambda text: _digest(f"{seed} {text}"))


def missing_words(queries: Iterable[Tokens], primitive: str, seed: int) -> list[str]:
    """Return lines of a sentence with a blank and its word, of different words of a class, drawn by their digests."""
    places = {
        (render(list(tokens), {i: BLANK}), token["text"].lower())  # type: ignore[arg-type]
        for tokens in queries
        for i, token in enumerate(tokens)
        if len(tokens) <= LONGEST and token["primitive"] == primitive
    }
    lines: dict[str, str] = {}
    for masked, word in sorted(places, key=lambda place: (_digest(f"{seed} {place[0]}"), place)):
        lines.setdefault(word, f"{question(masked)} {word}")
    return [*lines.values()][:EXAMPLES]


def question(masked: str) -> str:
    """Return the line that asks for the missing word of a sentence."""
    return f"{masked} →"


# -- fillings ---------------------------------------------------------------------------------------------------------


class Turn(NamedTuple):
    """A slot to fill, the first level that has it, and whether it is the last one of the level."""

    level: int
    slot: Slot
    is_last: bool


@dataclass(frozen=True)
class State:
    """A filling: its words by token, its change of log P at the end of each `finished` level and now (`score`).

    `preference` is the sum of its words' preferences, `parent` the id of the filling that it continues, `plausibility`
    the weighted difference of the sentence's plausibility from the query's, at the end of a level.
    """

    words: dict[int, str] = field(default_factory=dict)
    finished: tuple[float, ...] = ()
    score: float = 0.0
    preference: float = 0.0
    parent: int = 0
    plausibility: float = 0.0

    @property
    def rank(self) -> float:
        """The mean log P of its levels and the preference for its words: higher is better.

        The value of a level is at most the value of the level before: a word that is natural only after another change
        ("eats the television", then "eats the food") is a bad one.
        """
        levels = [*accumulate((*self.finished, self.score + self.plausibility), min)]
        return sum(levels) / len(levels) + self.preference

    def finish(self) -> "State":
        """Return the same filling after the end of a level."""
        return replace(self, finished=(*self.finished, self.score + self.plausibility), plausibility=0.0)


class Beam:
    """The fillings of one query: `turns` are its slots in the order of filling."""

    def __init__(self, query: MaskedQuery, vocabulary: Vocabulary, context: Context) -> None:
        self.query, self.context, self.edges = query, context, edges(query.tokens)
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

    def begin(self, score: float, least: float) -> None:
        """Begin with the query itself and its log P, or give up a query that is too long for the model (NaN).

        `least` is the least log P plus number of words of a filled sentence.
        """
        self.states = [State()]
        self.least = least - score - len(self.text({}).split())
        if self.turns and isnan(score):
            self._give_up(0, "the sentence is too long for the model")

    def text(self, words: Mapping[int, str], end: int | None = None) -> str:
        """Return the query, or its tokens up to `end`, with words in some of its slots."""
        surfaces = {token: self.slots[token].surface(word) for token, word in words.items()}
        return render(self.query.tokens[:end], surfaces)

    def text_up_to(self, state: State, turn: int, word: str) -> str:
        """Return the sentence up to some words after a turn's slot, with a word in the slot, or unchanged for ''."""
        token = self.turns[turn].slot.token
        end = token + 1 + AHEAD
        text = self.text(state.words | ({token: word} if word else {}), end)
        return text if end < len(self.query.tokens) else f"{text}\n"

    def left(self, state: State, turn: int) -> str:
        """Return the sentence up to a turn's slot, with the blank before it."""
        end = self.turns[turn].slot.token
        return self.text(state.words, end) + " " * (end > 0 and self.query.tokens[end - 1]["space_after"])

    def masked(self, state: State, turn: int) -> str:
        """Return the sentence with a blank at a turn's slot."""
        return self.text(state.words | {self.turns[turn].slot.token: BLANK})

    def propose(
        self, state: State, turn: int, words: Words, expected: Scores, fitting: Scores | None
    ) -> dict[str, float]:
        """Return the likeliest words for a turn's slot, and the preference for each.

        `expected` is log P after the words before the slot, `fitting` log P as the missing word of the sentence. After
        the first slot, a subject, or a slot without any other word left, may take an entailed word.
        """
        slot, (index, number) = self.turns[turn].slot, self.query.part
        count = number * (FURTHER if turn else FIRST)
        present = self.lemmas | {wordnet.lemma(word, self.slots[at].primitive) for at, word in state.words.items()}
        ranks = expected if fitting is None else fitting + EXPECTED * expected
        ranks = ranks + KNOWN * words.known - LONGER * (words.tokens - 1)
        term = np.zeros(len(ranks))
        for lemma in self.context.in_terms(self.query.tokens, state.words, slot.token):
            term[words.places.get(lemma, [])] = TERM
        ranks += term
        considered = highest(ranks, CONSIDERED)
        is_noun = slot.primitive == "noun"
        related = self.context.relations(self.query.tokens, self.edges, state.words, slot.token)
        fits = {at: sum(lemmas.get(words.lemmas[at], 0.0) for lemmas in related) for at in considered}
        if is_noun:
            fits = {at: fit + ALIKE * wordnet.likeness(words.texts[at], slot.word, "noun") for at, fit in fits.items()}
        false, entailed = list[int](), list[int]()
        is_exact = not turn and slot.primitive == "verb" and wordnet.lemma(slot.word, "verb") not in GENERAL
        left_out = present | GENERAL if is_exact else present
        before = self.query.tokens[slot.token - 1]["text"].lower() if slot.token else ""
        for place in sorted(considered, key=lambda at: -ranks[at] - fits[at]):
            word, lemma = words.texts[place], words.lemmas[place]
            if {lemma, word} & left_out or not has_valence(self.query.tokens, slot, word):
                continue
            if (before, word[0] in "aeio") in WRONG_ARTICLES and word[0] not in EITHER_ARTICLE:
                continue
            (entailed if wordnet.is_entailed(word, slot.word, slot.primitive) else false).append(place)
            if len(false) == count:
                break
        if turn and (slot.is_subject or not false):
            false += entailed[:count]
        places = false[index::number] + ([] if turn else entailed[:ENTAILED])
        share = 0.0 if is_noun else EXPECTED  # nouns differ from sentence to sentence anyway
        share = EXPECTED_MODIFIER if self.query.tokens[slot.token]["dep"] in MODIFIERS else share
        return {
            words.texts[at]: float(KNOWN * words.known[at] + fits[at] + term[at] - share * max(expected[at], RAREST))
            for at in places
        }

    def children(
        self, state: State, turn: int, words: Mapping[str, float], changes: Scores, misfits: Scores
    ) -> list[State]:
        """Return the filling continued by each of these words in a turn's slot, except words that cost too much.

        `changes` are the changes of log P, `misfits` the largest falls of one token's log P after the slot (at most 0).
        A subject may cost more, as few words can be subjects.
        """
        slot = self.turns[turn].slot
        preferences = state.preference + np.array([*words.values()]) + FITS * misfits
        scores = state.score + changes
        least = self.least if slot.is_subject else max(state.score - COST, -TOTAL, self.least)
        return [
            State(state.words | {slot.token: word}, state.finished, score, preference, id(state))
            for word, score, preference in zip(words, scores.tolist(), preferences.tolist(), strict=True)
            if score >= least
        ]

    def is_plausible(self, turn: int, state: State, value: float, query: float) -> bool:
        """Return whether a filling is plausible enough at the end of a level: `value` and `query` are log-odds."""
        level = self.turns[turn].level
        if self.turns[0].slot.primitive != "noun":
            return value >= IMPLAUSIBLE[level - 1]
        if level == 1:
            return value >= min(IMPLAUSIBLE[0], query)
        return value >= LATER[level - 2] and value + CHANGE * state.score >= WITH_CHANGE

    def select(self, turn: int, children: Sequence[State], temperature: float, seed: int) -> None:
        """Keep the best fillings by their ranks with Gumbel noise.

        For the first slot, entailed words are kept if the best false one is much worse and not preferred. Stage
        `negatives` then leaves level 1 out, which may be true; further words make levels 2 and 3 false.
        """
        _, slot, is_last = self.turns[turn]
        if not children:
            self._give_up(turn, f"no other word for {slot.word!r} reads naturally")
            return
        names = [f"llama {self.query.qid} {' '.join(child.words.values())}" for child in children]
        seeds = np.array([row_seed(seed, name, self.query.first, slot.token) for name in names], np.uint64)
        noise = -np.log(-np.log(np.clip(uniform(seeds, 0), 1e-12, 1 - 1e-12)))
        ranks = np.array([child.rank for child in children]) + temperature * noise
        best_first = np.argsort(-ranks, kind="stable")
        if not turn:
            first = [child.words[slot.token] for child in children]
            is_entailed = np.array([wordnet.is_entailed(word, slot.word, slot.primitive) for word in first])[best_first]
            false, entailed = best_first[~is_entailed], best_first[is_entailed]
            if len(entailed) and len(false):
                is_worse = ranks[false[0]] + MUCH_WORSE < ranks[entailed[0]] and children[false[0]].preference < 0
                best_first = entailed if is_worse else false
        kept: list[State] = []
        for place in best_first.tolist():
            child = children[place]
            if turn == 0 or sum(other.parent == child.parent for other in kept) < CHILDREN:
                kept.append(child)
        self.states = [state.finish() for state in kept[:BEAM]] if is_last else kept[:BEAM]

    def _give_up(self, turn: int, problem: str) -> None:
        """Leave out the level of a turn and all later levels."""
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
