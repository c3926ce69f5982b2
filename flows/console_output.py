"""The live display of a run: a line for each finished stage and, below them, a live line for each running one."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from penumbra.flows.safe_console import SafeConsole
from penumbra.tasks.progress import ProgressEvent, State, log_shown_by

HEADER = f"  {'stage':<26}{'in':>9}{'out':>9}{'rejected':>10}{'seconds':>10}"
MARKS = {State.made: ("✓", "green"), State.reused: ("=", "cyan")}
PREFECTS_FIRST_LINE = "Beginning flow run"


class StageBars(Progress):
    """The live lines of the stages that are being made, each above the newest line of its log."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description:<20}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=12),
            TextColumn(
                "{task.fields[parts]} {task.fields[count]}", table_column=Column(no_wrap=True, overflow="ellipsis")
            ),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            refresh_per_second=5,
            transient=True,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the lines of each stage."""
        for task in self.tasks:
            yield self.make_tasks_table([task])
            if task.fields["text"]:
                yield Text(f"  {task.fields['text']}", "dim", overflow="ellipsis", no_wrap=True)


class DisplayHandler(logging.Handler):
    """A handler of the log that shows progress records as live lines, and all other records above them."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.bars = StageBars(console)
        self._tasks: dict[str, TaskID] = {}
        self._several = set[str]()  # stages of several parts
        self._has_header = False

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record."""
        event: ProgressEvent | None = getattr(record, "progress_event", None)
        if event and event.state is State.running:
            self._update(event)
        elif event:
            self._close(event)
        elif not record.getMessage().startswith(PREFECTS_FIRST_LINE):
            style = "red" if record.levelno >= logging.ERROR else "yellow" if record.levelno >= logging.WARNING else ""
            self._print(Text(logging.Formatter().format(record), style))

    def _update(self, event: ProgressEvent) -> None:
        """Show the part of a stage and what is counted in it; the bar is of the parts if there are several."""
        if event.stage not in self._tasks:
            self._tasks[event.stage] = self.bars.add_task(event.stage, total=None, parts="", count="", text="")
        task, fields = self._tasks[event.stage], dict[str, Any]()
        if event.text:
            fields["text"] = event.text
        if event.unit:
            fields["count"] = f"{event.done:,} of {event.total:,} {event.unit}"
        elif event.total > 1:
            fields["parts"] = f"part {min(event.done + 1, event.total)} of {event.total}"
            self._several.add(event.stage)
        if event.total and not (event.unit and event.stage in self._several):
            fields |= {"total": event.total, "completed": event.done}
        self.bars.update(task, **fields)

    def _close(self, event: ProgressEvent) -> None:
        if event.stage in self._tasks:
            self.bars.remove_task(self._tasks.pop(event.stage))
        if event.state in MARKS:
            if not self._has_header:
                self._print(Text(HEADER, "dim"))
            self._has_header = True
            self._print(summary_line(event))
        elif event.state is State.failed:
            self._print(Text(f"✗ {event.stage}", "red"))

    def _print(self, line: Text) -> None:
        self.bars.console.print(line, soft_wrap=True)


def summary_line(event: ProgressEvent) -> Text:
    """Return the line of a finished stage: units in, out and rejected, and seconds."""
    mark, style = MARKS[event.state]
    taken, kept, seconds = event.counts
    last = f"{seconds:>10,.1f}" if event.state is State.made else f"{'found':>10}"
    figures = f"{taken:>9,}{kept:>9,}{taken - kept:>10,}{last}"
    return Text.assemble((mark, style), f" {event.stage:<26}{figures}  ", (event.unit, "dim"))


@contextmanager
def live_display() -> Iterator[None]:
    """Show the run live, on standard error: standard output is for the result of the command."""
    display = DisplayHandler(SafeConsole(stderr=True))
    with log_shown_by(display), display.bars:
        yield
