"""Provider `random`: any offered word with equal chance, the paper's own baseline (SHINE, Table 5)."""

from collections.abc import Iterator, Sequence

import numpy as np

from tasks.dictionary import Dictionary, Offer
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
                choices = [slot.choice(self.dictionary) for slot in slots]
                empty = [s for s, (offer, own) in zip(slots, choices, strict=True) if len(offer.words) == len(own)]
                for candidate in range(candidates):
                    if empty:
                        problem = f"no other {empty[0].primitive} than {empty[0].word!r} in the training split"
                        yield Fill(query.qid, level, (), problem)
                        continue
                    seeds = np.array([row_seed(self.seed, query.qid, level, candidate)], dtype=np.uint64)
                    draws = (float(uniform(seeds, turn)[0]) for turn in range(len(slots)))
                    words = (_pick(*choice, draw) for choice, draw in zip(choices, draws, strict=True))
                    yield Fill(query.qid, level, tuple(words))


def _pick(offer: Offer, own: tuple[int, ...], draw: float) -> str:
    """The word at a share of the offer, the slot's own places passed over."""
    place = int(draw * (len(offer.words) - len(own)))
    for taken in own:
        place += place >= taken
    return offer.words[place]
