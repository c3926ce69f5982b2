"""The client of a hosted model: it asks every question that the cache of answers does not know, and stores each answer.

A round asks all open questions once; what its answers got wrong is asked again in requests of half the size, then
alone. A lost request is sent again after a growing pause (tenacity), and a limit makes all requests wait. A service
that only fails is left alone until the next run.
"""

import asyncio
import hashlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiolimiter import AsyncLimiter
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential_jitter

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.markdown import counted
from penumbra.tasks.negatives.providers import hosted
from penumbra.tasks.negatives.providers.answers import Answer, Answers, QuestionSlot
from penumbra.tasks.negatives.providers.budget import Budget, price_of
from penumbra.tasks.negatives.providers.hosted import Reply, Service, ServiceError
from penumbra.tasks.negatives.providers.questions import MOST_ATTEMPTS, Question, attempt_history, first_numbers
from penumbra.tasks.negatives.providers.settings import Price
from penumbra.tasks.stage import logger

TRANSPORT_RETRIES = 6
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds between two attempts
LONGEST_WAIT = 600.0  # seconds to wait at most, however long the service asks for
FAILURES = 5  # failures in a row for each request in flight, after which the service is left alone
WORTH_REPORTING = 5.0  # seconds of a pause
QUESTIONS_AT_ONCE = 8192  # of a round: bounds the memory
CHARACTERS_A_TOKEN = 3.6  # of such prompts
MARGIN = 1.25  # by which that estimate may be too low when money is reserved
OVER_BUDGET, UNDER_WAY = "max_cost_usd is reached", "batch jobs are under way"


@dataclass
class Statistics:
    """How far a client is, and what that took."""

    total: int
    done: int = 0  # questions that are answered or given up
    requests: int = 0  # that were answered
    sent: int = 0  # requests, including those that were lost
    in_flight: int = 0
    limited: int = 0  # requests that the service did not take for now
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    lost_usd: float = 0.0  # most that lost answers can have cost
    models: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def cost(self) -> str:
        return f"${self.cost_usd:.4f}" + (f" and up to ${self.lost_usd:.4f} for lost answers" if self.lost_usd else "")


class Client:
    """Asks one service everything that the cache does not know; `stopped` says why it left questions open."""

    def __init__(
        self, service: Service, answers: Answers, budget: Budget, run: str, queries_a_request: int, total: int = 0
    ) -> None:
        self.service, self.answers, self.settings = service, answers, service.settings
        self.budget, self.run, self.queries_a_request = budget, run, queries_a_request
        self.price, self.statistics, self.stopped = price_of(service.settings), Statistics(total), ""
        limit = service.settings.requests_a_minute
        self._limiter = AsyncLimiter(1, 60 / limit) if limit else None  # evenly, one after the other
        self._resume = 0.0  # when requests may be sent again after a limit
        self._failures = 0  # since the last answer
        self._askers = Counter[str]()  # number of open questions that have a key
        self._given_up: set[str] = set()  # keys of questions that this run does not ask again
        self._refusals: dict[str, str] = {}  # by key; stored once the service has shown that it can answer
        self._sent: dict[str, list[str]] = {}  # keys of requests without an answer, a killed run's among them
        self._workers: list[asyncio.Task[None]] = []
        self._sending: set[asyncio.Task[None] | None] = set()

    def progress(self) -> str:
        return f"{self.service.name} {self.statistics.done:,} of {counted(self.statistics.total, 'query')}"

    def line(self) -> str:
        s = self.statistics
        again = s.faults.total() + s.limited
        answered = f"{counted(s.requests, 'request')} answered, {s.in_flight} in flight, {again:,} sent again"
        return f"{self.progress()}, {answered}, {s.prompt_tokens + s.completion_tokens:,} tokens, {s.cost()}"

    async def ask(self, blocks: Iterable[Sequence[Question]]) -> Statistics:
        """Ask until no question is open, or until the service or the budget stops it.

        Another run that asks the same goes first, and what it paid for is not asked again.
        """
        try:
            async with self.answers.request_lock(self.service.cache_key, self.run, self._report_other) as lock:
                await self._ask(iter(blocks), lock)
        finally:
            await self.service.close()
        return self.statistics

    async def _ask(self, blocks: Iterator[Sequence[Question]], lock: str) -> None:
        self._row = f"interrupted {lock}"
        self._sent = self.answers.cache.get(self._row, {}, retry=True)
        while not self.stopped and (block := await asyncio.to_thread(_next_block, blocks)):
            questions = self.open_questions(block)
            self.statistics.done += len(block) - len(questions)
            while questions and not self.stopped:
                await self._ask_once(questions)
                questions = [q for q in self.open_questions(questions) if self.key(q) not in self._given_up]
        if not self.stopped:
            self.answers.cache.set(self._row, {}, retry=True)

    def open_questions(self, questions: Iterable[Question]) -> list[Question]:
        """Return what is to be asked next of each question that is not answered or given up."""
        following = (attempt_history(question, self.service.cache_key, self.answers)[1] for question in questions)
        return [question for question in following if question]

    def key(self, question: Question) -> str:
        return question.key(self.service.cache_key)

    def question_slots(self, request: Sequence[Question]) -> list[QuestionSlot]:
        """Return the questions of a request with the numbers of their first slots."""
        pairs = zip(request, first_numbers(request), strict=False)
        return [QuestionSlot(self.key(q), first, q.asker, q.offer, q.options) for q, first in pairs]

    async def _ask_once(self, questions: Sequence[Question]) -> None:
        """Send all questions once, the same text of several queries once; raise the first error that is unexpected."""
        self._askers = Counter(map(self.key, questions))
        requests = iter(self.requests({self.key(question): question for question in questions}))

        async def work() -> None:
            for request in requests:
                if self.stopped:
                    return
                await self._ask_request(request)

        self._workers = [asyncio.create_task(work()) for _ in range(hosted.IN_FLIGHT)]
        try:
            results = await asyncio.gather(*self._workers, return_exceptions=True)
        finally:
            for worker in self._workers:
                worker.cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)
        if self.statistics.requests:
            for key, problem in self._refusals.items():
                self.answers.refuse(key, problem)
                self.statistics.done += self._askers[key]
            self._refusals.clear()
        for result in results:
            if isinstance(result, Exception):  # no `CancelledError` of `_stop`
                raise result

    def requests(self, questions: dict[str, Question]) -> list[list[Question]]:
        """Return the requests for these questions, by key.

        Requests that a run was interrupted over come first, as they were: a service that knows their idempotency key
        charges them once. The others have questions of like shapes together, which have the same schema.
        """
        requests = []
        for keys in self._sent.values():
            if all(key in questions for key in keys):
                requests.append([questions.pop(key) for key in keys])
        together: dict[int, list[Question]] = defaultdict(list)
        for key, question in questions.items():
            if self.answers.is_isolated(key):
                requests.append([question])
            else:
                together[question.attempt].append(question)
        for attempt, group in sorted(together.items()):
            group.sort(key=lambda question: question.shape)
            size = 1 if attempt == MOST_ATTEMPTS else max(1, self.queries_a_request >> (attempt - 1))
            requests += [group[start : start + size] for start in range(0, len(group), size)]
        return requests

    async def _ask_request(self, request: Sequence[Question]) -> None:
        try:
            reply = await self._deliver(request)
        except ServiceError as error:
            self._give_up(request, error)
            return
        self._failures = 0
        cost = self._cost(reply)
        self.keep(self.question_slots(request), reply, cost, self.run)
        for question in request:
            if not self.open_questions([question]):
                self.statistics.done += self._askers[self.key(question)]

    def keep(self, slots: Sequence[QuestionSlot], reply: Reply, cost: float, run: str) -> None:
        """Store and count the answer to a request of these questions."""
        answered = reply.text, reply.problem, reply.model, reply.prompt_tokens, reply.completion_tokens
        self.answers.keep(slots, Answer(*answered, cost, run, len(slots)))
        self.statistics.requests += 1
        self.statistics.prompt_tokens += reply.prompt_tokens
        self.statistics.completion_tokens += reply.completion_tokens
        self.statistics.cost_usd += cost
        self.statistics.models[reply.model] += 1

    def _give_up(self, request: Sequence[Question], error: ServiceError) -> None:
        """Note what an error means for the questions of a request."""
        keys = [self.key(question) for question in request]
        if error.action == "stop":
            self._stop(error.reason)
        elif error.action != "refuse":
            self._given_up.update(keys)
        elif len(request) > 1:
            self.answers.isolate(keys)
        else:
            self.statistics.refused[error.reason] += 1
            self._refusals[keys[0]] = f"request refused: {error.reason}"
            self._given_up.update(keys)
            self._count_failure(error.reason)

    # -- one request --------------------------------------------------------------------------------------------------

    async def _deliver(self, request: Sequence[Question]) -> Reply:
        """Send a request until it is answered."""
        payload = self.service.payload(request)
        content = json.dumps(payload)
        attempts = [question.attempt for question in request]  # the same text at another attempt is another request
        key = hashlib.sha256(f"{content} {attempts}".encode()).hexdigest()
        most = most_cost(payload, len(content), self.price)
        keys = [self.key(question) for question in request]
        retries = 0

        def is_temporary(error: BaseException) -> bool:
            nonlocal retries
            if not isinstance(error, ServiceError) or error.action not in ("wait", "retry"):
                return False
            if error.action == "wait":
                self.statistics.limited += 1
            else:
                retries += 1
                self.statistics.faults[error.reason] += 1
                self._count_failure(error.reason)
            return retries <= TRANSPORT_RETRIES

        async for attempt in AsyncRetrying(retry=retry_if_exception(is_temporary), wait=self._pause, reraise=True):
            with attempt:
                if self._limiter:
                    await self._limiter.acquire()
                while (wait := self._resume - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                if self.stopped:
                    raise ServiceError(self.stopped, "stop")
                if not await self.budget.reserve(most):
                    raise ServiceError(OVER_BUDGET, "stop")
                return await self._send(payload, key, keys, most)
        raise AssertionError  # tenacity ends with an answer or an error

    def _pause(self, state: RetryCallState) -> float:
        """Return the seconds until a request is sent again; after a limit, all requests wait as long."""
        error = state.outcome.exception() if state.outcome else None
        if not isinstance(error, ServiceError):
            return 0.0
        growing = wait_exponential_jitter(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE, jitter=FIRST_PAUSE)
        seconds = min(growing(state) if error.after is None else error.after, LONGEST_WAIT)
        if error.action == "wait":
            self._resume = max(self._resume, time.monotonic() + seconds)
        if seconds >= WORTH_REPORTING:
            model = self.settings.model
            logger().info("%s: waits %.0f s for %s or its limits", self.service.name, seconds, model)
        return seconds

    async def _send(self, payload: dict[str, Any], key: str, keys: list[str], most: float) -> Reply:
        """Send a request once and charge its cost: the most that it can have cost, unless it is known to be less."""
        cost = most
        self._sent[key] = keys
        self.answers.cache.set(self._row, self._sent, retry=True)
        self._sending.add(asyncio.current_task())
        self.statistics.in_flight += 1
        self.statistics.sent += 1
        try:
            reply = await self.service.send(payload, key)
            del self._sent[key]
            cost = self._cost(reply) or most  # some servers count no tokens
            return reply
        except ServiceError as error:
            cost = 0.0 if error.is_free else most
            self.statistics.lost_usd += cost
            if error.is_free:
                del self._sent[key]
            raise
        except PenumbraError:  # nothing was sent
            cost = 0.0
            raise
        finally:
            self._sending.discard(asyncio.current_task())
            self.statistics.in_flight -= 1
            self.budget.charge(most, cost)

    def _cost(self, reply: Reply) -> float:
        tokens = reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens
        return self.price.cost(*tokens) if self.price else 0.0

    # -- the end ------------------------------------------------------------------------------------------------------

    def _count_failure(self, reason: str) -> None:
        """Count a failure, and stop after too many in a row."""
        self._failures += 1
        if self._failures >= FAILURES * hosted.IN_FLIGHT:
            self._stop(f"nothing but failures, the last: {reason}")

    def _stop(self, reason: str) -> None:
        """Send nothing more; only requests in flight, which are paid for, are waited for."""
        self.stopped = self.stopped or reason
        for worker in self._workers:
            if worker not in self._sending and worker is not asyncio.current_task():
                worker.cancel()

    def _report_other(self, other: str) -> None:
        model = self.settings.model
        logger().info(
            "%s: waits for %s, which asks %s the same; its answers are then used", self.service.name, other, model
        )


def _next_block(blocks: Iterator[Sequence[Question]]) -> list[Question]:
    """Return the questions of the next blocks, about `QUESTIONS_AT_ONCE`; none at the end."""
    questions: list[Question] = []
    while len(questions) < QUESTIONS_AT_ONCE and (block := next(blocks, None)) is not None:
        questions += block
    return questions


def most_cost(payload: dict[str, Any], characters: int, price: Price | None) -> float:
    """Return the most that a request of so many characters can cost in USD; 0 if no price is known."""
    form = payload.get("generation_config", payload)
    most = int(form.get("max_tokens") or form.get("max_completion_tokens") or form.get("max_output_tokens") or 0)
    return price.cost(int(characters / CHARACTERS_A_TOKEN * MARGIN), most) if price else 0.0
