"""The live display of a run in a terminal: the lines of the log and, below them, a bar for each running stage."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from penumbra.flows.safe_console import SafeConsole
from penumbra.tasks.progress import ProgressEvent, log_shown_by

PREFECTS_FIRST_LINE = "Beginning flow run"


class LiveDisplay(logging.Handler):
    """A handler of the log that shows progress as bars, and all other records above them."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<20}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[parts]} {task.fields[count]}", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            refresh_per_second=5,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._several: set[str] = set()  # stages of several parts

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record."""
        event: ProgressEvent | None = getattr(record, "progress_event", None)
        if event:
            self._update(event)
        elif not record.getMessage().startswith(PREFECTS_FIRST_LINE):
            style = "red" if record.levelno >= logging.ERROR else "yellow" if record.levelno >= logging.WARNING else ""
            self.bars.console.print(Text(logging.Formatter().format(record), style), soft_wrap=True)

    def _update(self, event: ProgressEvent) -> None:
        """Show the part of a stage and what is counted in it; the bar is of the parts if there are several."""
        if event.is_over:
            if event.stage in self._tasks:
                self.bars.remove_task(self._tasks.pop(event.stage))
            return
        if event.stage not in self._tasks:
            self._tasks[event.stage] = self.bars.add_task(event.stage, total=None, parts="", count="")
        task = self._tasks[event.stage]
        if event.unit:
            self.bars.update(task, count=f"{event.done:,} of {event.total:,} {event.unit}")
        elif event.total > 1:
            self.bars.update(task, parts=f"part {min(event.done + 1, event.total)} of {event.total}")
            self._several.add(event.stage)
        if event.total and not (event.unit and event.stage in self._several):
            self.bars.update(task, total=event.total, completed=event.done)


@contextmanager
def live_display() -> Iterator[None]:
    """Show the run live on standard error if that and standard output are a terminal; else the log stays as it is."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        yield
        return
    display = LiveDisplay(SafeConsole(stderr=True))
    with log_shown_by(display), display.bars:
        yield
