"""Provider `corpus`: words drawn from the training text's own statistics of what goes with what.

Gibbs sampling: a slot's word is drawn given the two words on either side under a Kneser-Ney trigram model of the
training queries, slot after slot, several sweeps, every level on its own from the original query. Candidates of a
level differ from each other. No key, no network, no model to download.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tasks.dictionary import Dictionary
from tasks.providers import Fill, MaskedQuery, Slot
from tasks.providers.draws import row_seed, uniform
from tasks.providers.language_model import NOTHING, KneserNey, SlotScorer

SWEEPS = 6  # before a chain's first fill
THIN = 2  # sweeps between two fills of a chain
MOST_SLOTS = 512  # a query has at most 256 words
CELLS = 1 << 20  # scores computed at once: 8 MB a table

Class = tuple[str, str]


@dataclass
class _Chain:
    """One query at one level: its words' ids between <s> <s> and </s>, and the fills that it has given."""

    qid: str
    level: int
    slots: tuple[Slot, ...]
    classes: tuple[Class, ...]
    ids: list[int]
    given: set[tuple[int, ...]] = field(default_factory=set)
    problem: str = ""
    seed: int = 0

    @property
    def words(self) -> tuple[int, ...]:
        return tuple(self.ids[slot.token + 2] for slot in self.slots)


class CorpusProvider:
    """Samples fills from the training split; the same seed gives the same fills everywhere."""

    name = "corpus"
    model = "kneser-ney-3"
    prompt = None

    def __init__(self, sentences: Iterable[Sequence[str]], dictionary: Dictionary, seed: int) -> None:
        self.language = KneserNey(sentences)
        self.dictionary, self.seed = dictionary, seed
        self._scorers: dict[Class, SlotScorer] = {}
        self._masks: dict[tuple[str, str, str, str], NDArray[np.bool_]] = {}

    def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        """Yield the fills candidate after candidate; fewer than asked for where a level has no more to give."""
        chains = [self._chain(query, level) for query in queries for level in range(1, len(query.levels) + 1)]
        for candidate in range(candidates):
            if candidate:
                chains = [chain for chain in chains if not chain.problem]
            for chain in chains:
                chain.seed = row_seed(self.seed, chain.qid, chain.level, candidate)
            for sweep in range(THIN if candidate else SWEEPS):
                self._sweep(chains, sweep)
            for chain in chains:
                if not chain.problem:
                    chain.given.add(chain.words)
                    yield Fill(chain.qid, chain.level, tuple(self._texts[i] for i in chain.words))
                elif not chain.given:
                    yield Fill(chain.qid, chain.level, (), chain.problem)

    @cached_property
    def _texts(self) -> list[str]:
        return list(self.language.index)

    def _chain(self, query: MaskedQuery, level: int) -> _Chain:
        ids = self.language.ids(token["text"].lower() for token in query.tokens)
        slots = query.levels[level - 1]
        classes = tuple(slot.offered_class(self.dictionary) for slot in slots)
        chain = _Chain(query.qid, level, slots, classes, [1, 1, *ids, 2])
        stuck = next((slot for slot in chain.slots if not self._mask(slot).any()), None)
        if stuck:
            chain.problem = f"no other {stuck.primitive} than {stuck.word!r} in the training split"
        return chain

    def _scorer(self, key: Class) -> SlotScorer:
        if key not in self._scorers:
            words = self.language.ids(self.dictionary.offer(*key).words)
            self._scorers[key] = SlotScorer(self.language, np.array(words, dtype=np.int64))
        return self._scorers[key]

    def _mask(self, slot: Slot) -> NDArray[np.bool_]:
        key = (slot.primitive, slot.tag, slot.word, slot.lemma)
        if key not in self._masks:
            self._masks[key] = np.array(list(slot.allowed(self.dictionary).values()), dtype=bool)
        return self._masks[key]

    def _sweep(self, chains: list[_Chain], sweep: int) -> None:
        """Draw every slot once; slots of one class and tag are drawn side by side."""
        for turn in range(max((len(chain.slots) for chain in chains), default=0)):
            groups: dict[Class, list[_Chain]] = defaultdict(list)
            for chain in chains:
                if not chain.problem and turn < len(chain.slots):
                    groups[chain.classes[turn]].append(chain)
            for key, members in groups.items():
                step = max(1, CELLS // len(self._scorer(key).words))
                for start in range(0, len(members), step):
                    self._draw(self._scorer(key), members[start : start + step], turn, sweep)

    def _draw(self, scorer: SlotScorer, chains: list[_Chain], turn: int, sweep: int) -> None:
        tokens = [chain.slots[turn].token for chain in chains]
        around = [
            (*chain.ids[t : t + 2], *chain.ids[t + 3 : t + 5], NOTHING)[:4]
            for chain, t in zip(chains, tokens, strict=True)
        ]
        scores = scorer.score(*np.array(around, dtype=np.int64).T)
        scores *= np.sqrt(np.sqrt(scores))  # to the power 1.25: a little more of what is usual
        scores *= np.stack([self._mask(chain.slots[turn]) for chain in chains])
        self._forbid_repeats(scorer, scores, chains, turn)
        mass = np.cumsum(scores, axis=1)
        seeds = np.array([chain.seed for chain in chains], dtype=np.uint64)
        draws = uniform(seeds, sweep * MOST_SLOTS + turn) * mass[:, -1]
        chosen = (mass <= draws[:, None]).sum(axis=1)
        for chain, token, column, total in zip(chains, tokens, chosen.tolist(), mass[:, -1].tolist(), strict=True):
            if total > 0:
                chain.ids[token + 2] = int(scorer.words[column])
            else:
                chain.problem = "no further fill"

    @staticmethod
    def _forbid_repeats(scorer: SlotScorer, scores: NDArray[np.float64], chains: list[_Chain], turn: int) -> None:
        """Take away the words that would complete a fill which the chain has given before."""
        for row, chain in enumerate(chains):
            if not chain.given:
                continue
            words = chain.words
            for given in chain.given:
                if given[:turn] == words[:turn] and given[turn + 1 :] == words[turn + 1 :]:
                    scores[row, scorer.column(given[turn])] = 0.0
