"""All campaigns, two at once, and one table in Markdown of what came of them.

    python -m bench.campaigns

ends with 1 where a figure that must be 0 is not. `docs/reliability.md` says what each line means.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from bench.campaigns import corruption, fuzz, kills, paying


@dataclass
class Line:
    """What came of a campaign, or of a part of one; crashes, losses, twice and over must be 0."""

    what: str
    cases: int
    crashes: int
    losses: int
    twice: int  # parts and epochs made twice, or answers paid twice
    over: float  # USD above the limit
    good: bool
    notes: str
    seconds: float = 0.0

    def row(self) -> str:
        """In Markdown."""
        cells = (self.what, f"{self.cases:,}", self.crashes, self.losses, self.twice, f"{self.over:.2f}")
        return " | ".join(map(str, ("|", *cells, f"{self.seconds:.0f}", self.notes, "|"))).replace("| |", "|")


HEAD = "| campaign | cases | crashes | silent losses | made or paid twice | USD over the limit | seconds | what came |"
Result = tuple[list[Line], str]  # lines, and a table of single cases


def fuzzing(what: str, cases: int) -> Result:
    """Damaged feature files of a format, or videos."""
    found = fuzz.run_videos(cases) if what == "videos" else fuzz.run_files(what, cases)
    came = ", ".join(f"{times:,} {reason}" for reason, times in found.reasons.most_common(3))
    name = what if what == "videos" else f".{what} files"
    good = not (found.crashes or found.losses)
    return [Line(f"{name}, bytes changed", found.cases, found.crashes, found.losses, 0, 0.0, good, came)], ""


def asking(pairs: int, dying: int) -> Result:
    """Money in bad weather."""
    return [
        Line(
            f"asking: {row.what}",
            row.cases,
            row.crashed + row.hung,
            row.open + bool(row.unbooked),
            row.paid_twice,
            row.over_limit,
            row.is_good(),
            f"{row.requests:,} requests, {row.kills} kills, {row.charged_again} answers charged and lost on their way",
        )
        for row in paying.campaign(pairs, dying, None, 0)
    ], ""


def killing(dying: int, commands: int, pairs: int) -> Result:
    """Runs of all flows that are killed, and runs at once."""
    return [
        Line(
            row.what,
            row.cases,
            row.failed,
            row.other_bytes,
            row.made_twice,
            0.0,
            row.is_good(),
            f"{row.kills} kills, {row.left_alive} processes alive 15 s later, {row.left_behind} drafts left",
        )
        for row in kills.campaign(dying, commands, pairs, 0)
    ], ""


def damaging() -> Result:
    """A finished store in many ways."""
    cases = corruption.campaign()
    came = Counter(case.outcome for case in cases)
    notes = ", ".join(f"{times} {outcome}" for outcome, times in came.most_common())
    good = all(case.is_good() for case in cases)
    line = Line("a store damaged", len(cases), came[corruption.CRASH], came[corruption.LOST], 0, 0.0, good, notes)
    return [line], corruption.table(cases)


def timed(campaign: Callable[..., Result], *sizes: int | str) -> Result:
    """A campaign, whose lines share its seconds where they know none of their own."""
    begun = time.monotonic()
    lines, single = campaign(*sizes)
    for line in lines:
        line.seconds = (time.monotonic() - begun) / len(lines)
    return lines, single


def table(lines: Sequence[Line]) -> str:
    """The lines in Markdown."""
    return "\n".join((HEAD, "| --- " * HEAD.count(" | ") + "| --- |", *(line.row() for line in lines)))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000, help="damaged feature files")
    parser.add_argument("--videos", type=int, default=200, help="damaged videos")
    parser.add_argument("--kills", type=int, default=50, help="of flows")
    parser.add_argument("--commands", type=int, default=5, help="so many of these are of `penumbra run`")
    parser.add_argument("--pairs", type=int, default=20, help="of runs at once; and of runs that ask at once")
    parser.add_argument("--at-once", type=int, default=2, help="campaigns")
    size = parser.parse_args()
    third = size.files // 3
    jobs: list[tuple[Callable[..., Result], *tuple[int | str, ...]]] = [
        (killing, size.kills, size.commands, size.pairs),
        (fuzzing, "h5", size.files - 2 * third),
        (damaging,),
        (fuzzing, "npz", third),
        (fuzzing, "npy", third),
        (asking, size.pairs, 20),
        (fuzzing, "videos", size.videos),
    ]
    with ProcessPoolExecutor(size.at_once, get_context("spawn"), max_tasks_per_child=1) as runners:
        results = [running.result() for running in [runners.submit(timed, *job) for job in jobs]]
    lines = [line for several, _ in results for line in several]
    sys.stdout.write("\n\n".join([table(lines), *(single for _, single in results if single)]) + "\n")
    return not all(line.good for line in lines)


if __name__ == "__main__":
    sys.exit(main())
