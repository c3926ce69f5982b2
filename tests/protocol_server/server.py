"""The server: it routes requests, applies faults and limits, and logs every request."""

import asyncio
import gzip
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web

from tests.protocol_server.faults import WIRE, Answer, Fault, choose, spoil
from tests.protocol_server.services import Gemini, OpenAI, retry_info, well_said

HTML = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body>Bad Gateway</body></html>"
Line = dict[str, Any]


@dataclass
class Reply:
    """A reply, its delay in seconds, and how the connection ends: whole or one of `WIRE`."""

    status: int
    body: bytes
    headers: dict[str, str]
    delay: float = 0.0
    wire: str = "whole"


class ProtocolServer:
    """A server in a thread, for the duration of a `with`; `log` has a line for each request that has ended."""

    def __init__(self) -> None:
        self.url, self.in_flight, self.log = "", 0, list[Line]()
        self.loop = asyncio.new_event_loop()
        self.reset()

    def __enter__(self) -> Self:
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(), self.loop).result(30)
        return self

    async def _start(self) -> str:
        application = web.Application(client_max_size=1 << 28)
        application.router.add_post("/v1/chat/completions", self._logged(lambda request: OpenAI()))
        gemini = "/{version}/models/{model}:generateContent"
        application.router.add_post(gemini, self._logged(lambda request: Gemini(request.match_info["model"])))
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

    def change(self, latency: float = 0.0, keys: list[str] | None = None) -> None:
        """Set the seconds before a model's answer, and the accepted API keys; None accepts all."""
        self.latency, self.keys = latency, keys

    def reset(self) -> None:
        """Return to the default settings without faults and requests."""
        self.change()
        self.script()
        self.log.clear()

    def requests(self, **where: Any) -> list[Line]:
        """Return the log's lines that have these values, in the order in which the requests ended."""
        return [line for line in list(self.log) if all(line.get(name) == value for name, value in where.items())]

    def charged(self) -> tuple[int, int]:
        """Return the tokens of prompts and answers that were charged, including lost answers."""
        charged = [line["charged"] for line in self.requests() if "charged" in line]
        return sum(prompt for prompt, _ in charged), sum(answer for _, answer in charged)

    def _logged(
        self, service_of: Callable[[web.Request], OpenAI | Gemini]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Return a handler that logs its request and sends the reply."""

        async def handle(request: web.Request) -> web.StreamResponse:
            self.in_flight += 1
            line: Line = {"time": time.time(), "fault": None, "outcome": "client closed", "status": None}
            try:
                reply, more = await self._ask(request, service_of(request))
                line |= more
                await asyncio.sleep(float("inf") if reply.wire == "hang" else reply.delay)
                line["outcome"] = "answered" if reply.wire == "whole" else reply.wire
                line["status"] = reply.status if reply.wire in ("whole", "half") else None
            finally:
                self.in_flight -= 1
                self.log.append(line)
            return await send(request, reply)

        return handle

    async def _ask(self, request: web.Request, service: OpenAI | Gemini) -> tuple[Reply, Line]:
        """Return a model's reply, or the error of a fault, a key or a limit; a lost answer is charged, too."""
        body, key = await request.text(), service.key(request.headers)
        payload = json.loads(body)
        offered, text = service.offered(payload), service.text(payload)
        fault = choose(self.faults, body)
        line: Line = {"key": key, "payload": body, "offered": offered, "text": text}
        if fault and fault.kind in ("status", "quota"):
            return _refused(fault, service), line | {"fault": fault.kind}
        if self.keys is not None and key not in self.keys:
            return _json(*service.bad_key()), line
        if problem := service.problem(payload):
            return _json(400, service.error(400, problem)), line
        content = well_said(offered)
        answer = spoil(fault, content) if fault else Answer(content)
        answered, charged = service.completion(payload, answer)
        reply = _json(200, answered)
        reply.delay = self.latency
        if fault:
            _spoil_reply(fault, reply)
        return reply, line | {"charged": charged, "fault": fault.kind if fault else None}


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
    if reply.wire == "drip":
        response = web.StreamResponse(headers=reply.headers)
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.02)
    if reply.wire == "reset":
        options = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.get_extra_info("socket").setsockopt(*options)
        transport.abort()
    transport.close()
    raise asyncio.CancelledError


def _json(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> Reply:
    return Reply(status, json.dumps(body).encode(), {"content-type": "application/json"} | (headers or {}))


def _refused(fault: Fault, service: OpenAI | Gemini) -> Reply:
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
    elif fault.kind == "gzip":
        reply.body, reply.headers["content-encoding"] = gzip.compress(reply.body), "gzip"
    elif fault.kind == "tokens":
        reply.body = re.sub(rb'(Count|_tokens)": \d+', rb'\1": %d' % entry["count"], reply.body)
    elif fault.kind == "body":
        reply.body = entry["body"].encode() if "body" in entry else reply.body[: len(reply.body) // 2]
