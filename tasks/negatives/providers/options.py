"""The short list of dictionary words that a language model may choose from for each slot.

Drawn without replacement (Efraimidis & Spirakis 2006), with weights from the slot's own context: a few words drawn
blindly from a dictionary of hundreds rarely hold one that fits. The draws depend on the seed, the query, the slot and
the candidate's number only, so every provider is offered the same words.

A list that an answer was paid for stays as it was, though the dictionary that it was drawn from has grown since.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from penumbra.tasks.negatives.providers import MaskedQuery, Slot
from penumbra.tasks.negatives.providers.answers import Answers
from penumbra.tasks.negatives.providers.draws import row_seed, uniform
from penumbra.tasks.negatives.providers.language_model import NOTHING, KneserNey, SlotScorer
from penumbra.tasks.text.dictionary import Dictionary

CELLS = 1 << 20  # scores computed at once: 8 MB a table
FLATTEN = 0.75  # exponent of the contextual probability: below 1, so that lists vary

Class = tuple[str, str]
Lists = list[tuple[str, ...]]


class Options:
    """Draws the lists; `count` words a slot, fewer where the dictionary has fewer."""

    def __init__(
        self,
        sentences: Iterable[Sequence[str]],
        dictionary: Dictionary,
        count: int,
        seed: int,
        answers: Answers | None = None,
    ) -> None:
        self.language, self.answers = KneserNey.of(sentences), answers
        self.dictionary, self.count, self.seed = dictionary, count, seed
        self._scorers: dict[Class, SlotScorer] = {}

    def draw(self, queries: Sequence[MaskedQuery], candidate: int) -> list[Lists]:
        """For each query, for each slot of its last level, the words on offer; none where there is no other word."""
        paid = [self._paid_for(query, candidate) for query in queries]
        drawn = iter(self._draw_all([q for q, lists in zip(queries, paid, strict=True) if lists is None], candidate))
        return [next(drawn) if lists is None else lists for lists in paid]

    def name(self, query: MaskedQuery, candidate: int) -> str:
        """The digest of what a query's lists are drawn for."""
        slots = [[slot.token, slot.primitive, slot.tag, slot.word, slot.lemma] for slot in query.levels[-1]]
        texts = [token["text"] for token in query.tokens]
        content = [self.count, self.seed, query.qid, candidate, query.part, slots, texts]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def _paid_for(self, query: MaskedQuery, candidate: int) -> Lists | None:
        """The lists of a question that was answered before; None where there is none or its words are gone."""
        lists = self.answers.offered(self.name(query, candidate)) if self.answers else None
        pairs = zip(query.levels[-1], lists or (), strict=False)
        return lists if all(slot.may_take(w, self.dictionary) for slot, words in pairs for w in words) else None

    def _draw_all(self, queries: Sequence[MaskedQuery], candidate: int) -> list[Lists]:
        lists: list[Lists] = [[()] * len(query.levels[-1]) for query in queries]
        groups: dict[Class, list[tuple[int, int]]] = defaultdict(list)
        for i, query in enumerate(queries):
            for j, slot in enumerate(query.levels[-1]):
                groups[slot.offered_class(self.dictionary)].append((i, j))
        for key, places in groups.items():
            step = max(1, CELLS // max(1, len(self.dictionary.offer(*key).words)))
            for start, end in pairwise([*range(0, len(places), step), len(places)]):
                some = places[start:end]
                slots = [(queries[i], queries[i].levels[-1][j]) for i, j in some]
                for (i, j), words in zip(some, self._draw(key, slots, candidate), strict=True):
                    lists[i][j] = words
        return lists

    def _draw(self, key: Class, slots: list[tuple[MaskedQuery, Slot]], candidate: int) -> Lists:
        words = self.dictionary.offer(*key).words
        if not words:
            return [()] * len(slots)
        contexts = np.array([self._around(query, slot) for query, slot in slots], dtype=np.int64)
        weights = self._scorer(key).score(*contexts.T) ** FLATTEN
        for row, (_, slot) in enumerate(slots):
            weights[row, list(slot.choice(self.dictionary)[1])] = 0.0
        seeds = [row_seed(self.seed, query.qid, candidate, slot.token) for query, slot in slots]
        draws = uniform(np.array(seeds, dtype=np.uint64)[:, None], np.arange(len(words)))
        parts = [query.part for query, _ in slots]
        ordered = (_in_order(row, draw) for row, draw in zip(weights, draws, strict=True))
        return [
            tuple(words[place] for place in places[turn::turns][: self.count])
            for places, (turn, turns) in zip(ordered, parts, strict=True)
        ]

    def _around(self, query: MaskedQuery, slot: Slot) -> list[int]:
        """The ids of the two words before the slot and the two after it."""
        texts = [token["text"].lower() for token in query.tokens]
        ids = [1, 1, *self.language.ids(texts), 2, NOTHING]
        return [ids[slot.token + offset] for offset in (0, 1, 3, 4)]

    def _scorer(self, key: Class) -> SlotScorer:
        if key not in self._scorers:
            words = np.array(self.language.ids(self.dictionary.offer(*key).words), dtype=np.int64)
            self._scorers[key] = SlotScorer(self.language, words)
        return self._scorers[key]


def _in_order(weights: NDArray[np.float64], draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """The places of positive weight in the order in which they are drawn."""
    allowed = np.flatnonzero(weights > 0)
    order: NDArray[np.int64] = allowed[np.argsort(-np.log1p(-draws[allowed]) / weights[allowed], kind="stable")]
    return order
