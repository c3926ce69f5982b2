"""The server: it routes requests, applies faults and limits, and logs every request."""

import asyncio
import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

from aiohttp import web

from tests.protocol_server.faults import WIRE, Answer, Fault, choose, spoil
from tests.protocol_server.services import Gemini, OpenAI, retry_info, well_said

CHAT = "/v1/chat/completions"
HTML = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body>Bad Gateway</body></html>"
Line = dict[str, Any]


@dataclass
class Settings:
    """Settings of a stand-in; None means no limit or no check."""

    latency: float = 0.0  # seconds before a model's answer
    keys: list[str] | None = None  # accepted API keys
    idempotent: bool = False  # the same Idempotency-Key gets the same answer, which is charged once
    batch_polls: int = 2  # GETs of a batch until it is done
    batch_outcome: str = "completed"  # or expired: half of the lines are answered


@dataclass
class Reply:
    """A reply, its delay in seconds, and how the connection ends: whole or one of `WIRE`."""

    status: int
    body: bytes
    headers: dict[str, str]
    delay: float = 0.0
    wire: str = "whole"


Handler = Callable[[web.Request], Awaitable[tuple[Reply, Line]]]


class ProtocolServer:
    """A server in a thread, for the duration of a `with`; `log` has a line for each request that has ended."""

    def __init__(self, **settings: Any) -> None:
        self.settings, self.url, self.in_flight = Settings(**settings), "", 0
        self.faults, self.log = list[Fault](), list[Line]()
        self.known: dict[str, dict[str, Any]] = {}  # answers by Idempotency-Key
        self.files: dict[str, bytes] = {}  # of batches
        self.batches: dict[str, dict[str, Any]] = {}
        self.polls: dict[str, int] = {}
        self.loop = asyncio.new_event_loop()

    def __enter__(self) -> Self:
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(), self.loop).result(30)
        return self

    async def _start(self) -> str:
        application = web.Application(client_max_size=1 << 28)
        routes: list[tuple[str, str, Handler]] = [
            ("POST", CHAT, lambda request: self._ask(request, OpenAI())),
            ("POST", "/{version}/models/{model}:generateContent", self._ask_gemini),
            ("POST", "/v1/files", self._upload),
            ("GET", "/v1/files/{id}/content", self._content),
            ("POST", "/v1/batches", self._submit),
            ("GET", "/v1/batches", self._list),
            ("GET", "/v1/batches/{id}", self._poll),
        ]
        for method, path, handler in routes:
            application.router.add_route(method, path, self._logged(handler))
        self.runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0, backlog=1024).start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self.runner.cleanup(), self.loop).result(30)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    @property
    def openai_url(self) -> str:
        """`base_url` of an OpenAI client."""
        return f"{self.url}/v1"

    def script(self, *faults: dict[str, Any]) -> None:
        """Replace the faults, with all counters at zero."""
        self.faults = [Fault(entry) for entry in faults]

    def change(self, **settings: Any) -> None:
        """Change settings; forget the answers by Idempotency-Key."""
        for name, value in settings.items():
            if not hasattr(self.settings, name):
                raise ValueError(f"no such setting: {name}")
            setattr(self.settings, name, value)
        self.known.clear()

    def reset(self) -> None:
        """Return to the default settings without faults and requests."""
        self.change(**vars(Settings()))
        self.script()
        self.log.clear()

    def requests(self, **where: Any) -> list[Line]:
        """Return the log's lines that have these values, in the order in which the requests ended."""
        return [line for line in list(self.log) if all(line.get(name) == value for name, value in where.items())]

    def charged(self) -> tuple[int, int]:
        """Return the tokens of prompts and answers that were charged, including lost answers."""
        charged = [line["charged"] for line in self.requests() if "charged" in line]
        return sum(prompt for prompt, _ in charged), sum(answer for _, answer in charged)

    def _logged(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Return a handler that logs its request and sends the reply."""

        async def handle(request: web.Request) -> web.StreamResponse:
            self.in_flight += 1
            line: Line = {"time": time.time(), "method": request.method, "path": request.path, "fault": None}
            line |= {"outcome": "client closed", "status": None}
            try:
                reply, more = await handler(request)
                line |= more
                await asyncio.sleep(float("inf") if reply.wire == "hang" else reply.delay)
                line["outcome"] = "answered" if reply.wire == "whole" else reply.wire
                line["status"] = reply.status if reply.wire in ("whole", "half") else None
            finally:
                self.in_flight -= 1
                self.log.append(line)
            return await send(request, reply)

        return handle

    async def _ask_gemini(self, request: web.Request) -> tuple[Reply, Line]:
        return await self._ask(request, Gemini(request.match_info["model"]))

    async def _ask(self, request: web.Request, service: OpenAI | Gemini) -> tuple[Reply, Line]:
        """Return a model's reply, or the error of a fault, a key or a limit; a lost answer is charged, too."""
        body, key = await request.text(), service.key(request.headers)
        payload = json.loads(body)
        offered, text = service.offered(payload), service.text(payload)
        fault = choose(self.faults, body)
        line: Line = {"key": key, "payload": hashlib.sha256(body.encode()).hexdigest(), "offered": offered}
        line |= {"text": text, "prompt": hashlib.sha256(text.encode()).hexdigest()}
        if fault and fault.kind in ("status", "quota"):
            return _refused(fault, service), line | {"fault": fault.kind}
        if self.settings.keys is not None and key not in self.settings.keys:
            return _json(*service.bad_key()), line
        if problem := service.problem(payload):
            return _json(400, service.error(400, problem)), line
        idempotency = request.headers.get("idempotency-key", "")
        charged, answered = [0, 0], self.known.get(idempotency)
        if answered is None:
            content = well_said(offered)
            answer = spoil(fault, content) if fault else Answer(content)
            answered, charged = service.completion(payload, answer)
            if idempotency and self.settings.idempotent:
                self.known[idempotency] = answered
        reply = _json(200, answered)
        reply.delay = self.settings.latency
        if fault:
            _spoil_reply(fault, reply)
        return reply, line | {"idempotency": idempotency, "charged": charged, "fault": fault.kind if fault else None}

    async def _upload(self, request: web.Request) -> tuple[Reply, Line]:
        form = await request.post()
        name = self._store(form["file"].file.read())  # type: ignore[union-attr]
        file = {"id": name, "object": "file", "bytes": 0, "created_at": 0, "filename": "f", "purpose": "batch"}
        return _json(200, file), {}

    async def _content(self, request: web.Request) -> tuple[Reply, Line]:
        return Reply(200, self.files[request.match_info["id"]], {"content-type": "application/json"}), {}

    async def _submit(self, request: web.Request) -> tuple[Reply, Line]:
        batch = {"id": f"batch_{uuid4().hex}", "object": "batch", "status": "validating", "created_at": 0}
        batch |= {**await request.json(), "output_file_id": None, "error_file_id": None, "errors": None}
        self.batches[str(batch["id"])] = batch
        return _json(200, batch), {}

    async def _list(self, request: web.Request) -> tuple[Reply, Line]:
        return _json(200, {"object": "list", "data": [*reversed(self.batches.values())], "has_more": False}), {}

    async def _poll(self, request: web.Request) -> tuple[Reply, Line]:
        batch = self.batches[request.match_info["id"]]
        self.polls[batch["id"]] = self.polls.get(batch["id"], 0) + 1
        if self.polls[batch["id"]] >= self.settings.batch_polls and batch["status"] == "validating":
            self._finish(batch)
        return _json(200, batch), {}

    def _finish(self, batch: dict[str, Any]) -> None:
        """Answer all lines of a batch in reverse order, or half of them if it expires."""
        batch["status"] = self.settings.batch_outcome
        lines = [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]
        answered = len(lines) // 2 if batch["status"] == "expired" else len(lines)
        outputs: dict[str, list[dict[str, Any]]] = {"output": [], "error": []}
        for number, line in enumerate(lines):
            if number < answered:
                status, body = self._answer_line(line["body"])
                result = {"response": {"status_code": status, "body": body}, "error": None}
            else:
                status, result = 0, {"response": None, "error": {"code": "batch_expired", "message": "expired"}}
            outputs["output" if status == 200 else "error"].append({"custom_id": line["custom_id"], **result})
        for name, results in outputs.items():
            if results:
                text = "".join(json.dumps(result) + "\n" for result in reversed(results))
                batch[f"{name}_file_id"] = self._store(text.encode())

    def _answer_line(self, payload: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and body for a line of a batch."""
        service, fault = OpenAI(), choose(self.faults, json.dumps(payload))
        if fault and fault.kind in ("status", "quota"):
            refused = _refused(fault, service)
            return refused.status, json.loads(refused.body)
        return 200, service.completion(payload, Answer(well_said(service.offered(payload))))[0]

    def _store(self, content: bytes) -> str:
        name = f"file-{uuid4().hex}"
        self.files[name] = content
        return name


async def send(request: web.Request, reply: Reply) -> web.StreamResponse:
    """Send a reply, or the part of it that its fault allows."""
    transport = request.transport
    if reply.wire == "whole" or transport is None:
        return web.Response(status=reply.status, body=reply.body, headers=reply.headers)
    if reply.wire == "half":
        response = web.StreamResponse(headers=reply.headers | {"content-length": str(len(reply.body))})
        await response.prepare(request)
        await response.write(reply.body[: len(reply.body) // 2])
        transport.close()
        return response
    if reply.wire == "reset":
        options = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.get_extra_info("socket").setsockopt(*options)
        transport.abort()
    transport.close()
    raise asyncio.CancelledError


def _json(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> Reply:
    return Reply(status, json.dumps(body).encode(), {"content-type": "application/json"} | (headers or {}))


def _refused(fault: Fault, service: OpenAI | Gemini) -> Reply:
    """Return the error of a fault."""
    entry = fault.entry
    if fault.kind == "quota":
        return _json(429, service.quota())
    body = service.error(entry["status"], entry.get("message", "An error."), entry.get("code"))
    if "retry_delay" in entry:
        body["error"]["details"] = [retry_info(entry["retry_delay"])]
    reply = _json(entry["status"], body)
    if "body" in entry:
        reply.body = entry["body"].encode()
    for name in ("retry_after", "retry_after_ms"):
        if name in entry:
            reply.headers[name.replace("_", "-")] = str(entry[name])
    reply.headers |= entry.get("headers", {})
    return reply


def _spoil_reply(fault: Fault, reply: Reply) -> None:
    """Apply a fault to the bytes, the delay and the connection of a reply."""
    entry = fault.entry
    if fault.kind in WIRE:
        reply.wire = fault.kind
    elif fault.kind == "slow":
        reply.delay += entry.get("seconds", 5.0)
    elif fault.kind == "html":
        reply.body, reply.headers["content-type"] = HTML, "text/html"
    elif fault.kind == "body":
        reply.body = entry["body"].encode() if "body" in entry else reply.body[: len(reply.body) // 2]
