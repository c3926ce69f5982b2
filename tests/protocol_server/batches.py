"""OpenAI's files and Batch API, in memory: upload, submit, poll, fetch."""

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from aiohttp import web

if TYPE_CHECKING:
    from tests.protocol_server.server import Reply, Settings

Handler = Callable[[web.Request], "Awaitable[tuple[Reply, dict[str, Any]]]"]
FAILED = {"code": "token_limit_exceeded", "message": "Enqueued token limit reached.", "line": None, "param": None}


class Batches:
    """The two resources; a batch moves on with each GET of it, and its lines are answered when it ends."""

    def __init__(
        self, settings: "Settings", answer_line: Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]
    ) -> None:
        self.settings, self.answer_line = settings, answer_line
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.polls: dict[str, int] = {}

    def routes(self) -> Iterator[tuple[str, str, Handler]]:
        yield "POST", "/v1/files", self.upload
        yield "GET", "/v1/files/{id}/content", self.content
        yield "POST", "/v1/batches", self.submit
        yield "GET", "/v1/batches", self.list
        yield "GET", "/v1/batches/{id}", self.poll

    async def upload(self, request: web.Request) -> "tuple[Reply, dict[str, Any]]":
        form = await request.post()
        name = self._store(form["file"].file.read())  # type: ignore[union-attr]
        return _json({"id": name, "object": "file", "bytes": 0, "created_at": 0, "filename": "f", "purpose": "batch"})

    async def content(self, request: web.Request) -> "tuple[Reply, dict[str, Any]]":
        reply, line = _json({})
        reply.body = self.files[request.match_info["id"]]
        return reply, line

    async def submit(self, request: web.Request) -> "tuple[Reply, dict[str, Any]]":
        payload = await request.json()
        batch = {"id": f"batch_{uuid4().hex}", "object": "batch", "status": "validating", "created_at": 0} | payload
        self.batches[batch["id"]] = batch | {"output_file_id": None, "error_file_id": None, "errors": None}
        return _json(self.batches[batch["id"]])

    async def list(self, request: web.Request) -> "tuple[Reply, dict[str, Any]]":
        return _json({"object": "list", "data": [*reversed(self.batches.values())], "has_more": False})

    async def poll(self, request: web.Request) -> "tuple[Reply, dict[str, Any]]":
        batch = self.batches[request.match_info["id"]]
        self.polls[batch["id"]] = self.polls.get(batch["id"], 0) + 1
        if self.polls[batch["id"]] >= self.settings.batch_polls and batch["status"] == "validating":
            self._finish(batch)
        return _json(batch)

    def _finish(self, batch: dict[str, Any]) -> None:
        """Answer all lines, or half of them where batches expire, not in the order of the input."""
        batch["status"] = self.settings.batch_outcome
        if batch["status"] == "failed":
            batch["errors"] = {"object": "list", "data": [FAILED]}
            return
        lines = [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]
        reach = len(lines) // 2 if batch["status"] == "expired" else len(lines)
        outputs: dict[str, list[dict[str, Any]]] = {"output": [], "error": []}
        for number, line in enumerate(lines):
            if number < reach:
                status, body = self.answer_line(line["body"])
                result = {"response": {"status_code": status, "body": body}, "error": None}
            else:
                status, result = 0, {"response": None, "error": {"code": "batch_expired", "message": "expired"}}
            outputs["output" if status == 200 else "error"].append({"custom_id": line["custom_id"], **result})
        for name, results in outputs.items():
            if results:
                text = "".join(json.dumps(result) + "\n" for result in reversed(results))
                batch[f"{name}_file_id"] = self._store(text.encode())

    def _store(self, content: bytes) -> str:
        name = f"file-{uuid4().hex}"
        self.files[name] = content
        return name


def _json(body: dict[str, Any]) -> "tuple[Reply, dict[str, Any]]":
    from tests.protocol_server.server import Reply

    return Reply(200, json.dumps(body).encode(), {"content-type": "application/json"}), {}
