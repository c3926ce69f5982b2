"""Detect sentences in other languages by their words, because the later stages read English grammar.

A sentence is in another language if the shipped tagger knows few of its words, or if it has more function words of that
language than of English and most other words are unknown. One or two words are judged by the whole data set.
"""

import json
import re
from collections.abc import Iterable
from functools import cache
from itertools import islice
from pathlib import Path

from penumbra.artifacts.locations import PROJECT

VOCABULARY = PROJECT / "models" / "tagger" / "vocab" / "strings.json"
MIN_WORDS = 3  # shorter sentences pass, unless the whole data set is in another language
JUDGED = 10_000  # sentences of a data set from which its language is determined
MIN_KNOWN = 1 / 3  # of the words
MIN_KNOWN_OTHERS = 1 / 2  # of the words, apart from the other language's function words
WORD = re.compile(r"[^\W\d_]+")
QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|«[^»]*»")  # a quotation may be in any language

WORDS = {  # the function words of each language
    language: frozenset(words.split())
    for language, _, words in (
        line.partition(":")
        for line in Path(__file__).with_name("function_words.txt").read_text(encoding="utf-8").splitlines()
    )
}
ENGLISH = WORDS.pop("English")
OTHERS = frozenset[str]().union(*WORDS.values()) - ENGLISH


def foreign(sentence: str, whole: str = "") -> str:
    """Return the language of a sentence, or "another language"; "" if it may be English.

    A short sentence with an unknown word is in the language of the `whole` data set.
    """
    words = _words(sentence)
    known = [word for word in words if word in ENGLISH or word in vocabulary()]
    if len(words) < MIN_WORDS:
        return whole if len(known) < len(words) else ""
    if not OTHERS.isdisjoint(words):
        language, likeness = _most_like(words)
        rest = [word for word in known if word not in WORDS[language]]
        if likeness > 0 and len(rest) < MIN_KNOWN_OTHERS * len(words):
            return language
    return "another language" if len(known) < MIN_KNOWN * len(words) else ""


def language_of(sentences: Iterable[str]) -> str:
    """Return the language of sentences together, or "another language"; "" if it may be English."""
    words = [word for sentence in islice(sentences, JUDGED) for word in _words(sentence)]
    known = sum(word in ENGLISH or word in vocabulary() for word in words)
    if len(words) < MIN_WORDS or known >= MIN_KNOWN_OTHERS * len(words):
        return ""
    language, likeness = _most_like(words)
    return language if likeness > 0 else "another language"


def _words(sentence: str) -> list[str]:
    text = sentence.lower()
    return WORD.findall(QUOTED.sub(" ", text)) or WORD.findall(text)


def _most_like(words: list[str]) -> tuple[str, int]:
    """Return the language with the most words that only it has as function words, minus those of English."""
    likeness = {
        language: sum(word in own - ENGLISH for word in words) - sum(word in ENGLISH - own for word in words)
        for language, own in WORDS.items()
    }
    language = max(likeness, key=likeness.__getitem__)
    return language, likeness[language]


@cache
def vocabulary() -> frozenset[str]:
    """Return the words that the shipped tagger knows, in lower case."""
    return frozenset(word.lower() for word in json.loads(VOCABULARY.read_text(encoding="utf-8")))
