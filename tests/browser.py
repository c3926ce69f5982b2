"""A real browser for tests: headless Chromium, driven through its DevTools protocol."""

import base64
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync", "--disable-dev-shm-usage"]
QUIET += ["--disable-background-networking", "--disable-component-update"]
PATIENCE = 60.0  # seconds

needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="needs a Chromium to look at pages")


class Page:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection, self._numbers = connection, itertools.count()
        self.events: list[dict[str, Any]] = []  # of the domains that were enabled

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the protocol; return its result."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._connection.recv(timeout=PATIENCE))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def log_in(self, credential: str) -> None:
        """Store on every page what Prefect's login page would have stored."""
        password = base64.b64encode(credential.encode()).decode()
        script = f"localStorage.setItem('prefect-password', '{password}')"
        self.call("Page.enable")
        self.call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression; wait for a promise."""
        found = self._run(script)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def _run(self, script: str) -> dict[str, Any]:
        return self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)

    def wait_for(self, script: str, seconds: float = PATIENCE) -> Any:
        """Return the value of an expression as soon as it is true; one that throws is not true yet.

        A page that has just been opened has no document element for a moment.
        """
        end = time.monotonic() + seconds
        while "exceptionDetails" in (found := self._run(script)) or not found["result"].get("value"):
            if time.monotonic() > end:
                raise TimeoutError(f"{script} stays {found} in:\n{self.text()[-3000:]}")
            time.sleep(0.2)
        return found["result"]["value"]

    def text(self, *expected: str) -> str:
        """Return the text of the page as soon as it has all that is expected, or after `PATIENCE`."""
        end = time.monotonic() + PATIENCE
        while True:
            shown = str(self.evaluate("document.body ? document.body.textContent : ''"))
            if all(text in shown for text in expected) or time.monotonic() > end:
                return shown
            time.sleep(0.5)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def choose_file(self, selector: str, file: Path) -> None:
        """Choose a file, as a hand does in the dialogue of a field for files."""
        script = f"document.querySelector({json.dumps(selector)})"
        field = self.call("Runtime.evaluate", expression=script)["result"]
        self.call("DOM.setFileInputFiles", objectId=field["objectId"], files=[str(file)])

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)


@contextmanager
def browser(folder: Path, size: str = "1600,1200") -> Iterator[Page]:
    """Start a browser with one empty tab; its profile is in the folder."""
    places = [f"--user-data-dir={folder}", f"--window-size={size}"]
    protocol = ["--remote-debugging-port=0", "--remote-allow-origins=*"]
    command = [str(CHROMIUM), *QUIET, *places, *protocol, "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        address = next(line.split()[-1] for line in process.stderr if line.startswith("DevTools listening on"))
        port = address.split(":")[2].split("/")[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=PATIENCE) as answer:
            tab = next(found for found in json.load(answer) if found["type"] == "page")
        with connect(tab["webSocketDebuggerUrl"], max_size=None) as connection:
            yield Page(connection)
    finally:
        process.kill()
        process.wait()
