"""OpenAI's Batch API: half the price, answers within a day, collected by a later run.

A job is recorded in the store before it is submitted, under a token that the job carries as metadata. So the next run
finds every job of a killed run, and nothing is submitted or paid twice: only what failed or expired is submitted again.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4

from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.providers.answers import QuestionSlot
from penumbra.tasks.negatives.providers.client import OVER_BUDGET, UNDER_WAY, Client, Statistics, most_cost
from penumbra.tasks.negatives.providers.openai import COMPLETIONS, OpenAIService, error_of, reply_of
from penumbra.tasks.negatives.providers.questions import Question

JOBS = ".jobs"  # the store's folder of jobs, one file each
MOST_REQUESTS, MOST_BYTES = 10_000, 150_000_000  # of a job; the service takes 200 MB
ENDED = {"completed", "failed", "expired", "cancelled"}
RETRIES = 5  # of calls that cost nothing, by the library

Job = dict[str, Any]  # token, address, run, job (its id, None until known), requests: id -> question slots


class BatchClient(Client):
    """Collects the answers of jobs that have ended, and submits jobs for the questions that no job contains."""

    service: OpenAIService

    async def ask(self, blocks: Iterable[Sequence[Question]]) -> Statistics:
        """Collect and submit; `stopped` says what is left for the next run."""
        import openai

        self.files = Store().files
        self.library = self.service.client.with_options(max_retries=RETRIES)
        questions = [question for block in blocks for question in block]
        try:
            async with self.answers.request_lock(self.service.cache_key, self.run, self._report_other):
                jobs = [json.loads(self.files.read(path)) for path in self.files.matching(f"{JOBS}/*.json")]
                own = [job for job in jobs if job["address"] == self.settings.address]
                waiting = [job for job in own if await self._is_under_way(job)]
                following = self.open_questions(questions)
                self.statistics.done = len(questions) - len(following)
                pending = {key for job in waiting for one in job["requests"].values() for key, *_ in one["places"]}
                unasked = {key: question for question in following if (key := self.key(question)) not in pending}
                if unasked and not self.stopped:
                    waiting += await self._submit(self.requests(unasked))
                self.statistics.in_flight = sum(len(job["requests"]) for job in waiting)
                self.stopped = self.stopped or (UNDER_WAY if waiting else "")
        except openai.APIStatusError as error:
            self.stopped = error_of(error).reason
        except openai.APIConnectionError as error:
            self.stopped = type(error).__name__
        finally:
            await self.service.close()
        return self.statistics

    async def _is_under_way(self, job: Job) -> bool:
        """Return whether a job has not ended yet; otherwise store its answers and forget it."""
        record = await self._find(job)
        if record is not None and record.status not in ENDED:
            return True
        for file in filter(None, (record.output_file_id, record.error_file_id)) if record else ():
            content = await self.library.files.content(file)
            for line in content.text.splitlines():
                self._store_answer(job, json.loads(line))
        if record and record.status == "failed":
            codes = {str(fault.code) for fault in (record.errors.data if record.errors else None) or []}
            self.stopped = f"batch job failed: {', '.join(sorted(codes)) or 'no reason given'}"
        self.files.remove(f"{JOBS}/{job['token']}.json")  # it ended, or was never submitted
        return False

    def _note(self, job: Job) -> Job:
        self.files.write(f"{JOBS}/{job['token']}.json", json.dumps(job).encode())
        return job

    async def _find(self, job: Job) -> Any:
        """Return the service's record of a job, found by its token if its id is unknown; None if there is none."""
        if job["job"]:
            return await self.library.batches.retrieve(job["job"])
        async for record in self.library.batches.list(limit=100):
            if (record.metadata or {}).get("penumbra") == job["token"]:
                self._note(job | {"job": record.id})
                return record
        return None

    def _store_answer(self, job: Job, line: dict[str, Any]) -> None:
        """Store one line of a job's output: an answer, or a refusal; any other question stays open."""
        response = line.get("response") or {}
        status, request = response.get("status_code"), job["requests"].get(line.get("custom_id"))
        slots = [QuestionSlot(*slot) for slot in request["places"]] if request else []
        if slots and status == 200:
            reply = reply_of(response["body"])
            self.keep(slots, reply, self._cost(reply) * self.settings.discount, job["run"])
        elif slots and status in (400, 413, 422):
            if len(slots) > 1:
                self.answers.isolate([slot.key for slot in slots])
                return
            self.answers.refuse(slots[0].key, f"request refused: status {status}")
            self.statistics.refused[f"status {status}"] += 1
        elif slots:
            self.statistics.faults[(line.get("error") or {}).get("code") or f"status {status}"] += 1

    async def _submit(self, requests: list[list[Question]]) -> list[Job]:
        """Submit jobs for these requests, as many as the budget allows.

        The most that a request can cost is charged now, because a later run collects its answer.
        """
        jobs, left = [], requests[::-1]
        while left and not self.stopped:
            job: Job = {"token": uuid4().hex, "job": None, "address": self.settings.address, "run": self.run}
            job["requests"], lines, size = {}, list[bytes](), 0
            while left and len(lines) < MOST_REQUESTS and size <= MOST_BYTES:
                name, body = f"{job['token']}-{len(lines)}", self.service.payload(left[-1])
                line = json.dumps({"custom_id": name, "method": "POST", "url": f"/v1{COMPLETIONS}", "body": body})
                most = most_cost(body, len(line), self.price) * self.settings.discount
                if not self.budget.try_reserve(most):
                    self.stopped = OVER_BUDGET
                    break
                self.budget.charge(most, most)
                lines.append(line.encode())
                size += len(lines[-1])
                job["requests"][name] = {"places": self.question_slots(left.pop())}
            if lines:
                self._note(job)
                file = await self.library.files.create(file=("requests.jsonl", b"\n".join(lines)), purpose="batch")
                submitted = await self.service.client.batches.create(
                    input_file_id=file.id,
                    endpoint=f"/v1{COMPLETIONS}",
                    completion_window="24h",
                    metadata={"penumbra": job["token"]},
                )
                jobs.append(self._note(job | {"job": submitted.id}))
                self.statistics.sent += len(lines)
        return jobs
