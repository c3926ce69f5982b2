"""Progress of stages as bars in a terminal, and which log lines a terminal shows."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.markdown import for_terminal
from penumbra.artifacts.processes import value_set

if TYPE_CHECKING:
    from prefect.logging.handlers import PrefectConsoleHandler
    from rich.progress import Progress

STATES = ("Finished in state ", "Crash detected! Execution was aborted")  # beginnings of Prefect's lines

LOG_EVERY = 30.0  # seconds

_BARS: ContextVar["Progress | None"] = ContextVar("bars", default=None)
_STAGE: ContextVar[str] = ContextVar("stage", default="")


@contextmanager
def bars_shown(bars: "Progress") -> Iterator[None]:
    with value_set(_BARS, bars), bars:
        yield


@contextmanager
def progress_scope(stage: str) -> Iterator[None]:
    """Show the units that are counted inside as progress of a stage, and remove its bars afterwards."""
    try:
        with value_set(_STAGE, stage):
            yield
    finally:
        if bars := _BARS.get():
            for task in bars.tasks:
                if task.fields["stage"] == stage:
                    bars.remove_task(task.id)


def counting(unit: str, total: int, *, before: int = 0) -> Callable[[int], None]:
    """Return a function that takes the number of units done since its last call and advances the bar of this unit.

    Without bars it logs the number done so far every half minute; outside a stage it does nothing.
    """
    bars, stage = _BARS.get(), _STAGE.get()
    if not stage:
        return lambda number: None
    if not bars:
        return _logged(f"{stage}: %s of {total:,} {unit}", before)
    tasks = [task.id for task in bars.tasks if (task.fields["stage"], task.fields["unit"]) == (stage, unit)]
    task = tasks[0] if tasks else bars.add_task(stage, total=None, stage=stage, unit=unit)
    bars.reset(task, total=total or None, completed=before)
    return partial(bars.advance, task)


def _logged(line: str, done: int) -> Callable[[int], None]:
    last = monotonic()

    def tick(number: int) -> None:
        nonlocal done, last
        done += number
        if monotonic() - last >= LOG_EVERY:
            last = monotonic()
            logger().info(line, f"{done:,}")

    return tick


def logger() -> "logging.Logger | logging.LoggerAdapter[Any]":
    """Return the logger of this flow or task run, which the Prefect UI shows; outside a run the logger `penumbra`."""
    from prefect import get_run_logger
    from prefect.exceptions import MissingContextError

    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger("penumbra")


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
    """Make log lines safe for a terminal, show each error once, and show no traceback of a `PenumbraError`."""
    from prefect.logging.configuration import setup_logging

    setup_logging()  # as the flow would, so that the handlers exist
    clean_console_log()
    for handler in console_handlers():
        handler.addFilter(_shown_in_terminal)
    for logger in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(logger).addFilter(_without_traceback)


def clean_console_log() -> None:
    """Replace the control characters in all lines of the log that this process writes to a terminal."""
    for handler in console_handlers():
        handler.addFilter(_without_controls)


def console_handlers() -> "list[PrefectConsoleHandler]":
    """Return the handlers by which Prefect shows the log in a terminal."""
    from prefect.logging.handlers import PrefectConsoleHandler

    return [handler for handler in logging.getLogger().handlers if isinstance(handler, PrefectConsoleHandler)]


@contextmanager
def warnings_only() -> Iterator[None]:
    """Log only warnings inside, and hide the progress bars with which transformers loads weights."""
    from transformers.utils import logging as transformers_logging

    had_bars, before = transformers_logging.is_progress_bar_enabled(), logging.root.manager.disable
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(before)
        if had_bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
