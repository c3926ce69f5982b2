"""The questions to a hosted language model about queries, and what its answers say.

A question is a line such as `person [4 opens: A closes B fixes] the [5 door: A window B box].`: each slot has a number,
its word, and the words on offer by letter. The answer is a JSON object from numbers to letters, whose schema is the
same for all requests of one shape. Levels are nested, so one answer fills all of them.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from string import ascii_uppercase
from typing import Any

import numpy as np

from penumbra.tasks.negatives.providers import MaskedQuery, SharedSettings, Slot, TrainingText
from penumbra.tasks.negatives.providers.answers import Answers
from penumbra.tasks.negatives.providers.kneser_ney import NOTHING, KneserNey, SlotScorer, Trigrams
from penumbra.tasks.negatives.providers.random import row_seed, uniform
from penumbra.tasks.text.masks import render
from penumbra.tasks.text.wordnet import is_entailed

LETTERS = ascii_uppercase
CELLS = 1 << 20  # scores computed at once: 8 MB a table
FEW = 2  # slots of a level that would be refused if all its words were entailed, as is likely with so few
FLATTEN = 0.75  # exponent of the contextual probability: below 1, so that lists vary

Class = tuple[str, str]  # primitive class and fine tag
Lists = list[tuple[str, ...]]  # the words on offer for each slot of a query's last level


# -- the words on offer -----------------------------------------------------------------------------------------------


class WordLists:
    """Draws short lists of dictionary words that a language model may choose from, at most `filling.options` a slot.

    They are drawn without replacement (Efraimidis & Spirakis 2006) with weights from the slot's context: a few words
    drawn uniformly from a dictionary of hundreds rarely contain one that fits. The draws depend on the seed, the query,
    the slot and the candidate's number only, so all providers are offered the same words.

    A slot of a level with few slots is not offered words that may be true of the moment, unless there are no others.

    The list of a question that `answers` has an answer to stays as it was, even if the dictionary has grown since.
    """

    def __init__(self, training: TrainingText, filling: SharedSettings, answers: Answers) -> None:
        sentences = ([token["text"].lower() for token in query] for query in training.tokens)
        self.language, self.dictionary = KneserNey(Trigrams(sentences)), training.dictionary
        self.count, self.seed, self.answers = filling.options, filling.seed, answers
        self._scorers: dict[Class, SlotScorer] = {}
        self._entailed: dict[tuple[Class, str], list[int]] = {}  # indices of words, by slot's class and word

    def name(self, query: MaskedQuery, candidate: int) -> str:
        """Return the digest of what a query's lists are drawn for."""
        slots = [[slot.token, slot.primitive, slot.tag, slot.word, slot.lemma] for slot in query.levels[-1]]
        texts = [token["text"] for token in query.tokens]
        content = [self.count, self.seed, query.qid, candidate, query.part, slots, texts]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def draw(self, queries: Sequence[MaskedQuery], candidate: int) -> list[Lists]:
        """Return each query's lists, in the queries' order; a list is empty where there is no other word."""
        lists: list[Lists] = []
        places: dict[Class, list[tuple[int, int]]] = defaultdict(list)  # query and slot of each list to draw
        for i, query in enumerate(queries):
            slots = query.levels[-1]
            known = self.answers.get(f"offer {self.name(query, candidate)}") or ()  # of an answered question
            if known and all(
                slot.may_take(w, self.dictionary) for slot, words in zip(slots, known, strict=False) for w in words
            ):
                lists.append([tuple(words) for words in known])
                continue
            lists.append([()] * len(slots))
            for j, slot in enumerate(slots):
                places[slot.choice(self.dictionary).key].append((i, j))
        for key, several in places.items():
            step = max(1, CELLS // max(1, len(self.dictionary.offer(*key).words)))
            for start in range(0, len(several), step):
                block = several[start : start + step]
                drawn = self._draw(key, [(queries[i], queries[i].levels[-1][j]) for i, j in block], candidate)
                for (i, j), words in zip(block, drawn, strict=True):
                    lists[i][j] = words
        return lists

    def _draw(self, key: Class, slots: list[tuple[MaskedQuery, Slot]], candidate: int) -> Lists:
        words = self.dictionary.offer(*key).words
        if not words:
            return [()] * len(slots)
        if key not in self._scorers:
            self._scorers[key] = SlotScorer(self.language, np.array(self.language.ids(words), dtype=np.int64))
        contexts = np.zeros((len(slots), 4), dtype=np.int64)  # the ids of the two words before a slot and after it
        for row, (query, slot) in enumerate(slots):
            ids = [1, 1, *self.language.ids(token["text"].lower() for token in query.tokens), 2, NOTHING]
            contexts[row] = [ids[slot.token + offset] for offset in (0, 1, 3, 4)]
        weights = self._scorers[key].score(*contexts.T) ** FLATTEN
        seeds = [row_seed(self.seed, query.qid, candidate, slot.token) for query, slot in slots]
        draws = uniform(np.array(seeds, dtype=np.uint64)[:, None], np.arange(len(words)))
        lists: Lists = []
        for (query, slot), row, draw in zip(slots, weights, draws, strict=True):
            row[list(slot.choice(self.dictionary).own)] = 0.0
            if slot in query.levels[0] and len(query.levels[0]) <= FEW:
                known = key, slot.word.lower()
                if known not in self._entailed:
                    entailed = [i for i, w in enumerate(words) if is_entailed(w, slot.word, slot.primitive)]
                    self._entailed[known] = entailed
                if np.delete(row, self._entailed[known]).any():
                    row[self._entailed[known]] = 0.0
            allowed = np.flatnonzero(row > 0)
            order = allowed[np.argsort(-np.log1p(-draw[allowed]) / row[allowed], kind="stable")]
            index, number = query.part
            lists.append(tuple(words[i] for i in order[index::number][: self.count]))
        return lists


# -- questions --------------------------------------------------------------------------------------------------------


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
        index = {slot.token: i for i, slot in enumerate(self.query.levels[-1])}
        fillable = [slots for slots in self.query.levels if all(self.options[index[slot.token]] for slot in slots)]
        asked = dict.fromkeys(index[slot.token] for slots in fillable for slot in slots)
        return [i for i in asked if i not in self.chosen]

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
        content = json.dumps([cache_key, self.text(), self.attempt], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

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
