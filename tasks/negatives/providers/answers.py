"""The cache of paid answers, and the budget of the run that asks.

A question that a service has answered is never asked again, and nothing is deleted. The cache holds names and JSON
values, and several processes of one machine may read it at once (diskcache, which is SQLite). Only one run asks at a
time: the others wait, and then read its answers from the cache.
"""

import asyncio
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import diskcache
from diskcache.core import MODE_RAW, MODE_TEXT
from filelock import FileLock, Timeout

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.locations import answers_folder
from penumbra.tasks.progress import logger

ACCOUNT = "account"  # the row with the USD spent and reserved by the last run that asked, and whether it has ended
POLL = 0.05  # seconds between two attempts to reserve money
REMEDY = "restore the folder from a copy, or set PENUMBRA_ANSWERS to another folder"
NEVER = 1 << 62  # bytes: rows are never removed, nor kept in files of their own


class JSONText(diskcache.Disk):  # type: ignore[misc]
    """Stores names as text and values as JSON: diskcache's own disk would unpickle both, which may run code."""

    def put(self, key: str) -> tuple[str, bool]:
        return key, True

    def get(self, key: str, raw: bool) -> str:
        return key

    def store(self, value: Any, read: bool, key: Any = diskcache.UNKNOWN) -> Any:
        return super().store(json.dumps(value), False, key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        """Return a row's value; raise `PenumbraError` for a pickle, a file outside the folder, or invalid JSON."""
        folder = Path(self._directory).resolve()
        if mode == MODE_TEXT and filename and (file := (folder / filename).resolve()).is_relative_to(folder):
            value = file.read_text("utf-8")  # earlier versions kept long values in files
        if mode in (MODE_RAW, MODE_TEXT) and isinstance(value, str):
            with suppress(ValueError, RecursionError):
                return json.loads(value)
        raise PenumbraError(f"{self._directory}: the cache of answers has a row that Penumbra did not write: {REMEDY}")


class Answers:
    """The cache of answers in a folder, by default `PENUMBRA_ANSWERS`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or answers_folder()
        options = {"eviction_policy": "none", "cull_limit": 0, "size_limit": NEVER, "disk_min_file_size": NEVER}
        try:
            self._cache = diskcache.Cache(str(self.folder), disk=JSONText, **options)
        except (sqlite3.Error, OSError) as error:
            raise PenumbraError(f"{self.folder}: the cache of answers cannot be opened ({error}): {REMEDY}") from None

    def get(self, name: str) -> Any:
        return self._cache.get(name, retry=True)

    def put(self, values: Mapping[str, Any]) -> None:
        """Store values by name, all of them or none."""
        with self._cache.transact(retry=True):
            for name, value in values.items():
                self._cache.set(name, value, retry=True)

    def close(self) -> None:
        self._cache.close()


class BudgetError(PenumbraError):
    """The next request could cost more than is left of `max_cost_usd`."""


class Budget:
    """The USD that a run may spend on all its services; None for no limit.

    The most that a request can cost is reserved before it is sent, and charged if its cost stays unknown.
    """

    def __init__(self, answers: Answers, limit: float | None, spent: float) -> None:
        self.answers, self.limit, self.spent = answers, limit, spent
        self.reserved: list[float] = []  # of the requests under way
        self.store()

    def try_reserve(self, most: float) -> bool:
        """Reserve an amount for a request; return False if it exceeds the limit."""
        if self.limit is not None and self.spent + sum(self.reserved) + most > self.limit:
            return False
        self.reserved.append(most)
        self.store()
        return True

    async def reserve(self, most: float) -> bool:
        """Reserve an amount; wait while requests under way may cost less than reserved, else return False."""
        while not self.try_reserve(most):
            if not self.reserved:
                return False
            await asyncio.sleep(POLL)
        return True

    def charge(self, most: float, cost: float) -> None:
        """Release a reserved amount, and charge the actual cost of the request."""
        self.reserved.remove(most)
        self.spent += cost
        self.store()

    def store(self, is_ended: bool = False) -> None:
        """Store the account: what is reserved counts as spent if the run is killed."""
        self.answers.put({ACCOUNT: {"spent": self.spent + sum(self.reserved), "is_ended": is_ended}})


@contextmanager
def open_budget(answers: Answers, limit: float | None) -> Iterator[Budget]:
    """Yield the budget of the run that asks; any other run waits until it ends.

    A run that has waited, or that follows a killed run, shares the limit with the previous run.
    """
    lock, has_waited = FileLock(answers.folder / "asking.lock", thread_local=False), False
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        logger().info("waits for another run that asks language models, and then uses its answers")
        held, has_waited = lock.acquire(), True
    with held:
        account = answers.get(ACCOUNT)
        goes_on = account is not None and (has_waited or not account["is_ended"])
        budget = Budget(answers, limit, account["spent"] if goes_on else 0.0)
        yield budget
        budget.store(is_ended=True)
