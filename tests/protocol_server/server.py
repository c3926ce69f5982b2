"""Requests to replies: the routes, and the faults and limits in their way."""

import asyncio
import hashlib
import json
import socket
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tests.protocol_server.batches import Batches
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
    requests_per_minute: int | None = None
    minute: float = 60.0  # seconds in a "minute", so that tests need not wait for one
    idempotent: bool = False  # the same Idempotency-Key gets the same answer, which is charged once
    batch_polls: int = 2  # GETs of a batch until it is done
    batch_outcome: str = "completed"  # completed, expired (half-way) or failed


@dataclass
class Reply:
    """What is sent back, after how long, and how the connection ends: whole or one of `WIRE`."""

    status: int
    body: bytes
    headers: dict[str, str]
    delay: float = 0.0
    wire: str = "whole"


class Server:
    """One stand-in; `log` has a line for each request that has ended."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.faults, self.log, self.in_flight = settings, list[Fault](), list[Line](), 0
        self.known: dict[str, dict[str, Any]] = {}  # answers by Idempotency-Key
        self.admitted: deque[float] = deque()  # when requests were admitted in the last minute
        self.batches = Batches(settings, self.answer_line)

    def set_faults(self, faults: list[dict[str, Any]]) -> None:
        self.faults = [Fault(entry) for entry in faults]

    def change(self, settings: dict[str, Any]) -> None:
        for name, value in settings.items():
            if not hasattr(self.settings, name):
                raise ValueError(f"no such setting: {name}")
            setattr(self.settings, name, value)
        self.known.clear()
        self.admitted.clear()

    def application(self) -> web.Application:
        application = web.Application(client_max_size=1 << 28)
        application.router.add_post(CHAT, self.logged(lambda request: self.ask(request, OpenAI())))
        application.router.add_post(
            "/{version}/models/{model}:generateContent",
            self.logged(lambda request: self.ask(request, Gemini(request.match_info["model"]))),
        )
        for method, path, handler in self.batches.routes():
            application.router.add_route(method, path, self.logged(handler))
        return application

    def logged(
        self, handler: Callable[[web.Request], Awaitable[tuple[Reply, Line]]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Return a handler that counts and logs its request, and sends the reply as the fault says."""

        async def handle(request: web.Request) -> web.StreamResponse:
            self.in_flight += 1
            line: Line = {"time": time.time(), "method": request.method, "path": request.path, "fault": None}
            line |= {"in_flight": self.in_flight, "outcome": "client closed", "status": None}
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

    async def ask(self, request: web.Request, service: OpenAI | Gemini) -> tuple[Reply, Line]:
        """Return a model's reply, or the error of a fault, a key or a limit; an answer is charged, even a lost one."""
        body, key = await request.text(), service.key(request.headers)
        payload = json.loads(body)
        offered, text = service.offered(payload), service.text(payload)
        fault = choose(self.faults, request.path, body)
        line: Line = {"key": key, "payload": hashlib.sha256(body.encode()).hexdigest(), "offered": offered}
        line |= {"text": text, "prompt": hashlib.sha256(text.encode()).hexdigest()}
        if fault and fault.kind in ("status", "quota"):
            return _refused(fault, service), line | {"fault": fault.kind}
        if self.settings.keys is not None and key not in self.settings.keys:
            return _json(*service.bad_key()), line
        if problem := service.problem(payload):
            return _json(400, service.error(400, problem)), line
        if wait := self.wait_for_limit():
            refused, headers = service.limited(wait)
            return _json(429, refused, headers), line
        idempotency = request.headers.get("idempotency-key", "")
        charged, answered = [0, 0], self.known.get(idempotency)
        if answered is None:
            content = well_said(offered)
            answer = spoil(fault, payload, offered, content) if fault else Answer(content)
            answered, charged = service.completion(payload, answer)
            if idempotency and self.settings.idempotent:
                self.known[idempotency] = answered
        reply = _json(200, answered)
        reply.delay = self.settings.latency
        if fault:
            _spoil_reply(fault, reply)
        return reply, line | {"idempotency": idempotency, "charged": charged, "fault": fault.kind if fault else None}

    def answer_line(self, payload: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and body for a line of a batch."""
        service, fault = OpenAI(), choose(self.faults, f"batch:{CHAT}", json.dumps(payload))
        if fault and fault.kind in ("status", "quota"):
            refused = _refused(fault, service)
            return refused.status, json.loads(refused.body)
        return 200, service.completion(payload, Answer(well_said(service.offered(payload))))[0]

    def wait_for_limit(self) -> float:
        """Return 0 and count the request, or the seconds until one more is within the limit."""
        limit, now = self.settings.requests_per_minute, time.monotonic()
        while self.admitted and self.admitted[0] <= now - self.settings.minute:
            self.admitted.popleft()
        if limit is not None and len(self.admitted) >= limit:
            return self.admitted[0] + self.settings.minute - now
        self.admitted.append(now)
        return 0.0


async def send(request: web.Request, reply: Reply) -> web.StreamResponse:
    """Send a reply, or as much of it as its fault leaves."""
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
    """Return an error status, as the script words it."""
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
    reply.delay = entry.get("delay", 0.0)
    return reply


def _spoil_reply(fault: Fault, reply: Reply) -> None:
    """Apply what a fault does to the bytes, the delay and the connection of a reply."""
    entry = fault.entry
    if fault.kind in WIRE:
        reply.wire = fault.kind
    elif fault.kind == "slow":
        reply.delay += entry.get("seconds", 5.0)
    elif fault.kind == "html":
        reply.body, reply.headers["content-type"] = HTML, "text/html"
    elif fault.kind == "body":
        reply.body = entry["body"].encode() if "body" in entry else reply.body[: len(reply.body) // 2]
    reply.delay = entry.get("delay", reply.delay)
