"""Compositions and words that the novel test splits hold out, and negatives that give them away.

Compositional splits label what is new in a test query: a pair of words that no training sentence brings together, or
a word that none has. A negative with such a pair shows it to the model in training, though it equals no test query.
Some labels are the labelling parser's slips ("person", "box"): what the training split itself has is not held out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass
class HeldOut:
    """What the test splits hold out, in lemmas: `pairs` goes from a word to its partners."""

    pairs: dict[str, set[str]] = field(default_factory=dict)
    words: set[str] = field(default_factory=set)

    def add(self, words: Iterable[str]) -> None:
        """Add a label's words: two are a composition, one is a word."""
        several = [word.lower() for word in words]
        if len(several) == 2:
            self.pairs.setdefault(several[0], set()).add(several[1])
        elif len(several) == 1:
            self.words.add(several[0])

    def known(self, lemmas: set[str]) -> None:
        """Take away what a training sentence of these lemmas has."""
        self.words -= lemmas
        for first in lemmas & self.pairs.keys():
            self.pairs[first] -= lemmas

    def pair_in(self, lemmas: set[str]) -> bool:
        """Whether a sentence of these lemmas has both words of a held-out composition."""
        return any(self.pairs[first] & lemmas for first in lemmas & self.pairs.keys())

    def word_in(self, lemmas: set[str]) -> bool:
        """Whether it has a held-out word."""
        return bool(self.words & lemmas)


def lemmas_of(words: Iterable[str], forms: Mapping[str, set[str]]) -> set[str]:
    """The words of a sentence with every lemma that they were seen under."""
    lemmas: set[str] = set()
    for word in words:
        lemmas.add(word)
        lemmas |= forms.get(word, set())
    return lemmas
