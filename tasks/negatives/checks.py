"""The checks that a candidate must pass.

`LeakageFilter` refuses queries of the test splits, and compositions and words that the test splits label as novel.
Labels that a training sentence contradicts ("person", "box") are errors of the labelling parser and are ignored. A test
query that is also a training query is no leak (two fifths of Charades-CG's training queries are test queries, too).
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penumbra.tasks.data.rows import TRAINING, check_query
from penumbra.tasks.negatives.fills import put_words
from penumbra.tasks.negatives.providers import MaskedQuery, Slot, has_valence
from penumbra.tasks.text.dictionary import Dictionary
from penumbra.tasks.text.wordnet import forms, is_entailed, lemma

WORD = re.compile(r"(?:[^\W_]|')+")
ALWAYS = ("template", "vocabulary", "known_words", "near_synonym", "false", "valence", "same_video", "test_split")
QueriesWithTokens = Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]
SLOT_CHECKS = {"vocabulary", "near_synonym", "false", "valence"}  # have no meaning if the template is not kept


@dataclass(eq=False)
class Candidate:
    """A fill or a whole sentence, with a reviewer's `verdict` and its `rank` among the candidates that pass."""

    text: str
    words: tuple[str, ...]
    provider: str
    model: str
    verdict: str = ""
    rank: int = 0
    changes: tuple[str, ...] = ()  # of `clean_text`


def normal_form(text: str) -> str:
    """Return the letters and digits of a text, without case, blanks and punctuation: equal queries have one form."""
    return " ".join(WORD.findall(text.lower()))


def may_be_true(slots: Sequence[Slot], words: Sequence[str]) -> bool:
    """Return whether the query with these words may be true of its moment: if each is entailed by its slot's word."""
    return all(is_entailed(word, slot.word, slot.primitive) for slot, word in zip(slots, words, strict=True))


def sentence_fault(text: str, query: str) -> str:
    """Return why a text can't be a negative of a query (unusable text, or equal to the query), or ''."""
    if fault := check_query(text):
        return fault.replace("query", "negative", 1)
    return "equals its query" if normal_form(text) == normal_form(query) else ""


def queries_with_tokens(tables: Iterable[tuple[pa.Table, ...]]) -> QueriesWithTokens:
    """Yield the annotations and tokens of each query of these `annotations` and `tags`."""
    for annotated, tagged in tables:
        rows = annotated.select(["split", "vid", "query", "novel"]).to_pylist()
        yield from zip(rows, tagged["tokens"].to_pylist(), strict=True)


class LeakageFilter:
    """The words of all splits, and the queries, compositions and words of test splits that no negative may repeat."""

    def __init__(self, rows: Iterable[tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]], every: bool) -> None:
        """Read annotations and tokens of each query; with `every`, test queries that training has are leaks, too."""
        self.forms: dict[str, set[str]] = defaultdict(set)  # word → lemmas
        self.vocabulary: set[str] = set()  # of the training split
        self._pairs: dict[str, set[str]] = defaultdict(set)  # the held-out compositions
        self._words: set[str] = set()
        self._unseen: set[str] = set()  # words that only test splits have
        self._tests: set[str] = set()
        self.is_labelled = False  # whether a test split labels its novel compositions or words
        training: set[str] = set()
        for row, tokens in rows:
            for token in tokens:
                self.forms[token["text"].lower()].add(token["lemma"])
            if row["split"] == TRAINING:
                training.add(normal_form(row["query"]))
                self.vocabulary.update(WORD.findall(row["query"].lower()))
            else:
                self._tests.add(normal_form(row["query"]))
                self._unseen.update(WORD.findall(row["query"].lower()))
            for label in row["novel"]:
                self.is_labelled = True
                words = [word.lower() for word in label["words"]]
                if len(words) == 2:
                    self._pairs[words[0]].add(words[1])
                elif len(words) == 1:
                    self._words.add(words[0])
        self._unseen -= self.vocabulary
        for query in sorted(training):
            lemmas = self.lemmas(query)
            self._words -= lemmas
            for first in lemmas & self._pairs.keys():
                self._pairs[first] -= lemmas
        self._tests -= set() if every else training

    def lemmas(self, text: str) -> set[str]:
        """Return the words of a text and all lemmas that the data set has for them."""
        words = set(WORD.findall(text.lower()))
        for word in tuple(words):
            words |= self.forms.get(word, set())
        return words

    def lemmatised(self, text: str) -> str:
        """Return a text with one lemma for each word: the same for "opens the doors" and "open the door"."""
        return " ".join([min(self.forms.get(word, (word,))) for word in WORD.findall(text.lower())])

    def has_only_known_words(self, text: str, others: Collection[str] = ()) -> bool:
        """Return whether training has all words of a text; words in `others` may be new, but from no test split."""
        unknown = set(WORD.findall(text.lower())) - self.vocabulary
        return unknown <= set(others) and unknown.isdisjoint(self._unseen)

    def leaks(self, text: str) -> bool:
        """Return whether a text is a query of a test split."""
        return normal_form(text) in self._tests

    def held_out(self, text: str) -> tuple[bool, bool]:
        """Return whether a text has both words of a held-out composition, and whether it has a held-out word."""
        lemmas = self.lemmas(text)
        compositions = [first for first in lemmas & self._pairs.keys() if self._pairs[first] & lemmas]
        return bool(compositions), bool(self._words & lemmas)

    def results(self, text: str, queries: Collection[str], names: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield the checks of a whole text as `Checks.results` does; those of held-out words only if in `names`."""
        is_query = self.lemmatised(text) in queries
        yield "same_video", "equals a positive of the same video" if is_query else ""
        yield "test_split", "equals a query of a test split" if self.leaks(text) else ""
        if "composition" in names:
            has_composition, has_word = self.held_out(text)
            yield "composition", "has a composition that a test split holds out" if has_composition else ""
            yield "novel_word", "has a word that a test split holds out" if has_word else ""

    def refusal(self, text: str, query: str, queries: Collection[str], names: Collection[str]) -> str:
        """Return why a whole sentence is no negative of a query, or ''."""
        results = (reason for _, reason in self.results(text, queries, names) if reason)
        return sentence_fault(text, query) or next(results, "")


@dataclass
class Checks:
    """The checks of a candidate's words and text, with the data that they need."""

    leakage: LeakageFilter
    dictionary: Dictionary
    synonyms: Mapping[str, Collection[str]]  # word → words that mean nearly the same
    names: Sequence[str]  # of the checks, as in the table `negatives`

    def results(
        self, query: MaskedQuery, level: int, queries: Collection[str], words: Sequence[str], text: str
    ) -> Iterator[tuple[str, str]]:
        """Yield the name of each check with the reason of its refusal or ''; each check runs when it is iterated to.

        The candidate `text` has `words` in the slots of `level`; `queries` are the lemmatised queries of the same
        video, any of which may be true of the moment.
        """
        slots = query.levels[level - 1]
        is_kept = len(slots) == len(words) and text == put_words(query, level, words)
        yield "template", "" if is_kept else "template is not kept"
        # words of the dictionary, and English words of the slot's primitive and fine tag; no form of the masked word
        is_offered = all(map(self._is_on_offer, slots, words))
        yield "vocabulary", "" if is_offered else "word is not on offer for its slot"
        # a fill may join the text that follows it ("light's")
        is_known = self.leakage.has_only_known_words(text, words)
        yield "known_words", "" if is_known else "has a word of a test split that the training split lacks"
        # only at level 1, where no other word may change
        pairs = zip(slots, words, strict=True) if level == 1 else ()
        is_synonym = any(word in self.synonyms.get(slot.word.lower(), ()) for slot, word in pairs)
        yield "near_synonym", "near-synonym of its slot's word" if is_synonym else ""
        yield "false", "may be true of the moment: its words are entailed" if may_be_true(slots, words) else ""
        fits = all(has_valence(query.tokens, slot, word) for slot, word in zip(slots, words, strict=True))
        yield "valence", "" if fits else "verb with an object that it cannot take, or without one that it needs"
        yield from self.leakage.results(text, queries, self.names)

    def refusal(self, query: MaskedQuery, level: int, queries: Collection[str], words: Sequence[str], text: str) -> str:
        """Return the reason of the first refusal by a check of `names`, or ''; for the arguments see `results`."""
        results = self.results(query, level, queries, words, text)
        return next((reason for name, reason in results if reason and name in self.names), "")

    def _is_on_offer(self, slot: Slot, word: str) -> bool:
        """Return whether a slot may take a word, of the dictionary or English, that is no form of its own word."""
        is_english = (slot.primitive, slot.tag) in forms(word) and not slot.is_subject
        is_other = lemma(word, slot.primitive) not in (slot.lemma, lemma(slot.word, slot.primitive))
        return slot.may_take(word, self.dictionary) or (is_english and is_other)
