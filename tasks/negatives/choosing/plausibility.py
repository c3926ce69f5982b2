"""How natural a candidate reads.

Two Kneser-Ney trigram models, each of one half of the videos' training queries, read every text; the less favourable
counts, so that the sentence that a candidate was drawn from, which is in one half, can't vouch for it. A causal
language model may take their place. What n-grams let pass ("person wash a picture") the relations don't: those that a
candidate brings in and that human text lacks count against it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from penumbra.tasks.negatives.choosing.candidates import Candidate, Query
from penumbra.tasks.negatives.choosing.matching import Floats
from penumbra.tasks.negatives.providers.language_model import KneserNey
from penumbra.tasks.text.relations import Edge, Preferences, Relation, Tokens, edges, named

LOG_PROBABILITY_COST = 3.0  # cost of a unit of log-probability a token
UNSEEN_RELATION_COST = 3.0  # cost of a relation that was never seen
Scorer = Callable[[Sequence[str]], Floats]  # texts → mean natural log-probability a token


@dataclass
class HumanText:
    """Parsed sentences that people wrote, in two halves by video."""

    halves: tuple[list[list[str]], list[list[str]]] = field(default_factory=lambda: ([], []))
    parsed: list[Tokens] = field(default_factory=list)

    def add(self, vid: str, tokens: Tokens) -> None:
        """Add a query of a video's."""
        self.halves[blake2b(vid.encode(), digest_size=1).digest()[0] % 2].append(_words(tokens))
        self.parsed.append(tokens)

    def add_text(self, tokens: Tokens) -> None:
        """Add a sentence of another text: it is in both halves, for no candidate was drawn from it."""
        for half in self.halves:
            half.append(_words(tokens))
        self.parsed.append(tokens)


def _words(tokens: Iterable[Mapping[str, Any]]) -> list[str]:
    return [token["text"].lower() for token in tokens]


class Plausibility:
    """Scores candidates; `causal` takes the place of the trigram models."""

    def __init__(self, human: HumanText, causal: Scorer | None = None) -> None:
        self.causal = causal
        self.models = [] if causal else [KneserNey(half) for half in human.halves if half]
        self.preferences = Preferences(human.parsed)
        self._lemmas: dict[tuple[str, str], str] = {}
        for tokens in human.parsed:
            self._lemmas |= {(t["primitive"] or "", t["text"].lower()): t["lemma"] for t in tokens}

    def read(self, texts: Sequence[str], words: Sequence[Sequence[str]]) -> Floats:
        """The mean natural log-probability a token of each text; `words` are its lower-cased tokens."""
        if self.causal:
            return self.causal(texts)
        least: Floats = np.min([model.log_probability(words) for model in self.models], axis=0)
        return least

    def surprise(self, query: Query, level: int) -> list[float]:
        """For each candidate of a level, how unattested the relations are that it brings in."""
        slots = query.masked.levels[level - 1]
        tokens = query.masked.tokens
        touched = [e for e in edges(tokens) if not {slot.token for slot in slots}.isdisjoint(e)]
        original = [token["lemma"] for token in tokens]
        return [
            self.preferences.surprise(_fresh(touched, original, self._replaced(original, query, level, candidate)))
            for candidate in query.candidates[level]
        ]

    def _replaced(self, original: Sequence[str], query: Query, level: int, candidate: Candidate) -> list[str]:
        lemmas = list(original)
        for slot, word in zip(query.masked.levels[level - 1], candidate.words, strict=True):
            lemmas[slot.token] = self._lemmas.get((slot.primitive, word), word)
        return lemmas


def _fresh(touched: Iterable[Edge], original: Sequence[str], lemmas: Sequence[str]) -> set[Relation]:
    return {named(edge, lemmas) for edge in touched} - {named(edge, original) for edge in touched}


def tokens_of(query: Query, level: int, candidate: Candidate) -> list[str]:
    """A candidate's lower-cased tokens."""
    words = _words(query.masked.tokens)
    for slot, word in zip(query.masked.levels[level - 1], candidate.words, strict=True):
        words[slot.token] = word
    return words
