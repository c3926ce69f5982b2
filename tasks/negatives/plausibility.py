"""The plausibility of a text: the mean natural log-probability of its tokens.

Two Kneser-Ney trigram models, each of the training queries of one half of the videos, score every text, and the lower
score counts. So a candidate does not score high because its own sentence is in the model of one half.
"""

from functools import cached_property
from hashlib import blake2b

import numpy as np

from penumbra.tasks.negatives.providers.kneser_ney import KneserNey, Trigrams
from penumbra.tasks.text.relations import Tokens


class Plausibility:
    """Scores texts by the trigram models."""

    def __init__(self) -> None:
        self.halves = (Trigrams(), Trigrams())

    def add(self, vid: str, tokens: Tokens) -> None:
        """Add a human sentence: a query of a video, to the half of that video."""
        half = self.halves[blake2b(vid.encode(), digest_size=1).digest()[0] % 2]
        half.add([token["text"].lower() for token in tokens])

    @cached_property
    def models(self) -> list[KneserNey]:
        """The models of both halves; they are fitted at first use, when all sentences are added."""
        return [KneserNey(half) for half in self.halves if half.sentences]

    def score(self, texts: dict[str, list[str]]) -> dict[str, float]:
        """Return the mean log-probability of the tokens of each text, rounded; `texts` has the lower-cased tokens."""
        if not texts:
            return {}
        least = np.min([model.log_probability([*texts.values()]) for model in self.models], axis=0).round(4)
        return dict(zip(texts, map(float, least), strict=True))
