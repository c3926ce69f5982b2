"""Provider `random`: any offered word with equal chance, the paper's own baseline (SHINE, Table 5)."""

from collections.abc import Iterator, Sequence

import numpy as np

from tasks.dictionary import Dictionary
from tasks.providers import Fill, MaskedQuery
from tasks.providers.draws import row_seed, uniform


class RandomProvider:
    """Uniform over the words on offer; needs no key, no model and no network."""

    name = "random"
    model = "uniform"
    prompt = None

    def __init__(self, dictionary: Dictionary, seed: int) -> None:
        self.dictionary, self.seed = dictionary, seed

    def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        """Yield the fills in the queries' order; each slot of each level is drawn on its own."""
        for query in queries:
            for level, slots in enumerate(query.levels, 1):
                choices = [[w for w, fits in s.allowed(self.dictionary).items() if fits] for s in slots]
                empty = [slot for slot, words in zip(slots, choices, strict=True) if not words]
                for candidate in range(candidates):
                    if empty:
                        yield Fill(
                            query.qid,
                            level,
                            (),
                            f"no other {empty[0].primitive} than {empty[0].word!r} in the training split",
                        )
                        continue
                    seeds = np.array([row_seed(self.seed, query.qid, level, candidate)], dtype=np.uint64)
                    draws = [uniform(seeds, i)[0] for i in range(len(slots))]
                    words = (c[int(d * len(c))] for c, d in zip(choices, draws, strict=True))
                    yield Fill(query.qid, level, tuple(words))
