"""What a terminal shows of a run: a line a stage that is there, and below them, live, those that are being made."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from threading import RLock
from time import monotonic

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from penumbra.tasks.progress import HERE, ProgressEvent, State, log_shown_by

HEADER = f"  {'stage':<26}{'in':>9}{'out':>9}{'rejected':>10}{'seconds':>10}"
MARKS = {State.made: ("✓", "green"), State.reused: ("=", "cyan")}
FRAMES_A_SECOND = 5
LEAST_SHARE = 0.02  # that must be done before it is said how long the rest takes
PREFECTS_OWN = "Beginning flow run"


@dataclass
class Making:
    """A stage that is being made: its parts, what is counted of those under way, and what was said of it last."""

    begun: float
    parts: tuple[int, int] = (0, 0)
    under_way: dict[int | None, ProgressEvent] = field(default_factory=dict)
    ended: set[int | None] = field(default_factory=set)  # parts, at workers: the run hears of several at once
    units: int = 0  # of parts that are done
    unit: str = ""
    aside: ProgressEvent | None = None
    text: str = ""
    first: tuple[float, float, int] | None = None  # when something was first known, and how much was done then
    newest: tuple[float, float, int] | None = None

    def take(self, event: ProgressEvent, now: float) -> None:
        """Note what is told."""
        if event.text:
            self.text = event.text
        if event.state is State.part_done:
            self.ended.add(event.part)
        if event.state is State.part_done or (event.total and not event.unit):  # a part is done, whose units we add up
            gone = self.under_way.pop(event.part if event.state is State.part_done else HERE, None)
            self.units += gone.done if gone else 0
            self.aside = None
        if event.total and not event.unit:
            self.parts = event.done, event.total
        elif event.total and event.aside:
            self.aside = event
        elif event.total:
            self.under_way[event.part], self.unit = event, event.unit
        if self.share is not None:
            self.newest = now, self.share, self.counted
            self.first = self.first or self.newest

    @property
    def counted(self) -> int:
        """Units that are done."""
        return self.units + sum(event.done for event in self.under_way.values())

    @property
    def done(self) -> int:
        """Parts that are done, those that workers tell of alike."""
        return max(self.parts[0], len(self.ended))

    @property
    def share(self) -> float | None:
        """How much of it is done, 0 to 1; None before anything is told."""
        if None in self.under_way:  # the whole stage is counted
            return self.under_way[None].done / self.under_way[None].total
        inside = sum(event.done / event.total for event in self.under_way.values())
        total = self.parts[1]
        if not total:
            return inside / len(self.under_way) if self.under_way else None
        return min(1.0, (self.done + inside) / total)

    def pace(self, now: float) -> tuple[float, float]:
        """Units a second, and seconds that are left; 0 and infinity where that can't be told, or not yet."""
        if self.first is None or self.newest is None:
            return 0.0, inf
        seconds, share, units = (new - old for new, old in zip(self.newest, self.first, strict=True))
        if not seconds or share < LEAST_SHARE:
            return 0.0, inf
        return units / seconds, max(0.0, seconds / share * (1 - self.newest[1]) - (now - self.newest[0]))

    def cells(self, label: str, now: float) -> tuple[RenderableType, ...]:
        """Its line: spinner, name, bar, what is counted, rate, time left or, before anything is told, time so far."""
        rate, left = self.pace(now)
        total = self.parts[1]
        counts = [*self.under_way.values()] if len(self.under_way) == 1 else []
        told = [
            f"part {min(self.done + 1, total)} of {total}" if total > 1 else "",
            *(f"{event.done:,} of {event.total:,} {event.unit}" for event in (*counts, self.aside) if event),
            f"{rate:,.0f} {self.unit}/s" if rate >= 1 else "",
            f"{duration(left)} left" if left < inf else duration(now - self.begun),
        ]
        bar: RenderableType = Text("") if self.share is None else ProgressBar(total=1.0, completed=self.share, width=12)
        return Spinner("dots"), Text(label), bar, Text(" · ".join(filter(None, told)))


def duration(seconds: float) -> str:
    """`0:07`, `12:00`, `3:00:00`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Display(logging.Handler):
    """Takes the lines of the log: news of stages go into the display, all others above it."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console, self.making, self._guard = console, dict[str, Making](), RLock()
        self.live = Live(
            console=console, get_renderable=self.rendered, refresh_per_second=FRAMES_A_SECOND, transient=True
        )
        self._headed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Show a line of the log, or what it tells of a stage."""
        event = getattr(record, "progress_event", None)
        if event:
            self._take(event)
        elif not record.getMessage().startswith(PREFECTS_OWN):
            style = "red" if record.levelno >= logging.ERROR else "yellow" if record.levelno >= logging.WARNING else ""
            self._print(Text(logging.Formatter().format(record), style))

    def _take(self, event: ProgressEvent) -> None:
        now = monotonic()
        with self._guard:
            if event.state in MARKS or event.state in (State.failed, State.closed):
                self.making.pop(event.stage, None)
            else:
                self.making.setdefault(event.stage, Making(now)).take(event, now)
        if event.state in MARKS:
            self._print(ended(event), headed=True)
        elif event.state is State.failed:
            self._print(Text(f"✗ {event.stage}", "red"))

    def _print(self, line: Text, headed: bool = False) -> None:
        if headed and not self._headed:
            self._headed = True
            self.console.print(Text(HEADER, "dim"), soft_wrap=True)
        self.console.print(line, soft_wrap=True)

    def rendered(self) -> RenderableType:
        """What is live: a line a stage, and below it what it said last."""
        now, lines = monotonic(), list[RenderableType]()
        with self._guard:
            for label, making in self.making.items():
                table = Table.grid(padding=(0, 1))
                for _ in range(3):
                    table.add_column(no_wrap=True)
                table.add_column(no_wrap=True, overflow="ellipsis")
                table.add_row(*making.cells(f"{label:<20}", now))
                lines += [
                    table,
                    *([Text(f"  {making.text}", "dim", overflow="ellipsis", no_wrap=True)] if making.text else []),
                ]
        return Group(*lines)


def ended(event: ProgressEvent) -> Text:
    """The line of a stage that is there: units in, out and rejected, and seconds."""
    mark, style = MARKS[event.state]
    taken, kept, seconds = event.counts
    last = f"{seconds:>10,.1f}" if event.state is State.made else f"{'found':>10}"
    figures = f"{taken:>9,}{kept:>9,}{taken - kept:>10,}{last}"
    return Text.assemble((mark, style), f" {event.stage:<26}{figures}  ", (event.unit, "dim"))


@contextmanager
def displayed() -> Iterator[None]:
    """Inside, where both streams are a terminal's, the live display shows a run; elsewhere its lines stay as they are.

    It draws on standard error: standard output is for what the command prints.
    """
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        yield
        return
    display = Display(Console(stderr=True))
    with log_shown_by(display), display.live:
        yield


@contextmanager
def warnings_only() -> Iterator[None]:
    """Show only warnings on the terminal: no lines of Prefect's log, no progress bars of loaded weights."""
    from prefect.logging.configuration import setup_logging
    from prefect.logging.handlers import PrefectConsoleHandler
    from transformers.utils import logging as progress

    setup_logging()  # as a flow would: now its handlers are there
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    handlers = {one for logger in loggers for one in logger.handlers if isinstance(one, PrefectConsoleHandler)}
    before = {handler: handler.level for handler in handlers}
    bars = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()  # type: ignore[no-untyped-call]
    for handler in handlers:
        handler.setLevel(max(handler.level, logging.WARNING))
    try:
        yield
    finally:
        for handler, level in before.items():
            handler.setLevel(level)
        if bars:
            progress.enable_progress_bar()  # type: ignore[no-untyped-call]
