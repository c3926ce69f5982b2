"""The attempts at a question, as the cache of answers has them, and the provider that reads them.

Row "question KEY" of the cache leads to an answer or has the service's refusal, "answer NAME" has the answer to a
request, and "offer NAME" the words that were on offer to an answered question, by slot.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Provider
from penumbra.tasks.negatives.providers.answers import Answers
from penumbra.tasks.negatives.providers.questions import Question, WordLists, first_numbers, questions_of, read

UNANSWERED = "not answered yet"
MOST_ATTEMPTS = 3  # the first answer, and two more for what was wrong with it


@dataclass(frozen=True)
class Answer:
    """A service's answer to a request of `questions` questions, sent by the run `run`.

    `text` is None if there is none; then `problem` says why ("model refused").
    """

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

    `number` (from 1) is the question's number in the request. `shared` says that another query asked the same first and
    bears the cost.
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

    Both asking and filling depend on the cache through this function alone.
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
    """Return what is to be asked next of each question that has no final answer."""
    following = (attempt_history(question, cache_key, answers)[1] for question in questions)
    return [question for question in following if question]


@dataclass(frozen=True)
class HostedProvider(Provider):
    """Reads the answers to all questions from the cache; `run` is the run that reads.

    Every attempt is a row, so that tokens and money add up: an answer's tokens are shared among the queries of its
    request, and a query's share among the levels that were still open.
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
            query = question.query
            index = {slot.token: i for i, slot in enumerate(query.levels[-1])}
            levels = enumerate(query.levels, query.first)
            open_levels = {level: [index[slot.token] for slot in slots] for level, slots in levels}
            for level, slots in list(open_levels.items()):
                empty = next((query.levels[-1][index] for index in slots if not question.options[index]), None)
                if empty:
                    del open_levels[level]
                    yield Fill(query.qid, level, (), empty.no_word_problem(), attempts=0)
            attempts, next_question = attempt_history(question, self.cache_key, self.lists.answers)
            for attempt in attempts:
                yield from self._rows(attempt, open_levels)
            if next_question:
                for level in open_levels:
                    yield Fill(query.qid, level, (), UNANSWERED, next_question.attempt - 1)

    def _rows(self, attempt: Attempt, open_levels: dict[int, list[int]]) -> Iterator[Fill]:
        """Yield the rows of one attempt; the levels that it fills are removed from `open_levels`."""
        question, answer = attempt.question, attempt.answer
        prompt, completion, cost = 0, 0, 0.0
        if answer and not attempt.shared:
            prompt = portion(answer.prompt_tokens, answer.questions, attempt.number - 1)
            completion = portion(answer.completion_tokens, answer.questions, attempt.number - 1)
            cost = answer.cost_usd / answer.questions
        words = {**question.chosen, **attempt.words}
        levels = list(open_levels.items())
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
