"""The live display of a run in a terminal: the lines of the log and, below them, bars of what is being counted."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from penumbra.flows.safe_console import SafeConsole
from penumbra.tasks.progress import bars_shown, console_handlers


@contextmanager
def live_display() -> Iterator[None]:
    """Show the run live on standard error if that and standard output are a terminal; else the log stays as it is."""
    handlers = console_handlers()
    if not (handlers and sys.stdout.isatty() and sys.stderr.isatty()):
        yield
        return
    handler, console = handlers[0], SafeConsole(stderr=True, markup=False, highlight=False)
    before = handler.console, handler.formatter
    handler.console, handler.formatter = console, logging.Formatter()
    try:
        with bars_shown(bars_on(console)):
            yield
    finally:
        handler.console, handler.formatter = before


def bars_on(console: SafeConsole) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}", markup=False),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=console,
        refresh_per_second=5,
        transient=True,
        redirect_stdout=not console.is_jupyter,
        redirect_stderr=not console.is_jupyter,  # else a bar prints its own warning about ipywidgets for ever
    )
