"""What has been asked and answered about one query, read from the cache of answers.

Asking and filling both go by this one reading: what it leaves open is asked next, and what it found is a fill.
"""

from dataclasses import dataclass
from typing import Any

from penumbra.tasks.negatives.providers.answers import Answer, Answers
from penumbra.tasks.negatives.providers.questions import MOST_ATTEMPTS, Question, read


@dataclass(frozen=True)
class Attempt:
    """One answer to a question, or the service's lasting refusal: the words it gave rightly, and what was wrong."""

    question: Question
    answer: Answer | None
    number: int
    words: dict[int, str]
    problem: str
    shared: bool = False  # the answer to the same question of another query, which bears its cost


@dataclass(frozen=True)
class Dialogue:
    """The attempts so far, in order, and the question to ask next: None when all is chosen or given up."""

    attempts: list[Attempt]
    next: Question | None


def dialogue(question: Question, cache_key: dict[str, Any], answers: Answers) -> Dialogue:
    """Follow a question through the cache; `cache_key` is what determines an answer besides the question's text."""
    attempts: list[Attempt] = []
    while question.open:
        entry = answers.find(question.key(cache_key))
        if entry is None:
            return Dialogue(attempts, question)
        words: dict[int, str] = {}
        problem = entry.error
        if entry.answer:
            words, problem = read(question, entry.first, entry.answer.text or "")
            problem = problem and (entry.answer.problem or problem)
        shared = entry.answer is not None and entry.asker != question.asker
        attempts.append(Attempt(question, entry.answer, entry.number, words, problem, shared))
        if entry.error or question.attempt == MOST_ATTEMPTS:
            break
        question = question.after(words)
    return Dialogue(attempts, None)
