"""Hostile parameters by the thousand, and escape sequences on every way to a terminal.

python -m bench.campaigns.parameters --cases 1000

A case must be accepted or refused with one line within `PATIENCE`, and no sequence may reach the terminal.
"""

import io
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import typer

import penumbra.flows.commands as command
from penumbra.artifacts.markdown import CONTROLS
from penumbra.flows.console import SafeConsole, bars_on, json_text, print_line, print_table, warn
from penumbra.flows.parameters import parameters_of
from penumbra.flows.registry import FLOWS, flow_of

PATIENCE = 20  # seconds
LETTERS = "abcdefghi"
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{after}: &{after} [{','.join([f'*{before}'] * 9)}]\n" for before, after in pairwise(LETTERS)
)
ESCAPES = ("\x1b]0;x\x07", "\x1b[31m", "\x9b31m", "\u202eabc", "\u2066abc", "\x07", "\x00", "\x7f", "\x1b[6n", "a\rb")
VALUES = (
    *("", "1", "-1", "0", "1e400", "-1e308", "1.5", ".nan", ".inf", "9" * 18, "9" * 400, "9" * 5000, "0x10", "1_000"),
    *("null", "~", "true", "yes", "mmn", "scenes", "a" * 300, "x" * 5000, "é" * 300, "=", ",", ".", "-", "--help"),
    *("2001-13-45", "2026-11-20", "1:30", "!!int ''", "!!timestamp x", "!!python/object:os.system x", "!x y", "*a"),
    *("&a [*a]", "<<: {a: 1}", "{", "[", "[" * 2000, "{a: " * 500, "[" * 2000 + "]" * 2000, "{}", "[]", "{a: 1}"),
    *("[[]]", "{name: 1}", "{name: mmn}", "{name: [1]}", "{? [a] : b}", "{1: 2}", "{a: 1, a: 2}", "a: b: c", "|\n x"),
    *("%TAG ! x", "--- a\n--- b", *ESCAPES, "\udcff", '"\\ud800"', '"\\0"', "\ufeff", "/dev/zero", "/etc/passwd"),
    *("/" + "a/" * 2000, "~nobody/x", "file:///etc/passwd", "s3://", "s3://u:p@b/k", "http://[::1", "..", "../.."),
    *("%s %n {}", "{{}}", "[0.5,0.2,0.9]", "[1,2,3]", "[a,b,c]", "[null]", "{train: ../x}", "cuda:99", BOMB),
)
NAMES = (
    *("", ".", "..", "a", "a.b.c.d", "model", "training", "dataset", "dataset.name", "a" * 300, "a." * 500, "["),
    *("__class__", "\x1b[31m", " ", "model.name.x", "'", "\u202e", "3", "None"),
)


@cache
def names(flow: str) -> tuple[str, ...]:
    """Return the names of a flow's parameters, whole and shortened, and wrong ones."""
    paths = dict.fromkeys(it.path for it in parameters_of(flow_of(flow)))
    return (*paths, *paths, *(path.rpartition(".")[2] for path in paths), *(path[:-1] for path in paths), *NAMES)


def words_of(number: int, folder: Path) -> list[str]:
    """Return the arguments of a case."""
    chance = random.Random(number)
    flow = chance.choice(sorted(FLOWS))
    pairs = [(chance.choice(names(flow)), chance.choice(VALUES)) for _ in range(chance.choice((1, 1, 2, 3)))]
    words = ["run", flow, chance.choice(("scenes", "scenes", "scenes", "a" * 300, "..")), "--dry-run"]
    if chance.random() < 0.75:
        return words + [f"--param={name}={value}" for name, value in pairs]
    file = folder / "hostile.yaml"
    text = "\n".join(f"{name}: {value}" for name, value in pairs)
    file.write_bytes(text.encode(errors="surrogateescape"))
    return [*words, "--config", str(file)]


@contextmanager
def captured() -> Iterator[io.StringIO]:
    """Yield what is written to standard output and standard error."""
    stream = io.StringIO()
    with redirect_stdout(stream), redirect_stderr(stream):
        yield stream


def outcome_of(number: int, folder: Path) -> str:
    """Return `accepted`, `refused`, or what is wrong with the answer to a case."""
    words = words_of(number, folder)
    signal.alarm(PATIENCE)
    try:
        with captured() as shown, patch.object(sys, "argv", ["penumbra", *words]):
            command.main()
    except SystemExit as end:
        text = shown.getvalue()
        if CONTROLS.search(text):
            return "control characters"
        if end.code in (0, None):
            return "accepted"
        faults = [line for line in text.splitlines() if line.startswith("penumbra: ")]
        planned = "│" in text  # a table of stages, or a message about the command line
        return "refused" if planned or len(faults) == len(text.splitlines()) == 1 else "refused in several lines"
    except Exception as error:
        print(f"case {number}, {words!r:.300}:\n{traceback.format_exc()[-3000:]}", file=sys.stderr)
        return f"crashed with {type(error).__name__}"
    finally:
        signal.alarm(0)
    return "accepted"


def run_cases(first: int, count: int) -> Counter[str]:
    """Return the number of cases by their outcome."""

    def late(*_: object) -> None:
        raise TimeoutError(f"more than {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, late)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return Counter(outcome_of(number, Path(folder)) for number in range(first, first + count))
    finally:
        signal.signal(signal.SIGALRM, before)


def escapes_shown() -> dict[str, int]:
    """Return the number of escape sequences that reach a terminal, by the way there."""
    reached = Counter(dict.fromkeys(("log line", "live line", "table", "JSON", "error"), 0))
    for text in ESCAPES:
        for way in reached:
            stream = io.StringIO()
            console = SafeConsole(file=stream, width=80, markup=False)
            if way == "log line":
                console.print(text, soft_wrap=True)
            elif way == "live line":
                bars = bars_on(console)
                bars.add_task(text, total=None, stage=text, unit=text)
                console.print(bars.get_renderable())
            with captured() as written:
                if way == "table":
                    print_table(("text",), [(text,)], title=text)
                    print_line(text)
                elif way == "JSON":
                    print(json_text([text]))
                elif way == "error":
                    warn(text)
            reached[way] += bool(CONTROLS.search(stream.getvalue() + written.getvalue()))
    return dict(reached)


def main(cases: int = 1000, first: int = 0) -> None:
    """Run the campaign; exit with 1 after a crash or if an escape sequence reached a terminal."""
    begun = time.monotonic()
    outcomes, reached = run_cases(first, cases), escapes_shown()
    bad = sum(count for outcome, count in outcomes.items() if outcome not in ("accepted", "refused"))
    listed = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.most_common())
    print(f"| hostile parameters | {cases:,} | {bad} | {time.monotonic() - begun:.0f} | {listed} |")
    ways = ", ".join(reached)
    print(f"| terminal escapes: {ways} | {len(ESCAPES) * len(reached)} | {sum(reached.values())} | 0 | replaced |")
    sys.exit(bool(bad or any(reached.values())))


if __name__ == "__main__":
    typer.run(main)
