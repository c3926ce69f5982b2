"""Provider `corpus`: words drawn from the training text's own statistics of what goes with what.

Gibbs sampling: a slot's word is drawn given the two words on either side under a Kneser-Ney trigram model of the
training queries, slot after slot, several sweeps, every level on its own from the original query. Candidates of a
level differ from each other. No key, no network, no model to download.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tasks.dictionary import Dictionary
from tasks.providers import Fill, MaskedQuery, Slot
from tasks.providers.draws import row_seed, uniform
from tasks.providers.language_model import NOTHING, Ids, KneserNey, SlotScorer

SWEEPS = 6  # before a chain's first fill
THIN = 2  # sweeps between two fills of a chain
MOST_SLOTS = 512  # a query has at most 256 words
CELLS = 1 << 18  # scores computed at once: 2 MB a table stay in the cache

Class = tuple[str, str]


class CorpusProvider:
    """Samples fills from the training split; the same seed gives the same fills everywhere."""

    name = "corpus"
    model = "kneser-ney-3"
    prompt = None

    def __init__(self, sentences: Iterable[Sequence[str]], dictionary: Dictionary, seed: int) -> None:
        self.language = KneserNey(sentences)
        self.dictionary, self.seed = dictionary, seed
        self.texts = list(self.language.index)
        self._offers: dict[Class, _Offer] = {}

    def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        """Yield the fills candidate after candidate; fewer than asked for where a level has no more to give."""
        chains = _Chains(self, queries, candidates)
        for row, problem in chains.stuck.items():
            yield Fill(*chains.places[row], (), problem)
        for candidate in range(candidates):
            for row, words in chains.advance(candidate):
                yield Fill(*chains.places[row], tuple(self.texts[word] for word in words))

    def offer(self, key: Class) -> "_Offer":
        """What a class and tag offer, with the scorer of its words."""
        if key not in self._offers:
            words = np.array(self.language.ids(self.dictionary.offer(*key).words), dtype=np.int64)
            self._offers[key] = _Offer(SlotScorer(self.language, words), self.dictionary)
        return self._offers[key]


class _Offer:
    """The words of one class and tag, and which of them each slot met so far may take: one row a kind of slot."""

    def __init__(self, scorer: SlotScorer, dictionary: Dictionary) -> None:
        self.scorer, self.dictionary = scorer, dictionary
        self._rows: dict[tuple[str, str, str, str], int] = {}
        self._allowed: list[NDArray[np.bool_]] = []

    def row_of(self, slot: Slot) -> int:
        key = (slot.primitive, slot.tag, slot.word, slot.lemma)
        if key not in self._rows:
            self._rows[key] = len(self._rows)
            offer, own = slot.choice(self.dictionary)
            self._allowed.append(np.ones(len(offer.words), dtype=bool))
            self._allowed[-1][list(own)] = False
            self.__dict__.pop("allowed", None)
        return self._rows[key]

    @cached_property
    def allowed(self) -> NDArray[np.bool_]:
        return np.stack(self._allowed)


class _Chains:
    """The Gibbs chains of many queries and levels, one a row.

    `ids` (rows, words) holds each query between <s> <s> and </s>; `at` (rows, slots) where its slots are in it, -1
    for none; `given` (rows, candidates, slots) the fills that it has given.
    """

    def __init__(self, provider: CorpusProvider, queries: Sequence[MaskedQuery], candidates: int) -> None:
        self.provider = provider
        self.places = [(query.qid, level) for query in queries for level in range(1, len(query.levels) + 1)]
        slots = [level for query in queries for level in query.levels]
        ids = [self._ids(query) for query in queries for _ in query.levels]
        self.ids = _padded(ids)
        self.at = _padded([[slot.token + 2 for slot in level] for level in slots])
        self.given = np.full((len(slots), candidates, self.at.shape[1]), -1, dtype=np.int64)
        self.stuck: dict[int, str] = {}
        self.alive = np.ones(len(slots), dtype=bool)
        self.turns = self._group(slots)

    def _ids(self, query: MaskedQuery) -> list[int]:
        return [1, 1, *self.provider.language.ids(token["text"].lower() for token in query.tokens), 2, NOTHING]

    def _group(self, slots: list[tuple[Slot, ...]]) -> list[dict[Class, tuple[Ids, Ids]]]:
        """For each turn, the rows whose turn-th slot is of each class, with the slots' rows in its offer."""
        dictionary = self.provider.dictionary
        found: list[dict[Class, list[tuple[int, int]]]] = [defaultdict(list) for _ in range(self.at.shape[1])]
        for row, level in enumerate(slots):
            for turn, slot in enumerate(level):
                key = slot.offered_class(dictionary)
                offer, own = slot.choice(dictionary)
                if len(offer.words) > len(own):
                    found[turn][key].append((row, self.provider.offer(key).row_of(slot)))
                else:
                    self.alive[row] = False
                    self.stuck.setdefault(row, f"no other {slot.primitive} than {slot.word!r} in the training split")
        return [{key: tuple(np.array(pairs).T) for key, pairs in turn.items()} for turn in found]

    def advance(self, candidate: int) -> Iterator[tuple[int, list[int]]]:
        """Sweep the chains to their next fills and yield (row, words) of each."""
        seed = self.provider.seed
        seeds = np.array([row_seed(seed, *place, candidate) for place in self.places], dtype=np.uint64)
        for sweep in range(THIN if candidate else SWEEPS):
            for turn, groups in enumerate(self.turns):
                draws = uniform(seeds, sweep * MOST_SLOTS + turn)
                for key, (rows, kinds) in groups.items():
                    offer = self.provider.offer(key)
                    alive = self.alive[rows]
                    step = max(1, CELLS // len(offer.scorer.words))
                    edges = [*range(0, len(rows), step), len(rows)]
                    for start, end in pairwise(edges):
                        some = alive[start:end]
                        self._draw(offer, rows[start:end][some], kinds[start:end][some], turn, draws, candidate)
        words = self._words(np.arange(len(self.ids)))
        self.given[:, candidate] = np.where(self.alive[:, None], words, -1)
        for row in np.flatnonzero(self.alive).tolist():
            yield row, [word for word in words[row].tolist() if word >= 0]

    def _words(self, rows: Ids) -> Ids:
        """The words (rows, slots) that stand in the slots now, -1 where there is no slot."""
        at = self.at[rows]
        return np.where(at >= 0, self.ids[rows[:, None], at], -1)

    def _draw(
        self, offer: _Offer, rows: Ids, kinds: Ids, turn: int, draws: NDArray[np.float64], candidate: int
    ) -> None:
        if not len(rows):
            return
        at = self.at[rows, turn]
        around = np.stack([self.ids[rows, at + offset] for offset in (-2, -1, 1, 2)], axis=1)
        contexts, same = np.unique(around, axis=0, return_inverse=True)
        scores = offer.scorer.score(*contexts.T)
        scores *= np.sqrt(np.sqrt(scores))  # to the power 1.25: a little more of what is usual
        scores = scores[same.ravel()] * offer.allowed[kinds]
        self._forbid_repeats(offer, scores, rows, turn, candidate)
        mass = np.cumsum(scores, axis=1)
        total = mass[:, -1]
        chosen = (mass <= (draws[rows] * total)[:, None]).sum(axis=1)
        left = total > 0
        self.alive[rows[~left]] = False  # every fill has been given
        self.ids[rows[left], at[left]] = offer.scorer.words[chosen[left]]

    def _forbid_repeats(self, offer: _Offer, scores: NDArray[np.float64], rows: Ids, turn: int, candidate: int) -> None:
        """Take away the words that would complete a fill which the chain has given before."""
        given = self.given[rows, :candidate]
        equal = given == self._words(rows)[:, None]
        equal[:, :, turn] = True
        row, which = np.nonzero(equal.all(axis=2))
        scores[row, offer.scorer.columns[given[row, which, turn]]] = 0.0


def _padded(rows: Sequence[Sequence[int]]) -> Ids:
    """Rows of different length as one array, -1 where they end."""
    array = np.full((len(rows), max(map(len, rows), default=0)), -1, dtype=np.int64)
    for i, row in enumerate(rows):
        array[i, : len(row)] = row
    return array
