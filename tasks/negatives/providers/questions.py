"""The questions to a hosted language model about queries, and what its answers say.

A question is a line such as `person [4 opens: A closes B fixes] the [5 door: A window B box].`: each slot has a number,
its word, and the words on offer by letter. The answer is a JSON object from numbers to letters, whose schema is the
same for all requests of one shape. Levels are nested, so one answer fills all of them.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from string import ascii_uppercase
from typing import Any

from penumbra.tasks.negatives.providers import MaskedQuery
from penumbra.tasks.negatives.providers.word_lists import WordLists
from penumbra.tasks.text.masks import render

LETTERS = ascii_uppercase


@dataclass(frozen=True)
class Question:
    """A query, or a chain of its levels, as a language model is asked about it.

    `options` has the words on offer for each slot of the last level, `offer` their name (`WordLists.name`), and
    `chosen` the words that earlier answers chose validly, by the slot's index: they are written into the text, and only
    the other slots are asked for again.
    """

    query: MaskedQuery
    options: tuple[tuple[str, ...], ...]
    candidate: int
    offer: str = ""
    attempt: int = 1
    chosen: dict[int, str] = field(default_factory=dict)

    @cached_property
    def open(self) -> list[int]:
        """Indices of the slots that are asked for, in the masking order; no slot of a level that lacks words."""
        order = [slot.token for level in self.query.levels for slot in level]
        empty = {s.token for s, words in zip(self.query.levels[-1], self.options, strict=True) if not words}
        fillable = {slot.token for level in self.query.levels if not empty & {s.token for s in level} for slot in level}
        slots = enumerate(self.query.levels[-1])
        indices = [i for i, slot in slots if slot.token in fillable and i not in self.chosen]
        return sorted(indices, key=lambda index: order.index(self.query.levels[-1][index].token))

    @property
    def asker(self) -> str:
        """The query, level and candidate that ask: several may have the same text."""
        return f"{self.query.qid} {self.query.first} {self.candidate}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of words on offer for each open slot."""
        return tuple(len(self.options[index]) for index in self.open)

    def text(self, first: int = 1) -> str:
        """Return the line, its slots numbered from `first`."""
        slots = self.query.levels[-1]
        shown = {slots[index].token: slots[index].surface(word) for index, word in self.chosen.items()}
        for number, index in enumerate(self.open, first):
            offered = " ".join(f"{letter} {word}" for letter, word in zip(LETTERS, self.options[index], strict=False))
            shown[slots[index].token] = f"[{number} {slots[index].word}: {offered}]"
        return render(self.query.tokens, shown)

    def key(self, cache_key: dict[str, Any]) -> str:
        """Return the digest of what determines the answer: `cache_key` (service, model, prompt, …), text, attempt."""
        content = json.dumps([cache_key, self._line, self.attempt], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    @cached_property
    def _line(self) -> str:
        return self.text()

    def after(self, words: dict[int, str]) -> "Question":
        """Return the question for the slots that are still open once these words are chosen."""
        return replace(self, attempt=self.attempt + 1, chosen={**self.chosen, **words})


def questions_of(lists: WordLists, queries: Sequence[MaskedQuery], candidates: int) -> list[Question]:
    """Return a question for each candidate and chain of levels, with lists of its own."""
    chains = [chain for query in queries for chain in query.chains()]
    return [
        Question(chain, tuple(words), candidate, lists.name(chain, candidate))
        for candidate in range(candidates)
        for chain, words in zip(chains, lists.draw(chains, candidate), strict=True)
    ]


def first_numbers(questions: Sequence[Question]) -> list[int]:
    """Return the number of each question's first slot in their request, and the number after the last slot."""
    return list(accumulate((len(question.open) for question in questions), initial=1))


def letters(questions: Sequence[Question]) -> dict[str, list[str]]:
    """Return the letters that may answer each slot of a request, by the slot's number."""
    shapes = (count for question in questions for count in question.shape)
    return {str(number): list(LETTERS[:count]) for number, count in enumerate(shapes, 1)}


def request_text(questions: Sequence[Question]) -> str:
    return "\n".join(q.text(first) for q, first in zip(questions, first_numbers(questions), strict=False))


# -- answers ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def parse(text: str) -> dict[str, Any]:
    """Return an answer's numbers and values; empty if it is no JSON object. A number that occurs twice has no value."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:  # models without JSON mode like such fences
        text = text[text.index("\n") : -3]

    def unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(number for number, _ in pairs)
        return {number: value if counts[number] == 1 else None for number, value in pairs}

    try:
        value = json.loads(text, object_pairs_hook=unambiguous)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read(question: Question, first: int, text: str) -> tuple[dict[int, str], str]:
    """Return the valid words of an answer, by the slot's index, and the problem of the others ('' if there is none)."""
    answer = parse(text)
    words: dict[int, str] = {}
    problem = ""
    for number, index in enumerate(question.open, first):
        value = answer.get(str(number))
        if not answer:
            problem = "answer is no JSON object with words"
        elif value is None:
            problem = problem or "answer lacks a slot"
        elif word := _chosen_word(value, question.options[index]):
            words[index] = word
        else:
            problem = problem or "word was not on offer"
    return words, problem


def _chosen_word(value: object, options: Sequence[str]) -> str:
    """Return the word that a value names by its letter or, as some models do, by itself; '' if it names none."""
    text = value.strip() if isinstance(value, str) else ""
    letters = LETTERS[: len(options)]
    if len(text) == 1 and text in letters:
        return options[letters.index(text)]
    if text.lower() in options:
        return text.lower()
    is_small_letter = len(text) == 1 and text in letters.lower()
    return options[letters.lower().index(text)] if is_small_letter else ""
