"""Progress of stages, and which log lines a terminal shows.

    for query in followed(queries, "queries", len(queries)):
        ...

Progress is reported as records of a log of its own, which carry a `ProgressEvent` as `record.progress_event`. The live
display of a terminal handles them; the Prefect UI does not show them.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from logging.handlers import QueueHandler, QueueListener
from multiprocessing import get_context
from time import monotonic
from typing import Any, TypeVar

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.markdown import for_terminal

LOG = logging.getLogger("penumbra.progress")
STATES = ("Finished in state ", "Crash detected! Execution was aborted")  # beginnings of Prefect's lines
EVERY = 0.2  # seconds between two events of one count

T = TypeVar("T")


@dataclass(frozen=True)
class ProgressEvent:
    """An event of a stage: `done` of `total` parts, or with a `unit`, that many units of the current part."""

    stage: str
    done: int = 0
    total: int = 0
    unit: str = ""
    is_over: bool = False

    def as_log_extra(self) -> dict[str, Any]:
        """Return the `extra` of a log line about this event."""
        return {"progress_event": self}


_STAGE: ContextVar[str] = ContextVar("stage", default="")


@contextmanager
def progress_scope(stage: str, in_worker: bool = False) -> Iterator[None]:
    """Attribute what is counted inside to a stage; a worker does not report the stage's end."""
    token = _STAGE.set(stage)
    try:
        yield
    finally:
        _STAGE.reset(token)
        if not in_worker:
            LOG.info("%s: over", stage, extra=ProgressEvent(stage, is_over=True).as_log_extra())


def counting(unit: str, total: int, *, before: int = 0) -> Callable[[int], None]:
    """Return a function that takes the number of further units done, and reports at most every `EVERY` seconds.

    `before` units were done before.
    """
    stage = _STAGE.get()
    if not stage or not LOG.isEnabledFor(logging.INFO):
        return lambda number: None
    done, last = before, -EVERY

    def tick(number: int) -> None:
        nonlocal done, last
        done += number
        now = monotonic()
        if now - last >= EVERY or done >= total:
            last = now
            event = ProgressEvent(stage, done=done, total=total, unit=unit)
            LOG.info("%s: %d of %d %s", stage, done, total, unit, extra=event.as_log_extra())

    tick(0)
    return tick


def followed(items: Iterable[T], unit: str, total: int) -> Iterator[T]:
    """Yield the items; each is counted when the next one is asked for."""
    tick = counting(unit, total)
    for item in items:
        yield item
        tick(1)


def _without_traceback(record: logging.LogRecord) -> bool:
    """Remove the traceback of a `PenumbraError`, whose message is enough."""
    if record.exc_info and isinstance(record.exc_info[1], PenumbraError):
        record.exc_info, record.printed_by_command = None, True
    return True


def _shown_in_terminal(record: logging.LogRecord) -> bool:
    """Return whether a terminal shows the line: not the error that the command prints last, nor the states of runs."""
    return not (hasattr(record, "printed_by_command") or record.getMessage().startswith(STATES))


def _without_controls(record: logging.LogRecord) -> bool:
    """Replace the control characters in a line for a terminal, and in its traceback."""
    record.msg, record.args = for_terminal(record.getMessage()), None
    if record.exc_info and not record.exc_text:
        record.exc_text = for_terminal(logging.Formatter().formatException(record.exc_info))
    return True


def prepare_log() -> None:
    """Make the log's lines safe for a terminal, and show each line once, without needless traceback."""
    from prefect.logging.configuration import setup_logging

    setup_logging()  # as the flow would, so that the handlers exist
    clean_console_log()
    for handler in _console_handlers():
        handler.addFilter(_shown_in_terminal)
    for logger in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(logger).addFilter(_without_traceback)


def clean_console_log() -> None:
    """Replace the control characters in all lines of the log that this process writes to a terminal."""
    for handler in _console_handlers():
        handler.addFilter(_without_controls)


def _console_handlers() -> list[logging.Handler]:
    from prefect.logging.handlers import PrefectConsoleHandler

    return [handler for handler in logging.getLogger().handlers if isinstance(handler, PrefectConsoleHandler)]


_DISPLAY: ContextVar[logging.Handler | None] = ContextVar("display", default=None)


@contextmanager
def log_shown_by(handler: logging.Handler) -> Iterator[None]:
    """Pass log lines and progress, those of workers too, to the handler of a live display instead of the console."""
    root, token = logging.getLogger(), _DISPLAY.set(handler)
    console = _replace_console(handler)
    try:
        yield
    finally:
        _DISPLAY.reset(token)
        LOG.setLevel(logging.NOTSET)
        root.handlers = [*(it for it in root.handlers if it is not handler), *console]


def _replace_console(handler: logging.Handler) -> list[logging.Handler]:
    """Put a handler in the place of Prefect's console handlers; return these."""
    root, console = logging.getLogger(), _console_handlers()
    handler.addFilter(_shown_in_terminal)
    root.handlers = [*(it for it in root.handlers if it not in console), handler]
    LOG.setLevel(logging.INFO)
    return console


@contextmanager
def worker_log_queue() -> Iterator[Any]:
    """Yield a queue for the log lines of workers, or None without a live display: workers then write themselves."""
    handler = _DISPLAY.get()
    if handler is None:
        yield None
        return
    queue: Any = get_context("spawn").Queue()
    listener = QueueListener(queue, handler)
    listener.start()
    try:
        yield queue
    finally:
        listener.stop()
        queue.close()


def log_to(queue: Any) -> None:
    """Send the log lines of this worker to a queue of `worker_log_queue`."""
    if queue is not None:
        _replace_console(QueueHandler(queue))
