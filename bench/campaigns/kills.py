"""Runs that are killed, and runs at once: the next one ends in the same bytes, and nothing whole is made again.

    python -m bench.campaigns.kills --kills 50 --commands 5 --pairs 20

prints rows of a table in Markdown and ends with 1 if a column that must be 0 is not. Each case is a run of one of
the flows over a small data set. It is killed (kill -9 of the main process alone, or of its whole group) at a seeded
moment of the time that it takes undisturbed, and then run again to its end. `--commands` of the kills are of
`penumbra run` with a Prefect server of its own; the others are flows in a process without a server.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from itertools import count
from pathlib import Path

import psutil

from bench.campaigns.flows import FLOWS, OK, Place, Run, undisturbed
from penumbra.artifacts.markdown import markdown_table

GONE = 15.0  # seconds after which nothing of a killed run may live
STARTS = 15.0  # seconds in which a command imports everything and starts its server
PATIENCE = 300.0  # seconds that a run may take


@dataclass
class Row:
    """A line of the table; the figures after `kills` must be 0."""

    what: str
    cases: int = 0
    kills: int = 0
    other_bytes: int = 0  # cases that end with other parts or weights than an undisturbed run
    made_twice: int = 0  # parts and epochs made again though they were whole
    left_alive: int = 0  # processes of a killed run, 15 s later
    left_behind: int = 0  # drafts
    failed: int = 0  # runs that did not end, or with an error
    seconds: float = 0.0

    def is_good(self) -> bool:
        """Whether nothing is that must not be."""
        return not any(astuple(self)[3:-1])


class Campaign:
    """A place, what undisturbed runs make there and how long they take."""

    def __init__(self, folder: Path, flows: Sequence[str], seed: int) -> None:
        self.place, self.flows, self.chance = Place(folder), flows, random.Random(seed)
        self.expected, self.seconds = undisturbed(self.place)
        self.turns = count()

    def begin(self) -> str:
        """The next case's flow, in its store."""
        flow = self.flows[next(self.turns) % len(self.flows)]
        self.place.restore(flow)
        return flow

    def killed(self, row: Row, group: bool, command: bool) -> None:
        """A run that is killed, and its next one; again where it was done before that."""
        flow = self.begin()
        start = self.place.command if command else self.place.start
        run = start(flow)
        time.sleep(self.chance.uniform(0.0, self.seconds[flow] + (STARTS if command else 0.0)))
        left = kill(run.pid, group)
        row.cases, row.kills = row.cases + 1, row.kills + (run.wait() == -signal.SIGKILL)
        died = time.monotonic()
        self._end(row, [self.place.start(flow)])
        _, alive = psutil.wait_procs(left, timeout=max(0.0, died + GONE - time.monotonic()))
        row.left_alive += sum(is_alive(process) for process in alive)
        self._count(row, flow)

    def pair(self, row: Row) -> None:
        """Two runs of a flow at once."""
        flow = self.begin()
        self._end(row, [self.place.start(flow), self.place.start(flow)])
        row.cases += 1
        makers = {(process, artifact) for process, artifact, _ in self.place.made()}
        row.made_twice += sum(times - 1 for times in Counter(artifact for _, artifact in makers).values())
        self._count(row, flow)

    def _end(self, row: Row, runs: Sequence[Run]) -> None:
        for run in runs:
            try:
                ended = run.wait(PATIENCE)
            except TimeoutError:
                ended = None
                kill(run.pid, group=True)
            if ended != OK:
                row.failed += 1
                sys.stderr.write(f"{row.what}, case {row.cases}: ended with {ended}: {run.told()[-2000:]}\n")

    def _count(self, row: Row, flow: str) -> None:
        made = self.place.tree()
        if made != self.expected[flow]:
            row.other_bytes += 1
            sys.stderr.write(f"{row.what}, case {row.cases}, {flow}: {made.items() ^ self.expected[flow].items()}\n")
        row.made_twice += self.place.made_twice()
        row.left_behind += len(self.place.drafts())


def kill(pid: int, group: bool) -> list[psutil.Process]:
    """kill -9 of a process, or of its group; returns all that it had started."""
    try:
        process = psutil.Process(pid)
        process.suspend()  # it starts no other while we look
        started = process.children(recursive=True)
        os.killpg(pid, signal.SIGKILL) if group else process.kill()
    except (psutil.NoSuchProcess, ProcessLookupError):  # it was done
        return []
    return started


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; one that has ended and that nobody has waited for does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def campaign(kills: int, commands: int, pairs: int, seed: int, flows: Sequence[str] = FLOWS) -> list[Row]:
    """The table."""
    alone, group = Row("kill -9 of the main process"), Row("kill -9 of its group")
    server, together = Row("either, of `penumbra run` with its server"), Row("two runs at once")
    with tempfile.TemporaryDirectory() as folder:
        here = Campaign(Path(folder), flows, seed)
        while alone.kills + group.kills + server.kills < kills:
            command = server.kills < commands
            in_group = (server.cases if command else alone.cases + group.cases) % 2 == 1
            row = server if command else group if in_group else alone
            with timed(row):
                here.killed(row, in_group, command)
        for _ in range(pairs):
            with timed(together):
                here.pair(together)
    return [alone, group, server, together]


@contextmanager
def timed(row: Row) -> Iterator[None]:
    """Adds the seconds inside to the row's."""
    begun = time.monotonic()
    yield
    row.seconds += time.monotonic() - begun


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    names = [field.name.replace("_", " ") for field in fields(Row)]
    cells = [[f"{cell:.0f}" if isinstance(cell, float) else str(cell) for cell in astuple(row)] for row in rows]
    return markdown_table(names, cells, str)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--commands", type=int, default=5, help="so many of the kills are of `penumbra run`")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--flows", nargs="+", choices=FLOWS, default=FLOWS)
    rows = campaign(**vars(parser.parse_args()))
    sys.stdout.write(table(rows) + "\n")
    return not all(row.is_good() for row in rows)


if __name__ == "__main__":
    sys.exit(main())
