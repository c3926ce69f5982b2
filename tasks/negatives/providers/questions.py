"""What a language model is asked about one query, and what its answer says.

A question is one line of text, as in

    person [4 opens: A closes B fixes] the [6 red: A green B old] [5 door: A window B box].

Each slot in brackets has a number (through the whole request, in the masking order within a line), the word that
stands there, and the words on offer, each with a letter. The answer is a JSON object from numbers to letters. So the
schema of an answer, with the letters as its enums, is the same for all requests of one shape: services need not
compile a new one each time, and find it in their prompt caches.

Levels are nested, so one answer fills all three: level k takes the words of its own slots.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from string import ascii_uppercase
from typing import Any

from penumbra.tasks.negatives.providers import MaskedQuery
from penumbra.tasks.text.masks import render

LETTERS = ascii_uppercase
MOST_ATTEMPTS = 3  # the first answer, and two more for what was wrong in it


@dataclass(frozen=True)
class Question:
    """A query, or a chain of its levels, as a language model is asked about it.

    `options` holds the words on offer by slot of the query's last level, `offer` the name by which they are found
    again; `chosen` the words that earlier answers chose rightly, by slot: they stand in the text as words, and only
    what is open is asked for again.
    """

    query: MaskedQuery
    options: tuple[tuple[str, ...], ...]
    candidate: int
    offer: str = ""
    attempt: int = 1
    chosen: dict[int, str] = field(default_factory=dict)

    @cached_property
    def open(self) -> list[int]:
        """The places of the slots that are asked for, in the masking order: none of a level that lacks words."""
        order = [slot.token for level in self.query.levels for slot in level]
        empty = {s.token for s, words in zip(self.query.levels[-1], self.options, strict=True) if not words}
        fillable = {slot.token for level in self.query.levels if not empty & {s.token for s in level} for slot in level}
        slots = enumerate(self.query.levels[-1])
        places = [i for i, slot in slots if slot.token in fillable and i not in self.chosen]
        return sorted(places, key=lambda place: order.index(self.query.levels[-1][place].token))

    @property
    def asker(self) -> str:
        """Whose question it is: the same text may be asked for several."""
        return f"{self.query.qid} {self.query.first} {self.candidate}"

    @property
    def shape(self) -> tuple[int, ...]:
        """How many words each open slot is offered: questions of one shape have one schema."""
        return tuple(len(self.options[place]) for place in self.open)

    def text(self, first: int = 1) -> str:
        """The line, its slots numbered from `first`."""
        slots = self.query.levels[-1]
        shown = {slots[place].token: slots[place].surface(word) for place, word in self.chosen.items()}
        for number, place in enumerate(self.open, first):
            offered = " ".join(f"{letter} {word}" for letter, word in zip(LETTERS, self.options[place], strict=False))
            shown[slots[place].token] = f"[{number} {slots[place].word}: {offered}]"
        return render(self.query.tokens, shown)

    def key(self, cache_key: dict[str, Any]) -> str:
        """The digest of what determines the answer: `cache_key` (service, model, prompt, sampling) and the text."""
        content = json.dumps([cache_key, self._line, self.attempt], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    @cached_property
    def _line(self) -> str:
        return self.text()

    def after(self, words: dict[int, str]) -> "Question":
        """The question for what is still open when these words are chosen, too."""
        chosen = {**self.chosen, **words}
        return Question(self.query, self.options, self.candidate, self.offer, self.attempt + 1, chosen)


def first_numbers(questions: Sequence[Question]) -> list[int]:
    """The number of each question's first slot in their request, and after them the one that would come next."""
    return list(accumulate((len(question.open) for question in questions), initial=1))


def letters(questions: Sequence[Question]) -> dict[str, list[str]]:
    """The slots of a request by number, with the letters that each may be answered with."""
    shapes = (count for question in questions for count in question.shape)
    return {str(number): list(LETTERS[:count]) for number, count in enumerate(shapes, 1)}


def asked_text(questions: Sequence[Question]) -> str:
    """The lines of a request."""
    return "\n".join(q.text(first) for q, first in zip(questions, first_numbers(questions), strict=False))


@lru_cache(maxsize=64)
def parse(text: str) -> dict[str, Any]:
    """The answer's numbers and values; empty where it is no JSON object. A number given twice has no value."""
    try:
        value = json.loads(_without_fence(text), object_pairs_hook=_unambiguous)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _without_fence(text: str) -> str:
    """Models without JSON mode like to wrap their answer in a fence of backticks."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        text = text[text.index("\n") : -3]
    return text


def _unambiguous(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for number, value in pairs:
        values[number] = None if number in values else value
    return values


def read(question: Question, first: int, text: str) -> tuple[dict[int, str], str]:
    """The words that an answer gives rightly, by slot, and what is wrong with the others ('' where nothing is)."""
    answer = parse(text)
    words: dict[int, str] = {}
    problem = ""
    for number, place in enumerate(question.open, first):
        value = answer.get(str(number))
        if not answer:
            problem = "answer is no JSON object with words"
        elif value is None:
            problem = problem or "answer lacks a slot"
        elif word := _chosen(value, question.options[place]):
            words[place] = word
        else:
            problem = problem or "word was not on offer"
    return words, problem


def _chosen(value: object, options: Sequence[str]) -> str:
    """The word that a value names, by its letter or, as some models will, by itself; '' where it names none."""
    text = value.strip() if isinstance(value, str) else ""
    letters = LETTERS[: len(options)]
    if len(text) == 1 and text in letters:
        return options[letters.index(text)]
    if text.lower() in options:
        return text.lower()
    small = len(text) == 1 and text in letters.lower()
    return options[letters.lower().index(text)] if small else ""
