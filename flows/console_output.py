"""What a terminal shows of a run: a line for each finished stage and, below them, a live line for each running one."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from penumbra.tasks.progress import HERE, ProgressEvent, State, log_shown_by

HEADER = f"  {'stage':<26}{'in':>9}{'out':>9}{'rejected':>10}{'seconds':>10}"
MARKS = {State.made: ("✓", "green"), State.reused: ("=", "cyan")}
PREFECTS_FIRST_LINE = "Beginning flow run"


@dataclass
class StageProgress:
    """How much of a stage is done, from the progress records of its parts."""

    parts: tuple[int, int] = (0, 0)  # done, and all
    counts: dict[int | None, ProgressEvent] = field(default_factory=dict)  # the newest of each part being made
    ended: set[int | None] = field(default_factory=set)  # parts that workers have made: they report before the run does

    def update(self, event: ProgressEvent) -> None:
        """Take in a progress record."""
        if event.state is State.part_done:
            self.ended.add(event.part)
            self.counts.pop(event.part, None)
        elif event.total and not event.unit:
            self.parts = event.done, event.total
            self.counts.pop(HERE, None)
        elif event.total and not event.aside:  # a count aside is no measure of the part
            self.counts[event.part] = event

    @property
    def share(self) -> float | None:
        """Share of the stage that is done, None before anything is known."""
        shares = {part: event.done / event.total for part, event in self.counts.items()}
        if None in shares:  # the count of the whole stage
            return shares[None]
        if not self.parts[1]:
            return sum(shares.values()) / len(shares) if shares else None
        return min(1.0, (max(self.parts[0], len(self.ended)) + sum(shares.values())) / self.parts[1])

    def __str__(self) -> str:
        """Describe the part that is being made, and the count inside it."""
        done, total = max(self.parts[0], len(self.ended)), self.parts[1]
        words = [f"part {min(done + 1, total)} of {total}"] if total > 1 else []
        if len(self.counts) == 1:
            words += [f"{event.done:,} of {event.total:,} {event.unit}" for event in self.counts.values()]
        return " · ".join(words)


class StageBars(Progress):
    """The live lines of the stages that are being made, each above the newest line of its log."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description:<20}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[counts]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
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
        self._stages: dict[str, tuple[TaskID, StageProgress]] = {}
        self._has_header = False

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record."""
        event: ProgressEvent | None = getattr(record, "progress_event", None)
        if event:
            self._show(event)
        elif not record.getMessage().startswith(PREFECTS_FIRST_LINE):
            style = "red" if record.levelno >= logging.ERROR else "yellow" if record.levelno >= logging.WARNING else ""
            self._print(Text(logging.Formatter().format(record), style))

    def _show(self, event: ProgressEvent) -> None:
        if event.state in (State.running, State.part_done):
            self._update(event)
            return
        if event.stage in self._stages:
            self.bars.remove_task(self._stages.pop(event.stage)[0])
        if event.state in MARKS:
            if not self._has_header:
                self._print(Text(HEADER, "dim"))
            self._has_header = True
            self._print(summary_line(event))
        elif event.state is State.failed:
            self._print(Text(f"✗ {event.stage}", "red"))

    def _update(self, event: ProgressEvent) -> None:
        if event.stage not in self._stages:
            task = self.bars.add_task(event.stage, total=None, counts="", text="")
            self._stages[event.stage] = task, StageProgress()
        task, progress = self._stages[event.stage]
        progress.update(event)
        if event.text:
            self.bars.update(task, text=event.text)
        if progress.share is not None:
            self.bars.update(task, total=1.0, completed=progress.share)
        self.bars.update(task, counts=str(progress))

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
    display = DisplayHandler(Console(stderr=True))
    with log_shown_by(display), display.bars:
        yield
