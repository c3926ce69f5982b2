"""A stand-in for OpenAI's and Gemini's servers that speaks their protocols over HTTP and misbehaves on demand.

    with ProtocolServer(latency=0.2) as server:
        server.script({"when": {"every": 7}, "do": "status", "status": 429})
        client = openai.OpenAI(base_url=server.openai_url, api_key="sk-test")
        ...
        assert len(server.requests(status=200)) == 6

It runs in a thread of its own. `Settings` lists the settings, `faults` the ways to misbehave.
"""

import asyncio
import threading
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.protocol_server.server import Server, Settings


class ProtocolServer:
    """The stand-in for the length of a `with`."""

    def __init__(self, **settings: Any) -> None:
        self.server, self.url = Server(Settings(**settings)), ""
        self.loop = asyncio.new_event_loop()

    def __enter__(self) -> Self:
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(), self.loop).result(30)
        return self

    async def _start(self) -> str:
        self.runner = web.AppRunner(
            self.server.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self.runner.cleanup(), self.loop).result(30)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    @property
    def openai_url(self) -> str:
        """`base_url` of an OpenAI client."""
        return f"{self.url}/v1"

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return self.server.in_flight

    def script(self, *faults: dict[str, Any]) -> None:
        """Put other faults in force, with all counters at zero."""
        self.server.set_faults(list(faults))

    def change(self, **settings: Any) -> None:
        """Change settings; answers by idempotency key are forgotten."""
        self.server.change(settings)

    def reset(self) -> None:
        """Return to the default settings without faults and requests."""
        self.server.change(vars(Settings()))
        self.server.set_faults([])
        self.server.log.clear()

    def requests(self, **where: Any) -> list[dict[str, Any]]:
        """Return the log's lines that have these values, in the order in which the requests ended."""
        return [line for line in list(self.server.log) if all(line.get(name) == value for name, value in where.items())]

    def charged(self) -> tuple[int, int]:
        """Return the tokens of prompts and answers that are charged so far, lost answers included."""
        charged = [line["charged"] for line in self.requests() if "charged" in line]
        return sum(prompt for prompt, _ in charged), sum(answer for _, answer in charged)
