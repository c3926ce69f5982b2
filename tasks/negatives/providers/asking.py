"""The client of a hosted model: many requests under way, limits kept, faults told apart, every answer stored at once.

Two kinds of retry. Transport: a lost request goes out again as it was, after an exponentially growing pause with
jitter or as long as the service says. Validation: what an answer got wrong is asked for again, in requests of half the
size and then alone, so that one query can't spoil another's. A limit is neither: it means waiting. A service that only
fails is left alone after a while (circuit breaker), and what it left unanswered is asked for by the next run.

Runs that would ask the same service the same take turns (`claims`), and spend from one account (`budget`).
"""

import asyncio
import hashlib
import json
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, Protocol

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives.providers.accounting import Statistics, TokenEstimate, most_cost, most_tokens
from penumbra.tasks.negatives.providers.answers import Answer, Answers, Place
from penumbra.tasks.negatives.providers.budget import Budget
from penumbra.tasks.negatives.providers.claims import claim
from penumbra.tasks.negatives.providers.dialogue import dialogue
from penumbra.tasks.negatives.providers.limits import RateLimiter
from penumbra.tasks.negatives.providers.questions import MOST_ATTEMPTS, Question, first_numbers, read
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
from penumbra.tasks.stage import logger

TRANSPORT_RETRIES = 6
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds
FAILURES = 5  # in a row for each request in flight, without an answer between: the service is left alone
WORTH_TELLING = 5.0  # seconds of a wait
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
        self,
        service: Service,
        answers: Answers,
        settings: ServiceSettings,
        budget: Budget,
        run: str,
        queries_a_request: int,
        total: int = 0,
    ) -> None:
        self.service, self.answers, self.settings = service, answers, settings
        self.budget, self.run, self.queries_a_request = budget, run, queries_a_request
        self.price = settings.known_price
        self.limiter = RateLimiter(
            settings.requests_a_minute, settings.tokens_a_minute, longest=settings.longest_wait, tell=self._wait
        )
        self.statistics = Statistics(total)
        self.estimate = TokenEstimate()
        self.stopped = ""
        self._again: deque[list[Question]] = deque()  # each to be a request
        self._refusals: list[tuple[Question, str]] = []  # not stored before the service has shown that it can answer
        self._same: dict[str, list[Question]] = {}  # the questions of one key, while it is open
        self._workers: list[asyncio.Task[None]] = []
        self._sending: set[asyncio.Task[None] | None] = set()
        self._failures = self._busy = 0
        self._excess = 1.0  # by how much an answer cost more than it can: some servers ignore the most tokens asked for
        self._claim, self._broken_off = "", BrokenOff([])
        self._turn, self._changed = asyncio.Lock(), asyncio.Event()

    async def ask(self, blocks: Iterable[Sequence[Question]]) -> Statistics:
        """Ask until nothing is open, or until the service or the budget ends it: then `stopped` says why.

        Where another run is asking the same it goes first, and what it has paid for is not asked again.
        """
        async with claim(self.answers, self.service.cache_key, self.run, self._let_go_first) as self._claim:
            self.statistics.waits = ""
            return await self._ask(blocks)

    async def _ask(self, blocks: Iterable[Sequence[Question]]) -> Statistics:
        self._broken_off = BrokenOff(self.answers.last_sent(self._claim))
        fresh = self._unanswered(iter(blocks))
        self._workers = [asyncio.create_task(self._work(fresh, turn)) for turn in range(self.settings.in_flight)]
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
        """What was never asked, like shapes together; the next block is drawn aside while answers come in.

        What an earlier run got a wrong answer to goes where this run's wrong answers go, and so do whole requests
        that it was killed over.
        """
        cache_key = self.service.cache_key
        while block := await asyncio.to_thread(next, blocks, None):
            unknown = []
            for count, question in enumerate(block):
                if count % LOOKUPS == 0:
                    await asyncio.sleep(0)
                left = dialogue(question, cache_key, self.answers).next
                if left is None:
                    self.statistics.done += 1
                    self.statistics.at_start += 1
                elif self._is_first(left) and not self._broken_off.take(left.key(cache_key), left):
                    unknown.append(left)
            self._again += self._broken_off.whole()
            for question in self._of_first_attempt(unknown):
                yield question
        for question in self._of_first_attempt(self._broken_off.rest()):
            yield question

    def _of_first_attempt(self, questions: list[Question]) -> list[Question]:
        """These questions, like shapes together, without those that are to be asked again, which are seen to."""
        questions.sort(key=lambda question: question.shape)
        self._ask_again([question for question in questions if question.attempt > 1])
        return [question for question in questions if question.attempt == 1]

    def _is_first(self, question: Question) -> bool:
        """Whether nobody in this run has asked the same before; who has will tell the others."""
        others = self._same.setdefault(question.key(self.service.cache_key), [])
        others.append(question)
        return len(others) == 1

    async def _batch(self, fresh: AsyncIterator[Question]) -> list[Question]:
        """The questions of the next request, none when all is done: what was wrong goes first."""
        async with self._turn:
            while not self.stopped:
                if self._again:
                    return self._again.popleft()
                batch: list[Question] = []
                async for question in fresh:
                    batch.append(question)
                    if len(batch) == self.queries_a_request:
                        break
                if batch:
                    return batch
                if self._again:
                    continue
                if not self._busy:
                    return []
                self._changed.clear()
                await self._changed.wait()
        return []

    async def _work(self, fresh: AsyncIterator[Question], worker: int) -> None:
        while batch := await self._batch(fresh):
            self._busy += 1
            try:
                self.answers.note_sent(self._claim, worker, [one.key(self.service.cache_key) for one in batch])
                await self._converse(batch)
            finally:
                self._busy -= 1
                self._changed.set()

    async def _converse(self, batch: list[Question]) -> None:
        """Send a request and store its answer; what the answer left open is asked again."""
        try:
            reply, seconds, retries = await self._deliver(batch)
        except RefusedError as error:
            self._refuse(batch, error.reason)
            return
        except ClosedError as error:
            self._stop(error.reason)
            return
        except UnavailableError:
            return  # left for the next run; the breaker counts it
        self._failures = 0
        keep(self.answers, places(batch, self.service.cache_key), reply, self._cost(reply), self.run, seconds, retries)
        self.statistics.book(reply, self._cost(reply), seconds)
        self._keep_refusals()
        again: list[Question] = []
        for question, first in zip(batch, first_numbers(batch), strict=False):
            again += self._close_question(question, bool(read(question, first, reply.text or "")[1]))
        self.statistics.asked_again += len(again)
        self._ask_again(again)

    def _close_question(self, question: Question, wrong: bool) -> list[Question]:
        """Count what an answer brought to an end, for all who asked the same; returns what to ask again."""
        again = []
        for same in self._same.pop(question.key(self.service.cache_key), [question]):
            unknown = dialogue(same, self.service.cache_key, self.answers).next if wrong else None
            if unknown is None:
                self.statistics.done += 1
            elif self._is_first(unknown):
                again.append(unknown)
        return again

    def _ask_again(self, questions: Sequence[Question]) -> None:
        """Let questions whose answer was wrong be asked next, in requests as large as `company` allows."""
        for attempt, some in groupby(sorted(questions, key=lambda q: q.attempt), key=lambda q: q.attempt):
            self._again.extend(map(list, batched(some, company(attempt, self.queries_a_request))))

    def _cost(self, reply: Reply) -> float:
        tokens = reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens
        return self.price.cost(*tokens) if self.price else 0.0

    async def _deliver(self, batch: Sequence[Question]) -> tuple[Reply, float, int]:
        """Send a request until it is answered; the reply, its latency and how often it was sent again."""
        payload = self.service.payload(batch)
        content = json.dumps(payload)
        attempts = [question.attempt for question in batch]  # the same text is another request when asked again
        key = hashlib.sha256(f"{content} {attempts}".encode()).hexdigest()
        characters = len(content)
        tokens = self.estimate.prompt_tokens(characters) + most_tokens(payload)
        most = most_cost(payload, characters, self.estimate, self.price) * self._excess
        retries = limited = 0
        while True:
            await self.limiter.admit(tokens)
            if self.stopped:
                raise ClosedError(self.stopped)
            if not await self.budget.wait_and_reserve(most):
                raise ClosedError(OVER_BUDGET)
            started = time.monotonic()
            try:
                reply = await self._send(payload, key, most)
                self.estimate.learn(characters, reply.prompt_tokens)
                self.limiter.learn(reply.requests, reply.tokens)
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
                pause = min(pause_of(error, retries), self.settings.longest_wait)
                self._wait(pause)
                await asyncio.sleep(pause)

    async def _send(self, payload: dict[str, Any], key: str, most: float) -> Reply:
        """Send a request once and book what it cost: the most that it can have, unless it is known to be less."""
        cost = most
        self._sending.add(asyncio.current_task())
        self.statistics.in_flight += 1
        self.statistics.sent += 1
        self.statistics.waits = ""
        try:
            reply = await self.service.send(payload, key)
            cost = self._cost(reply) or most  # some servers count no tokens
            self._excess = max(self._excess, cost / most if most else 0.0)
            return reply
        except ServiceError as error:
            cost = 0.0 if error.free else most
            self.statistics.lost_usd += cost
            raise
        except PenumbraError:  # no key: nothing was sent
            cost = 0.0
            raise
        finally:
            self._sending.discard(asyncio.current_task())
            self.statistics.in_flight -= 1
            self.budget.charge(most, cost)

    def _wait(self, seconds: float) -> None:
        """Say how long nothing is sent, and for whom, where that is long."""
        if seconds >= WORTH_TELLING:
            self._say(f"waits {seconds:,.0f} s for {self.service.name} ({self.settings.model}) or its limits")

    def _let_go_first(self, other: str) -> None:
        self._say(f"waits for {other}, which asks {self.settings.model} the same; its answers are then taken over")

    def _say(self, waits: str) -> None:
        if waits != self.statistics.waits:
            logger().info("%s: %s", self.service.name, waits)
        self.statistics.waits = waits

    def _fail(self, reason: str) -> None:
        """Count a failure, and stop at the last of too many in a row."""
        self.statistics.faults[reason] += 1
        self._failures += 1
        if self._failures >= FAILURES * self.settings.in_flight:
            self._stop(f"nothing but failures, the last: {reason}")

    def _refuse(self, batch: list[Question], reason: str) -> None:
        """Find the query that a refused request was refused for: the halves are asked, and their halves."""
        if len(batch) > 1:
            self._again.extend(map(list, batched(batch, (len(batch) + 1) // 2)))
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


class BrokenOff:
    """Requests that a run was killed over: sent again as they were, they are charged once where their key is known."""

    def __init__(self, requests: Iterable[Sequence[str]]) -> None:
        self._requests: list[dict[str, Question | None]] = [dict.fromkeys(keys) for keys in requests]
        self._request_of = {key: request for request in self._requests for key in request}

    def take(self, key: str, question: Question) -> bool:
        """Put a question in its place; False where it has none."""
        request = self._request_of.pop(key, None)
        if request is not None:
            request[key] = question
        return request is not None

    def whole(self) -> list[list[Question]]:
        """Takes out the requests whose questions are all there."""
        ready = [request for request in self._requests if all(request.values())]
        self._requests = [request for request in self._requests if not all(request.values())]
        return [[question for question in request.values() if question] for request in ready]

    def rest(self) -> list[Question]:
        """Takes out what is left, of requests that are not whole: some of their questions are answered, or gone."""
        left = [question for request in self._requests for question in request.values() if question]
        self._requests = []
        return left


OVER_BUDGET, UNDER_WAY = "max_cost_usd is reached", "batch jobs are under way"


def company(attempt: int, queries_a_request: int) -> int:
    """How many questions may share a request at this attempt: all at first, then half as many, at last none."""
    return 1 if attempt == MOST_ATTEMPTS else max(1, queries_a_request >> (attempt - 1))


def batched(questions: Iterable[Question], size: int) -> Iterator[Sequence[Question]]:
    """The questions in portions of this size."""
    rest = iter(questions)
    while portion := list(islice(rest, size)):
        yield portion


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
