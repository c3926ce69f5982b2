"""HTTP/1.1 on a bare `asyncio.Protocol`: keep-alive, content-length and chunked bodies, and ways to break off."""

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

REASONS = {status.value: status.phrase for status in HTTPStatus}
CRLF = b"\r\n"


class BadRequestError(ValueError):
    """Bytes that are no HTTP/1.1 request."""


@dataclass(slots=True)
class Request:
    """One request, its body whole; header names are lower-case."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass(slots=True)
class Reply:
    """What is sent back, after how long, and how much of it: `wire` is whole, half, reset, close or hang."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    wire: str = "whole"

    def to_bytes(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {REASONS.get(self.status, 'Unknown')}"]
        if "content-type" not in self.headers:
            lines.append("content-type: application/json; charset=UTF-8")
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines += [f"content-length: {len(self.body)}", "", ""]
        return "\r\n".join(lines).encode("latin-1") + self.body


@dataclass(slots=True)
class Exchange:
    """A request on its way: `done` is called once, with how it ended."""

    reply: Reply
    done: Callable[[str], None]


Handler = Callable[[Request], Exchange]


class Connection(asyncio.Protocol):
    """One client connection: a request is answered before the next is read."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.loop = asyncio.get_running_loop()
        self.buffer = bytearray()
        self.transport: Any = None
        self.head: Request | None = None
        self.exchange: Exchange | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.close_after = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.exchange is None:
            self._serve()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self._end("client closed")

    def _serve(self) -> None:
        """Take the next whole request from the buffer and start answering it."""
        try:
            request = self._take()
        except ValueError:
            self.transport.write(Reply(400, b"bad request").to_bytes())
            self.transport.close()
            return
        if request is None:
            return
        self.close_after = request.headers.get("connection", "").lower() == "close"
        arrived = self.loop.time()  # our own work is no latency
        self.exchange = self.handler(request)
        reply = self.exchange.reply
        if reply.wire == "hang":
            return
        if reply.delay > 0:
            self.timer = self.loop.call_at(arrived + reply.delay, self._send)
        else:
            self._send()

    def _take(self) -> Request | None:
        if self.head is None:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return None
            self.head = read_head(bytes(self.buffer[:end]))
            del self.buffer[: end + 4]
            if self.head.headers.get("expect", "").lower() == "100-continue":
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body, used = read_body(self.head.headers, self.buffer)
        if body is None:
            return None
        request, self.head = self.head, None
        request.body = body
        del self.buffer[:used]
        return request

    def _send(self) -> None:
        """Write the reply as its `wire` says and go on with what the client sent meanwhile."""
        self.timer = None
        exchange = self.exchange
        if exchange is None:
            return
        wire, data = exchange.reply.wire, exchange.reply.to_bytes()
        self._end("answered" if wire == "whole" else wire)
        if wire == "whole":
            self.transport.write(data)
            if self.close_after:
                self.transport.close()
            elif self.buffer:
                self._serve()
        elif wire == "half":
            self.transport.write(data[: len(data) - len(exchange.reply.body) // 2 - 1])
            self.transport.close()
        elif wire == "reset":
            linger = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.transport.abort()
        else:
            self.transport.close()

    def _end(self, outcome: str) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.done(outcome)


def read_head(head: bytes) -> Request:
    """The request line and the headers."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequestError(lines[0])
    path, _, query = words[1].partition("?")
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadRequestError(line)
        headers[name.lower()] = value.strip()
    return Request(words[0], path, query, headers)


def read_body(headers: dict[str, str], buffer: bytearray) -> tuple[bytes | None, int]:
    """The body and how many bytes of the buffer it took; `None` while it is not whole."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return read_chunks(buffer)
    length = int(headers.get("content-length", 0))
    if length < 0:
        raise BadRequestError("negative content-length")
    return (bytes(buffer[:length]), length) if len(buffer) >= length else (None, 0)


def read_chunks(buffer: bytearray) -> tuple[bytes | None, int]:
    """A chunked body: size in hex, data, ..., a size of zero and trailers."""
    parts: list[bytes] = []
    at = 0
    while (end := buffer.find(CRLF, at)) >= 0:
        size = int(bytes(buffer[at:end]).split(b";")[0], 16)
        start = end + 2
        if size == 0:
            return _after_trailers(parts, buffer, start)
        if len(buffer) < start + size + 2:
            return None, 0
        if buffer[start + size : start + size + 2] != CRLF:
            raise BadRequestError("a chunk longer than it says")
        parts.append(bytes(buffer[start : start + size]))
        at = start + size + 2
    return None, 0


def _after_trailers(parts: list[bytes], buffer: bytearray, at: int) -> tuple[bytes | None, int]:
    while (end := buffer.find(CRLF, at)) >= 0:
        if end == at:
            return b"".join(parts), end + 2
        at = end + 2
    return None, 0
