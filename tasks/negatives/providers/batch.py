"""OpenAI's Batch API: half the price, answers within a day, collected by this run or a later one.

A job is written down in the store before it is submitted, under a token that the job carries too. So a run that is
killed at any point leaves no job behind that the next run would not find, and nothing is submitted or paid twice:
only what failed or expired goes out again.
"""

import asyncio
import json
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol
from uuid import uuid4

from pydantic import Field

from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.providers.accounting import Statistics, TokenEstimate, most_cost
from penumbra.tasks.negatives.providers.answers import Answers, Place
from penumbra.tasks.negatives.providers.asking import (
    OVER_BUDGET,
    UNDER_WAY,
    ServiceClient,
    batched,
    company,
    keep,
    places,
)
from penumbra.tasks.negatives.providers.budget import Budget
from penumbra.tasks.negatives.providers.claims import claim
from penumbra.tasks.negatives.providers.dialogue import dialogue
from penumbra.tasks.negatives.providers.hosted import Hosted
from penumbra.tasks.negatives.providers.prompts import Prompt
from penumbra.tasks.negatives.providers.questions import Question
from penumbra.tasks.negatives.providers.service import REFUSED, Reply, Service, ServiceError
from penumbra.tasks.stage import logger

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

JOBS = "jobs"  # the folder of the store where jobs are written down
DISCOUNT = 0.5  # a request in a job costs half
POLL = 20.0  # seconds between two looks at jobs
MOST_BYTES = 150_000_000  # of a job's file; the service takes 200 MB
ENDED = {"completed", "failed", "expired", "cancelled"}
MANAGEMENT_RETRIES = 5  # of calls that cost nothing: the library's own retries serve

Job = dict[
    str, Any
]  # token, address, run, job (its id, None until it is known) and requests: id -> the places of their questions


class BatchService(Service, Protocol):
    """A service that takes jobs as OpenAI's library submits them."""

    endpoint: str

    @property
    def client(self) -> "AsyncOpenAI":
        """The library's client."""
        ...

    def reply(self, body: dict[str, Any], headers: Mapping[str, str]) -> Reply:
        """The answer in a line of a job's output."""
        ...

    def classed(self, error: "APIStatusError") -> ServiceError:
        """What an error of the library says."""
        ...


class BatchSettings(Hosted):
    """How a hosted model that takes batch jobs is asked."""

    mode: Literal["live", "batch"] = Field(
        "live", description="batch: the Batch API, half the price, answers within a day; run again to collect them."
    )
    requests_a_job: int = Field(10_000, ge=1, le=50_000, description="Requests a batch job holds, at most.")
    batch_wait: float = Field(
        0.0, ge=0, description="Seconds to wait for batch jobs before the run ends and leaves them for the next."
    )

    @property
    def discount(self) -> float:
        """A request in a job costs half."""
        return DISCOUNT if self.mode == "batch" else 1.0

    @abstractmethod
    def service(self, prompt: Prompt) -> BatchService:
        """What requests and jobs go to."""

    def client(
        self,
        prompt: Prompt,
        answers: Answers,
        budget: Budget,
        run: str,
        queries_a_request: int,
        store: Store,
        total: int = 0,
    ) -> ServiceClient:
        """What asks live or through jobs, as the mode says."""
        if self.mode == "live":
            return super().client(prompt, answers, budget, run, queries_a_request, store, total)
        return BatchClient(self.service(prompt), answers, self, budget, run, queries_a_request, store, total)


class BatchClient:
    """Asks a service everything that the cache does not know yet, through batch jobs."""

    def __init__(
        self,
        service: BatchService,
        answers: Answers,
        settings: BatchSettings,
        budget: Budget,
        run: str,
        queries_a_request: int,
        store: Store,
        total: int = 0,
    ) -> None:
        self.service, self.answers, self.settings = service, answers, settings
        self.jobs = store.json_folder(JOBS)
        self.budget, self.run, self.queries_a_request = budget, run, queries_a_request
        self.price = settings.known_price
        self.statistics = Statistics(total)
        self.estimate = TokenEstimate()
        self.stopped = ""

    async def ask(self, blocks: Iterable[Sequence[Question]]) -> Statistics:
        """Collect, submit, and wait as long as the settings say; `stopped` says what is left for the next run."""
        import openai

        questions = [question for block in blocks for question in block]
        deadline = time.monotonic() + self.settings.batch_wait
        try:
            while True:
                async with claim(self.answers, self.service.cache_key, self.run, self._let_go_first):
                    self.statistics.waits = ""
                    jobs = await self._collect_and_submit(questions)
                self.statistics.in_flight = sum(len(job["requests"]) for job in jobs)
                if not jobs or self.stopped:
                    break
                if time.monotonic() >= deadline:
                    self.stopped = UNDER_WAY
                    break
                await asyncio.sleep(POLL)
        except openai.APIStatusError as error:
            self.stopped = self.service.classed(error).reason
        except openai.APIConnectionError as error:
            self.stopped = type(error).__name__
        finally:
            await self.service.close()
        return self.statistics

    async def _collect_and_submit(self, questions: Sequence[Question]) -> list[Job]:
        """The jobs that are under way, when the ended ones are collected and what no job holds is submitted."""
        jobs = await self._collect()
        pending = {key for job in jobs for request in job["requests"].values() for key, *_ in request["places"]}
        unknown = self._unknown(questions, pending)
        return jobs + (await self._submit(unknown) if unknown and not self.stopped else [])

    def _let_go_first(self, other: str) -> None:
        waits = f"waits for {other}, which asks {self.settings.model} the same"
        if waits != self.statistics.waits:
            logger().info("%s: %s", self.service.name, waits)
        self.statistics.waits = waits

    def _unknown(self, questions: Iterable[Question], pending: set[str]) -> list[Question]:
        """What has no answer and is in no job, like shapes together; counts what is answered."""
        left = [dialogue(question, self.service.cache_key, self.answers).next for question in questions]
        done = sum(question is None for question in left)
        self.statistics.at_start = self.statistics.at_start if self.statistics.sent else done
        self.statistics.done = done
        cache_key = self.service.cache_key
        open_ones = {question.key(cache_key): question for question in left if question}  # the same text once
        return sorted((q for key, q in open_ones.items() if key not in pending), key=lambda question: question.shape)

    # -- collecting ------------------------------------------------------------------------------------------

    async def _collect(self) -> list[Job]:
        """Store the answers of the jobs that have ended; returns those that have not."""
        mine = [job for job in self.jobs.read_all() if job["address"] == self.settings.address]
        left = []
        for job in mine:
            record = await self._find(job)
            if record is None:
                self.jobs.remove(job["token"])  # it was never submitted
            elif record.status not in ENDED:
                left.append(job)
            else:
                await self._harvest(job, record)
                self.jobs.remove(job["token"])
        return left

    async def _find(self, job: Job) -> Any:
        """The service's record of a job; one whose id is not known is looked for by its token."""
        client = self.service.client.with_options(max_retries=MANAGEMENT_RETRIES)
        if job["job"]:
            return await client.batches.retrieve(job["job"])
        async for record in client.batches.list(limit=100):
            if (record.metadata or {}).get("penumbra") == job["token"]:
                job["job"] = record.id
                self.jobs.write(job["token"], job)
                return record
        return None

    async def _harvest(self, job: Job, record: Any) -> None:
        """Store every answer of a job that has ended; what it lacks stays open."""
        client = self.service.client.with_options(max_retries=MANAGEMENT_RETRIES)
        for file in filter(None, (record.output_file_id, record.error_file_id)):
            content = await client.files.content(file)
            for line in content.text.splitlines():
                self._take(job, json.loads(line))
        if record.status == "failed":
            codes = {str(fault.code) for fault in (record.errors.data if record.errors else None) or []}
            self.stopped = f"batch job failed: {', '.join(sorted(codes)) or 'no reason given'}"

    def _take(self, job: Job, line: dict[str, Any]) -> None:
        """One line of a job's output: an answer, a refusal, or something to be asked again."""
        request = job["requests"].get(line.get("custom_id"))
        response = line.get("response") or {}
        status, body = response.get("status_code"), response.get("body")
        if request is None:
            return
        if status == 200:
            answered = self.service.reply(body or {}, {})
            tokens = (answered.prompt_tokens, answered.completion_tokens, answered.cached_tokens)
            cost = self.price.cost(*tokens) * DISCOUNT if self.price else 0.0
            keep(self.answers, [Place(*place) for place in request["places"]], answered, cost, job["run"], 0.0, 0)
            self.statistics.book(answered, cost, None)
        elif status in REFUSED and len(request["places"]) == 1:
            self.answers.refuse(request["places"][0][0], f"request refused: status {status}")
            self.statistics.refused[f"status {status}"] += 1
        elif status in REFUSED:
            self.answers.isolate([key for key, *_ in request["places"]])
        else:
            self.statistics.faults[(line.get("error") or {}).get("code") or f"status {status}"] += 1

    # -- submitting ------------------------------------------------------------------------------------------

    async def _submit(self, questions: Sequence[Question]) -> list[Job]:
        """Submit jobs for these questions, as many as the budget allows."""
        jobs = []
        for job, lines in self._jobs(questions):
            self.jobs.write(job["token"], job)
            client = self.service.client
            content = ("requests.jsonl", b"\n".join(lines))
            file = await client.with_options(max_retries=MANAGEMENT_RETRIES).files.create(file=content, purpose="batch")
            submitted = await client.batches.create(
                input_file_id=file.id,
                endpoint=f"/v1{self.service.endpoint}",  # type: ignore[arg-type]
                completion_window="24h",
                metadata={"penumbra": job["token"]},
            )
            job["job"] = submitted.id
            self.jobs.write(job["token"], job)
            self.statistics.sent += len(lines)
            jobs.append(job)
        return jobs

    def _jobs(self, questions: Sequence[Question]) -> Iterator[tuple[Job, list[bytes]]]:
        job, lines, size = self._new_job(), list[bytes](), 0
        for batch in self._batches(questions):
            name = f"{job['token']}-{len(lines)}"
            body = self.service.payload(batch)
            line = json.dumps({"custom_id": name, "method": "POST", "url": f"/v1{self.service.endpoint}", "body": body})
            most = most_cost(body, len(line), self.estimate, self.price) * DISCOUNT
            if not self.budget.reserve(most):
                self.stopped = OVER_BUDGET
                break
            self.budget.charge(most, most)  # owed from now on: a later run learns what it did cost
            lines.append(line.encode())
            size += len(lines[-1])
            job["requests"][name] = {"places": places(batch, self.service.cache_key)}
            if len(lines) == self.settings.requests_a_job or size > MOST_BYTES:
                yield job, lines
                job, lines, size = self._new_job(), [], 0
        if lines:
            yield job, lines

    def _new_job(self) -> Job:
        return {
            "token": uuid4().hex,
            "job": None,
            "address": self.settings.address,
            "model": self.settings.model,
            "run": self.run,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "requests": {},
        }

    def _batches(self, questions: Sequence[Question]) -> Iterator[Sequence[Question]]:
        """Requests of several questions; what was refused goes alone."""
        together: dict[int, list[Question]] = defaultdict(list)  # by attempt
        for question in questions:
            if self.answers.is_isolated(question.key(self.service.cache_key)):
                yield [question]
            else:
                together[question.attempt].append(question)
        for attempt, some in sorted(together.items()):
            yield from batched(some, company(attempt, self.queries_a_request))
