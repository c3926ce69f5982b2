"""Similarity to the query: below a ceiling, above a floor, and falling from level to level.

Texts are encoded only when they have been picked: a candidate that is never picked costs nothing.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from penumbra.tasks.negatives.choosing.matching import Flags, Ids
from penumbra.tasks.text.embeddings import Vectors

Cosines = NDArray[np.float32]
Encode = Callable[[Sequence[str]], Vectors]


class Nearness:
    """The cosines of chains to their queries, as far as they are known (NaN: not yet).

    `chains` (levels, queries, most chains) holds the numbers of their texts, -1 for none; `positives` the queries'
    vectors.
    """

    def __init__(self, texts: Sequence[str], positives: Vectors, chains: Ids, encode: Encode) -> None:
        self.texts, self.positives, self.chains, self.encode = texts, positives, chains, encode
        self.cosines: Cosines = np.full(chains.shape, np.nan, dtype=np.float32)
        self.vectors: dict[int, Vectors] = {}

    def learn(self, picked: Ids) -> Ids:
        """Encode what these picks (-1: none) have that is not known yet; returns the queries that it was not."""
        who = np.flatnonzero(picked >= 0)
        unknown = np.isnan(self.cosines[:, who, picked[who]])
        wanted = np.unique(self.chains[:, who, picked[who]][unknown])
        fresh = [int(number) for number in wanted if int(number) not in self.vectors]
        if fresh:
            self.vectors |= zip(fresh, self.encode([self.texts[number] for number in fresh]), strict=True)
        for level, place in zip(*np.nonzero(unknown), strict=True):
            query = who[place]
            number = int(self.chains[level, query, picked[query]])
            cosine = np.dot(self.positives[query], self.vectors[number])
            # the last bits depend on the machine: they must not decide
            self.cosines[level, query, self.chains[level, query] == number] = round(float(cosine), 4)
        return who[unknown.any(axis=0)]

    def allowed(self, ceiling: float, floor: float) -> Flags:
        """The chains (queries, most chains) that nothing known forbids."""
        first = self.cosines[0]
        forbidden: Flags = (first > ceiling) | (first < floor) | (self.chains[0] < 0)
        for above, below in zip(self.cosines, self.cosines[1:], strict=False):
            forbidden |= below >= above
        return ~forbidden
