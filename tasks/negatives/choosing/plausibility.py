"""How natural a negative reads.

Two Kneser-Ney trigram models, each of one half of the videos' training queries, read every text; the less favourable
counts, so that the sentence that a candidate was drawn from, which is in one half, can't vouch for it. A causal
language model may take their place.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penumbra.tasks.negatives.choosing.candidates import Candidate, Query
from penumbra.tasks.negatives.providers.language_model import KneserNey, Trigrams
from penumbra.tasks.text.relations import Tokens

Floats = NDArray[np.float64]
Scorer = Callable[[Sequence[str]], Floats]  # texts → mean natural log-probability a token


@dataclass
class HumanText:
    """The trigrams of sentences that people wrote, of lower-cased tokens, in two halves by video."""

    halves: tuple[Trigrams, Trigrams] = field(default_factory=lambda: (Trigrams(), Trigrams()))

    def add(self, vid: str, tokens: Tokens) -> None:
        """Add a query of a video's."""
        self.halves[blake2b(vid.encode(), digest_size=1).digest()[0] % 2].add(_words(tokens))

    def add_text(self, tokens: Tokens) -> None:
        """Add a sentence of another text: it is in both halves, for no candidate was drawn from it."""
        for half in self.halves:
            half.add(_words(tokens))


def _words(tokens: Iterable[Mapping[str, Any]]) -> list[str]:
    return [token["text"].lower() for token in tokens]


class Plausibility:
    """Scores candidates; `causal` takes the place of the trigram models."""

    def __init__(self, human: HumanText, causal: Scorer | None = None) -> None:
        self.causal = causal
        self.models = [] if causal else [KneserNey(half) for half in human.halves if half.sentences]

    def read(self, texts: Sequence[str], words: Sequence[Sequence[str]]) -> Floats:
        """The mean natural log-probability a token of each text; `words` are its lower-cased tokens."""
        if self.causal:
            return self.causal(texts)
        least: Floats = np.min([model.log_probability(words) for model in self.models], axis=0)
        return least


def tokens_of(query: Query, level: int, candidate: Candidate) -> list[str]:
    """A candidate's lower-cased tokens."""
    words = _words(query.masked.tokens)
    for slot, word in zip(query.masked.levels[level - 1], candidate.words, strict=True):
        words[slot.token] = word
    return words
