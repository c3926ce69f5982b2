"""What a terminal shows: text of unknown origin without its control characters, and a run with its log and bars.

Such text is a query, a model's answer, an error of a server. It may hold sequences that set a terminal's title, answer
for the user, or reorder a line. Each line for a terminal goes through one of these functions, or a `SafeConsole`.
"""

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment

from penumbra.artifacts.markdown import CONTROLS, for_terminal
from penumbra.tasks.progress import bars_shown, console_handlers


class SafeConsole(Console):
    """A console of rich that replaces the control characters of all text, and keeps its own."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(it if it.control else Segment(for_terminal(it.text), it.style) for it in buffer)


def write_error(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{for_terminal(line)}\n")


def json_text(value: Any) -> str:
    """Return a value as JSON, with control characters escaped as JSON escapes them."""
    text = json.dumps(value, ensure_ascii=False)
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


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
