"""Adversarial selection: of all candidates, those that a reader of texts alone can't tell from the queries.

A text-only classifier finds negatives by the words and pairs of words that are commoner among them than among the
queries, or rarer. So the choice makes each word and pair as common on either side: it minimises, over words and pairs
f and for each level,

    sum over f of (N(f) - P(f))² / (P(f) + PRIOR)  +  cost of the chosen

where P and N count the queries and the chosen negatives with f: the chi-squared distance of the two texts, in the
spirit of SugarCrepe's adversarial refinement (Hsieh et al., NeurIPS 2023). It is fitted to no classifier. The sum is
minimised by passing over the queries in random order, a block at a time: each takes the chain of candidates that suits
best what the others have taken.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

PRIOR = 2.0  # occurrences: below about so many a classifier learns nothing from a word
SWEEPS = 12  # passes over the queries at most
CONVERGED = 0.004  # share of queries that still change when it is enough
BLOCK = 4  # queries that choose at once: each takes the others for what they were

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def counts(texts: Sequence[str]) -> Any:
    """Which words and pairs of neighbours each text has: a sparse matrix (texts, features) of 0 and 1."""
    from sklearn.feature_extraction.text import CountVectorizer

    return CountVectorizer(ngram_range=(1, 2), binary=True, dtype=np.float32).fit_transform(texts).tocsr()


class Matching:
    """Chooses a chain for each query.

    `features` (texts, features); `positives` (queries) the number of each query's text; `chains` (levels, queries,
    most chains) those of the chains' texts; `matched` (levels, queries) whether a level of a query is to look like it.
    """

    def __init__(self, features: Any, positives: Ids, chains: Ids, matched: Flags, seed: int) -> None:
        self.starts, self.columns = features.indptr, features.indices
        self.positives, self.chains, self.matched = positives, np.maximum(chains, 0), matched  # -1: no chain
        self.random = np.random.default_rng(seed)
        self.picked: Ids = np.full(len(positives), -1, dtype=np.int64)
        human = [np.bincount(self._of(positives[mine])[0], minlength=features.shape[1]) for mine in matched]
        self.weights = [1.0 / (common + PRIOR) for common in human]
        self.surplus = [-common.astype(np.float64) for common in human]  # N - P, while nothing is chosen

    def _of(self, texts: Ids) -> tuple[Ids, Ids]:
        """The features of several texts, and which of the texts each is of."""
        first = self.starts[texts]
        sizes = self.starts[texts + 1] - first
        which = np.repeat(np.arange(len(texts)), sizes)
        return self.columns[np.arange(len(which)) + (first - np.cumsum(sizes) + sizes)[which]], which

    def minimise(self, cost: Floats, allowed: Flags, who: Ids) -> None:
        """Choose for the queries `who` among the chains that are allowed, at most cost (queries, most chains)."""
        who = who[allowed[who].any(axis=1)]
        fresh = who[self.picked[who] < 0]
        self.picked[fresh] = np.where(allowed[fresh], cost[fresh], np.inf).argmin(axis=1)
        self._count(fresh, 1)
        for _ in range(SWEEPS):
            moved = 0
            order = self.random.permutation(who)
            for start in range(0, len(order), BLOCK):
                some = order[start : start + BLOCK]
                self._count(some, -1)
                best = np.where(allowed[some], cost[some] + self._misfit(some), np.inf).argmin(axis=1)
                moved += int((best != self.picked[some]).sum())
                self.picked[some] = best
                self._count(some, 1)
            if moved <= CONVERGED * len(who):
                return

    def _count(self, who: Ids, sign: int) -> None:
        """Add what these queries have picked to the surplus, or take it away."""
        for level, mine in enumerate(self.matched):
            here = who[mine[who]]
            np.add.at(self.surplus[level], self._of(self.chains[level, here, self.picked[here]])[0], sign)

    def _misfit(self, some: Ids) -> Floats:
        """What each chain of these queries adds to the distance, given what all other queries have taken."""
        misfit = np.zeros((len(some), self.chains.shape[2]))
        for level, mine in enumerate(self.matched):
            here = mine[some]
            who = some[here]
            human, _ = self._of(self.positives[who])
            np.add.at(self.surplus[level], human, 1)  # these queries are no part of what is to be matched, either
            columns, which = self._of(self.chains[level, who].ravel())
            adds = self.weights[level][columns] * (self.surplus[level][columns] + 0.5)
            each = np.bincount(which, weights=adds, minlength=len(who) * misfit.shape[1])
            misfit[here] += each.reshape(len(who), misfit.shape[1])
            np.add.at(self.surplus[level], human, -1)
        return misfit
