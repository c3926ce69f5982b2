"""Terminal output: text without control characters, the bars of a run, and the end of an interrupted run.

Text of unknown origin is a query, a model's answer or a server's error. It may contain sequences that set a terminal's
title, answer for the user, or reorder a line. Print each line with one of these functions or with a `SafeConsole`.
"""

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table

from penumbra.artifacts.markdown import CONTROLS, for_terminal
from penumbra.tasks.progress import bars_shown, console_handlers

SECONDS_TO_END = {signal.SIGTERM: 10.0, signal.SIGINT: 1.5}  # for a run to report its end to its server
INTERRUPTED = "penumbra: ended; the same command resumes here\n"
SHOW_CURSOR = "\x1b[?25h"


class SafeConsole(Console):
    """A rich console that replaces control characters in text, but not in its own control codes."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(it if it.control else Segment(for_terminal(it.text), it.style) for it in buffer)


console = SafeConsole(width=None if sys.stdout.isatty() else 160)  # a pipe has no width: don't wrap at 80


def warn(line: str) -> None:
    sys.stderr.write(f"penumbra: {for_terminal(line)}\n")


def print_line(line: str) -> None:
    """Print a line as it is, however long."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def print_table(header: Iterable[str], rows: Iterable[Iterable[str]], title: str | None = None) -> None:
    table = Table(*header, title=title and escape(title), title_justify="left")
    for row in rows:
        table.add_row(*(escape(for_terminal(cell)) for cell in row))
    console.print(table)


def json_text(value: Any) -> str:
    """Return a value as JSON, with control characters escaped as JSON escapes them."""
    text = json.dumps(value, ensure_ascii=False)
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def write_text(lines: Iterable[str], output: Path | None) -> None:
    """Write text as UTF-8 to a file, or to standard output if there is none; a failure leaves the file unchanged."""
    if output is None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # whatever the terminal's language
        sys.stdout.writelines(map(for_terminal, lines) if sys.stdout.isatty() else lines)
        return
    from penumbra.artifacts.files import draft_of

    with draft_of(output) as draft, draft.open("w", encoding="utf-8") as stream:
        stream.writelines(lines)


@contextmanager
def live_display() -> Iterator[None]:
    """Show the run live in a notebook or, if both outputs are terminals, on standard error; else change nothing."""
    console = SafeConsole(stderr=True, markup=False, highlight=False)
    if not (console.is_jupyter or (sys.stdout.isatty() and sys.stderr.isatty())):
        yield
        return
    before = [(handler, handler.console, handler.formatter) for handler in console_handlers()[:1]]
    for handler, *_ in before:
        handler.console, handler.formatter = console, logging.Formatter()
    try:
        with bars_shown(bars_on(console)):
            yield
    finally:
        for handler, own_console, own_formatter in before:
            handler.console, handler.formatter = own_console, own_formatter


def bars_on(console: SafeConsole) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}", markup=False),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=console,
        transient=True,
        redirect_stdout=not console.is_jupyter,
        redirect_stderr=not console.is_jupyter,  # else a bar repeats its warning about ipywidgets without end
    )


def end_at_once(number: int, _: object) -> None:
    """End the process without a traceback: the handler of Ctrl-C while there is nothing to report."""
    os.write(2, b"\n")
    os._exit(128 + number)


@contextmanager
def resumable() -> Iterator[None]:
    """Print one line if SIGTERM or Ctrl-C ends the run inside, and exit with code 143 or 130.

    Prefect reports the end to its server, and tries for minutes if the server is gone. After `SECONDS_TO_END` the
    process ends anyway; the same command continues its work.
    """
    over = threading.Event()
    readable, writable = os.pipe()
    os.set_blocking(writable, False)

    def watch() -> None:  # in a thread: Prefect replaces the handlers of signals
        for number in iter(lambda: os.read(readable, 1), b""):
            if number[0] in SECONDS_TO_END and not over.wait(SECONDS_TO_END[signal.Signals(number[0])]):
                os.write(2, ((SHOW_CURSOR if sys.stderr.isatty() else "") + INTERRUPTED).encode())
                os._exit(128 + number[0])

    def terminate(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    handlers = {number: signal.getsignal(number) for number in SECONDS_TO_END}
    signal.signal(signal.SIGTERM, terminate)
    if handlers[signal.SIGINT] is end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    descriptor = signal.set_wakeup_fd(writable)
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as end:
        sys.stderr.write(INTERRUPTED)
        raise SystemExit(128 + signal.SIGINT if isinstance(end, KeyboardInterrupt) else end.code) from None
    finally:
        over.set()
        signal.set_wakeup_fd(descriptor)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(writable)
