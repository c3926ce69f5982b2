"""Where the parts of stages are made: in this process, one after the other, or several at once by workers.

The parts are the same to the byte. Each is written by the process that makes it, under the lease of the one that
waits, so that one which ends takes no finished part with it.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any

import psutil
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner
from pydantic import Field

from penumbra.artifacts.errors import PenumbraError, what_there_is
from penumbra.artifacts.processes import cores, end_with_parent
from penumbra.tasks.log_lines import from_workers, quieten, tell

GIGABYTES_A_WORKER = 2.0  # a sentence encoder, a tagger, what they import, and a part


class Engine(StrEnum):
    """Where parts are made."""

    here = "here"
    processes = "processes"


EngineName = Annotated[
    Engine | None,
    Field(description="Where parts are made: here, one after the other, or in processes, a worker a core. Default: "
          "what PENUMBRA_ENGINE says, or processes."),
]  # fmt: skip


class EngineError(PenumbraError):
    """There is no such engine, or a worker has ended."""


def usual(engine: Engine | None) -> Engine:
    """The engine that was said, or PENUMBRA_ENGINE's; raises `EngineError` where there is none of that name."""
    said = engine or os.environ.get("PENUMBRA_ENGINE") or Engine.processes
    if said not in list(Engine):
        raise EngineError(f"PENUMBRA_ENGINE={said}: no such engine; {what_there_is(said, list(Engine))}")
    return Engine(said)


def workers_here() -> int:
    """Workers for this machine: one a core, and no more than its free memory has room for."""
    room = int(psutil.virtual_memory().available / 1e9 / GIGABYTES_A_WORKER)
    return max(1, min(cores(), room))


class Workers:
    """The workers of a run, which start when a stage first has several parts to make."""

    def __init__(self, number: int, stack: ExitStack) -> None:
        self.number, self._stack = number, stack

    @cached_property
    def runner(self) -> TaskRunner[Any]:
        """Prefect's, started."""
        return self._stack.enter_context(processes(self.number))


_WORKERS: ContextVar[Workers | None] = ContextVar("workers", default=None)


@contextmanager
def parts_made(engine: Engine | None) -> Iterator[None]:
    """Inside, stages make their parts there."""
    number = workers_here() if usual(engine) is Engine.processes else 1
    with ExitStack() as stack:
        token = _WORKERS.set(Workers(number, stack) if number > 1 else None)
        try:
            yield
        finally:
            _WORKERS.reset(token)


def workers() -> Workers | None:
    """The workers of this run; None where parts are made in this process."""
    return _WORKERS.get()


@contextmanager
def processes(number: int) -> Iterator[ProcessPoolTaskRunner]:
    """So many processes, each with its share of the cores, which end with this one."""
    with from_workers() as queue, _script_hidden():
        begins_with = max(1, cores() // number), queue
        with ProcessPoolTaskRunner(number, initializer=_begin, initargs=begins_with) as runner:
            yield runner


@contextmanager
def _script_hidden() -> Iterator[None]:
    """Inside, a process that Python starts does not run the script of this one again.

    A script that runs a flow, and not below `if __name__ == "__main__"`, would run it once more in every worker.
    """
    main = sys.modules["__main__"]
    before: dict[str, Any] = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    vars(main).pop("__file__", None)
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(before)


def _begin(threads: int, queue: Any) -> None:
    """What a process that makes stages, or parts of one, begins with."""
    end_with_parent()
    quieten()
    tell(queue)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # for torch, which not every stage imports: it takes seconds
