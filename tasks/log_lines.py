"""Which lines of Prefect's log people see on a terminal, and where; the Prefect UI keeps all of them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from logging.handlers import QueueHandler, QueueListener
from multiprocessing import get_context
from typing import Any

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks import progress


class _OneLine(logging.Filter):
    """Takes the traceback from log records of faults that are not the code's: their message says what to do."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], PenumbraError):
            record.exc_info, record.told_at_the_end = None, True
        return True


class _Once(logging.Filter):
    """Keeps back what the command says at its end, and how each task ended, of which a line of its own tells more."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (hasattr(record, "told_at_the_end") or record.getMessage().startswith("Finished in state "))


def quieten() -> None:
    """Show this process's lines on the terminal once, and what is wrong outside the code without a traceback."""
    from prefect.logging.configuration import setup_logging

    setup_logging()  # as the flow would: now its handlers are there
    for logger in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(logger).addFilter(_OneLine())
    for handler in _on_console():
        handler.addFilter(_Once())


def _on_console() -> list[logging.Handler]:
    from prefect.logging.handlers import PrefectConsoleHandler

    return [handler for handler in logging.getLogger().handlers if isinstance(handler, PrefectConsoleHandler)]


_SHOWN_BY: ContextVar[logging.Handler | None] = ContextVar("shown_by", default=None)


@contextmanager
def shown_by(handler: logging.Handler) -> Iterator[None]:
    """Inside, a live display shows the lines that the console would, and how far stages are, of workers too."""
    console, root, token = _on_console(), logging.getLogger(), _SHOWN_BY.set(handler)
    _hand_over(handler, console)
    try:
        yield
    finally:
        _SHOWN_BY.reset(token)
        progress.LOG.setLevel(logging.NOTSET)
        root.removeHandler(handler)
        for one in console:
            root.addHandler(one)


def _hand_over(handler: logging.Handler, console: list[logging.Handler]) -> None:
    handler.addFilter(_Once())
    for one in console:
        logging.getLogger().removeHandler(one)
    logging.getLogger().addHandler(handler)
    progress.LOG.setLevel(logging.INFO)


@contextmanager
def from_workers() -> Iterator[Any]:
    """A queue for what workers log, where a live display shows it; None where they write to the terminal themselves."""
    handler = _SHOWN_BY.get()
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


def tell(queue: Any) -> None:
    """Send this worker's lines to `from_workers`, which shows them."""
    if queue is not None:
        _hand_over(QueueHandler(queue), _on_console())
