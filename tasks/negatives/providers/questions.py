"""The questions to a hosted language model about queries, its answers, and the provider that reads them from the cache.

A question is a line such as `person [4 opens: A closes B fixes] the [5 door: A window B box].`: each slot has a number,
its word, and the words on offer by letter. The answer is a JSON object from numbers to letters, whose schema is the
same for all requests of one shape. Levels are nested, so one answer fills all of them.

Row "question KEY" of the cache names an answer or has the service's refusal, "answer NAME" has the answer to a
request, and "offer NAME" has, by slot, the words that were on offer in an answered question.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from string import ascii_uppercase
from typing import Any

import numpy as np

from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Provider, SharedSettings, Slot, TrainingText
from penumbra.tasks.negatives.providers.answers import Answers
from penumbra.tasks.negatives.providers.kneser_ney import NOTHING, Ids, KneserNey, SlotScorer, Trigrams
from penumbra.tasks.negatives.providers.random import row_seed, uniform
from penumbra.tasks.text.masks import render
from penumbra.tasks.text.wordnet import is_entailed

LETTERS = ascii_uppercase
CELLS = 1 << 20  # scores computed at once: 8 MB a table
FEW = 2  # slots of a first level that is offered no entailed words: with so few, an answer may consist of these
FLATTEN = 0.75  # exponent of the contextual probability: below 1, so that lists vary
MOST_ATTEMPTS = 3  # the first answer, and two more for what was wrong with it
UNANSWERED = "not answered yet"

Class = tuple[str, str]  # primitive class and fine tag
Lists = list[tuple[str, ...]]  # the words on offer for each slot of a query's last level


# -- the words on offer ------------------------------------------------------------------------------------------------


class WordLists:
    """Draws short lists of dictionary words that a language model may choose from, at most `filling.options` a slot.

    They are drawn without replacement (Efraimidis & Spirakis 2006) with weights from the slot's context: a few words
    drawn uniformly from a dictionary of hundreds rarely contain one that fits. The draws depend on the seed, the query,
    the slot and the candidate's number only, so all providers are offered the same words.

    A slot of a level with few slots is not offered words that may be true of the moment, unless there are no others.

    A question with an answer in `answers` keeps its lists, even if the dictionary has grown since.
    """

    def __init__(self, training: TrainingText, filling: SharedSettings, answers: Answers) -> None:
        sentences = ([token["text"].lower() for token in query] for query in training.tokens)
        self.language, self.dictionary = KneserNey(Trigrams(sentences)), training.dictionary
        self.count, self.seed, self.answers = filling.options, filling.seed, answers
        self._scorers: dict[Class, SlotScorer] = {}
        self._entailed: dict[tuple[Class, str], Ids] = {}  # indices of words, by slot's class and word

    def name(self, query: MaskedQuery, candidate: int) -> str:
        """Return the name of a query's lists: a digest of the query, its slots, the candidate and the settings."""
        slots = [[slot.token, slot.primitive, slot.tag, slot.word, slot.lemma] for slot in query.levels[-1]]
        texts = [token["text"] for token in query.tokens]
        return _digest([self.count, self.seed, query.qid, candidate, query.part, slots, texts])

    def draw(self, queries: Sequence[MaskedQuery], candidate: int) -> list[Lists]:
        """Return each query's lists, in the queries' order; a list is empty where there is no other word."""
        lists = [self._kept(query, candidate) for query in queries]
        places: dict[Class, list[tuple[int, int]]] = defaultdict(list)  # query and slot of each list to draw
        for i, query in enumerate(queries):
            if not lists[i]:
                lists[i] = [()] * len(query.levels[-1])
                for j, slot in enumerate(query.levels[-1]):
                    if (allowed := slot.allowed(self.dictionary)).offer.words:
                        places[allowed.key].append((i, j))
        for key, several in places.items():
            slots = [(queries[i], queries[i].levels[-1][j]) for i, j in several]
            for (i, j), words in zip(several, self._draw(key, slots, candidate), strict=True):
                lists[i][j] = words
        return lists

    def _kept(self, query: MaskedQuery, candidate: int) -> Lists:
        """Return the lists of an answered question; none if a slot may not take one of its words any more."""
        known = self.answers.get(f"offer {self.name(query, candidate)}") or ()
        pairs = [(slot, word) for slot, words in zip(query.levels[-1], known, strict=False) for word in words]
        are_valid = all(slot.may_take(word, self.dictionary) for slot, word in pairs)
        return [tuple(words) for words in known] if are_valid else []

    def _draw(self, key: Class, slots: Sequence[tuple[MaskedQuery, Slot]], candidate: int) -> Iterator[tuple[str, ...]]:
        """Yield the list of each of these slots of one class and tag."""
        words = self.dictionary.offer(*key).words
        if key not in self._scorers:
            self._scorers[key] = SlotScorer(self.language, np.array(self.language.ids(words), dtype=np.int64))
        step = max(1, CELLS // len(words))
        for block in (slots[start : start + step] for start in range(0, len(slots), step)):
            contexts = np.zeros((len(block), 4), dtype=np.int64)  # the ids of the two words before a slot and after it
            for row, (query, slot) in enumerate(block):
                ids = [1, 1, *self.language.ids(token["text"].lower() for token in query.tokens), 2, NOTHING]
                contexts[row] = [ids[slot.token + offset] for offset in (0, 1, 3, 4)]
            weights = self._scorers[key].score(*contexts.T) ** FLATTEN
            seeds = [row_seed(self.seed, query.qid, candidate, slot.token) for query, slot in block]
            draws = uniform(np.array(seeds, dtype=np.uint64)[:, None], np.arange(len(words)))
            for (query, slot), row, draw in zip(block, weights, draws, strict=True):
                row[list(slot.allowed(self.dictionary).excluded)] = 0.0
                if slot in query.levels[0] and len(query.levels[0]) <= FEW:
                    same = key, slot.word.lower()
                    if same not in self._entailed:
                        self._entailed[same] = np.flatnonzero(
                            [is_entailed(word, slot.word, slot.primitive) for word in words]
                        )
                    if np.delete(row, self._entailed[same]).any():
                        row[self._entailed[same]] = 0.0
                allowed = np.flatnonzero(row > 0)
                order = allowed[np.argsort(-np.log1p(-draw[allowed]) / row[allowed], kind="stable")]
                index, number = query.part
                yield tuple(words[i] for i in order[index::number][: self.count])


def _digest(content: list[Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# -- questions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """A question to a language model about a query, or about a chain of its levels.

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
    def levels(self) -> dict[int, list[int]]:
        """The indices of each level's slots."""
        index = {slot.token: i for i, slot in enumerate(self.query.levels[-1])}
        levels = enumerate(self.query.levels, self.query.first)
        return {level: [index[slot.token] for slot in slots] for level, slots in levels}

    @cached_property
    def open(self) -> list[int]:
        """Indices of the slots that are asked for, in the masking order, without levels that lack words on offer."""
        fillable = [slots for slots in self.levels.values() if all(self.options[i] for i in slots)]
        return [i for i in dict.fromkeys(chain.from_iterable(fillable)) if i not in self.chosen]

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
        return _digest([cache_key, self.text(), self.attempt])

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


# -- answers -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def parse(text: str) -> dict[str, Any]:
    """Return an answer's numbers and values; empty if it is no JSON object. A number that occurs twice has no value."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:  # models without JSON mode may write fences
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
    if question.open and not answer:
        return {}, "answer is no JSON object with words"
    words, problem = dict[int, str](), ""
    for number, index in enumerate(question.open, first):
        value = answer.get(str(number))
        if word := _chosen_word(value, question.options[index]):
            words[index] = word
        else:
            problem = problem or ("answer lacks a slot" if value is None else "word was not on offer")
    return words, problem


def _chosen_word(value: object, options: Sequence[str]) -> str:
    """Return the word that a value names by its letter or, as some models do, by itself; '' if it names none."""
    text = value.strip() if isinstance(value, str) else ""
    by_letter = dict(zip(LETTERS, options, strict=False))
    if text in by_letter or text.lower() in options:
        return by_letter.get(text) or text.lower()
    return by_letter.get(text.upper(), "") if text.isascii() else ""


# -- the attempts at a question ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """A service's answer to a request of `questions` questions by the run `run`; without `text`, `problem` says why."""

    text: str | None
    problem: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float
    run: str = ""
    questions: int = 1


def store(answers: Answers, request: Sequence[Question], cache_key: dict[str, Any], answer: Answer) -> None:
    keys = [question.key(cache_key) for question in request]
    name = hashlib.sha256("".join(keys).encode()).hexdigest()
    rows: dict[str, Any] = {f"answer {name}": asdict(answer)}
    for number, (question, key, first) in enumerate(zip(request, keys, first_numbers(request), strict=False), 1):
        rows[f"question {key}"] = {"answer": name, "number": number, "first": first, "asker": question.asker}
        rows[f"offer {question.offer}"] = question.options
    answers.put(rows)


@dataclass(frozen=True)
class Attempt:
    """An answer to a question, or the service's permanent refusal: the valid words, and what was wrong.

    `number` (from 1) is the question's number in the request. `shared` is whether another query asked the same question
    first and bears the cost.
    """

    question: Question
    words: dict[int, str]
    problem: str
    answer: Answer | None = None
    number: int = 1
    shared: bool = False


def attempt_history(
    question: Question, cache_key: dict[str, Any], answers: Answers
) -> tuple[list[Attempt], Question | None]:
    """Return the attempts at a question in the cache, and the question to ask next: None if it is answered or given up.

    Asking and filling read the attempts from the cache with this function only, so they agree.
    """
    attempts: list[Attempt] = []
    while question.open:
        row = answers.get(f"question {question.key(cache_key)}")
        if row and "error" in row:
            return [*attempts, Attempt(question, {}, row["error"])], None
        stored = row and answers.get(f"answer {row['answer']}")
        if not stored:
            return attempts, question
        answer = Answer(**{name: stored[name] for name in Answer.__dataclass_fields__})  # older versions wrote more
        words, problem = read(question, row["first"], answer.text or "")
        problem = problem and (answer.problem or problem)
        shared = row["asker"] != question.asker
        attempts.append(Attempt(question, words, problem, answer, row["number"], shared))
        if question.attempt == MOST_ATTEMPTS:
            break
        question = question.after(words)
    return attempts, None


def open_questions(questions: Iterable[Question], cache_key: dict[str, Any], answers: Answers) -> list[Question]:
    """Return the next attempt at each question that has no final answer."""
    following = (attempt_history(question, cache_key, answers)[1] for question in questions)
    return [question for question in following if question]


@dataclass(frozen=True)
class HostedProvider(Provider):
    """Reads the answers to all questions from the cache; `run` is the id of the run that reads.

    Every attempt is a row, so that the rows sum to all tokens and costs: an answer's tokens are divided among the
    queries of its request, and a query's share among the levels that were still open.
    """

    name: str
    model: str
    prompt: str
    cache_key: dict[str, Any]
    lists: WordLists
    run: str

    def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        """Yield a fill for each level of each question, and a problem for each attempt that failed."""
        for question in questions_of(self.lists, queries, candidates):
            qid, slots, open_levels = question.query.qid, question.query.levels[-1], dict(question.levels)
            for level, indices in question.levels.items():
                if empty := [slots[index] for index in indices if not question.options[index]]:
                    del open_levels[level]
                    yield Fill(qid, level, (), empty[0].no_word_problem(), attempts=0)
            attempts, next_question = attempt_history(question, self.cache_key, self.lists.answers)
            for attempt in attempts:
                yield from self._rows(attempt, open_levels)
            if next_question:
                for level in open_levels:
                    yield Fill(qid, level, (), UNANSWERED, next_question.attempt - 1)

    def _rows(self, attempt: Attempt, open_levels: dict[int, list[int]]) -> Iterator[Fill]:
        """Yield the rows of one attempt; the levels that it fills are removed from `open_levels`."""
        question, answer, prompt, completion, cost = attempt.question, attempt.answer, 0, 0, 0.0
        if answer and not attempt.shared:
            prompt = portion(answer.prompt_tokens, answer.questions, attempt.number - 1)
            completion = portion(answer.completion_tokens, answer.questions, attempt.number - 1)
            cost = answer.cost_usd / answer.questions
        words, levels = {**question.chosen, **attempt.words}, list(open_levels.items())
        for turn, (level, slots) in enumerate(levels):
            is_filled = all(index in words for index in slots)
            yield Fill(
                question.query.qid,
                level,
                tuple(words[index] for index in slots) if is_filled else (),
                "" if is_filled else attempt.problem,
                question.attempt,
                portion(prompt, len(levels), turn),
                portion(completion, len(levels), turn),
                cost / len(levels),
                cached=attempt.shared or (answer is not None and answer.run != self.run),
                model=answer.model if answer else "",
            )
            if is_filled:
                del open_levels[level]


def portion(total: int, parts: int, index: int) -> int:
    """Return the index-th of `parts` nearly equal whole portions of a total, which add up to it."""
    return total * (index + 1) // parts - total * index // parts
