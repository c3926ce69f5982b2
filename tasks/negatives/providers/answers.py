"""The cache of paid answers: a question that a service has answered is never asked again, and nothing is evicted.

The key of a question is a digest of service, model, prompt and text. It leads to the answer of the request that had the
question, or to the service's permanent error. Several processes of one machine may read and write at once (SQLite). A
lock on a file, which the system releases when its holder dies, lets one process at a time ask the same questions.
"""

import asyncio
import hashlib
import json
import os
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import diskcache
from diskcache.core import MODE_RAW, MODE_TEXT
from filelock import FileLock, Timeout

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.locations import answers_folder

WITHOUT_LIMIT = 1 << 62
LOCK_POLL = 0.1  # seconds between two attempts to take a lock


class QuestionSlot(NamedTuple):
    """A question in a request: its key, the number of its first slot, who asks it, and the words on offer to it."""

    key: str
    first: int
    asker: str
    offer: str
    options: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Answer:
    """A service's answer to a request of `questions` questions, sent by the run `run`.

    `text` is None if there is none; then `problem` says why ("model refused").
    """

    text: str | None
    problem: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float
    run: str
    questions: int

    def share(self, number: int) -> tuple[int, int, float]:
        """Return the tokens and the cost of question `number` (from 1); the shares add up to the whole."""
        tokens = (self.prompt_tokens, self.completion_tokens)
        prompt, completion = (portion(count, self.questions, number - 1) for count in tokens)
        return prompt, completion, self.cost_usd / self.questions


def portion(total: int, parts: int, index: int) -> int:
    """Return the index-th of `parts` nearly equal whole portions of a total."""
    return total * (index + 1) // parts - total * index // parts


@dataclass(frozen=True)
class CacheEntry:
    """The cached answer to a question, or the service's permanent error.

    `number` (from 1) is the question's number in the request, `first` that of its first slot, `asker` who asked it.
    """

    answer: Answer | None
    number: int = 1
    first: int = 1
    asker: str = ""
    error: str = ""


class JSONText(diskcache.Disk):  # type: ignore[misc]
    """Stores names as text and values as JSON; diskcache's own disk would unpickle values, which may run code.

    Caches of every version of Penumbra can be read, because all of them wrote JSON.
    """

    def put(self, key: str) -> tuple[str, bool]:
        return key, True

    def get(self, key: Any, raw: bool) -> str:
        """Return a stored name; raise `PenumbraError` if it is no text."""
        return key if raw and isinstance(key, str) else self._refuse()

    def store(self, value: Any, read: bool, key: Any = diskcache.UNKNOWN) -> Any:
        return super().store(json.dumps(value), False, key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        """Return a row's value; raise `PenumbraError` for a pickle, invalid JSON, or a file outside the folder."""
        if mode == MODE_TEXT and filename:
            folder = Path(self._directory).resolve()
            path = (folder / filename).resolve()
            value = path.read_text("utf-8") if path.is_relative_to(folder) else None
        elif mode == MODE_RAW and isinstance(value, int):  # "alone" of version 0.1.0
            return value
        try:
            return json.loads(value) if mode in (MODE_RAW, MODE_TEXT) and isinstance(value, str) else self._refuse()
        except (ValueError, RecursionError):
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise PenumbraError(
            f"{self._directory}: the cache of answers contains a row that is no JSON, which Penumbra never writes: "
            "restore the folder from a copy, or set PENUMBRA_ANSWERS to another"
        )


class Answers:
    """The cache of answers in a folder, by default `PENUMBRA_ANSWERS`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or answers_folder()
        options = {"eviction_policy": "none", "cull_limit": 0, "size_limit": WITHOUT_LIMIT, "statistics": 0}
        try:
            self.cache = diskcache.Cache(str(self.folder), disk=JSONText, **options)
        except (sqlite3.DatabaseError, OSError) as error:
            raise PenumbraError(
                f"{self.folder}: the cache of answers cannot be opened ({error}): restore the folder from a copy, or "
                "set PENUMBRA_ANSWERS to another"
            ) from None

    def find(self, key: str) -> CacheEntry | None:
        entry = self.cache.get(f"question {key}", retry=True)
        if entry is None:
            return None
        if "error" in entry:
            return CacheEntry(None, error=entry["error"])
        answer = self.cache.get(f"answer {entry['answer']}", retry=True)
        if answer is None:
            return None
        known = {name: answer[name] for name in Answer.__dataclass_fields__}  # older versions wrote more
        return CacheEntry(Answer(**known), entry["number"], entry["first"], entry["asker"])

    def keep(self, slots: Sequence[QuestionSlot], answer: Answer) -> None:
        """Store the answer to a request of these questions, as one transaction."""
        name = hashlib.sha256("".join(slot.key for slot in slots).encode()).hexdigest()
        with self.cache.transact(retry=True):
            self.cache.set(f"answer {name}", asdict(answer), retry=True)
            for number, slot in enumerate(slots, 1):
                entry = {"answer": name, "number": number, "first": slot.first, "asker": slot.asker}
                self.cache.set(f"question {slot.key}", entry, retry=True)
                self.cache.set(f"offer {slot.offer}", slot.options, retry=True)

    def offered(self, offer: str) -> list[tuple[str, ...]] | None:
        """Return the words that were on offer to an answered question, by slot."""
        lists = self.cache.get(f"offer {offer}", retry=True)
        return None if lists is None else [tuple(words) for words in lists]

    def refuse(self, key: str, error: str) -> None:
        self.cache.set(f"question {key}", {"error": error}, retry=True)

    def isolate(self, keys: Sequence[str]) -> None:
        """Mark the questions of a refused request: each is then asked alone."""
        for key in keys:
            self.cache.set(f"alone {key}", 1, retry=True)

    def is_isolated(self, key: str) -> bool:
        """Return whether a question is to be asked alone."""
        return f"alone {key}" in self.cache

    def close(self) -> None:
        self.cache.close()

    def lock(self, name: str) -> FileLock:
        """Return the lock of this name, which dies with its holder."""
        folder = self.folder / "locks"
        folder.mkdir(exist_ok=True)
        return FileLock(folder / f"{name}.lock", thread_local=False)

    def is_locked(self, name: str) -> bool:
        """Return whether a living process holds the lock of this name; otherwise remove its file."""
        lock = self.lock(name)
        try:
            with lock.acquire(blocking=False):
                os.unlink(lock.lock_file)
        except Timeout:
            return True
        return False

    @asynccontextmanager
    async def request_lock(
        self, cache_key: dict[str, Any], run: str, report_wait: Callable[[str], None]
    ) -> AsyncIterator[str]:
        """Hold the right to ask the questions of `cache_key`; yield the lock's name.

        Waits while another run holds it, which is reported by its description; its answers are then in the cache.
        """
        name = f"ask-{hashlib.sha256(json.dumps(cache_key, sort_keys=True).encode()).hexdigest()[:32]}"
        lock, other = self.lock(name), ""
        while True:
            try:
                lock.acquire(blocking=False)
                break
            except Timeout:
                if other != (other := self.cache.get(name, "another run", retry=True)):
                    report_wait(other)
                await asyncio.sleep(LOCK_POLL)
        try:
            self.cache.set(name, f"run {run} (process {os.getpid()} on {socket.gethostname()})", retry=True)
            yield name
        finally:
            lock.release()
