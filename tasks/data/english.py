"""Detect sentences in other languages by their words; English passes, even with misspellings.

The later stages read English grammar. A sentence is taken for another language if few of its words are known to the
shipped tagger, or if function words of another language outnumber those of English while most other words are unknown.
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
    text = sentence.lower()
    words = WORD.findall(QUOTED.sub(" ", text)) or WORD.findall(text)
    if len(words) < MIN_WORDS:
        return ""
    known = [word for word in words if word in ENGLISH or word in vocabulary()]
    if not OTHERS.isdisjoint(words):
        likeness = {language: _likeness(words, own) for language, own in WORDS.items()}
        language = max(likeness, key=likeness.__getitem__)
        rest = [word for word in known if word not in WORDS[language]]
        if likeness[language] > 0 and len(rest) < MIN_KNOWN_OTHERS * len(words):
            return language
    return "another language" if len(known) < MIN_KNOWN * len(words) else ""


def _likeness(words: list[str], own: frozenset[str]) -> int:
    """Return the number of words that only this language has as function words, minus that of English."""
    return sum(word in own - ENGLISH for word in words) - sum(word in ENGLISH - own for word in words)


@cache
def vocabulary() -> frozenset[str]:
    """Return the words that the shipped tagger knows, in lower case."""
    return frozenset(word.lower() for word in json.loads(VOCABULARY.read_text(encoding="utf-8")))
