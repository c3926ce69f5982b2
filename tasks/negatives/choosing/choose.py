"""Choose each query's negatives: natural ones, that together look like queries and fall from level to level."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penumbra.tasks.negatives.choosing.candidates import Candidate, Chain, Query, level_sets
from penumbra.tasks.negatives.choosing.matching import Flags, Floats, Ids, Matching, counts
from penumbra.tasks.negatives.choosing.nearness import Encode, Nearness
from penumbra.tasks.negatives.choosing.plausibility import (
    LOG_PROBABILITY_COST,
    UNSEEN_RELATION_COST,
    Plausibility,
    tokens_of,
)
from penumbra.tasks.text.embeddings import Vectors

LEVELS = (1, 2, 3)
JOINT_ROUNDS = 4  # rounds in which all queries choose anew; then only those whose choice did not hold
MASKED_SUBJECT_FACTOR = 5.0  # how much more plausibility counts where nothing can be made to match


@dataclass(frozen=True)
class Rules:
    """What a choice must keep, and how much plausibility counts beside the likeness to the queries."""

    ceiling: float
    floor: float
    nested: bool
    naturalness: float
    seed: int


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
    chosen: dict[str, dict[int, Chosen]] = {}
    if not any(several for query in queries for several in query.candidates.values()):
        return chosen
    scores = TextScores(queries, plausibility)
    for levels in level_sets(LEVELS):
        still_open = [q for q in queries if q.qid not in chosen and all(q.candidates.get(level) for level in levels)]
        chains = [query.chains(levels, rules.nested) for query in still_open]
        some = [(query, several) for query, several in zip(still_open, chains, strict=True) if several]
        if some:
            chosen |= _Choice(levels, some, positives, scores, rules, encode).solve()
    return chosen


class TextScores:
    """What each text of a part reads like: log-probability a token, and the surprise of each candidate."""

    def __init__(self, queries: Sequence[Query], plausibility: Plausibility) -> None:
        words = {query.text: [token["text"].lower() for token in query.masked.tokens] for query in queries}
        self.surprise: dict[Candidate, float] = {}
        for query in queries:
            for level, several in query.candidates.items():
                words |= {c.query: tokens_of(query, level, c) for c in several if c.query not in words}
                self.surprise |= zip(several, plausibility.surprise(query, level), strict=True)
        self.texts = list(words)
        self.number = {text: i for i, text in enumerate(self.texts)}
        self.log_probability = plausibility.read(self.texts, list(words.values())).round(4)
        self.features = counts(self.texts)


class _Choice:
    """The choice of some levels for the queries that have chains of them."""

    def __init__(
        self, levels: tuple[int, ...], queries: Sequence[tuple[Query, list[Chain]]], positives: dict[str, Vectors],
        scores: TextScores, rules: Rules, encode: Encode,
    ) -> None:  # fmt: skip
        self.levels, self.queries, self.scores, self.rules = levels, queries, scores, rules
        self.numbers = np.array([scores.number[query.text] for query, _ in queries])
        shape = (len(levels), len(queries), max(len(chains) for _, chains in queries))
        self.chains: Ids = np.full(shape, -1, dtype=np.int64)
        surprise = np.zeros(shape)
        for i, (_, chains) in enumerate(queries):
            for depth in range(len(levels)):
                self.chains[depth, i, : len(chains)] = [scores.number[chain[depth].query] for chain in chains]
                surprise[depth, i, : len(chains)] = [scores.surprise[chain[depth]] for chain in chains]
        self.worse = scores.log_probability[self.numbers][None, :, None] - scores.log_probability[self.chains]
        self.matched = self._matched()
        vectors = np.array([positives[query.text] for query, _ in queries])
        self.nearness = Nearness(scores.texts, vectors, self.chains, encode)
        self.cost = self._cost(surprise)

    def _matched(self) -> Flags:
        """Whether a level of a query can look like a query at all: not where the subject is masked.

        Nearly all queries of a data set may have the same subject ("person"), which a fill can't restore.
        """
        rows = [
            [
                not any(q.masked.tokens[s.token]["is_subject"] for s in q.masked.levels[level - 1])
                for q, _ in self.queries
            ]
            for level in self.levels
        ]
        return np.array(rows)

    def _cost(self, surprise: Floats) -> Floats:
        """The cost of each chain: (queries, most chains)."""
        each = self.rules.naturalness * (LOG_PROBABILITY_COST * self.worse + UNSEEN_RELATION_COST * surprise)
        cost: Floats = np.where(self.matched[:, :, None], each, MASKED_SUBJECT_FACTOR * each).sum(axis=0)
        return cost

    def solve(self) -> dict[str, dict[int, Chosen]]:
        """Match, see what that is near to, and match again where it does not hold."""
        matching = Matching(self.scores.features, self.numbers, self.chains, self.matched, self.rules.seed)
        who = np.arange(len(self.queries))
        allowed = self.nearness.allowed(self.rules.ceiling, self.rules.floor)
        holds: Flags = np.zeros(len(self.queries), dtype=bool)
        rounds = 0
        while len(who):
            matching.minimise(self.cost, allowed, who)
            unknown = self.nearness.learn(matching.picked)
            allowed = self.nearness.allowed(self.rules.ceiling, self.rules.floor)
            holds = allowed[np.arange(len(self.queries)), matching.picked]
            rounds += 1
            open_ones = np.flatnonzero(~holds & allowed.any(axis=1))
            who = np.arange(len(self.queries)) if len(unknown) and rounds < JOINT_ROUNDS else open_ones
        return {
            query.qid: self._chosen(i, int(matching.picked[i])) for i, (query, _) in enumerate(self.queries) if holds[i]
        }

    def _chosen(self, query: int, pick: int) -> dict[int, Chosen]:
        chain = self.queries[query][1][pick]
        return {
            level: Chosen(chain[depth], float(self.nearness.cosines[depth, query, pick]),
                          -float(self.worse[depth, query, pick]))
            for depth, level in enumerate(self.levels)
        }  # fmt: skip
