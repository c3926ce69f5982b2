"""What the commands share: where tables go, `--param`, and a run that is ended in good order."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from penumbra.artifacts.errors import PenumbraError

console = Console(width=None if sys.stdout.isatty() else 160)  # a pipe has no width: don't wrap at 80


def warn(line: str) -> None:
    """Say on standard error what the output does not hold."""
    sys.stderr.write(f"penumbra: {line}\n")


def tell_taken(path: str, size: int, dry_run: bool) -> None:
    """Say what was taken away, or would be, and how many bytes it has."""
    console.print(f"{'would take' if dry_run else 'took'} {escape(path)} ({size / 1e6:,.1f} MB)", soft_wrap=True)


def print_json_lines(rows: Iterable[dict[str, Any]], output: Path | None) -> None:
    """Write rows as JSON lines to a file, or to standard output where there is none."""
    write_text((json.dumps(row, ensure_ascii=False) + "\n" for row in rows), output)


def write_text(lines: Iterable[str], output: Path | None) -> None:
    """Write text as UTF-8 to a file, or to standard output where there is none."""
    if output is None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # whatever the terminal's language
        sys.stdout.writelines(lines)
        return
    try:
        with output.open("w", encoding="utf-8") as stream:
            stream.writelines(lines)
    except OSError as error:
        raise PenumbraError(f"--output {output} can't be written ({error.strerror})") from None


def parse_parameters(pairs: list[str]) -> dict[str, Any]:
    """`masking.ratios=[0.1,0.3,0.5]` as nested parameters; a value is YAML (so JSON too), as in providers=[openai]."""
    parameters: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not all(name.split(".")):
            raise typer.BadParameter(f"{pair!r} is no NAME=VALUE, as in filling.candidates=4")
        *groups, last = name.split(".")
        place = parameters
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = _value(text)
    return parameters


def _value(text: str) -> Any:
    import yaml

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, str | int | float | bool | list | dict | None) else text  # dates stay text


PATIENCE = 10.0  # seconds that a run which is ended may take to tell its server
ENDED = "penumbra: ended; the same command goes on from here\n"


@contextmanager
def goes_on() -> Iterator[None]:
    """A run that SIGTERM or Ctrl-C ends says in one line that it goes on; exit code 143 or 130.

    Prefect tells its server, and asks one that is gone for minutes, with handlers of its own. After `PATIENCE` seconds
    the process ends all the same, and loses nothing by it.
    """

    def terminate(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    over = threading.Event()
    readable, writable = os.pipe()
    os.set_blocking(writable, False)

    def watch() -> None:
        for number in iter(lambda: os.read(readable, 1), b""):
            if number[0] in (signal.SIGTERM, signal.SIGINT) and not over.wait(PATIENCE):
                if sys.stderr.isatty():
                    Console(stderr=True).show_cursor()  # which the live display has hidden
                sys.stderr.write(ENDED)
                sys.stderr.flush()
                os._exit(128 + number[0])
        os.close(readable)

    before, told = signal.signal(signal.SIGTERM, terminate), signal.set_wakeup_fd(writable)
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as ended:
        sys.stderr.write(ENDED)
        raise SystemExit(128 + signal.SIGINT if isinstance(ended, KeyboardInterrupt) else ended.code) from None
    finally:
        over.set()
        signal.set_wakeup_fd(told)
        signal.signal(signal.SIGTERM, before)
        os.close(writable)
