"""The client of a hosted model: many requests under way, limits kept, faults told apart, every answer stored at once.

Two kinds of retry. Transport: a lost request goes out again as it was, after an exponentially growing pause with
jitter or as long as the service says. Validation: what an answer got wrong is asked for again, alone, so that one
query can't spoil another's; at most twice. A limit is neither: it means waiting. A service that only fails is left
alone after a while (circuit breaker), and what it left unanswered is asked for by the next run.
"""

import asyncio
import hashlib
import json
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, Protocol

from penumbra.tasks.negatives.providers.accounting import Statistics, TokenEstimate, most_cost, most_tokens
from penumbra.tasks.negatives.providers.answers import Answer, Answers, Place
from penumbra.tasks.negatives.providers.dialogue import dialogue
from penumbra.tasks.negatives.providers.limits import RateLimiter
from penumbra.tasks.negatives.providers.prices import Budget
from penumbra.tasks.negatives.providers.questions import Question, first_numbers, read
from penumbra.tasks.negatives.providers.service import (
    ClosedError,
    LimitedError,
    RefusedError,
    Reply,
    Service,
    ServiceError,
    ServiceSettings,
    UnavailableError,
)

TRANSPORT_RETRIES = 6
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds
FAILURES = 5  # in a row for each request in flight, without an answer between: the service is left alone
LOOKUPS = 64  # questions looked up in the cache before other tasks of the event loop run


class ServiceClient(Protocol):
    """Asks a service everything that the cache does not know yet; `stopped` says why it left some of it."""

    statistics: Statistics
    stopped: str

    @property
    def service(self) -> Service:
        """What is asked."""
        ...

    @property
    def settings(self) -> ServiceSettings:
        """How it is asked."""
        ...

    async def ask(self, blocks: Iterable[Sequence[Question]]) -> Statistics:
        """Ask what is in these blocks."""
        ...


class Client:
    """Asks one service everything that the cache does not know yet."""

    def __init__(
        self, service: Service, answers: Answers, settings: ServiceSettings, budget: Budget, run: str,
        queries_a_request: int, total: int = 0,
    ) -> None:  # fmt: skip
        self.service, self.answers, self.settings = service, answers, settings
        self.budget, self.run, self.queries_a_request = budget, run, queries_a_request
        self.price = settings.known_price
        self.limiter = RateLimiter(settings.requests_a_minute, settings.tokens_a_minute)
        self.statistics = Statistics(total)
        self.estimate = TokenEstimate()
        self.stopped = ""
        self._again: deque[Question] = deque()
        self._refusals: list[tuple[Question, str]] = []  # not stored before the service has shown that it can answer
        self._same: dict[str, list[Question]] = {}  # the questions of one key, while it is open
        self._workers: list[asyncio.Task[None]] = []
        self._sending: set[asyncio.Task[None] | None] = set()
        self._failures = self._busy = 0
        self._turn, self._changed = asyncio.Lock(), asyncio.Event()

    async def ask(self, blocks: Iterable[Sequence[Question]]) -> Statistics:
        """Ask until nothing is open, or until the service or the budget ends it: then `stopped` says why."""
        fresh = self._unanswered(iter(blocks))
        self._workers = [asyncio.create_task(self._work(fresh)) for _ in range(self.settings.in_flight)]
        try:
            ended = await asyncio.gather(*self._workers, return_exceptions=True)
        finally:
            for worker in self._workers:
                worker.cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)
            await self.service.close()
        for fault in ended:
            if isinstance(fault, Exception):  # not a worker that `_stop` sent home
                raise fault
        return self.statistics

    async def _unanswered(self, blocks: Iterator[Sequence[Question]]) -> AsyncIterator[Question]:
        """What the cache leaves open, like shapes together; the next block is drawn aside while answers come in."""
        while block := await asyncio.to_thread(next, blocks, None):
            unknown = []
            for count, question in enumerate(block):
                if count % LOOKUPS == 0:
                    await asyncio.sleep(0)
                left = dialogue(question, self.service.cache_key, self.answers).next
                if left is None:
                    self.statistics.done += 1
                    self.statistics.at_start += 1
                elif self._is_first(left):
                    unknown.append(left)
            for question in sorted(unknown, key=lambda question: question.shape):
                yield question

    def _is_first(self, question: Question) -> bool:
        """Whether nobody in this run has asked the same before; who has will tell the others."""
        others = self._same.setdefault(question.key(self.service.cache_key), [])
        others.append(question)
        return len(others) == 1

    async def _batch(self, fresh: AsyncIterator[Question]) -> list[Question]:
        """The questions of the next request, none when all is done: what was wrong goes first, and alone."""
        async with self._turn:
            while not self.stopped:
                if self._again:
                    return [self._again.popleft()]
                batch: list[Question] = []
                async for question in fresh:
                    batch.append(question)
                    if len(batch) == self.queries_a_request:
                        break
                if batch or not self._busy:
                    return batch
                self._changed.clear()
                await self._changed.wait()
        return []

    async def _work(self, fresh: AsyncIterator[Question]) -> None:
        while batch := await self._batch(fresh):
            self._busy += 1
            try:
                await self._converse(batch)
            finally:
                self._busy -= 1
                self._changed.set()

    async def _converse(self, batch: list[Question]) -> None:
        """Send a request and store its answer; what the answer left open is asked again."""
        payload = self.service.payload(batch)
        try:
            reply, seconds, retries = await self._deliver(payload)
        except RefusedError as error:
            self._refuse(batch, error.reason)
            return
        except ClosedError as error:
            self._stop(error.reason)
            return
        except UnavailableError:
            return  # left for the next run; the breaker counts it
        self._failures = 0
        cost = self.price.cost(reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) if self.price else 0.0
        keep(self.answers, places(batch, self.service.cache_key), reply, cost, self.run, seconds, retries)
        self.statistics.book(reply, cost, seconds)
        self._keep_refusals()
        for question, first in zip(batch, first_numbers(batch), strict=False):
            self._close_question(question, bool(read(question, first, reply.text or "")[1]))

    def _close_question(self, question: Question, wrong: bool) -> None:
        """Count what an answer brought to an end, for all who asked the same; what it got wrong is asked again."""
        for same in self._same.pop(question.key(self.service.cache_key), [question]):
            unknown = dialogue(same, self.service.cache_key, self.answers).next if wrong else None
            if unknown is None:
                self.statistics.done += 1
            elif self._is_first(unknown):
                self.statistics.asked_again += 1
                self._again.append(unknown)

    async def _deliver(self, payload: dict[str, Any]) -> tuple[Reply, float, int]:
        """Send a request until it is answered; the reply, its latency and how often it was sent again."""
        characters = len(json.dumps(payload))
        tokens = self.estimate.prompt_tokens(characters) + most_tokens(payload)
        most = most_cost(payload, characters, self.estimate, self.price)
        retries = limited = 0
        while True:
            await self.limiter.admit(tokens)
            if self.stopped:
                raise ClosedError(self.stopped)
            if not await self.budget.wait_and_reserve(most):
                raise ClosedError(OVER_BUDGET)
            started, cost = time.monotonic(), 0.0
            self._sending.add(asyncio.current_task())
            self.statistics.in_flight += 1
            self.statistics.sent += 1
            try:
                reply = await self.service.send(payload)
                self.estimate.learn(characters, reply.prompt_tokens)
                self.limiter.learn(reply.requests, reply.tokens)
                if self.price:
                    cost = self.price.cost(reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens)
                return reply, time.monotonic() - started, retries
            except LimitedError as error:
                limited += 1
                self.statistics.limited += 1
                self.limiter.pause(pause_of(error, limited))
            except UnavailableError as error:
                retries += 1
                self._fail(error.reason)
                if retries > TRANSPORT_RETRIES:
                    raise
                self.statistics.retries += 1
                await asyncio.sleep(pause_of(error, retries))
            finally:
                self._sending.discard(asyncio.current_task())
                self.statistics.in_flight -= 1
                self.budget.charge(most, cost)

    def _fail(self, reason: str) -> None:
        """Count a failure, and stop at the last of too many in a row."""
        self.statistics.faults[reason] += 1
        self._failures += 1
        if self._failures >= FAILURES * self.settings.in_flight:
            self._stop(f"nothing but failures, the last: {reason}")

    def _refuse(self, batch: list[Question], reason: str) -> None:
        """Find the query that a refused request was refused for: each is asked alone."""
        if len(batch) > 1:
            self._again.extend(batch)
            return
        self.statistics.refused[reason] += 1
        self._refusals.append((batch[0], f"request refused: {reason}"))
        if self.statistics.requests:
            self._keep_refusals()
        self._fail(reason)

    def _keep_refusals(self) -> None:
        """Store what the service refuses for good; it has shown that it does not refuse everything."""
        for question, problem in self._refusals:
            self.answers.refuse(question.key(self.service.cache_key), problem)
            self._close_question(question, wrong=False)
        self._refusals.clear()

    def _stop(self, reason: str) -> None:
        """Send nothing more; what is under way is paid for, so it is waited for, and nothing else is."""
        self.stopped = self.stopped or reason
        self._changed.set()
        for worker in self._workers:
            if worker not in self._sending and worker is not asyncio.current_task():
                worker.cancel()


OVER_BUDGET, UNDER_WAY = "max_cost_usd is reached", "batch jobs are under way"


def pause_of(error: ServiceError, times: int) -> float:
    """Seconds to wait: what the service asks for, else twice as long each time, up to half of it by chance."""
    if error.after is not None:
        return error.after
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (times - 1))
    return pause * random.uniform(0.5, 1.0)  # noqa: S311 (jitter, no secret)


def places(batch: Sequence[Question], cache_key: dict[str, Any]) -> list[Place]:
    """Where the questions of a request stand in it."""
    pairs = zip(batch, first_numbers(batch), strict=False)
    return [Place(q.key(cache_key), first, q.asker, q.offer, q.options) for q, first in pairs]


def keep(
    answers: Answers, stand: Sequence[Place], reply: Reply, cost: float, run: str, seconds: float, retries: int
) -> None:
    """Store the answer to a request, whose questions stand in it as `places` says."""
    answer = Answer(
        text=reply.text,
        problem=reply.problem,
        model=reply.model,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        cost_usd=cost,
        seconds=round(seconds, 3),
        retries=retries,
        run=run,
        questions=len(stand),
    )
    answers.keep(hashlib.sha256("".join(place.key for place in stand).encode()).hexdigest(), stand, answer)
