"""Kill runs and start runs concurrently: the next run must give the same bytes and repeat no finished part.

python -m bench.campaigns.kills --kills 50 --commands 5 --pairs 20

A run is killed at a seeded moment of its undisturbed duration, and then run again. docs/reliability.md defines a case.
"""

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psutil
import typer

from bench.campaigns.flows import FLOWS, OK, Place, Run, undisturbed
from bench.campaigns.table import Row as TableRow
from bench.campaigns.table import print_table

GONE = 15.0  # seconds after which no process of a killed run may be alive
STARTS = 15.0  # seconds of a command's imports and the start of its server
PATIENCE = 300.0  # seconds that a run may take


@dataclass
class Row(TableRow):
    ZERO = ("other_bytes", "made_twice", "left_alive", "left_behind", "failed")
    kills: int = 0
    other_bytes: int = 0  # cases whose parts or weights differ from those of an undisturbed run
    made_twice: int = 0  # finished parts and epochs that were made again
    left_alive: int = 0  # processes of a killed run after 15 s
    left_behind: int = 0  # drafts
    failed: int = 0  # runs that ended with an error or did not end
    seconds: float = 0.0


class Campaign:
    """A place with the results and durations of undisturbed runs."""

    def __init__(self, folder: Path, flows: Sequence[str], seed: int) -> None:
        self.place, self.flows, self.chance = Place(folder), flows, random.Random(seed)
        self.expected, self.seconds = undisturbed(self.place)
        self.turns = count()

    def begin(self) -> str:
        """Restore the store of the next case's flow; return the flow."""
        flow = self.flows[next(self.turns) % len(self.flows)]
        self.place.restore(flow)
        return flow

    def killed(self, row: Row, group: bool, command: bool) -> None:
        """Kill a run, and run the flow again."""
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
        """Run a flow twice at the same time."""
        flow = self.begin()
        self._end(row, [self.place.start(flow), self.place.start(flow)])
        row.cases += 1
        makers = {(process, artifact) for process, artifact, _ in self.place.made()}
        row.made_twice += sum(times - 1 for times in Counter(artifact for _, artifact in makers).values())
        self._count(row, flow)

    def _end(self, row: Row, runs: Sequence[Run]) -> None:
        for run in runs:
            ended = None
            try:
                ended = run.wait(PATIENCE)
            except TimeoutError:
                kill(run.pid, group=True)
            if ended != OK:
                row.failed += 1
                sys.stderr.write(f"{row.test}, case {row.cases}: ended with {ended}: {run.output()[-2000:]}\n")

    def _count(self, row: Row, flow: str) -> None:
        made = self.place.tree()
        if made != self.expected[flow]:
            row.other_bytes += 1
            sys.stderr.write(f"{row.test}, case {row.cases}, {flow}: {made.items() ^ self.expected[flow].items()}\n")
        row.made_twice += self.place.made_twice()
        row.left_behind += len(self.place.drafts())


def kill(pid: int, group: bool) -> list[psutil.Process]:
    """Kill a process or its group; return all processes that it had started."""
    try:
        process = psutil.Process(pid)
        process.suspend()  # so that it starts no other process
        started = process.children(recursive=True)
        os.killpg(pid, signal.SIGKILL) if group else process.kill()
    except (psutil.NoSuchProcess, ProcessLookupError):  # it had ended
        return []
    return started


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs and is not a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def campaign(kills: int, commands: int, pairs: int, seed: int, flows: Sequence[str] = FLOWS) -> list[Row]:
    """Return the rows of the table."""
    alone, group = Row("kill -9 of the main process"), Row("kill -9 of its process group")
    server, together = Row("one of these, of `penumbra run` with its server"), Row("two runs at once")
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
    """Add the seconds of the block to the row."""
    begun = time.monotonic()
    yield
    row.seconds += time.monotonic() - begun


def main(kills: int = 50, commands: int = 5, pairs: int = 20, seed: int = 0, flows: list[str] | None = None) -> None:
    """Run the campaign; `commands` is the number of kills of `penumbra run`; `flows` may be given several times."""
    print_table(campaign(kills, commands, pairs, seed, flows or FLOWS), 0)


if __name__ == "__main__":
    typer.run(main)
