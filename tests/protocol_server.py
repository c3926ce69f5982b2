"""A stand-in for OpenAI's and Gemini's servers that speaks their protocols over HTTP and fails on demand.

    with ProtocolServer() as server:
        server.change(latency=0.2)
        server.script({"when": {"every": 7}, "do": "status", "status": 429})
        client = openai.OpenAI(base_url=server.openai_url, api_key="sk-test")
        ...
        assert len(server.requests(status=200)) == 6

A fault is `{"when": {...}, "do": KIND, ...}`; the first one that applies is used. All conditions of `when` must hold.
The numbers count the requests that `contains` selects, from 1, since the script was set.

    contains: "garage"      the body contains this
    request: 3              the third
    every: 7                the 7th, 14th, ...
    after: 20               all but the first 20

`times` limits how often a fault applies. The kinds and their parameters:

    status       status, code, message, headers, retry_after (s), retry_after_ms, retry_delay (Gemini), body
    quota        429 with insufficient_quota (Gemini: a quota per day)
    hang         never answers                     slow       answers after `seconds`
    half         half a body, then closes          close      closes without a byte
    reset        resets the connection (RST)       html       200 with an HTML page
    drip         blanks without an end             gzip       the body, compressed
    tokens       `count` of tokens
    body         200 with `body` as the whole body (default: JSON cut off)
    answer       `content` instead of the model's  prose      words instead of JSON
    missing      a slot is left out                foreign    one value that was not offered
    length       cut off, finish reason length     null       content is null
    no_choices   an empty list                     refusal    refused (Gemini: SAFETY)
    model        another model's name, `model`     blocked    content_filter (Gemini: promptFeedback.blockReason)
"""

import asyncio
import gzip
import json
import math
import re
import socket
import struct
import threading
import time
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

from aiohttp import web

WIRE = {"hang", "half", "close", "reset", "drip"}
KINDS = WIRE | {"status", "quota", "slow", "html", "body", "gzip", "tokens", "answer", "prose", "foreign", "missing"}
KINDS |= {"length", "null", "refusal", "blocked", "no_choices", "model"}
HTML = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body>Bad Gateway</body></html>"
OUT_OF_QUOTA = "You exceeded your current quota, please check your plan and billing details."
SLOT = re.compile(r"\[(\d+) ([^:\[\]]+): ([^\[\]]+)\]")  # [3 opens: A closes B holds]
LETTER = re.compile(r"(?:^| )([A-Z]) \S+")
Body = dict[str, Any]


@dataclass
class Answer:
    """A model's answer, without the JSON of the service around it."""

    content: str | None
    finish: str = "stop"  # stop, length, safety, blocked
    refusal: str | None = None
    model: str | None = None
    choices: bool = True


class Fault:
    """One entry of a script, with its counters."""

    def __init__(self, entry: Body) -> None:
        self.entry, self.kind, self.when = entry, entry["do"], entry.get("when", {})
        self.left, self.seen = entry.get("times", float("inf")), 0

    def applies(self, body: str) -> bool:
        """Return whether the fault applies to this request; count the request if it is selected."""
        when = self.when
        if when.get("contains", "") not in body:
            return False
        self.seen += 1
        is_this = self.seen == when.get("request", self.seen) and self.seen % when.get("every", 1) == 0
        return self.left > 0 and is_this and self.seen > when.get("after", 0)

    def answer(self, content: str) -> Answer:
        """Return the answer with the fault in it; faults of the connection or the status do not change it."""
        if self.kind in ("foreign", "missing"):
            answer = json.loads(content)
            slot = str(self.entry.get("slot") or next(iter(answer)))
            kept = {name: letter for name, letter in answer.items() if name != slot}
            return Answer(json.dumps(kept | ({slot: "xylophone"} if self.kind == "foreign" else {})))
        answers = {
            "answer": Answer(self.entry.get("content")),
            "prose": Answer("Sure! Here are the words: closes, table and {under"),
            "length": Answer(content[: len(content) // 2], finish="length"),
            "null": Answer(None),
            "refusal": Answer(None, finish="safety", refusal="I'm sorry, I can't help with that."),
            "blocked": Answer(None, finish="blocked"),
            "no_choices": Answer(None, choices=False),
            "model": Answer(content, model=self.entry.get("model", "another-model-0613")),
        }
        return answers.get(self.kind, Answer(content))


def tokens(text: str) -> int:
    """Return the number of tokens of a text; this stand-in counts four characters a token."""
    return math.ceil(len(text) / 4)


def well_said(offered: dict[str, list[str]]) -> str:
    """Return an answer that takes one of each slot's options, always the same for the same slot and options."""
    places = {slot: zlib.crc32(f"0\0{slot}\0{options}".encode()) for slot, options in offered.items()}
    return json.dumps({slot: of[(places[slot] * 2654435761 >> 16) % len(of)] for slot, of in offered.items()})


class OpenAI:
    """The service behind `POST /v1/chat/completions`."""

    def key(self, headers: Any) -> str:
        return str(headers.get("authorization", "")).removeprefix("Bearer ")

    def text(self, payload: Body) -> str:
        return "\n".join(message["content"] for message in payload["messages"])

    def offered(self, payload: Body) -> dict[str, list[str]]:
        """Return the letters of each slot, from the schema or, in JSON mode, from the text."""
        form = payload.get("response_format", {})
        if form.get("type") == "json_schema":
            schema = form["json_schema"]["schema"]
            references = {number: part["$ref"].split("/")[-1] for number, part in schema["properties"].items()}
            return {number: schema["$defs"][name]["enum"] for number, name in references.items()}
        return {number: LETTER.findall(options) for number, _, options in SLOT.findall(self.text(payload))}

    def problem(self, payload: Body) -> str:
        """Return why the real service would refuse this payload, or ''."""
        form = payload.get("response_format", {})
        if form.get("type") == "json_object":
            return "" if "json" in self.text(payload).lower() else "the messages must contain the word json"
        if payload["model"].startswith(("gpt-3.5", "gpt-4-")):
            return "'response_format' of type 'json_schema' is not supported with this model."
        schema = form["json_schema"]["schema"]
        is_strict = schema["additionalProperties"] is False and set(schema["required"]) == set(schema["properties"])
        return "" if is_strict and schema["type"] == "object" else "Invalid schema for response_format"

    def completion(self, payload: Body, answer: Answer) -> tuple[Body, list[int]]:
        """Return the body of a 200, and the tokens that are charged."""
        charged = [tokens(self.text(payload)), tokens(answer.content or answer.refusal or "")]
        finish = {"safety": "stop", "blocked": "content_filter"}.get(answer.finish, answer.finish)
        message = {"role": "assistant", "content": answer.content, "refusal": answer.refusal}
        choices = [{"index": 0, "message": message, "finish_reason": finish}] if answer.choices else []
        usage = {"prompt_tokens": charged[0], "completion_tokens": charged[1], "total_tokens": sum(charged)}
        body = {"id": uuid4().hex, "object": "chat.completion", "created": 0, "choices": choices, "usage": usage}
        return body | {"model": answer.model or payload["model"]}, charged

    def error(self, status: int, message: str, code: str | None = None) -> Body:
        kind = "server_error" if status >= 500 else "invalid_request_error"
        return {"error": {"message": message, "type": code if status == 429 else kind, "param": None, "code": code}}

    def bad_key(self) -> tuple[int, Body]:
        return 401, self.error(401, "Incorrect API key provided.", "invalid_api_key")

    def quota(self) -> Body:
        return self.error(429, OUT_OF_QUOTA, "insufficient_quota")


class Gemini:
    """The service behind `POST /v1beta/models/MODEL:generateContent`.

    google-generativeai writes enums as numbers (`"type": 6` is OBJECT) and asks for numbers back.
    """

    def __init__(self, model: str) -> None:
        self.model = model

    def key(self, headers: Any) -> str:
        return str(headers.get("x-goog-api-key", ""))

    def text(self, payload: Body) -> str:
        contents = [*filter(None, [payload.get("systemInstruction")]), *payload["contents"]]
        return "\n".join(part["text"] for content in contents for part in content["parts"])

    def offered(self, payload: Body) -> dict[str, list[str]]:
        """Return the letters of each slot."""
        properties = payload["generationConfig"]["responseSchema"]["properties"]
        return {number: properties[number]["enum"] for number in sorted(properties, key=int)}

    def problem(self, payload: Body) -> str:
        """Return why the real service would refuse this payload, or ''."""
        is_json = payload["generationConfig"]["responseMimeType"] == "application/json"
        return "" if is_json else "response_mime_type must be 'application/json' when response_schema is set"

    def completion(self, payload: Body, answer: Answer) -> tuple[Body, list[int]]:
        """Return the body of a 200, and the tokens that are charged."""
        charged = [tokens(self.text(payload)), tokens(answer.content or "")]
        usage = {"promptTokenCount": charged[0], "candidatesTokenCount": charged[1], "totalTokenCount": sum(charged)}
        body: Body = {"usageMetadata": usage, "modelVersion": answer.model or self.model}
        if answer.finish == "blocked":
            return body | {"promptFeedback": {"blockReason": 1}}, charged
        candidate: Body = {"finishReason": {"stop": 1, "length": 2, "safety": 3}[answer.finish], "index": 0}
        if answer.content is not None:
            candidate["content"] = {"parts": [{"text": answer.content}], "role": "model"}
        return body | ({"candidates": [candidate]} if answer.choices else {}), charged

    def error(self, status: int, message: str, code: str | None = None, *details: Body) -> Body:
        return {"error": {"code": status, "message": message, "status": code or "UNKNOWN", "details": [*details]}}

    def bad_key(self) -> tuple[int, Body]:
        """Return status and body: Gemini calls a wrong key an invalid argument."""
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID", "domain": "g"}
        return 400, self.error(400, "API key not valid. Please pass a valid API key.", None, info)

    def quota(self) -> Body:
        violations = [{"quotaMetric": "requests", "quotaId": "GenerateRequestsPerDayPerProject"}]
        failure = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": violations}
        return self.error(429, OUT_OF_QUOTA, None, failure)


class Reply:
    """A reply, its delay in seconds, and how the connection ends: whole or one of `WIRE`."""

    def __init__(self, status: int, body: Body) -> None:
        self.status, self.body, self.headers = status, json.dumps(body).encode(), {"content-type": "application/json"}
        self.delay, self.wire = 0.0, "whole"

    def spoil(self, fault: Fault) -> None:
        """Apply a fault to the bytes, the delay and the connection."""
        entry = fault.entry
        if fault.kind in WIRE:
            self.wire = fault.kind
        elif fault.kind == "slow":
            self.delay += entry.get("seconds", 5.0)
        elif fault.kind == "html":
            self.body, self.headers["content-type"] = HTML, "text/html"
        elif fault.kind == "gzip":
            self.body, self.headers["content-encoding"] = gzip.compress(self.body), "gzip"
        elif fault.kind == "tokens":
            self.body = re.sub(rb'(Count|_tokens)": \d+', rb'\1": %d' % entry["count"], self.body)
        elif fault.kind == "body":
            self.body = entry["body"].encode() if "body" in entry else self.body[: len(self.body) // 2]

    async def send(self, request: web.Request) -> web.StreamResponse:
        """Send the reply, or the part of it that its fault allows."""
        transport = request.transport
        if self.wire == "whole" or transport is None:
            return web.Response(status=self.status, body=self.body, headers=self.headers)
        if self.wire in ("half", "drip"):
            length = {"content-length": str(len(self.body))} if self.wire == "half" else {}
            response = web.StreamResponse(headers=self.headers | length)
            await response.prepare(request)
            while self.wire == "drip":
                await response.write(b" ")
                await asyncio.sleep(0.02)
            await response.write(self.body[: len(self.body) // 2])
            transport.close()
            return response
        if self.wire == "reset":
            options = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.get_extra_info("socket").setsockopt(*options)
            transport.abort()
        transport.close()
        raise asyncio.CancelledError


def refused(fault: Fault, service: OpenAI | Gemini) -> Reply:
    """Return the reply of a fault of the status."""
    entry = fault.entry
    if fault.kind == "quota":
        return Reply(429, service.quota())
    body = service.error(entry["status"], entry.get("message", "An error."), entry.get("code"))
    if "retry_delay" in entry:
        kind, delay = "type.googleapis.com/google.rpc.RetryInfo", math.ceil(entry["retry_delay"] * 1000) / 1000
        body["error"]["details"] = [{"@type": kind, "retryDelay": f"{delay:g}s"}]
    reply = Reply(entry["status"], body)
    reply.body = entry["body"].encode() if "body" in entry else reply.body
    pauses = {name.replace("_", "-"): str(entry[name]) for name in ("retry_after", "retry_after_ms") if name in entry}
    reply.headers |= pauses | entry.get("headers", {})
    return reply


class ProtocolServer:
    """A server in a thread, for the duration of a `with`; `log` has a line for each request that has ended."""

    def __init__(self) -> None:
        self.url, self.in_flight, self.log = "", 0, list[Body]()
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

    def script(self, *faults: Body) -> None:
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

    def requests(self, **where: Any) -> list[Body]:
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
            line: Body = {"time": time.time(), "fault": None, "outcome": "client closed", "status": None}
            try:
                reply = await self._reply(request, service_of(request), line)
                await asyncio.sleep(float("inf") if reply.wire == "hang" else reply.delay)
                line["outcome"] = "answered" if reply.wire == "whole" else reply.wire
                line["status"] = reply.status if reply.wire in ("whole", "half") else None
            finally:
                self.in_flight -= 1
                self.log.append(line)
            return await reply.send(request)

        return handle

    async def _reply(self, request: web.Request, service: OpenAI | Gemini, line: Body) -> Reply:
        """Return a model's reply, or the error of a fault or a key; a lost answer is charged, too."""
        body, key = await request.text(), service.key(request.headers)
        payload = json.loads(body)
        line |= {"key": key, "payload": body, "offered": service.offered(payload), "text": service.text(payload)}
        hits = [fault for fault in self.faults if fault.applies(body)]  # every fault counts every request
        fault = hits[0] if hits else None
        if fault:
            fault.left -= 1
        if fault and fault.kind in ("status", "quota"):
            line["fault"] = fault.kind
            return refused(fault, service)
        if self.keys is not None and key not in self.keys:
            return Reply(*service.bad_key())
        if problem := service.problem(payload):
            return Reply(400, service.error(400, problem))
        content = well_said(line["offered"])
        answered, line["charged"] = service.completion(payload, fault.answer(content) if fault else Answer(content))
        reply = Reply(200, answered)
        reply.delay = self.latency
        if fault:
            line["fault"] = fault.kind
            reply.spoil(fault)
        return reply
