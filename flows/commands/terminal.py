"""What the commands share: where output goes, and how a run that is interrupted ends."""

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penumbra.artifacts.markdown import for_terminal
from penumbra.flows.console import SafeConsole, write_error

DryRun = Annotated[bool, typer.Option("--dry-run", help="List what would be removed and its size; remove nothing.")]
console = SafeConsole(width=None if sys.stdout.isatty() else 160)  # a pipe has no width: don't wrap at 80
SECONDS_TO_END = 10.0  # that a run has after SIGTERM to report to its server
SECONDS_TO_INTERRUPT = 1.5  # the same after Ctrl-C
INTERRUPTED = "penumbra: ended; the same command resumes here\n"


def warn(line: str) -> None:
    """Write a line to standard error."""
    write_error(f"penumbra: {line}")


def print_line(line: str) -> None:
    """Print a line as it is, however long."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def print_table(header: Iterable[str], rows: Iterable[Iterable[str | Text]], title: str | None = None) -> None:
    """Print a table of plain text; a `Text` is printed with its style."""
    table = Table(*header, title=title and escape(title), title_justify="left")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else escape(for_terminal(cell)) for cell in row))
    console.print(table)


def print_removed(name: str, size: int, dry_run: bool) -> None:
    """Print what was removed, or would be, and its size."""
    print_line(f"{'would remove' if dry_run else 'removed'} {name} ({size / 1e6:,.1f} MB)")


def write_text(lines: Iterable[str], output: Path | None) -> None:
    """Write text as UTF-8 to a file, which stays as it was if that fails, or to standard output if there is none."""
    if output is None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # whatever the terminal's language
        sys.stdout.writelines(map(for_terminal, lines) if sys.stdout.isatty() else lines)
        return
    from penumbra.artifacts.files import draft_of

    with draft_of(output) as draft, draft.open("w", encoding="utf-8") as stream:
        stream.writelines(lines)


def end_at_once(number: int, _: object) -> None:
    """End the process without a traceback: a handler of Ctrl-C while there is nothing to report."""
    os.write(2, b"\n")
    os._exit(128 + number)


@contextmanager
def resumable() -> Iterator[None]:
    """Print one line if SIGTERM or Ctrl-C ends the run inside, and exit with code 143 or 130.

    Prefect reports the end to its server, and tries for minutes if the server is gone. After `SECONDS_TO_END` or
    `SECONDS_TO_INTERRUPT` the process ends anyway; the same command continues its work.
    """

    def terminate(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    over = threading.Event()
    readable, writable = os.pipe()
    os.set_blocking(writable, False)

    def watch() -> None:  # in a thread: Prefect replaces the handlers of signals
        for number in iter(lambda: os.read(readable, 1), b""):
            limits = {int(signal.SIGTERM): SECONDS_TO_END, int(signal.SIGINT): SECONDS_TO_INTERRUPT}
            if number[0] in limits and not over.wait(limits[number[0]]):
                if sys.stderr.isatty():
                    SafeConsole(stderr=True).show_cursor()  # which the live display has hidden
                sys.stderr.write(INTERRUPTED)
                sys.stderr.flush()
                os._exit(128 + number[0])
        os.close(readable)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
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
