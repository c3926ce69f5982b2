"""A Chromium without a window, driven through its DevTools protocol."""

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--remote-debugging-port=0")  # fmt: skip
SECONDS = 60


class Page:
    """One tab."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection, self._numbers = connection, count(1)

    def ask(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._connection.recv(SECONDS))
            if answer.get("id") == number:
                return answer["result"]

    def log_in(self, credential: str) -> None:
        """Have every page find what Prefect's login page would have kept."""
        password = base64.b64encode(credential.encode()).decode()
        source = f"localStorage.setItem('prefect-password', '{password}')"
        self.ask("Page.enable")
        self.ask("Page.addScriptToEvaluateOnNewDocument", source=source)

    def open(self, url: str) -> None:
        """Begin to load a page."""
        self.ask("Page.navigate", url=url)

    def run(self, expression: str) -> Any:
        """The value of an expression, or of its promise."""
        return self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)["result"].get(
            "value"
        )

    def text(self, *expected: str) -> str:
        """What the page shows as soon as it shows all that is expected, or after `SECONDS`."""
        deadline = time.monotonic() + SECONDS
        while True:
            shown = str(self.run("document.body ? document.body.textContent : ''"))
            if all(text in shown for text in expected) or time.monotonic() > deadline:
                return shown
            time.sleep(0.5)


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A Chromium with an empty profile in a folder."""
    command = [str(CHROMIUM), *QUIET, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        told, deadline = folder / "DevToolsActivePort", time.monotonic() + SECONDS
        while not (told.is_file() and told.read_text().count("\n")):
            assert time.monotonic() < deadline, "Chromium did not start"
            time.sleep(0.2)
        with urllib.request.urlopen(f"http://127.0.0.1:{told.read_text().split()[0]}/json/list", timeout=20) as answer:
            [address] = [tab["webSocketDebuggerUrl"] for tab in json.load(answer) if tab["type"] == "page"]
        with connect(address, max_size=None) as connection:
            yield Page(connection)
    finally:
        process.kill()
        process.wait()
