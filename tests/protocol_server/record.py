"""What was asked and answered: counts, and a line a request in a JSONL file."""

import hashlib
import json
import os
import time
from collections import Counter
from typing import Any

from tests.protocol_server.answers import offered, text_of
from tests.protocol_server.settings import Settings

BLOCK = 1 << 16  # of a buffered log


class Record:
    """The counts and the log of one server."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.number = 0
        self.in_flight = 0
        self.max_in_flight = 0
        self.by_status: Counter[str] = Counter()
        self.by_path: Counter[str] = Counter()
        self.by_fault: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.pending = bytearray()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.file = os.open(settings.log, flags, 0o644) if settings.log else None

    def begin(self, method: str, path: str, key: str, body: bytes) -> dict[str, Any]:
        """Count a request that has arrived; its line of the log, to be ended."""
        self.number += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        self.by_path[path] += 1
        line = {"number": self.number, "time": time.time(), "method": method, "path": path, "key": key}
        digest = hashlib.sha256(body).hexdigest() if self.file is not None else None
        return line | {"payload": digest, "in_flight": self.in_flight, "max_in_flight": self.max_in_flight}

    def describe(self, line: dict[str, Any], payload: dict[str, Any]) -> None:
        """Add what was asked: the prompt's digest and the options offered."""
        text = text_of(payload)
        line["prompt"] = hashlib.sha256(text.encode()).hexdigest()
        if self.file is not None:
            line["offered"] = offered(payload)
            line["model"] = payload.get("model")
        if self.settings.log_text:
            line["text"] = text

    def end(self, line: dict[str, Any], status: int | None, outcome: str, fault: str | None) -> None:
        """Count how it ended and write the line; a request that hangs is written when it begins to."""
        if outcome != "hang":
            self.in_flight -= 1
        if "outcome" in line:
            return
        line |= {"status": status, "outcome": outcome, "fault": fault, "seconds": time.time() - line["time"]}
        self.by_status[str(status) if outcome == "answered" else outcome] += 1
        if fault:
            self.by_fault[fault] += 1
        if outcome == "answered" and status == 200 and "prompt" in line:
            self.answered[line["prompt"]] += 1
        if self.file is not None:
            self._write(line)

    def stats(self) -> dict[str, Any]:
        """The body of `GET /__stats`."""
        self.flush()
        return {
            "requests": self.number,
            "by_status": self.by_status,
            "by_path": self.by_path,
            "by_fault": self.by_fault,
            "answered": self.answered,
            "in_flight": self.in_flight,
            "max_in_flight": self.max_in_flight,
        }

    def flush(self) -> None:
        """Write what is held back."""
        if self.file is not None and self.pending:
            os.write(self.file, self.pending)
            self.pending.clear()

    def _write(self, line: dict[str, Any]) -> None:
        self.pending += json.dumps(line).encode() + b"\n"
        if not self.settings.buffer_log or len(self.pending) >= BLOCK:
            self.flush()
