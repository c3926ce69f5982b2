"""What must not be given away: queries of the test splits, and the compositions and words that they hold out.

Compositional splits label what is new in a test query: a pair of words that no training sentence brings together, or
a word that none has. A negative with such a pair shows it to the model in training, though it equals no test query.
Some labels are the labelling parser's slips ("person", "box"): what a training sentence has is not held out. Nor does
a test query give anything away that the training split itself has, word for word: two fifths of Charades-CG's training
queries are also queries of its trivial test split.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

WORD = re.compile(r"(?:[^\W_]|')+")
TRAINING = "train"


class LeakageFilter:
    """The words of every split, and what of the test splits must not be shown."""

    def __init__(self, rows: Iterable[tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]], every: bool) -> None:
        """Read each query's row of `annotations` and its tokens; `every`: training queries are leaks too."""
        self.forms: dict[str, set[str]] = defaultdict(set)
        self.vocabulary: set[str] = set()  # of the training split
        self._pairs: dict[str, set[str]] = defaultdict(set)
        self._words: set[str] = set()
        self._tests: set[str] = set()
        training: set[str] = set()
        for row, tokens in rows:
            for token in tokens:
                self.forms[token["text"].lower()].add(token["lemma"])
            if row["split"] == TRAINING:
                training.add(normal_form(row["query"]))
                self.vocabulary.update(WORD.findall(row["query"].lower()))
            else:
                self._tests.add(normal_form(row["query"]))
            for label in row["novel"]:
                self._hold_out([word.lower() for word in label["words"]])
        for query in sorted(training):
            self._release(self._lemmas(query))
        self._tests -= set() if every else training
        self.lemmas = lru_cache(maxsize=1 << 16)(self._lemmas)

    def _hold_out(self, words: list[str]) -> None:
        if len(words) == 2:
            self._pairs[words[0]].add(words[1])
        elif len(words) == 1:
            self._words.add(words[0])

    def _release(self, lemmas: frozenset[str]) -> None:
        self._words -= lemmas
        for first in lemmas & self._pairs.keys():
            self._pairs[first] -= lemmas

    def _lemmas(self, text: str) -> frozenset[str]:
        """The words of a text, with every lemma that the data set has seen them under."""
        words = WORD.findall(text.lower())
        return frozenset(words).union(*(self.forms.get(word, ()) for word in words))

    def lemmatised(self, text: str) -> str:
        """A text's words, each by one of its lemmas: the same for "opens the doors" and "open the door"."""
        return " ".join(min(self.forms.get(word, (word,))) for word in WORD.findall(text.lower()))

    def knows(self, text: str) -> bool:
        """Whether the training split has all its words."""
        return self.vocabulary.issuperset(WORD.findall(text.lower()))

    def leaks(self, text: str) -> bool:
        """Whether it is a query of a test split."""
        return normal_form(text) in self._tests

    def composition(self, text: str) -> bool:
        """Whether it brings the two words of a held-out composition together."""
        lemmas = self.lemmas(text)
        return any(self._pairs[first] & lemmas for first in lemmas & self._pairs.keys())

    def word(self, text: str) -> bool:
        """Whether it has a held-out word."""
        return not self._words.isdisjoint(self.lemmas(text))


def normal_form(text: str) -> str:
    """What makes two queries the same: letters and digits, not case, blanks or punctuation."""
    return " ".join(WORD.findall(text.lower()))
