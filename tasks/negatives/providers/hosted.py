"""The interface of the services of hosted language models, and the provider that reads their answers."""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Prompt
from penumbra.tasks.negatives.providers.answers import portion
from penumbra.tasks.negatives.providers.questions import Attempt, Question, WordLists, attempt_history, questions_of
from penumbra.tasks.negatives.providers.settings import HostedSettings

IN_FLIGHT = 16  # requests of one service under way at the same time
TIMEOUT = 120.0  # seconds until a request is sent again
WORD_TOKENS = 16  # most tokens of an answer for each slot
UNANSWERED = "not answered yet"
# Exceptions of reading a malformed response, such as one with a too large number or too deep nesting
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class ServiceError(PenumbraError):
    """A request that was not answered; `action` says what to do.

    wait: too many requests or tokens a minute, send it again as often as it takes. retry: the request was lost or the
    service failed, send it again. refuse: the service will never answer this request. stop: the service will answer no
    request at all (no key, no money, no such model).

    `after` is the pause in seconds that the service asks for. `is_free` says that the request certainly cost nothing,
    because the service refused or never received it.
    """

    def __init__(
        self,
        reason: str,
        action: Literal["wait", "retry", "refuse", "stop"],
        after: float | None = None,
        is_free: bool = True,
    ) -> None:
        super().__init__(reason)
        self.reason, self.action, self.after, self.is_free = reason, action, after, is_free


def lost(reason: str, is_free: bool = False) -> ServiceError:
    """Return the error of a request that was lost, which may cost something unless it is known to be free."""
    return ServiceError(reason, "retry", None, is_free)


def error_of_status(status: int, reason: str, after: float | None = None, stop: bool = False) -> ServiceError:
    """Return the error of an HTTP status; `stop`: the response's body says that the key is wrong or the money spent.

    Redirects are not followed, because the key and the prompts would go to another server. A service that reports its
    own failure (500, 503, 529) charges nothing; an error of a gateway (502, 504, …) may have cost something.
    """
    if status < 400:
        return ServiceError(
            f"status {status}: redirects are not followed, so give the address that answers as base_url", "stop"
        )
    if stop or status in (401, 402, 403, 404):
        return ServiceError(reason, "stop")
    if status in (400, 413, 422):
        return ServiceError(reason, "refuse")
    if status == 429:
        return ServiceError(reason, "wait", after)
    return ServiceError(reason, "retry", after, status in (500, 503, 529))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the pause in seconds that the headers ask for: `retry-after-ms`, or `Retry-After` in seconds."""
    pause = seconds_of(headers.get("retry-after-ms", ""))
    return seconds_of(headers.get("retry-after", "")) if pause is None else pause * 1e-3


def seconds_of(text: str) -> float | None:
    """Return a number of seconds, which may be infinite; None if the text is no number."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return None if math.isnan(seconds) else max(0.0, seconds)


def api_key(settings: HostedSettings) -> str:
    """Return the key from the environment, else from the Prefect Secret block.

    A server of one's own (`base_url`) may need none; otherwise raises `PenumbraError` if there is no key.
    """
    if key := os.environ.get(settings.key_variable, "").strip():
        return key
    from prefect.blocks.system import Secret

    try:
        return str(Secret.load(settings.key_block).get())  # type: ignore[union-attr]
    except ValueError:  # Prefect knows no such block
        if settings.address:
            return "none"
        raise PenumbraError(
            f"{settings.provider}: no API key: set {settings.key_variable}, or make a Prefect Secret block named "
            f"{settings.key_block!r}"
        ) from None


@dataclass(frozen=True)
class Reply:
    """A service's answer; `text` is None if there is none, and `problem` says why."""

    text: str | None
    problem: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Service(ABC):
    """A hosted language model; its library is imported when the first request is sent."""

    def __init__(self, settings: HostedSettings, prompt: Prompt) -> None:
        self.settings, self.prompt = settings, prompt
        self.name, self.cache_key, self.key = settings.provider, settings.cache_key(prompt.label), ""

    def authenticate(self) -> None:
        """Read the key, which no event loop may do; raise `PenumbraError` if there is none."""
        self.key = api_key(self.settings)

    @abstractmethod
    def payload(self, questions: Sequence[Question]) -> dict[str, Any]:
        """Return the request's body; the static text of the prompt comes first."""

    @abstractmethod
    async def send(self, payload: dict[str, Any], key: str) -> Reply:
        """Send a request once; raise `ServiceError` if it is not answered.

        `key` is the same whenever the same request is sent again: services that know it answer and charge it once.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True)
class HostedProvider:
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
            query, open_levels = question.query, dict(question.levels())
            for level, slots in list(open_levels.items()):
                empty = next((query.levels[-1][index] for index in slots if not question.options[index]), None)
                if empty:
                    del open_levels[level]
                    yield Fill(query.qid, level, (), empty.no_word_problem(), attempts=0)
            if not open_levels:
                continue
            attempts, next_question = attempt_history(question, self.cache_key, self.lists.answers)
            for attempt in attempts:
                yield from self._rows(attempt, open_levels)
            if next_question:
                for level in open_levels:
                    yield Fill(query.qid, level, (), UNANSWERED, next_question.attempt - 1)

    def _rows(self, attempt: Attempt, open_levels: dict[int, list[int]]) -> Iterator[Fill]:
        """Yield the rows of one attempt; the levels that it fills are removed from `open_levels`."""
        question, answer = attempt.question, attempt.answer
        prompt, completion, cost = answer.share(attempt.number) if answer and not attempt.shared else (0, 0, 0.0)
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
