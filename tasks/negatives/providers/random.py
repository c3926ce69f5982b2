"""Provider `random`, and the random numbers of all providers.

Each random number is a hash of (seed, query, counter), so a query gets the same numbers on every machine, in every
chunk and with any number of workers. The mixer is splitmix64 (Steele, Lea & Flood, 2014).
"""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Provider, Slot
from penumbra.tasks.text.dictionary import Dictionary

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def row_seed(seed: int, qid: str, *more: int) -> int:
    """Return a 64-bit seed for one query and any further numbers that identify the draw."""
    text = "\0".join([str(seed), qid, *map(str, more)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def uniform(seeds: NDArray[np.uint64], counter: int | NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the counter-th number of each seed, in [0, 1); seeds and counters are broadcast against each other."""
    with np.errstate(over="ignore"):
        z = seeds + _GOLDEN * np.asarray(counter + 1, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    draws: NDArray[np.float64] = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return draws


class RandomProvider(Provider):
    """Draws any word on offer with equal probability, the paper's own baseline (SHINE, Table 5)."""

    name = "random"
    model = "uniform"
    prompt = None

    def __init__(self, dictionary: Dictionary, seed: int) -> None:
        self.dictionary, self.seed = dictionary, seed

    def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        """Yield the fills in the queries' order; a candidate keeps a slot's word from level to level."""
        for chain in (chain for query in queries for chain in query.chains()):
            offered = {slot: slot.allowed(self.dictionary).words for slot in chain.levels[-1]}
            drawn = [self._draw(chain, offered, candidate) for candidate in range(candidates)]
            for level, slots in enumerate(chain.levels, chain.first):
                problem = next((slot.no_word_problem() for slot in slots if not offered[slot]), "")
                for words in drawn:
                    yield Fill(chain.qid, level, () if problem else tuple(words[slot] for slot in slots), problem)

    def _draw(self, chain: MaskedQuery, offered: dict[Slot, list[str]], candidate: int) -> dict[Slot, str]:
        """Return a word for each slot that has words on offer."""
        seeds = [row_seed(self.seed, chain.qid, chain.first, candidate, slot.token) for slot in offered]
        draws = uniform(np.array(seeds, dtype=np.uint64), 0)
        pairs = zip(offered.items(), draws, strict=True)
        return {slot: words[int(draw * len(words))] for (slot, words), draw in pairs if words}
