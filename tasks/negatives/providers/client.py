"""The client of a hosted model: it asks every question that the cache has no answer to, and stores each answer.

A round asks all open questions once. Questions without a valid answer are asked again in requests of half the size, and
then alone. A lost request is sent again after a growing pause, and a rate limit of the service makes all requests wait.
After too many failures in a row, nothing more is sent to the service in this run.
"""

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from math import inf
from typing import Any

from aiolimiter import AsyncLimiter
from tenacity import AsyncRetrying, RetryCallState, wait_exponential_jitter

from penumbra.artifacts.markdown import counted
from penumbra.tasks.negatives.providers import hosted
from penumbra.tasks.negatives.providers.answers import Answers, Budget
from penumbra.tasks.negatives.providers.hosted import Action, Service, ServiceError
from penumbra.tasks.negatives.providers.questions import MOST_ATTEMPTS, Answer, Question, open_questions, store
from penumbra.tasks.progress import logger

TRANSPORT_RETRIES = 6
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds between two attempts
LONGEST_WAIT = 600.0  # seconds to wait at most, however long the service asks for
WORTH_REPORTING = 5.0  # seconds of a pause
FAILURES = 5  # failures in a row, for each request in flight, after which the client stops
CHARACTERS_A_TOKEN = 3.6  # measured on these prompts
MARGIN = 1.25  # factor on the estimated tokens when money is reserved, as the estimate may be too low
SLOT_TOKENS = 6  # of an answer: quotes, number, colon, letter, comma
OVER_BUDGET = "max_cost_usd is reached"


async def all_of(tasks: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all tasks, so that all paid answers are stored, and then raise the first error."""
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


class Client:
    """Asks one service all questions that the cache has no answer to, and counts requests, tokens and cost.

    `blocks` returns all questions and `total` is their number. `done` counts questions that were answered or given up,
    `requests` requests that were answered, `again` requests that were sent again. `lost_usd` is the highest possible
    cost of lost answers. `stopped` is why questions were left open.
    """

    budget: Budget
    run: str

    def __init__(
        self,
        service: Service,
        answers: Answers,
        blocks: Callable[[], Iterable[Sequence[Question]]],
        queries_a_request: int,
        total: int = 0,
    ) -> None:
        self.service, self.answers, self.blocks = service, answers, blocks
        self.queries_a_request, self.total, self.stopped = queries_a_request, total, ""
        self.done, self.requests, self.again, self.tokens, self.cost_usd, self.lost_usd = 0, 0, 0, 0, 0.0, 0.0
        self.models, self.problems = Counter[str](), Counter[str]()  # that answered; why requests were lost or refused
        limit = service.settings.requests_a_minute
        self._limiter = AsyncLimiter(1, 60 / limit) if limit else None  # evenly, one after the other
        self._turn, self._stop_sleeping = asyncio.Lock(), asyncio.Event()
        self._resume = 0.0  # when requests may be sent again after a limit
        self._failures = 0  # since the last answer
        self._askers = Counter[str]()  # key → number of open questions with this key
        self._given_up = dict[str, str]()  # key of a question not to ask again → reason of its refusal, '' once stored

    def progress(self) -> str:
        return f"{self.service.name} {self.done:,} of {counted(self.total, 'query')}"

    def cost(self) -> str:
        return f"${self.cost_usd:.4f}" + (f" and up to ${self.lost_usd:.4f} for lost answers" if self.lost_usd else "")

    def line(self) -> str:
        answered = f"{counted(self.requests, 'request')} answered, {self.again:,} sent again"
        return f"{self.progress()}, {answered}, {self.tokens:,} tokens, {self.cost()}"

    def warnings(self) -> Iterator[str]:
        asked = self.service.settings.model
        yield from (f"{asked} was asked, {model} answered" for model in self.models if model != asked)
        yield from (f"{number} × {reason}" for reason, number in self.problems.most_common())
        if self.stopped not in ("", OVER_BUDGET):
            yield f"stopped: {self.stopped}; the next run asks for the rest"

    def unanswered(self) -> str:
        """Return the digest of all open questions."""
        keys = (self.key(question) for block in self.blocks() for question in self.open_questions(block))
        return hashlib.sha256("".join(keys).encode()).hexdigest()[:16]

    def estimate(self) -> tuple[str, ...]:
        """Return the estimated cost of asking, as a row of the report; tokens are estimated from characters."""
        service, size, model = self.service, self.queries_a_request, self.service.settings.model
        questions = [question for block in self.blocks() for question in self.open_questions(block)]
        queries = len({question.query.qid for question in questions})
        requests = [questions[start : start + size] for start in range(0, len(questions), size)]
        prompt = sum(int(len(json.dumps(service.payload(one))) / CHARACTERS_A_TOKEN) + 1 for one in requests)
        completion = sum(SLOT_TOKENS * len(question.open) + 2 for question in questions)
        cost = f"${service.price.cost(prompt, completion):.2f}" if service.price else "no price known"
        logger().info(
            f"not sent: {service.name} ({model}): {counted(queries, 'query')} in "
            f"{counted(len(requests), 'request')}, about {prompt:,} + {completion:,} tokens, {cost}"
        )
        counts = (queries, len(requests), prompt, completion)
        return (service.name, model, *(f"{count:,}" for count in counts), cost.lstrip("$"))

    async def ask(self, budget: Budget, run: str) -> None:
        """Ask until no question is open, or until the service or the budget stops it."""
        self.budget, self.run, remaining = budget, run, iter(self.blocks())
        try:
            while not self.stopped and (block := await asyncio.to_thread(next, remaining, ())):
                questions = self.open_questions(block)
                self.done += len(block) - len(questions)
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
        """Ask all questions once; several queries with the same text are one question.

        Questions are sorted by shape, because requests of one shape have the same schema.
        """
        self._askers, requests = Counter(map(self.key, questions)), list[list[Question]]()
        distinct = {self.key(question): question for question in questions}.values()
        for attempt, same in groupby(sorted(distinct, key=lambda q: (q.attempt, q.shape)), lambda q: q.attempt):
            size = 1 if attempt == MOST_ATTEMPTS else max(1, self.queries_a_request >> (attempt - 1))
            group = list(same)
            requests += [group[start : start + size] for start in range(0, len(group), size)]
        waiting = iter(requests)

        async def work() -> None:
            for request in waiting:
                await self._ask_request(request)

        await all_of(work() for _ in range(hosted.IN_FLIGHT))
        if self.requests:  # a service that refuses all requests may have another reason than these questions
            refused = {key: reason for key, reason in self._given_up.items() if reason}
            self.answers.put({f"question {key}": {"error": f"request refused: {why}"} for key, why in refused.items()})
            self.done += sum(self._askers[key] for key in refused)
            self._given_up |= dict.fromkeys(refused, "")  # they are stored once

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
                is_refused = error.action == "refuse"
                self._given_up |= dict.fromkeys(map(self.key, request), error.reason if is_refused else "")
                if is_refused:
                    self._count_failure(error.reason)
            return
        store(self.answers, request, self.service.cache_key, replace(answer, run=self.run, questions=len(request)))
        for question in request:  # an earlier block's refusal must not replace the paid answer
            self._given_up.pop(self.key(question), None)
        self._failures = 0
        self.requests += 1
        self.tokens += answer.prompt_tokens + answer.completion_tokens
        self.cost_usd += answer.cost_usd
        self.models[answer.model] += 1
        self.done += sum(self._askers[self.key(q)] for q in request if not self.open_questions([q]))

    async def _deliver(self, request: Sequence[Question]) -> Answer:
        """Send a request until it is answered, and return the answer; raise `ServiceError` if there is none."""
        payload, price = self.service.payload(request), self.service.price
        prompt_tokens = int(len(json.dumps(payload)) / CHARACTERS_A_TOKEN * MARGIN)
        most = price.cost(prompt_tokens, self.service.most_tokens(request)) if price else 0.0

        def again_after(action: Action, times: float) -> AsyncRetrying:
            def is_so(state: RetryCallState) -> bool:
                error = state.outcome and state.outcome.exception()
                return isinstance(error, ServiceError) and error.action == action and state.attempt_number <= times

            return AsyncRetrying(retry=is_so, wait=self._pause, sleep=self._sleep)

        return await again_after("retry", TRANSPORT_RETRIES)(again_after("wait", inf), self._send, payload, most)

    async def _send(self, payload: dict[str, Any], most: float) -> Answer:
        """Send a request once, and charge its cost, or `most` if the cost is unknown."""
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
            self.lost_usd += cost
            self.again += lost.action in ("wait", "retry")
            if lost.action == "retry":
                self._count_failure(lost.reason)
            raise lost from None
        finally:
            self.budget.charge(most, cost)

    def _pause(self, state: RetryCallState) -> float:
        """Return the seconds until a request is sent again; after a limit, all requests wait as long."""
        error: Any = state.outcome and state.outcome.exception()
        growing = wait_exponential_jitter(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE, jitter=FIRST_PAUSE)
        seconds = min(error.after or growing(state), LONGEST_WAIT)  # a pause of 0 s would hit the limit again
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
        self.problems[reason] += 1
        self._failures += 1
        if self._failures >= FAILURES * hosted.IN_FLIGHT:
            self._stop(f"nothing but failures, the last: {reason}")

    def _stop(self, reason: str) -> None:
        """Send nothing more; only requests in flight, which are paid for, are waited for."""
        self.stopped = self.stopped or reason
        self._stop_sleeping.set()
