"""Is a sentence English? A cheap judgement by its words, made to let English pass, misspelt as it may be.

The stages after this one read English grammar: a sentence of another language would be tagged and filled as if it were.
Two signs tell another language: hardly a word is known (of those that the shipped tagger was trained on), or another
language's function words outnumber those of English while most other words are unknown.
"""

import json
import re
from functools import cache
from pathlib import Path

from penumbra.artifacts.locations import PROJECT

VOCABULARY = PROJECT / "models" / "tagger" / "vocab" / "strings.json"
FEWEST = 3  # words that can be judged
HARDLY = 1 / 3  # of the words are known
HALF = 1 / 2
WORD = re.compile(r"[^\W\d_]+")
QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|«[^»]*»")  # what a sentence quotes may be of any language

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
    """The language that a sentence is written in, or "another language"; "" where it may be English."""
    text = sentence.lower()
    words = WORD.findall(QUOTED.sub(" ", text)) or WORD.findall(text)
    if len(words) < FEWEST:
        return ""
    known = [word for word in words if word in ENGLISH or word in vocabulary()]
    if not OTHERS.isdisjoint(words):
        likeness = {language: _likeness(words, own) for language, own in WORDS.items()}
        language = max(likeness, key=likeness.__getitem__)
        rest = [word for word in known if word not in WORDS[language]]
        if likeness[language] > 0 and len(rest) < HALF * len(words):
            return language
    return "another language" if len(known) < HARDLY * len(words) else ""


def _likeness(words: list[str], own: frozenset[str]) -> int:
    """By how many a language's function words outnumber those of English; what both have counts for neither."""
    return sum(word in own - ENGLISH for word in words) - sum(word in ENGLISH - own for word in words)


@cache
def vocabulary() -> frozenset[str]:
    """The words that the shipped tagger has seen, in lower case."""
    return frozenset(word.lower() for word in json.loads(VOCABULARY.read_text(encoding="utf-8")))
