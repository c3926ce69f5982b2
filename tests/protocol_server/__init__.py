"""A stand-in for OpenAI's and Gemini's servers that speaks their protocols over real HTTP and misbehaves on demand.

    with ProtocolServer(latency=0.2) as server:
        server.script({"when": {"every": 7}, "do": "status", "status": 429})
        client = openai.OpenAI(base_url=server.openai_url, api_key="sk-test")
        ...
        assert len(server.requests(status=200)) == 6

or `python -m tests.protocol_server --port 0 --latency 0.2 --log FILE`. Settings are in settings.py, the script in
faults.py. Beside the services' own paths it has `GET /__stats`, `POST /__script` and `POST /__settings`.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ProtocolServer:
    """The stand-in in a process of its own, for the length of a `with`; settings as in settings.py."""

    def __init__(self, **settings: Any) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="protocol-server-")
        self.settings = {"log": str(Path(self.folder.name) / "requests.jsonl")} | settings
        self.url = ""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.protocol_server", "--die-with-parent", *_flags(self.settings)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        if not first.startswith("listening on "):
            raise RuntimeError(f"the stand-in did not start: {first!r}")
        self.url = first.split()[-1]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.terminate()
        self.process.communicate(timeout=10)
        self.folder.cleanup()

    @property
    def openai_url(self) -> str:
        """`base_url` of an OpenAI client."""
        return f"{self.url}/v1"

    def stats(self) -> dict[str, Any]:
        """Totals: requests, by_status, answered (prompt digest -> times), max_in_flight and so on."""
        return self._call("/__stats")

    def script(self, *faults: dict[str, Any]) -> None:
        """Put other faults in force, all counters at nought."""
        self._call("/__script", {"faults": list(faults)})

    def change(self, **settings: Any) -> None:
        """Change settings while it runs; the faults' and the limits' counters begin anew."""
        self._call("/__settings", settings)

    def requests(self, **where: Any) -> list[dict[str, Any]]:
        """The log's lines that have these values, in the order in which they ended."""
        self.stats()
        log = self.settings["log"]
        if log is None or not Path(log).exists():
            return []
        lines = [json.loads(line) for line in Path(log).read_text("utf-8").splitlines()]
        return [line for line in lines if all(line.get(name) == value for name, value in where.items())]

    def charged(self) -> tuple[int, int]:
        """The tokens of prompts and answers that are charged so far, lost answers included."""
        lines = [line["charged"] for line in self.requests() if "charged" in line]
        return sum(prompt for prompt, _ in lines), sum(answer for _, answer in lines)

    def _call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        try:
            with DIRECT.open(urllib.request.Request(self.url + path, data), timeout=10) as response:
                found: dict[str, Any] = json.load(response)
                return found
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error)["error"]) from None


def _flags(settings: dict[str, Any]) -> list[str]:
    """Settings as the command line takes them."""
    flags = []
    for name, value in settings.items():
        if value is None or value is False:
            continue
        flags.append("--" + name.replace("_", "-"))
        if isinstance(value, dict):
            flags.append(json.dumps(value))
        elif value is not True:
            flags.append(",".join(value) if isinstance(value, list) else str(value))
    return flags
