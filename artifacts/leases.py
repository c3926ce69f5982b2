"""Who makes an artifact now: a lease that one holder has at a time, and that ends with its holder.

On a disk it is a lock of the operating system (`filelock`), which goes when its process does. On an object store it
is an object that only one can create, and that its holder renews: what was not renewed for `LAPSES` seconds counts no
more. Two holders at once would still write the same bytes; a lease saves the work, and what it costs.
"""

import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import filelock

from penumbra.artifacts.files import Files

LAPSES = 60.0  # seconds after its last renewal
LOOK_EVERY = 1.0  # seconds
LEASES = ".leases"


@contextmanager
def lease(files: Files, name: str, told: Callable[[str], None] = lambda holder: None) -> Iterator[None]:
    """Hold the lease `name`, waiting for it first; `told` hears once whom it waits for."""
    hold = _local if files.is_local else _remote
    with hold(files, f"{LEASES}/{name}", told):
        yield


def _holder() -> bytes:
    return f"process {os.getpid()} on {platform.node()} (since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC)".encode()


@contextmanager
def _local(files: Files, path: str, told: Callable[[str], None]) -> Iterator[None]:
    lock, holder = filelock.FileLock(files.local(f"{path}.lock")), files.local(f"{path}.holder")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        told(_text(holder))
        lock.acquire()
    with lock:
        holder.write_bytes(_holder())
        yield


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else "another process"


@contextmanager
def _remote(files: Files, path: str, told: Callable[[str], None]) -> Iterator[None]:
    """Terms are numbered: once the last has lapsed or is given back, who creates the next one's object holds it."""
    waited = False
    while (mine := _next_term(files, path, told if not waited else lambda holder: None)) is None:
        waited = True
        time.sleep(LOOK_EVERY)
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(LAPSES / 4):
            files.write(mine, _term())

    renewing = threading.Thread(target=renew, daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        for term in files.matching(f"{path}.*"):
            if term <= mine:
                files.remove(term)


def _next_term(files: Files, path: str, told: Callable[[str], None]) -> str | None:
    """The object of the next term, if it could be created now."""
    terms = files.matching(f"{path}.*")
    try:
        last = json.loads(files.read(terms[-1])) if terms else None
    except FileNotFoundError:  # given back just now
        return None
    if last and time.time() < last["renewed"] + LAPSES:
        told(last["holder"])
        return None
    mine = f"{path}.{int(terms[-1].rpartition('.')[2]) + 1 if terms else 0:06d}"
    return mine if files.create(mine, _term()) else None


def _term() -> bytes:
    return json.dumps({"holder": _holder().decode(), "renewed": time.time()}).encode()
