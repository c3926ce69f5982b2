"""OpenAI's Batch API: half the price, answers within a day, collected by a later run.

A job is written down in the store before it is submitted, under a token that the job carries as metadata. So a run that
is killed at any point leaves no job that the next run cannot find, and nothing is submitted or paid twice: only what
failed or expired is submitted again.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from penumbra.artifacts.files import JsonFolder
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.providers.answers import QuestionSlot
from penumbra.tasks.negatives.providers.client import (
    OVER_BUDGET,
    UNDER_WAY,
    Client,
    Statistics,
    most_cost,
    question_slots,
)
from penumbra.tasks.negatives.providers.openai import COMPLETIONS, OpenAIService, error_of, reply_of
from penumbra.tasks.negatives.providers.questions import Question

JOBS = "jobs"  # the store's folder of jobs
MOST_REQUESTS, MOST_BYTES = 10_000, 150_000_000  # of a job; the service takes 200 MB
ENDED = {"completed", "failed", "expired", "cancelled"}
RETRIES = 5  # of calls that cost nothing, by the library

Job = dict[str, Any]  # token, address, model, run, made, job (its id, None until known), requests: id -> question slots


class BatchClient(Client):
    """Collects the answers of jobs that have ended, and submits jobs for the questions that no job contains."""

    service: OpenAIService

    async def ask(self, blocks: Iterable[Sequence[Question]]) -> Statistics:
        """Collect and submit; `stopped` says what is left for the next run."""
        import openai

        self.jobs = JsonFolder(Store().files, JOBS)
        self.library = self.service.client.with_options(max_retries=RETRIES)
        questions = [question for block in blocks for question in block]
        try:
            async with self.answers.request_lock(self.service.cache_key, self.run, self._report_other):
                waiting = await self._collect()
                following = self.open_questions(questions)
                self.statistics.done = len(questions) - len(following)
                pending = {key for job in waiting for one in job["requests"].values() for key, *_ in one["places"]}
                unasked = {key: question for question in following if (key := self.key(question)) not in pending}
                if unasked and not self.stopped:
                    waiting += await self._submit(unasked)
                self.statistics.in_flight = sum(len(job["requests"]) for job in waiting)
                self.stopped = self.stopped or (UNDER_WAY if waiting else "")
        except openai.APIStatusError as error:
            self.stopped = error_of(error).reason
        except openai.APIConnectionError as error:
            self.stopped = type(error).__name__
        finally:
            await self.service.close()
        return self.statistics

    async def _collect(self) -> list[Job]:
        """Store the answers of the jobs that have ended; return the others."""
        waiting = []
        for job in (job for job in self.jobs.read_all() if job["address"] == self.settings.address):
            record = await self._find(job)
            if record is not None and record.status not in ENDED:
                waiting.append(job)
                continue
            if record is not None:
                await self._store_answers(job, record)
            self.jobs.remove(job["token"])  # it ended, or was never submitted
        return waiting

    async def _find(self, job: Job) -> Any:
        """Return the service's record of a job, found by its token if its id is unknown; None if there is none."""
        if job["job"]:
            return await self.library.batches.retrieve(job["job"])
        async for record in self.library.batches.list(limit=100):
            if (record.metadata or {}).get("penumbra") == job["token"]:
                self.jobs.write(job["token"], job | {"job": record.id})
                return record
        return None

    async def _store_answers(self, job: Job, record: Any) -> None:
        for file in filter(None, (record.output_file_id, record.error_file_id)):
            content = await self.library.files.content(file)
            for line in content.text.splitlines():
                self._store_answer(job, json.loads(line))
        if record.status == "failed":
            codes = {str(fault.code) for fault in (record.errors.data if record.errors else None) or []}
            self.stopped = f"batch job failed: {', '.join(sorted(codes)) or 'no reason given'}"

    def _store_answer(self, job: Job, line: dict[str, Any]) -> None:
        """Store one line of a job's output: an answer, or a refusal; any other question stays open."""
        response = line.get("response") or {}
        status, request = response.get("status_code"), job["requests"].get(line.get("custom_id"))
        if request is None:
            return
        slots = [QuestionSlot(*slot) for slot in request["places"]]
        if status == 200:
            reply = reply_of(response["body"])
            self.keep(slots, reply, self._cost(reply) * self.settings.discount, job["run"])
        elif status in (400, 413, 422) and len(slots) == 1:
            self.answers.refuse(slots[0].key, f"request refused: status {status}")
            self.statistics.refused[f"status {status}"] += 1
        elif status in (400, 413, 422):
            self.answers.isolate([slot.key for slot in slots])
        else:
            self.statistics.faults[(line.get("error") or {}).get("code") or f"status {status}"] += 1

    async def _submit(self, questions: dict[str, Question]) -> list[Job]:
        """Submit jobs for these questions, as many as the budget allows."""
        jobs = []
        for job, lines in self._jobs(questions):
            self.jobs.write(job["token"], job)
            file = await self.library.files.create(file=("requests.jsonl", b"\n".join(lines)), purpose="batch")
            submitted = await self.service.client.batches.create(
                input_file_id=file.id,
                endpoint=f"/v1{COMPLETIONS}",
                completion_window="24h",
                metadata={"penumbra": job["token"]},
            )
            jobs.append(job | {"job": submitted.id})
            self.jobs.write(job["token"], jobs[-1])
            self.statistics.sent += len(lines)
        return jobs

    def _jobs(self, questions: dict[str, Question]) -> Iterator[tuple[Job, list[bytes]]]:
        """Yield jobs with the lines of their files; their most cost is charged now, since a later run collects them."""
        job, lines, size = self._new_job(), list[bytes](), 0
        for request in self.requests(questions):
            name = f"{job['token']}-{len(lines)}"
            body = self.service.payload(request)
            line = json.dumps({"custom_id": name, "method": "POST", "url": f"/v1{COMPLETIONS}", "body": body})
            most = most_cost(body, len(line), self.price) * self.settings.discount
            if not self.budget.try_reserve(most):
                self.stopped = OVER_BUDGET
                break
            self.budget.charge(most, most)
            lines.append(line.encode())
            size += len(lines[-1])
            job["requests"][name] = {"places": question_slots(request, self.service.cache_key)}
            if len(lines) == MOST_REQUESTS or size > MOST_BYTES:
                yield job, lines
                job, lines, size = self._new_job(), [], 0
        if lines:
            yield job, lines

    def _new_job(self) -> Job:
        job: Job = {"token": uuid4().hex, "job": None, "address": self.settings.address, "model": self.settings.model}
        return job | {"run": self.run, "made": datetime.now(UTC).isoformat(timespec="seconds"), "requests": {}}
