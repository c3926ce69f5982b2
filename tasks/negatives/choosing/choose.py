"""Choose each query's negatives: the first of its candidates, in their providers' order, that hold together.

They hold where level 1 is no paraphrase of the query and each level is further from it than the one before. Nothing
else is asked: likeness to all queries, a natural reading beyond the provider's own, and a floor were tried, and models
learned less from what was chosen by them (docs/does-it-help.md).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from penumbra.tasks.negatives.choosing.candidates import Candidate, Chain, Query, level_sets
from penumbra.tasks.negatives.choosing.plausibility import Plausibility, tokens_of
from penumbra.tasks.progress import counting, uncounted
from penumbra.tasks.text.embeddings import Vectors

LEVELS = (1, 2, 3)

Encode = Callable[[Sequence[str]], Vectors]
Together = tuple[Chain, tuple[float, ...]]  # candidates, one a level, with their cosines to the query


@dataclass(frozen=True)
class Rules:
    """What a choice must keep: level 1 at most this near to the query, and whether levels keep each other's words."""

    ceiling: float
    nested: bool


@dataclass
class Chosen:
    """A negative: the candidate, its cosine to the query, and how much less natural than the query it reads."""

    candidate: Candidate
    similarity: float
    plausibility: float


def choose(
    queries: Sequence[Query], positives: dict[str, Vectors], plausibility: Plausibility, encode: Encode, rules: Rules
) -> dict[str, dict[int, Chosen]]:
    """For each query, its negatives by level: all levels where they can be had together, or as many as can."""
    nearness, found = Nearness(positives, encode), dict[str, tuple[Query, Sequence[int], Together]]()
    tick = counting("queries", len(queries))
    for levels in level_sets(LEVELS):
        still_open = [q for q in queries if q.qid not in found and all(q.has(level) for level in levels)]
        chains = [(query, query.chains(levels, rules.nested)) for query in still_open]
        held = first_that_hold(chains, nearness, rules, tick)
        found |= {query.qid: (query, levels, first) for query, first in held}
    return _described(found.values(), plausibility)


class Nearness:
    """Cosines of texts to queries. Each text is encoded once, and only where it is asked for."""

    def __init__(self, positives: dict[str, Vectors], encode: Encode) -> None:
        self.positives, self.encode, self.vectors = positives, encode, dict[str, Vectors]()

    def learn(self, texts: Iterable[str]) -> None:
        """Encode those that are not known yet."""
        fresh = sorted(set(texts) - self.vectors.keys())
        if fresh:
            self.vectors |= zip(fresh, self.encode(fresh), strict=True)

    def of(self, query: Query, text: str) -> float:
        """The cosine; the last bits depend on the machine and must not decide."""
        return round(float(np.dot(self.positives[query.text], self.vectors[text])), 4)


def first_that_hold(
    queries: Iterable[tuple[Query, Iterator[Chain]]],
    nearness: Nearness,
    rules: Rules,
    tick: Callable[[int], None] = uncounted,
) -> list[tuple[Query, Together]]:
    """For each query the first of its chains that holds, where one does.

    All queries try their first chain, those for which it does not hold their second, and so on. Of each chain the
    levels are compared one after the other, so that no text is encoded whose chain has failed before it.
    """
    left, found = list(queries), list[tuple[Query, Together]]()
    while left:
        trying = [(query, chains, chain) for query, chains in left if (chain := next(chains, None))]
        holding: list[tuple[Query, Together]] = [(query, (chain, ())) for query, _, chain in trying]
        for place in range(max((len(chain) for *_, chain in trying), default=0)):
            holding = _one_level_further(holding, place, nearness, rules.ceiling)
        found += holding
        tick(len(holding))
        done = {query.qid for query, _ in holding}
        left = [(query, chains) for query, chains, _ in trying if query.qid not in done]
    return found


def _one_level_further(
    several: Sequence[tuple[Query, Together]], place: int, nearness: Nearness, ceiling: float
) -> list[tuple[Query, Together]]:
    """Those chains whose candidate at this place holds as well, with its cosine."""
    nearness.learn(chain[place].text for _, (chain, _) in several)
    compared = [(query, chain, cosines, nearness.of(query, chain[place].text)) for query, (chain, cosines) in several]
    return [
        (query, (chain, (*cosines, cosine)))
        for query, chain, cosines, cosine in compared
        if (cosine < cosines[-1] if cosines else cosine <= ceiling)
    ]


def _described(
    found: Iterable[tuple[Query, Sequence[int], Together]], plausibility: Plausibility
) -> dict[str, dict[int, Chosen]]:
    """What was chosen, with how natural it reads beside its query."""
    several = list(found)
    words = {query.text: [token["text"].lower() for token in query.masked.tokens] for query, _, _ in several}
    for query, levels, (chain, _) in several:
        words |= {c.text: tokens_of(query, level, c) for level, c in zip(levels, chain, strict=True)}
    read = plausibility.read(list(words), list(words.values())).round(4) if words else ()
    natural = dict(zip(words, map(float, read), strict=True))
    return {
        query.qid: {
            level: Chosen(candidate, cosine, natural[candidate.text] - natural[query.text])
            for level, candidate, cosine in zip(levels, chain, cosines, strict=True)
        }
        for query, levels, (chain, cosines) in several
    }
