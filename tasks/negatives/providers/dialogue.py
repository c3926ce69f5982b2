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
    found: dict[int, str]
    problem: str
    shared: bool = False  # the answer to the same question of another query, which bears its cost


@dataclass(frozen=True)
class Dialogue:
    """The attempts so far, in order, and the question to ask next: None when all is settled or given up."""

    attempts: list[Attempt]
    next: Question | None


def dialogue(question: Question, asked: dict[str, Any], answers: Answers) -> Dialogue:
    """Follow a question through the cache; `asked` is what determines an answer besides the question's text."""
    attempts: list[Attempt] = []
    while question.open:
        known = answers.find(question.key(asked))
        if known is None:
            return Dialogue(attempts, question)
        found: dict[int, str] = {}
        problem = known.error
        if known.answer:
            found, problem = read(question, known.first, known.answer.text or "")
            problem = problem and (known.answer.problem or problem)
        shared = known.answer is not None and known.asker != question.asker
        attempts.append(Attempt(question, known.answer, known.number, found, problem, shared))
        if known.error or question.attempt == MOST_ATTEMPTS:
            break
        question = question.after(found)
    return Dialogue(attempts, None)
