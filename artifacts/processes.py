"""Processes that this one starts: how many there may be, and that they end with it."""

import os
import runpy
import signal
import sys
import threading
import time

LOOK_EVERY = 2.0  # seconds
GRACE = 10.0  # seconds that a program has to end in good order


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent(parent: int | None = None, grace: float = 0.0) -> None:
    """End this process when the one that started it is killed, even in the middle of its work.

    Args:
        parent: the id of that one, for a process that may come to ask for it only when it is gone
        grace: seconds between SIGTERM and the end; 0: no SIGTERM

    """
    parent = parent or os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_EVERY)
        if grace:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def ending_with_us(module: str, *arguments: str) -> list[str]:
    """The command of `python -m MODULE ARGUMENTS` in a process that ends when this one is killed."""
    return [sys.executable, "-m", __spec__.name, str(os.getpid()), module, *arguments]


def main(parent: str, module: str, *arguments: str) -> None:
    """What `ending_with_us` starts."""
    end_with_parent(int(parent), GRACE)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
