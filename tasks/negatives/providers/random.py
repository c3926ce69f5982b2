"""Provider `random`: any offered word with equal chance, the paper's own baseline (SHINE, Table 5)."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Provider, Slot
from penumbra.tasks.negatives.providers.draws import row_seed, uniform
from penumbra.tasks.negatives.providers.registry import ProviderSettings, Shared, TrainingText
from penumbra.tasks.text.dictionary import Dictionary


class Random(ProviderSettings):
    """Provider random has no parameters of its own."""

    provider: ClassVar[str] = "random"
    about: ClassVar[str] = "any offered word, the paper's baseline"
    free: ClassVar[bool] = True

    def make(self, training: TrainingText, filling: Shared, run: str) -> Provider:
        """What draws from the dictionary."""
        return RandomProvider(training.dictionary, filling.seed)


class RandomProvider:
    """Uniform over the words on offer; needs no key, no model and no network."""

    name = "random"
    model = "uniform"
    prompt = None

    def __init__(self, dictionary: Dictionary, seed: int) -> None:
        self.dictionary, self.seed = dictionary, seed
        self._choices: dict[tuple[str, str, str, str], list[str]] = {}

    def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        """Yield the fills in the queries' order; a candidate keeps a slot's word from level to level."""
        for query in queries:
            for chain in query.chains():
                drawn = [self._words(chain, candidate) for candidate in range(candidates)]
                for level, slots in enumerate(chain.levels, chain.first):
                    empty = next((slot for slot in slots if not self._choice(slot)), None)
                    problem = f"no other {empty.primitive} than {empty.word!r} in the training split" if empty else ""
                    for words in drawn:
                        yield Fill(query.qid, level, () if empty else tuple(words[slot] for slot in slots), problem)

    def _choice(self, slot: Slot) -> list[str]:
        key = (slot.primitive, slot.tag, slot.word, slot.lemma)
        if key not in self._choices:
            offer, own = slot.choice(self.dictionary)
            self._choices[key] = [word for place, word in enumerate(offer.words) if place not in own]
        return self._choices[key]

    def _words(self, chain: MaskedQuery, candidate: int) -> dict[Slot, str]:
        """A word for each slot that has any."""
        slots = [slot for slot in chain.levels[-1] if self._choice(slot)]
        seeds = [row_seed(self.seed, chain.qid, chain.first, candidate, slot.token) for slot in slots]
        draws = uniform(np.array(seeds, dtype=np.uint64), 0)
        choices = map(self._choice, slots)
        return {s: words[int(draw * len(words))] for s, words, draw in zip(slots, choices, draws, strict=True)}
