"""Child processes: how many, their limits, and how they end when this process ends."""

import ctypes
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TypeVar

LOOK_EVERY = 2.0  # seconds
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER and CLONE_NEWNET of Linux's sched.h
GRACE = 10.0  # seconds that a program has to end after SIGTERM

T = TypeVar("T")


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent(parent: int | None = None, grace: float = 0.0) -> None:
    """End this process when its parent is killed, after SIGTERM and `grace` seconds if these are not 0."""
    parent = parent or os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_EVERY)
        if grace:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def confine(memory: int) -> None:
    """Limit this process's address space to `memory` bytes and take its network away, if possible.

    Only Linux can take it away, from a process with one thread, and where users may create namespaces.
    """
    with suppress(ImportError, ValueError, OSError):  # on Windows nothing is limited; a lower limit may be in force
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    if sys.platform == "linux":
        ctypes.CDLL(None).unshare(NEW_USER | NEW_NETWORK)


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside, for this process and those that it starts."""
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)


@contextmanager
def value_set(variable: ContextVar[T], value: T) -> Iterator[T]:
    """Set a context variable inside, and yield its value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def ending_with_us(module: str, *arguments: str) -> list[str]:
    """Return the command of `python -m MODULE ARGUMENTS` in a process that ends when this one is killed."""
    return [sys.executable, "-m", __spec__.name, str(os.getpid()), module, *arguments]


if __name__ == "__main__":
    _, parent, module, *arguments = sys.argv
    end_with_parent(int(parent), GRACE)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
