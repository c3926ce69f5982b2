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
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from penumbra.tasks.negatives.providers.answers import Answer, Answers, Place
from penumbra.tasks.negatives.providers.dialogue import dialogue
from penumbra.tasks.negatives.providers.limits import Pace
from penumbra.tasks.negatives.providers.prices import Budget, Price, price_of
from penumbra.tasks.negatives.providers.questions import Question, first_numbers, read
from penumbra.tasks.negatives.providers.service import (
    ClosedError,
    LimitedError,
    RefusedError,
    Reply,
    Service,
    ServiceError,
    UnavailableError,
)
from penumbra.tasks.negatives.providers.settings import Hosted

TRANSPORT_RETRIES = 6
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds
FAILURES = 5  # in a row for each request in flight, without an answer between: the service is left alone
CHARACTERS_A_TOKEN = 3.6  # of such prompts, to begin with; the answers' own counts correct it
MARGIN = 1.25  # by which the estimate may be too low when money is set aside
TURN = 64  # questions looked up before other tasks get a turn


@dataclass
class Tally:
    """What asking has come to so far."""

    total: int
    done: int = 0  # questions that are settled or given up
    requests: int = 0  # answered
    sent: int = 0  # including those that were lost
    in_flight: int = 0
    retries: int = 0
    limited: int = 0
    asked_again: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    seconds: list[float] = field(default_factory=list)
    models: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=time.monotonic)
    at_start: int = 0  # questions that the cache had settled

    def book(self, reply: Reply, cost: float, seconds: float | None) -> None:
        """Count an answer, and its latency where it has one."""
        self.requests += 1
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.cost_usd += cost
        self.seconds += [] if seconds is None else [seconds]
        self.models[reply.model] += 1

    def latency(self, share: float) -> float:
        """The latency in seconds that this share of the answers stayed below."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def left(self) -> float | None:
        """Seconds that the rest will take at the rate so far, or None before there is one."""
        asked = self.done - self.at_start
        return (time.monotonic() - self.started) / asked * (self.total - self.done) if asked > 0 else None

    def line(self, name: str) -> str:
        """Where it stands, for people."""
        left = self.left()
        eta = "" if left is None else f", about {left:,.0f} s left"
        return (
            f"{name}: {self.done:,} of {self.total:,} queries, {self.in_flight} requests in flight, "
            f"{self.requests:,} answered, {self.prompt_tokens + self.completion_tokens:,} tokens, "
            f"${self.cost_usd:.4f}{eta}"
        )


class Client:
    """Asks one service everything that the cache does not know yet."""

    def __init__(
        self, service: Service, answers: Answers, settings: Hosted, budget: Budget, run: str, queries_a_request: int,
        total: int = 0,
    ) -> None:  # fmt: skip
        self.service, self.answers, self.settings = service, answers, settings
        self.budget, self.run, self.queries_a_request = budget, run, queries_a_request
        self.price = settings.price or price_of(settings.model)
        self.pace = Pace(settings.requests_a_minute, settings.tokens_a_minute)
        self.tally = Tally(total)
        self.estimate = Estimate()
        self.stopped = ""
        self._again: deque[Question] = deque()
        self._refusals: list[tuple[Question, str]] = []  # not stored before the service has shown that it can answer
        self._same: dict[str, list[Question]] = {}  # the questions of one key, while it is open
        self._workers: list[asyncio.Task[None]] = []
        self._sending: set[asyncio.Task[None] | None] = set()
        self._failures = self._busy = 0
        self._turn, self._changed = asyncio.Lock(), asyncio.Event()

    async def ask(self, blocks: Iterable[Sequence[Question]]) -> Tally:
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
        return self.tally

    async def _unanswered(self, blocks: Iterator[Sequence[Question]]) -> AsyncIterator[Question]:
        """What the cache leaves open, like shapes together; the next block is drawn aside while answers come in."""
        while block := await asyncio.to_thread(next, blocks, None):
            unknown = []
            for count, question in enumerate(block):
                if count % TURN == 0:
                    await asyncio.sleep(0)
                left = dialogue(question, self.service.asked, self.answers).next
                if left is None:
                    self.tally.done += 1
                    self.tally.at_start += 1
                elif self._is_first(left):
                    unknown.append(left)
            for question in sorted(unknown, key=lambda question: question.shape):
                yield question

    def _is_first(self, question: Question) -> bool:
        """Whether nobody in this run has asked the same before; who has will tell the others."""
        others = self._same.setdefault(question.key(self.service.asked), [])
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
        keep(self.answers, places(batch, self.service.asked), reply, cost, self.run, seconds, retries)
        self.tally.book(reply, cost, seconds)
        self._keep_refusals()
        for question, first in zip(batch, first_numbers(batch), strict=False):
            self._settle(question, bool(read(question, first, reply.text or "")[1]))

    def _settle(self, question: Question, wrong: bool) -> None:
        """Count what an answer settled, for all who asked the same; what it got wrong is asked again."""
        for same in self._same.pop(question.key(self.service.asked), [question]):
            unknown = dialogue(same, self.service.asked, self.answers).next if wrong else None
            if unknown is None:
                self.tally.done += 1
            elif self._is_first(unknown):
                self.tally.asked_again += 1
                self._again.append(unknown)

    async def _deliver(self, payload: dict[str, Any]) -> tuple[Reply, float, int]:
        """Send a request until it is answered; the reply, its latency and how often it was sent again."""
        characters = len(json.dumps(payload))
        tokens = self.estimate.prompt_tokens(characters) + most_tokens(payload)
        most = most_cost(payload, characters, self.estimate, self.price)
        retries = limited = 0
        while True:
            await self.pace.admit(tokens)
            if self.stopped:
                raise ClosedError(self.stopped)
            if not await self.budget.wait_and_reserve(most):
                raise ClosedError(OVER_BUDGET)
            started, cost = time.monotonic(), 0.0
            self._sending.add(asyncio.current_task())
            self.tally.in_flight += 1
            self.tally.sent += 1
            try:
                reply = await self.service.send(payload)
                self.estimate.learn(characters, reply.prompt_tokens)
                self.pace.learn(reply.requests, reply.tokens)
                if self.price:
                    cost = self.price.cost(reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens)
                return reply, time.monotonic() - started, retries
            except LimitedError as error:
                limited += 1
                self.tally.limited += 1
                self.pace.pause(pause_of(error, limited))
            except UnavailableError as error:
                retries += 1
                self._fail(error.reason)
                if retries > TRANSPORT_RETRIES:
                    raise
                self.tally.retries += 1
                await asyncio.sleep(pause_of(error, retries))
            finally:
                self._sending.discard(asyncio.current_task())
                self.tally.in_flight -= 1
                self.budget.settle(most, cost)

    def _fail(self, reason: str) -> None:
        """Count a failure, and stop at the last of too many in a row."""
        self.tally.faults[reason] += 1
        self._failures += 1
        if self._failures >= FAILURES * self.settings.in_flight:
            self._stop(f"nothing but failures, the last: {reason}")

    def _refuse(self, batch: list[Question], reason: str) -> None:
        """Find the query that a refused request was refused for: each is asked alone."""
        if len(batch) > 1:
            self._again.extend(batch)
            return
        self.tally.refused[reason] += 1
        self._refusals.append((batch[0], f"request refused: {reason}"))
        if self.tally.requests:
            self._keep_refusals()
        self._fail(reason)

    def _keep_refusals(self) -> None:
        """Store what the service refuses for good; it has shown that it does not refuse everything."""
        for question, problem in self._refusals:
            self.answers.refuse(question.key(self.service.asked), problem)
            self._settle(question, wrong=False)
        self._refusals.clear()

    def _stop(self, reason: str) -> None:
        """Send nothing more; what is under way is paid for, so it is waited for, and nothing else is."""
        self.stopped = self.stopped or reason
        self._changed.set()
        for worker in self._workers:
            if worker not in self._sending and worker is not asyncio.current_task():
                worker.cancel()


OVER_BUDGET, UNDER_WAY = "max_cost_usd is reached", "batch jobs are under way"


class Estimate:
    """Tokens of a prompt from its characters; the services' own counts make it better as they come in."""

    def __init__(self) -> None:
        self.characters, self.tokens = CHARACTERS_A_TOKEN, 1.0

    def prompt_tokens(self, characters: int) -> int:
        return int(characters * self.tokens / self.characters) + 1

    def learn(self, characters: int, tokens: int) -> None:
        """Take an answer's own count into account."""
        if tokens:
            self.characters += characters
            self.tokens += tokens


def most_tokens(payload: dict[str, Any]) -> int:
    """How many tokens an answer may have at most, as the request says."""
    form = payload.get("generation_config", payload)
    return int(form.get("max_tokens") or form.get("max_completion_tokens") or form.get("max_output_tokens") or 0)


def most_cost(payload: dict[str, Any], characters: int, estimate: Estimate, price: Price | None) -> float:
    """What a request of so many characters can cost at most, in USD; nothing where no price is known."""
    prompt = estimate.prompt_tokens(characters) * MARGIN
    return price.cost(int(prompt), most_tokens(payload)) if price else 0.0


def pause_of(error: ServiceError, times: int) -> float:
    """Seconds to wait: what the service asks for, else twice as long each time, up to half of it by chance."""
    if error.after is not None:
        return error.after
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (times - 1))
    return pause * random.uniform(0.5, 1.0)  # noqa: S311 (jitter, no secret)


def places(batch: Sequence[Question], asked: dict[str, Any]) -> list[Place]:
    """Where the questions of a request stand in it."""
    pairs = zip(batch, first_numbers(batch), strict=False)
    return [Place(q.key(asked), first, q.asker, q.offer, q.options) for q, first in pairs]


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
