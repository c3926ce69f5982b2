"""Requests to replies: the routes, the faults in their way, and the program that listens."""

import asyncio
import functools
import importlib
import json
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from tests.protocol_server import answers
from tests.protocol_server.batches import PREFIXES, Batches
from tests.protocol_server.faults import WIRE, Answer, Fault, Script, spoil
from tests.protocol_server.gemini import PATH, Gemini, retry_info
from tests.protocol_server.http import Connection, Exchange, Reply, Request
from tests.protocol_server.limits import Limits
from tests.protocol_server.openai import CHAT, OpenAI, models_list
from tests.protocol_server.record import Record
from tests.protocol_server.settings import Settings

Service = OpenAI | Gemini
HTML = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body>Bad Gateway</body></html>"
MESSAGES = {429: "Rate limit reached.", 500: "The server had an error.", 503: "The model is overloaded."}


class Server:
    """One stand-in, with its counts."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.record = Record(settings)
        self.batches = Batches(settings, self.answer_line)
        self.random = random.Random(settings.seed)
        self.openai = OpenAI()
        self.known: dict[str, dict[str, Any]] = {}  # answers by Idempotency-Key
        self.apply()

    def apply(self) -> None:
        """Take over settings that are worked out once."""
        self.script = Script(self.settings.script)
        self.limits = Limits(self.settings)
        module, _, name = self.settings.answer.partition(":")
        self.answer: Callable[[dict[str, Any]], str] = getattr(importlib.import_module(module), name)
        if self.answer is answers.answer:
            self.answer = functools.partial(answers.answer, seed=self.settings.seed)

    def handle(self, request: Request) -> Exchange:
        """Begin an exchange; it is counted and logged when it ends."""
        if request.path.startswith("/__"):
            return Exchange(self.control(request), lambda outcome: None)
        service = self.service_of(request)
        key = (service or self.openai).key(request.headers)
        line = self.record.begin(request.method, request.path, key, request.body)
        fault = self.script.choose(request.path, key, request.body, service is not None)
        try:
            reply, why = self.reply(request, service, fault, key, line)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            reply, why = _json(500, self.openai.error(500, f"stand-in: {error!r}")), "bug"
        if reply.wire == "hang":
            self.record.end(line, None, "hang", why)
        return Exchange(reply, lambda outcome: self.record.end(line, _status(reply, outcome), outcome, why))

    def service_of(self, request: Request) -> Service | None:
        """The service whose model is asked; `None` for files, batches and lists."""
        if request.method != "POST":
            return None
        if request.path == CHAT:
            return self.openai
        match = PATH.fullmatch(request.path)
        return Gemini(match[1], "enum-encoding=int" in request.query.replace("%3D", "=")) if match else None

    def reply(
        self, request: Request, service: Service | None, fault: Fault | None, key: str, line: dict[str, Any]
    ) -> tuple[Reply, str | None]:
        """The reply, and the name of the fault or the limit that made it what it is."""
        voice = service or self.openai
        payload: Any = _payload(request) if service else None
        problem = service.check(payload, self.settings.models) if service else None
        if service is not None and problem is None:
            self.record.describe(line, payload)
        why: str | None
        if fault is not None and fault.kind in {"status", "quota"}:
            reply, why = _refused(fault, voice), fault.kind
        elif self.settings.keys is not None and key not in self.settings.keys:
            reply, why = _json(*voice.bad_key()), "key"
        elif problem is not None:
            reply, why = _json(problem[0], voice.error(problem[0], problem[1], code=problem[2])), "refused"
        elif service is None:
            reply, why = self.plain(request), fault.kind if fault else None
        else:
            reply, why = self.model_reply(service, payload, fault, line, request.headers.get("idempotency-key"))
        if fault is not None and why == fault.kind:
            _spoil_wire(fault, reply)
        reply.headers["x-request-id"] = f"req_{uuid4().hex}"
        return reply, why

    def plain(self, request: Request) -> Reply:
        """Files, batches and the list of models."""
        if request.path.startswith(PREFIXES):
            return self.batches.handle(request)
        if request.method == "GET" and request.path == "/v1/models":
            return _json(200, models_list(self.settings.models))
        return _json(404, self.openai.error(404, f"Invalid URL ({request.method} {request.path})"))

    def model_reply(
        self, service: Service, payload: Any, fault: Fault | None, line: dict[str, Any], key: str | None
    ) -> tuple[Reply, str | None]:
        """A model's answer, unless a limit forbids it; it is charged, whatever becomes of it on its way."""
        over = self.over(service.prompt_tokens(payload))
        if over is not None:
            body, headers = service.limited(*over)
            return Reply(429, json.dumps(body).encode(), headers | self.headers()), f"limit on {over[0]}"
        body = self.known.get(key or "")
        line |= {"idempotency": key, "charged": [0, 0]}
        if body is None:
            body = self.completion(service, payload, fault)
            line["charged"] = service.charged(body)
            if key and self.settings.idempotent:
                self.known[key] = body
        reply = Reply(200, json.dumps(body).encode(), self.headers(), self.delay())
        return reply, fault.kind if fault else None

    def completion(self, service: Service, payload: dict[str, Any], fault: Fault | None) -> dict[str, Any]:
        text = self.answer(payload)
        return service.completion(payload, spoil(fault, payload, text) if fault else Answer(text))

    def answer_line(self, payload: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and body for a line of a batch; faults of the wire do not reach it."""
        body = json.dumps(payload, ensure_ascii=False).encode()
        fault = self.script.choose(f"batch:{CHAT}", "", body, is_model=False)
        problem = self.openai.check(payload, self.settings.models)
        if problem is not None:
            return problem[0], self.openai.error(problem[0], problem[1], code=problem[2])
        if fault is not None and fault.kind in {"status", "quota"}:
            reply = _refused(fault, self.openai)
            return reply.status, json.loads(reply.body)
        return 200, self.completion(self.openai, payload, fault)

    def over(self, tokens: int) -> tuple[str, float] | None:
        """The limit that one more request breaks, and for how long."""
        most = self.settings.max_in_flight
        if most is not None and self.record.in_flight > most:
            return "requests in flight", self.settings.latency
        return self.limits.admit(time.monotonic(), tokens) if self.limits.windows else None

    def headers(self) -> dict[str, str]:
        return self.limits.headers(time.monotonic()) if self.settings.announce_limits else {}

    def delay(self) -> float:
        return self.settings.latency + (self.random.uniform(0, self.settings.jitter) if self.settings.jitter else 0.0)

    def control(self, request: Request) -> Reply:
        """`GET /__stats`, `POST /__script`, `POST /__settings`: neither counted nor logged."""
        if request.path == "/__stats":
            most = {name: window.most for name, window in self.limits.windows.items()}
            return _json(200, self.record.stats() | {"most_in_a_minute": most})
        try:
            given = json.loads(request.body)
            self.settings.change({"script": given} if request.path == "/__script" else given)
            self.apply()
            if request.path == "/__settings":
                self.known.clear()
        except (ValueError, KeyError, AttributeError) as error:
            return _json(400, {"error": str(error)})
        return _json(200, {"ok": True})


def _payload(request: Request) -> Any:
    try:
        return json.loads(request.body)
    except ValueError:
        return None


def _refused(fault: Fault, service: Service) -> Reply:
    """An error status, as the script words it."""
    entry = fault.entry
    if fault.kind == "quota":
        return _json(429, service.quota())
    status = entry["status"]
    message = entry.get("message", MESSAGES.get(status, f"An error with status {status}."))
    body = service.error(status, message, code=entry.get("code"), kind=entry.get("type"))
    if "retry_delay" in entry:
        body["error"]["details"] = [retry_info(entry["retry_delay"])]
    reply = _json(status, body)
    if "body" in entry:
        reply.body = entry["body"].encode()
    for name in ("retry_after", "retry_after_ms"):
        if name in entry:
            reply.headers[name.replace("_", "-")] = str(entry[name])
    reply.headers |= entry.get("headers", {})
    return reply


def _spoil_wire(fault: Fault, reply: Reply) -> None:
    """What a fault does to the bytes, the time and the end of a reply."""
    entry = fault.entry
    if fault.kind in WIRE:
        reply.wire = fault.kind
    elif fault.kind == "slow":
        reply.delay += entry.get("seconds", 5.0)
    elif fault.kind == "html":
        reply.body, reply.headers["content-type"] = HTML, "text/html"
    elif fault.kind == "body":
        reply.body = entry["body"].encode() if "body" in entry else reply.body[: len(reply.body) // 2]
    if "delay" in entry:
        reply.delay = entry["delay"]


def _json(status: int, body: dict[str, Any]) -> Reply:
    return Reply(status, json.dumps(body).encode())


def _status(reply: Reply, outcome: str) -> int | None:
    return reply.status if outcome in {"answered", "half"} else None


async def listen(settings: Settings) -> None:
    """Serve until SIGTERM, SIGINT or, if so set, the end of standard input."""
    server = Server(settings)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    if settings.die_with_parent:
        loop.add_reader(sys.stdin.fileno(), stop.set)
    listener = await loop.create_server(
        lambda: Connection(server.handle), "127.0.0.1", settings.port, backlog=1024, reuse_address=True
    )
    print(f"listening on http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", flush=True)
    await stop.wait()
    listener.close()
    server.record.flush()
