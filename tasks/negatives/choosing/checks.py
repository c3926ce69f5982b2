"""What a candidate must pass for its words and its text alone: each check returns True or the reason of its refusal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from penumbra.tasks.negatives.choosing.guard import LeakageFilter
from penumbra.tasks.negatives.fills import put_words
from penumbra.tasks.negatives.providers import MaskedQuery, Slot
from penumbra.tasks.text.dictionary import Dictionary

Verdict = Literal[True] | str
Synonyms = Callable[[str, str], bool]  # whether two words mean nearly the same


@dataclass(frozen=True)
class Proposal:
    """A candidate as its provider gave it: words and text for a level of a query, and the query's video."""

    query: MaskedQuery
    level: int
    words: Sequence[str]
    text: str
    vid: str


@dataclass(frozen=True)
class Judge:
    """What the checks need to know of the data set."""

    dictionary: Dictionary
    guard: LeakageFilter
    positives: dict[str, frozenset[str]]  # of each video, lemmatised
    synonyms: Synonyms
    _offered: dict[tuple[str, str, str, str, str], bool] = field(default_factory=dict)

    def on_offer(self, slot: Slot, word: str) -> bool:
        """Whether a slot may take a word; asked once for each kind of slot."""
        key = (slot.primitive, slot.tag, slot.word, slot.lemma, word)
        if key not in self._offered:
            self._offered[key] = slot.may_take(word, self.dictionary)
        return self._offered[key]


def template(proposal: Proposal, judge: Judge) -> Verdict:
    """One word a slot, and every other character as it was."""
    slots = proposal.query.levels[proposal.level - 1]
    if len(slots) != len(proposal.words):
        return "template is not kept"
    return proposal.text == put_words(proposal.query, proposal.level, proposal.words) or "template is not kept"


def vocabulary(proposal: Proposal, judge: Judge) -> Verdict:
    """A word of the training split, of the slot's primitive and fine tag, and no form of the word that stood there."""
    slots = proposal.query.levels[proposal.level - 1]
    pairs = zip(slots, proposal.words, strict=True)
    return all(judge.on_offer(slot, word) for slot, word in pairs) or "word is not on offer for its slot"


def known_words(proposal: Proposal, judge: Judge) -> Verdict:
    """No word that the training split lacks: a fill may make one with what follows it without a blank ("light's")."""
    return judge.guard.knows(proposal.text) or "has a word that the training split lacks"


def near_synonym(proposal: Proposal, judge: Judge) -> Verdict:
    """At level 1, where nothing else may change, no word may mean nearly what the word it replaces means."""
    if proposal.level > 1:
        return True
    pairs = zip(proposal.query.levels[0], proposal.words, strict=True)
    return not any(judge.synonyms(slot.word.lower(), word) for slot, word in pairs) or "near-synonym of its slot's word"


def same_video(proposal: Proposal, judge: Judge) -> Verdict:
    """Not what someone said of the same video, inflections apart: that may be true of the moment."""
    is_positive = judge.guard.lemmatised(proposal.text) in judge.positives[proposal.vid]
    return not is_positive or "equals a positive of the same video"


def test_split(proposal: Proposal, judge: Judge) -> Verdict:
    """No query of a test split."""
    return not judge.guard.leaks(proposal.text) or "equals a query of a test split"


def composition(proposal: Proposal, judge: Judge) -> Verdict:
    """Without the two words of a composition that the test splits hold out."""
    return not judge.guard.composition(proposal.text) or "has a composition that a test split holds out"


def novel_word(proposal: Proposal, judge: Judge) -> Verdict:
    """Without a word that the test splits hold out."""
    return not judge.guard.word(proposal.text) or "has a word that a test split holds out"


Check = Callable[[Proposal, Judge], Verdict]
ALWAYS: tuple[Check, ...] = (template, vocabulary, known_words, near_synonym, same_video, test_split)
HELD_OUT: tuple[Check, ...] = (composition, novel_word)


def check(proposal: Proposal, judge: Judge, checks: Sequence[Check]) -> Verdict:
    """True, or the first reason to refuse a candidate."""
    return next((verdict for verdict in (passes(proposal, judge) for passes in checks) if verdict is not True), True)
