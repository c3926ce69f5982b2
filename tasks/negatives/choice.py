"""The choice of one candidate for each level of a query: the first ones, by providers, that fit together."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice, pairwise, product

from penumbra.tasks.negatives.checks import Candidate
from penumbra.tasks.negatives.providers import MaskedQuery
from penumbra.tasks.progress import counting
from penumbra.tasks.text.embeddings import Vectors, cosine

LEVELS = (1, 2, 3)
LEVEL_SETS = [levels for size in (3, 2, 1) for levels in combinations(LEVELS, size)]  # most levels first
MOST_CHAINS = 256  # that are considered at a time


Chain = tuple[Candidate, ...]  # one candidate for each of some levels


class Candidates:
    """The candidates of a query at a level, in the order of the providers, each text once.

    A candidate is checked when it is needed, because most queries take the first one that passes. `refusals` counts the
    reasons of those that do not pass.
    """

    def __init__(self, fills: Iterable[Candidate], refusal: Callable[[Sequence[str], str], str]) -> None:
        distinct: dict[str, Candidate] = {}
        for fill in fills:
            distinct.setdefault(fill.text, fill)
        self._untried, self._refusal = iter(distinct.values()), refusal
        self._passed: list[Candidate] = []
        self.refusals = Counter[str]()

    def first(self, most: int) -> list[Candidate]:
        """Return the first `most` candidates that pass, or all if there are fewer."""
        while len(self._passed) < most and (fill := next(self._untried, None)):
            if reason := self._refusal(fill.words, fill.text):
                self.refusals[reason] += 1
            else:
                fill.rank = len(self._passed)
                self._passed.append(fill)
        return self._passed[:most]


@dataclass
class Query:
    """A query with its candidates by level, and the lemmatised queries of its video.

    A level of `accepted` has one candidate, which a reviewer accepted. `edits` are sentences that a reviewer wrote.
    """

    masked: MaskedQuery
    text: str
    candidates: dict[int, Candidates] = field(default_factory=dict)
    same_video: set[str] = field(default_factory=set)
    accepted: set[int] = field(default_factory=set)
    edits: dict[int, Candidate] = field(default_factory=dict)

    def has(self, levels: Sequence[int]) -> bool:
        """Return whether any candidate of each of these levels passes."""
        return all(level in self.candidates and self.candidates[level].first(1) for level in levels)

    def chains(self, levels: Sequence[int]) -> Iterator[Chain]:
        """Yield chains: one candidate for each level, with distinct texts, each keeping the words of the one before.

        Chains of the first candidate of each level come first, then those of the first two, of four, and so on. A level
        with the slots of the level before can't keep its words: then every candidate goes with every chain.
        """
        done, most = 0, 1
        while True:
            offered = [self.candidates[level].first(most) for level in levels]
            if max(map(len, offered)) <= done:
                return
            chains: Iterable[Chain] = zip(offered[0])
            for pair, candidates in zip(pairwise(levels), offered[1:], strict=True):
                chains = self._longer(list(chains), *pair, candidates)
            distinct = (chain for chain in chains if len({it.text for it in chain}) == len(chain))
            ranked = [(max(it.rank for it in chain), chain) for chain in islice(distinct, MOST_CHAINS)]
            yield from (chain for rank, chain in sorted(ranked, key=lambda pair: pair[0]) if rank >= done)
            done, most = most, 2 * most

    def _longer(
        self, chains: Sequence[Chain], before: int, level: int, candidates: Sequence[Candidate]
    ) -> Iterator[Chain]:
        """Yield each chain with each candidate of a level that keeps the words of its last one (level `before`)."""
        slots = [slot.token for slot in self.masked.levels[level - 1]]
        kept = [slots.index(slot.token) for slot in self.masked.levels[before - 1]]
        for candidate in candidates:
            words = tuple([candidate.words[place] for place in kept])
            yield from ((*it, candidate) for it in chains if len(kept) == len(slots) or it[-1].words == words)


def choose(
    queries: Sequence[Query], vectors: Mapping[str, Vectors], encode: Callable[[Sequence[str]], Vectors], ceiling: float
) -> dict[str, dict[int, tuple[Candidate, float]]]:
    """Return each query's choice by its id: a candidate and its cosine to the query for each level that has one.

    All queries try their first chain; queries whose chain fails try their second one, and so on. The levels of a chain
    are compared one after the other, so that the texts after a failed level are not encoded. `vectors` are the
    embeddings of the queries by text; `ceiling` is the highest cosine of level 1 to the query.
    """
    encoded, choices = dict[str, Vectors](), dict[str, dict[int, tuple[Candidate, float]]]()
    tick = counting("queries", len(queries))
    for has_accepted, levels in product((True, False), LEVEL_SETS):  # first the sets with all accepted levels
        undecided = [query for query in queries if query.masked.qid not in choices]
        possible = [query for query in undecided if query.accepted.issubset(levels) == has_accepted]
        left = [(query, query.chains(levels)) for query in possible if query.has(levels)]
        while left:
            trying = [(query, chains, chain) for query, chains in left if (chain := next(chains, None))]
            holding = [(query, chain, list[float]()) for query, _, chain in trying]
            for place in range(len(levels)):
                fresh = sorted({chain[place].text for _, chain, _ in holding} - encoded.keys())
                encoded |= zip(fresh, encode(fresh), strict=True) if fresh else ()
                compared, holding = holding, []
                for query, chain, cosines in compared:
                    similarity = cosine(vectors[query.text], encoded[chain[place].text])
                    if similarity < cosines[-1] if cosines else similarity <= ceiling:
                        holding.append((query, chain, [*cosines, similarity]))
            for query, chain, cosines in holding:
                choices[query.masked.qid] = dict(zip(levels, zip(chain, cosines, strict=True), strict=True))
                tick(1)
            left = [(query, chains) for query, chains, _ in trying if query.masked.qid not in choices]
    return choices
