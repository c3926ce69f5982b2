"""Who asks what: of all processes that share a cache of answers only one at a time asks a service the same.

A claim is a lock on a file beside the answers, which the system lets go when its holder dies, kill -9 included. It
holds among the processes and containers of one machine; several machines can't share the cache, for SQLite can't.
"""

import asyncio
import hashlib
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from filelock import FileLock, Timeout

from penumbra.tasks.negatives.providers.answers import Answers

LOOK_EVERY = 0.1  # seconds between two tries


def lock(answers: Answers, name: str) -> FileLock:
    """The lock of this name."""
    folder = answers.folder / "locks"
    folder.mkdir(exist_ok=True)
    return FileLock(folder / f"{name}.lock", thread_local=False)


def is_held(answers: Answers, name: str) -> bool:
    """Whether a process that lives holds the lock of this name; if none does, its file goes."""
    found = lock(answers, name)
    try:
        with found.acquire(blocking=False):
            os.unlink(found.lock_file)
    except Timeout:
        return True
    return False


@asynccontextmanager
async def claim(
    answers: Answers, cache_key: dict[str, Any], run: str, tell: Callable[[str], None]
) -> AsyncIterator[str]:
    """The right to ask what `cache_key` stands for; waits while another run has it, and tells whose turn it is.

    What the other one has paid for is in the cache by then. Yields the claim's name.
    """
    name = f"ask-{hashlib.sha256(json.dumps(cache_key, sort_keys=True).encode()).hexdigest()[:32]}"
    mine = lock(answers, name)
    while True:
        try:
            mine.acquire(blocking=False)
            break
        except Timeout:
            tell(answers.cache.get(name, "another run", retry=True))
            await asyncio.sleep(LOOK_EVERY)
    try:
        answers.cache.set(name, f"run {run} (process {os.getpid()} on {socket.gethostname()})", retry=True)
        yield name
    finally:
        mine.release()
