"""Detect sentences in other languages by their words, because the later stages read English grammar.

A sentence is in another language if the shipped tagger knows few of its words, or if it has more function words of that
language than of English and most other words are unknown.
"""

import json
import re
from functools import cache
from pathlib import Path

from penumbra.artifacts.locations import PROJECT

VOCABULARY = PROJECT / "models" / "tagger" / "vocab" / "strings.json"
MIN_WORDS = 3  # shorter sentences pass
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


def foreign(sentence: str) -> str:
    """Return the language of a sentence, or "another language"; "" if it may be English."""
    words = _words(sentence)
    if len(words) < MIN_WORDS:
        return ""
    known = [word for word in words if word in ENGLISH or word in vocabulary()]
    if not OTHERS.isdisjoint(words):
        # the language with the most words that only it has as function words, minus those of English
        likeness = {
            language: sum(word in own - ENGLISH for word in words) - sum(word in ENGLISH - own for word in words)
            for language, own in WORDS.items()
        }
        language = max(likeness, key=likeness.__getitem__)
        rest = [word for word in known if word not in WORDS[language]]
        if likeness[language] > 0 and len(rest) < MIN_KNOWN_OTHERS * len(words):
            return language
    return "another language" if len(known) < MIN_KNOWN * len(words) else ""


def _words(sentence: str) -> list[str]:
    text = sentence.lower()
    return WORD.findall(QUOTED.sub(" ", text)) or WORD.findall(text)


@cache
def vocabulary() -> frozenset[str]:
    """Return the words that the shipped tagger knows, in lower case."""
    return frozenset(word.lower() for word in json.loads(VOCABULARY.read_text(encoding="utf-8")))
