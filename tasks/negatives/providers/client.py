"""The client of a hosted model: it asks every question that the cache has no answer to, and stores each answer.

A round asks all open questions once; what its answers got wrong is asked again in requests of half the size, then
alone. A lost request is sent again after a growing pause, and a limit of the service makes all requests wait. A service
that only fails is left alone until the next run.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from aiolimiter import AsyncLimiter
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential_jitter

from penumbra.artifacts.markdown import counted
from penumbra.tasks.negatives.providers import hosted
from penumbra.tasks.negatives.providers.answers import Answers, Budget
from penumbra.tasks.negatives.providers.attempts import MOST_ATTEMPTS, Answer, open_questions, store
from penumbra.tasks.negatives.providers.hosted import Service, ServiceError
from penumbra.tasks.negatives.providers.questions import Question
from penumbra.tasks.stage import logger

TRANSPORT_RETRIES = 6
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds between two attempts
LONGEST_WAIT = 600.0  # seconds to wait at most, however long the service asks for
WORTH_REPORTING = 5.0  # seconds of a pause
FAILURES = 5  # failures in a row for each request in flight, after which the service is left alone
CHARACTERS_A_TOKEN = 3.6  # of such prompts
MARGIN = 1.25  # by which that estimate may be too low when money is reserved
OVER_BUDGET = "max_cost_usd is reached"


@dataclass
class Statistics:
    """How far a client is, and what that took."""

    total: int
    done: int = 0  # questions that are answered or given up
    requests: int = 0  # that were answered
    again: int = 0  # requests that were sent again
    tokens: int = 0
    cost_usd: float = 0.0
    lost_usd: float = 0.0  # most that lost answers can have cost
    models: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)  # why requests were lost or refused

    def cost(self) -> str:
        return f"${self.cost_usd:.4f}" + (f" and up to ${self.lost_usd:.4f} for lost answers" if self.lost_usd else "")


async def all_of(tasks: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all tasks, and then raise the first error: what was paid for meanwhile is stored."""
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


class Client:
    """Asks one service everything that the cache does not know; `stopped` says why it left questions open."""

    def __init__(
        self, service: Service, answers: Answers, budget: Budget, run: str, queries_a_request: int, total: int = 0
    ) -> None:
        self.service, self.answers, self.budget, self.run = service, answers, budget, run
        self.queries_a_request, self.statistics, self.stopped = queries_a_request, Statistics(total), ""
        limit = service.settings.requests_a_minute
        self._limiter = AsyncLimiter(1, 60 / limit) if limit else None  # evenly, one after the other
        self._turn, self._stop_sleeping = asyncio.Lock(), asyncio.Event()
        self._resume = 0.0  # when requests may be sent again after a limit
        self._failures = 0  # since the last answer
        self._askers = Counter[str]()  # number of open questions that have a key
        self._given_up: set[str] = set()  # keys of questions that this run does not ask again
        self._refusals: dict[str, Any] = {}  # rows of refused questions

    def progress(self) -> str:
        return f"{self.service.name} {self.statistics.done:,} of {counted(self.statistics.total, 'query')}"

    def line(self) -> str:
        s = self.statistics
        answered = f"{counted(s.requests, 'request')} answered, {s.again:,} sent again"
        return f"{self.progress()}, {answered}, {s.tokens:,} tokens, {s.cost()}"

    async def ask(self, blocks: Iterable[Sequence[Question]]) -> None:
        """Ask until no question is open, or until the service or the budget stops it."""
        remaining = iter(blocks)
        try:
            while not self.stopped and (block := await asyncio.to_thread(next, remaining, ())):
                questions = self.open_questions(block)
                self.statistics.done += len(block) - len(questions)
                while questions and not self.stopped:
                    await self._ask_once(questions)
                    questions = [q for q in self.open_questions(questions) if self.key(q) not in self._given_up]
        finally:
            await self.service.close()

    def open_questions(self, questions: Iterable[Question]) -> list[Question]:
        return open_questions(questions, self.service.cache_key, self.answers)

    def key(self, question: Question) -> str:
        return question.key(self.service.cache_key)

    async def _ask_once(self, questions: Sequence[Question]) -> None:
        """Ask all questions once, the same text of several queries once.

        Questions of like shapes are asked together, because their requests have the same schema.
        """
        self._askers = Counter(map(self.key, questions))
        distinct = {self.key(question): question for question in questions}
        groups: dict[int, list[Question]] = {}
        for question in sorted(distinct.values(), key=lambda question: (question.attempt, question.shape)):
            groups.setdefault(question.attempt, []).append(question)
        requests = []
        for attempt, group in groups.items():
            size = 1 if attempt == MOST_ATTEMPTS else max(1, self.queries_a_request >> (attempt - 1))
            requests += [group[start : start + size] for start in range(0, len(group), size)]
        waiting = iter(requests)

        async def work() -> None:
            for request in waiting:
                await self._ask_request(request)

        await all_of(work() for _ in range(hosted.IN_FLIGHT))
        if self.statistics.requests:  # otherwise it refuses everything, perhaps for another reason
            self.answers.put({f"question {key}": row for key, row in self._refusals.items()})
            self.statistics.done += sum(self._askers[key] for key in self._refusals)
            self._refusals.clear()

    async def _ask_request(self, request: Sequence[Question]) -> None:
        """Ask these questions and store the answer; of a refused request, ask each question alone."""
        if self.stopped:
            return
        try:
            answer = await self._deliver(request)
        except ServiceError as error:
            if error.action == "stop":
                self._stop(error.reason)
            elif error.action == "refuse" and len(request) > 1:
                for question in request:
                    await self._ask_request([question])
            else:
                self._given_up.update(map(self.key, request))
                if error.action == "refuse":
                    self._refusals[self.key(request[0])] = {"error": f"request refused: {error.reason}"}
                    self._count_failure(error.reason)
            return
        self._failures = 0
        store(self.answers, request, self.service.cache_key, replace(answer, run=self.run, questions=len(request)))
        statistics = self.statistics
        statistics.requests += 1
        statistics.tokens += answer.prompt_tokens + answer.completion_tokens
        statistics.cost_usd += answer.cost_usd
        statistics.models[answer.model] += 1
        statistics.done += sum(self._askers[self.key(q)] for q in request if not self.open_questions([q]))

    async def _deliver(self, request: Sequence[Question]) -> Answer:
        """Send a request until it is answered; raise `ServiceError` if it is not."""
        payload, lost = self.service.payload(request), 0
        prompt_tokens = int(len(json.dumps(payload)) / CHARACTERS_A_TOKEN * MARGIN)
        price = self.service.price
        most = price.cost(prompt_tokens, self.service.most_tokens(request)) if price else 0.0

        def is_temporary(error: BaseException) -> bool:
            nonlocal lost
            if not isinstance(error, ServiceError) or error.action not in ("wait", "retry"):
                return False
            self.statistics.again += 1
            if error.action == "retry":
                lost += 1
                self._count_failure(error.reason)
            return lost <= TRANSPORT_RETRIES

        retrying = AsyncRetrying(
            retry=retry_if_exception(is_temporary), wait=self._pause, sleep=self._sleep, reraise=True
        )
        return await retrying(self._send, payload, most)

    async def _send(self, payload: dict[str, Any], most: float) -> Answer:
        """Send a request once, and charge what it cost: `most`, unless it is known to be less."""
        async with self._turn:  # a limit holds for all requests
            if self._limiter:
                await self._limiter.acquire()
            while not self.stopped and (wait := self._resume - time.monotonic()) > 0:
                await self._sleep(wait)
        if self.stopped:
            raise ServiceError(self.stopped, "stop")
        if not await self.budget.reserve(most):
            raise ServiceError(OVER_BUDGET, "stop")
        cost = most
        try:
            answer = await asyncio.wait_for(self.service.send(payload), 2 * hosted.TIMEOUT)
            cost = answer.cost_usd or most  # some servers count no tokens
            return answer
        except (ServiceError, TimeoutError) as error:  # a library's own timeout holds for each piece of an answer
            slow = ServiceError("answer comes too slowly", "retry", is_free=False)
            lost = error if isinstance(error, ServiceError) else slow
            cost = 0.0 if lost.is_free else most
            self.statistics.lost_usd += cost
            raise lost from None
        finally:
            self.budget.charge(most, cost)

    def _pause(self, state: RetryCallState) -> float:
        """Return the seconds until a request is sent again; after a limit, all requests wait as long."""
        error = state.outcome.exception() if state.outcome else None
        if not isinstance(error, ServiceError):
            return 0.0
        growing = wait_exponential_jitter(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE, jitter=FIRST_PAUSE)
        seconds = min(error.after or growing(state), LONGEST_WAIT)  # "at once" is no answer to a limit
        if error.action == "wait":
            self._resume = max(self._resume, time.monotonic() + seconds)
        if seconds >= WORTH_REPORTING:
            model = self.service.settings.model
            logger().info("%s: waits %.0f s for %s or its limits", self.service.name, seconds, model)
        return seconds

    async def _sleep(self, seconds: float) -> None:
        """Sleep, at most until the client stops."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop_sleeping.wait(), seconds)

    def _count_failure(self, reason: str) -> None:
        """Count a failure, and stop after too many in a row."""
        self.statistics.problems[reason] += 1
        self._failures += 1
        if self._failures >= FAILURES * hosted.IN_FLIGHT:
            self._stop(f"nothing but failures, the last: {reason}")

    def _stop(self, reason: str) -> None:
        """Send nothing more; only requests in flight, which are paid for, are waited for."""
        self.stopped = self.stopped or reason
        self._stop_sleeping.set()
