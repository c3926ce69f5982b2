"""The checks that a candidate must pass: each returns True or the reason of its refusal.

`LeakageFilter` knows what of the test splits must not be shown in training: their queries, and the compositions and
words that they hold out. Compositional splits label what is new in a test query: a pair of words that no training
sentence has together, or a word that none has. Labels that a training sentence contradicts ("person", "box") are
errors of the labelling parser and are ignored. Nor is a test query a leak that is, word for word, a training query:
two fifths of Charades-CG's training queries are also queries of its trivial test split.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from penumbra.tasks.negatives.fills import put_words
from penumbra.tasks.negatives.providers import MaskedQuery, Slot
from penumbra.tasks.text.dictionary import Dictionary

WORD = re.compile(r"(?:[^\W_]|')+")
TRAINING = "train"
Verdict = Literal[True] | str  # True, or the reason of the refusal


def normal_form(text: str) -> str:
    """Return the letters and digits of a text, without case, blanks and punctuation: equal queries have one form."""
    return " ".join(WORD.findall(text.lower()))


class LeakageFilter:
    """The words of all splits, and what of the test splits must not be shown in training."""

    def __init__(self, rows: Iterable[tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]], every: bool) -> None:
        """Read the annotations and the tokens of each query; with `every`, training queries are leaks, too."""
        self.forms: dict[str, set[str]] = defaultdict(set)  # word → lemmas
        self.vocabulary: set[str] = set()  # of the training split
        self._pairs: dict[str, set[str]] = defaultdict(set)  # the held-out compositions
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
                words = [word.lower() for word in label["words"]]
                if len(words) == 2:
                    self._pairs[words[0]].add(words[1])
                elif len(words) == 1:
                    self._words.add(words[0])
        for query in sorted(training):
            lemmas = self._lemmas(query)
            self._words -= lemmas
            for first in lemmas & self._pairs.keys():
                self._pairs[first] -= lemmas
        self._tests -= set() if every else training
        self.lemmas = lru_cache(maxsize=1 << 16)(self._lemmas)

    def _lemmas(self, text: str) -> frozenset[str]:
        """Return the words of a text and all lemmas that the data set has for them."""
        words = WORD.findall(text.lower())
        return frozenset(words).union(*(self.forms.get(word, ()) for word in words))

    def lemmatised(self, text: str) -> str:
        """Return a text with one lemma for each word: the same for "opens the doors" and "open the door"."""
        return " ".join(min(self.forms.get(word, (word,))) for word in WORD.findall(text.lower()))

    def knows(self, text: str) -> bool:
        """Return whether the training split has all words of a text."""
        return self.vocabulary.issuperset(WORD.findall(text.lower()))

    def leaks(self, text: str) -> bool:
        """Return whether a text is a query of a test split."""
        return normal_form(text) in self._tests

    def has_composition(self, text: str) -> bool:
        """Return whether a text has both words of a held-out composition."""
        lemmas = self.lemmas(text)
        return any(self._pairs[first] & lemmas for first in lemmas & self._pairs.keys())

    def has_word(self, text: str) -> bool:
        """Return whether a text has a held-out word."""
        return not self._words.isdisjoint(self.lemmas(text))


@dataclass(frozen=True)
class Proposal:
    """A candidate to be checked: words and text for a level of a query, and the query's video."""

    query: MaskedQuery
    level: int
    words: Sequence[str]
    text: str
    vid: str

    @property
    def slots(self) -> Sequence[Slot]:
        """The slots of the level."""
        return self.query.levels[self.level - 1]


@dataclass(frozen=True)
class CheckContext:
    """What the checks need to know of the data set."""

    dictionary: Dictionary
    leakage: LeakageFilter
    queries: dict[str, frozenset[str]]  # the lemmatised queries of each video
    are_synonyms: Callable[[str, str], bool]
    _offered: dict[tuple[str, str, str, str, str], bool] = field(default_factory=dict)

    def is_on_offer(self, slot: Slot, word: str) -> bool:
        """Return whether a slot may take a word; computed once for each kind of slot."""
        key = (slot.primitive, slot.tag, slot.word, slot.lemma, word)
        if key not in self._offered:
            self._offered[key] = slot.may_take(word, self.dictionary)
        return self._offered[key]


# The names of these functions are the names of the checks in the table `negatives`.


def template(proposal: Proposal, context: CheckContext) -> Verdict:
    """Require one word for each slot, and every other character unchanged."""
    if len(proposal.slots) != len(proposal.words):
        return "template is not kept"
    return proposal.text == put_words(proposal.query, proposal.level, proposal.words) or "template is not kept"


def vocabulary(proposal: Proposal, context: CheckContext) -> Verdict:
    """Require words of the training split with the slot's primitive and fine tag, and no form of the masked word."""
    for slot, word in zip(proposal.slots, proposal.words, strict=True):
        if not context.is_on_offer(slot, word):
            return "word is not on offer for its slot"
    return True


def known_words(proposal: Proposal, context: CheckContext) -> Verdict:
    """Refuse a word that the training split lacks: a fill may join the text that follows it ("light's")."""
    return context.leakage.knows(proposal.text) or "has a word that the training split lacks"


def near_synonym(proposal: Proposal, context: CheckContext) -> Verdict:
    """Refuse at level 1, where nothing else may change, a word that means nearly the same as the masked word."""
    if proposal.level == 1:
        for slot, word in zip(proposal.slots, proposal.words, strict=True):
            if context.are_synonyms(slot.word.lower(), word):
                return "near-synonym of its slot's word"
    return True


def same_video(proposal: Proposal, context: CheckContext) -> Verdict:
    """Refuse a query of the same video, inflections apart: it may be true of the moment."""
    is_query = context.leakage.lemmatised(proposal.text) in context.queries[proposal.vid]
    return not is_query or "equals a positive of the same video"


def test_split(proposal: Proposal, context: CheckContext) -> Verdict:
    """Refuse a query of a test split."""
    return not context.leakage.leaks(proposal.text) or "equals a query of a test split"


def composition(proposal: Proposal, context: CheckContext) -> Verdict:
    """Refuse a composition that the test splits hold out."""
    return not context.leakage.has_composition(proposal.text) or "has a composition that a test split holds out"


def novel_word(proposal: Proposal, context: CheckContext) -> Verdict:
    """Refuse a word that the test splits hold out."""
    return not context.leakage.has_word(proposal.text) or "has a word that a test split holds out"


Check = Callable[[Proposal, CheckContext], Verdict]
ALWAYS: tuple[Check, ...] = (template, vocabulary, known_words, near_synonym, same_video, test_split)
HELD_OUT: tuple[Check, ...] = (composition, novel_word)


def check(proposal: Proposal, context: CheckContext, checks: Sequence[Check]) -> Verdict:
    """Return True, or the reason of the first refusal."""
    for passes in checks:
        if (verdict := passes(proposal, context)) is not True:
            return verdict
    return True
