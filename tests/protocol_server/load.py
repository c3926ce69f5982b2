"""A load generator: how many requests a second a server sustains, and at what cost to its processor.

`python -m tests.protocol_server.load http://127.0.0.1:PORT --connections 128 --seconds 5`
"""

import argparse
import asyncio
import json
import time
from collections import Counter
from urllib.parse import urlsplit

from tests.protocol_server.openai import CHAT

OPTIONS = ", ".join(f"word{n}" for n in range(20))


class Client(asyncio.Protocol):
    """One connection that sends its next request as soon as it has an answer."""

    def __init__(self, requests: list[bytes], counts: Counter[str], until: float) -> None:
        self.requests = requests
        self.counts = counts
        self.until = until
        self.sent = 0
        self.buffer = b""
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, end, body = self.buffer.partition(b"\r\n\r\n")
        if not end or len(body) < int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]):
            return
        self.counts[head[9:12].decode()] += 1
        self.buffer = b""
        if time.monotonic() < self.until:
            self._send()
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def _send(self) -> None:
        self.transport.write(self.requests[self.sent % len(self.requests)])
        self.sent += 1


def prompts(count: int = 64, slots: int = 12) -> list[bytes]:
    """Requests as a provider sends them: `slots` slots of 20 options, in JSON mode."""
    return [_request(" ".join(f"[{n}a p{prompt}: {OPTIONS}]" for n in range(slots))) for prompt in range(count)]


def _request(text: str) -> bytes:
    messages = [{"role": "system", "content": "Answer in JSON."}, {"role": "user", "content": text}]
    payload = {"model": "gpt-3.5-turbo", "messages": messages, "response_format": {"type": "json_object"}}
    body = json.dumps(payload).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-load\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def load(url: str, connections: int, seconds: float) -> tuple[Counter[str], float]:
    """Answers by status, and the seconds it took."""
    loop, parts = asyncio.get_running_loop(), urlsplit(url)
    counts: Counter[str] = Counter()
    requests, started = prompts(), time.monotonic()
    clients = []
    for _ in range(connections):
        made = loop.create_connection(
            lambda: Client(requests, counts, started + seconds), parts.hostname or "", parts.port or 80
        )
        clients.append((await made)[1])
    await asyncio.gather(*(client.closed for client in clients))
    return counts, time.monotonic() - started


def main() -> None:
    """Print requests a second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--connections", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    counts, took = asyncio.run(load(given.url, given.connections, given.seconds))
    print(f"{sum(counts.values()) / took:.0f} requests/s over {took:.1f} s: {dict(counts)}")


if __name__ == "__main__":
    main()
