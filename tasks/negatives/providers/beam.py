"""The beam of fillings of a query, which provider `llama` keeps from slot to slot and from level to level.

A filling is ranked by the mean log P of its levels, so a word of level 1 that leaves no good word for level 2 is
dropped. Gumbel noise makes the choice a draw without replacement (Kool et al., ICML 2019): several good fillings, and
the same ones for the same seed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf, isnan
from typing import NamedTuple

import numpy as np

from penumbra.tasks.negatives.language_model import Scores
from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Slot, has_valence
from penumbra.tasks.negatives.providers.random import row_seed, uniform
from penumbra.tasks.negatives.providers.vocabulary import MODIFIERS, Context, Vocabulary, Words
from penumbra.tasks.text import wordnet
from penumbra.tasks.text.masks import render
from penumbra.tasks.text.relations import edges

BLANK = "___"
# Verbs that are often true where a more exact one is: who peels a banana also holds it. Level 1 would then be true.
GENERAL = frozenset(("do", "get", "have", "hold", "make", "move", "place", "prepare", "put", "set", "take", "use"))
WRONG_ARTICLES = {("a", True), ("an", False)}  # and whether the word after it begins with a vowel
EITHER_ARTICLE = "hu"  # "an hour", "a house"; "a unicorn", "an umbrella"
BEAM = 8  # fillings of a query that are kept
CHILDREN = 2  # kept fillings that continue the same filling, at most
FIRST = 20  # words that are scored for a query's first slot
ENTAILED = 3  # words that may be true of the moment, which are scored in addition for the first slot
FURTHER = 3  # words that are scored for each further slot of each filling
AHEAD = 5  # words after the slot that are read to score a word in it
CONSIDERED = 200  # likeliest words, from which the scored words are chosen
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
KNOWN = 1.0  # preference for a word of the dictionary
ALIKE = 4.0  # preference for a noun that is of the same kind as the query's, by `wordnet.likeness`
FITS = 2.0  # weight of the largest fall of log P of one token after the slot, in addition to the change of the sum
TERM = 3.0  # preference for a word that forms a term with the noun after it or the modifier before it
MUCH_WORSE = 2.0  # an entailed word is kept for levels 2 and 3 if the best false word ranks so much lower
LONGER = 1.5  # cost of each further token of a proposed word, as words are ranked by their first token
EXPECTED = 0.2  # share of log P(word | the words before it) that is subtracted: else common verbs fill all slots
EXPECTED_MODIFIER = 0.5  # this share for modifiers, which should fit their noun ("glass bowl", not "cake bowl")
RAREST = -8.0  # the least log P(word | the words before it) that `EXPECTED` counts


def highest(ranks: Scores, count: int) -> list[int]:
    """Return the indices of the `count` highest ranks, the highest first; of equal ranks, the lowest index first."""
    least = np.partition(ranks, -count)[-count] if len(ranks) > count else -inf
    places = np.flatnonzero(ranks >= least)
    return [*places[np.argsort(-ranks[places], kind="stable")][:count].tolist()]


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
