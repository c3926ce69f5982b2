"""Random numbers that depend on nothing but what they are for.

Each draw is a hash of (seed, query, counter), so the same query gets the same draws on every machine, in every
chunk and with any number of workers. The mixer is splitmix64 (Steele, Lea & Flood, 2014).
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def row_seed(seed: int, qid: str, *more: int) -> int:
    """A 64-bit seed for one query, and whatever else tells its draws apart."""
    text = "\0".join([str(seed), qid, *map(str, more)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def uniform(seeds: NDArray[np.uint64], counter: int | NDArray[np.int64]) -> NDArray[np.float64]:
    """The counter-th draw of each seed, in [0, 1); seeds and counters are broadcast against each other."""
    with np.errstate(over="ignore"):
        z = seeds + _GOLDEN * np.asarray(counter + 1, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    draws: NDArray[np.float64] = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return draws
