"""Money in bad weather: runs at once, kills -9 while asking, and every storm of the stand-in's script.

    python -m bench.campaigns.paying --pairs 20 --kills 20

prints rows of a table in Markdown and ends with 1 if a column that must be 0 is not. The runs are processes that
ask with the real client libraries over real HTTP. The stand-in charges every answer, whether or not it arrives.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from penumbra.artifacts.markdown import markdown_table
from penumbra.tasks.negatives.providers import client as client_module
from penumbra.tasks.negatives.providers import hosted
from penumbra.tasks.negatives.providers.questions import Question
from penumbra.tasks.negatives.providers.settings import Price
from tests.hosted import PRICE as PRICES
from tests.hosted import SETTINGS, Session, lines_of, questions
from tests.protocol_server import ProtocolServer
from tests.protocol_server.faults import KINDS, WIRE

PRICE = Price(**PRICES)
PATIENCE = 120.0  # seconds that a run may take
QUESTIONS = 48
ENOUGH, SCARCE = 2.0, 0.12  # USD: for all questions in any weather, and for some of them
KNOWING = "the same, Idempotency-Key is known"
LOST = WIRE | {"html", "body"}  # an answer is given, and doesn't arrive
HALF_WRONG = {"foreign", "missing", "duplicate"}  # the first question is asked again
WRONG = {"answer", "prose", "long", "length", "null", "empty", "refusal", "blocked", "no_choices"}  # asked again
STATUSES = (408, 429, 500, 502, 503, 504, 529)


@dataclass
class Row:
    """A line of the table; the figures after `charged_again` must be 0."""

    what: str
    cases: int = 0
    requests: int = 0
    kills: int = 0
    charged_again: int = 0  # questions whose answer was charged and lost, on its way or with the run that it came to
    paid_twice: int = 0  # questions charged again though their answer had arrived, or was kept
    over_limit: float = 0.0  # USD
    unbooked: float = 0.0  # USD charged that the account doesn't know of
    hung: int = 0  # runs that did not end
    crashed: int = 0  # runs that ended with an error
    open: int = 0  # questions that nothing kept from being answered, and that are unanswered

    def is_good(self) -> bool:
        """Whether nothing is that must not be."""
        again = self.charged_again if self.what == KNOWING else 0
        return not (
            again or self.paid_twice or self.over_limit or self.unbooked or self.hung or self.crashed or self.open
        )


@dataclass(frozen=True)
class Weather:
    """A provider, what spoils its answers, and what the runs may spend."""

    provider: str
    fault: dict[str, Any]
    limit: float

    @property
    def timeout(self) -> float:
        """Seconds: short where answers hang."""
        return 0.5 if self.fault.get("do") == "hang" else 10.0


def weathers() -> Iterator[Weather]:
    """Every storm for either provider, between them calm; money is scarce every other time."""
    storms: list[dict[str, Any]] = [{"do": kind} for kind in sorted(KINDS - {"status", "answer", "quota", "slow"})]
    storms += [{"do": "status", "status": status} for status in STATUSES]
    storms += [{"do": "answer", "content": "{}"}, {"do": "slow", "seconds": 0.2}, {"do": "quota", "after": 9}]
    for turn, storm in enumerate(storms):
        for provider in SETTINGS:
            yield Weather(provider, {}, (ENOUGH, SCARCE)[turn % 2])
            yield Weather(provider, storm, (SCARCE, ENOUGH)[turn % 2])


def script(fault: dict[str, Any]) -> list[dict[str, Any]]:
    """The stand-in's script: every third request is spoilt."""
    if not fault:
        return []
    after = fault.get("after")
    return [{**fault, "when": {"after": after} if after else {"every": 3}}]


def session_of(weather: Weather, server: ProtocolServer, folder: Path) -> Session:
    return Session(SETTINGS[weather.provider](server), folder)


def run(weather: Weather, url: str, folder: Path, begin: Any) -> None:
    """A process that asks everything, once all others are ready."""
    client_module.FIRST_PAUSE, client_module.LONGEST_PAUSE = 0.01, 0.05
    hosted.IN_FLIGHT, hosted.TIMEOUT = 4, weather.timeout
    os.environ |= {"OPENAI_API_KEY": "sk-campaign", "GEMINI_API_KEY": "campaign"}
    server = ProtocolServer()
    server.url = url
    session = session_of(weather, server, folder)
    client = session.client(limit=weather.limit, run=f"run of process {os.getpid()}")
    with client.budget:
        begin.wait()
        asyncio.run(client.ask([questions(QUESTIONS)]))


class Case:
    """One folder of answers and one server, for as many runs as a case has."""

    def __init__(
        self, weather: Weather, server: ProtocolServer, folder: Path, row: Row, idempotent: bool = False
    ) -> None:
        self.weather, self.server, self.row = weather, server, row
        self.session = session_of(weather, server, folder)
        self.some = questions(QUESTIONS)
        self.context = get_context("forkserver")  # which imports once
        server.change(idempotent=idempotent)
        server.script(*script(weather.fault))
        server.log.clear()

    def start(self, count: int) -> list[BaseProcess]:
        """So many runs that begin at the same time."""
        self.begin = self.context.Barrier(count, timeout=60)  # it goes when nobody here knows it
        arguments = (self.weather, self.server.url, self.session.answers.folder, self.begin)
        runs = [self.context.Process(target=run, args=arguments) for _ in range(count)]
        for process in runs:
            process.start()
        return runs

    def end(self, runs: Sequence[BaseProcess]) -> None:
        """Wait for runs to end."""
        for process in runs:
            process.join(PATIENCE)
            if process.is_alive():
                self.row.hung += 1
                process.kill()
                process.join()
            self.row.crashed += process.exitcode not in (0, -signal.SIGKILL)

    def asked(self) -> list[dict[str, Any]]:
        return [request for request in self.server.requests() if "text" in request]

    def count(self, paid_twice: int | None = None) -> None:
        """Add what the server charged to the row; without a kill what was answered twice was paid twice."""
        requests = self.asked()
        charged = PRICE.cost(*self.server.charged())
        account = self.session.answers.cache.get("account")
        paid = [request for request in requests if any(request.get("charged", ())) and request["fault"] not in WRONG]
        if paid_twice is None:
            paid_twice = again(r for r in paid if r["outcome"] == "answered" and r["fault"] not in LOST)
        self.row.cases += 1
        self.row.requests += len(requests)
        self.row.paid_twice += paid_twice
        self.row.charged_again += again(paid) - paid_twice
        self.row.over_limit += over(charged, self.weather.limit)
        self.row.unbooked += over(charged, account["spent"])
        if self.weather.limit == ENOUGH and self.weather.fault.get("do") != "quota":
            self.row.open += len(self.session.open(self.some))
        self.session.answers.close()


def again(requests: Iterable[dict[str, Any]]) -> int:
    """How many questions these requests repeat."""
    return sum(times - 1 for times in Counter(line for request in requests for line in right(request)).values())


def right(request: dict[str, Any]) -> list[str]:
    """The questions that a request's answer answers rightly."""
    return lines_of(request)[request["fault"] in HALF_WRONG :]


def over(amount: float, limit: float) -> float:
    """USD above a limit; less than a billionth is the sum's own rounding."""
    return amount - limit if amount > limit + 1e-9 else 0.0


def pair(case: Case) -> None:
    """Two runs at once that ask the same."""
    case.end(case.start(2))
    case.count()


def killed(case: Case, chance: random.Random, kills: int) -> None:
    """A run that is killed so often while it asks, and then runs to its end."""
    asked_again = 0
    for turn in range(kills + 1):
        known = len(case.asked())
        closed = {one.text() for one in closed_ones(case)}
        runs = case.start(1)
        if turn < kills:
            until = known + chance.randint(1, 8)
            while runs[0].is_alive() and len(case.asked()) + case.server.in_flight < until:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.03))
            runs[0].kill()
            case.row.kills += 1
        case.end(runs)
        while case.server.in_flight and case.weather.fault.get("do") != "hang":
            time.sleep(0.005)
        asked_again += sum(line in closed for request in case.asked()[known:] for line in lines_of(request))
        if turn < kills and runs[0].exitcode == 0:
            break  # it was done, or out of money, before it could be killed: another run would have a new account
    case.count(asked_again)


def closed_ones(case: Case) -> list[Question]:
    open_ones = {one.query.qid for one in case.session.open(case.some)}
    return [one for one in case.some if one.query.qid not in open_ones]


def storm(case: Case) -> None:
    """One run."""
    case.end(case.start(1))
    case.count()


def campaign(pairs: int, kills: int, storms: int | None, seed: int) -> list[Row]:
    """The table."""
    get_context("forkserver").set_forkserver_preload(["tests.hosted", "openai", "google.generativeai"])
    chance = random.Random(seed)
    every = list(weathers())
    together, alone = Row("two runs at once"), Row("every storm, alone")
    dying, knowing = Row("kill -9 while asking"), Row(KNOWING)
    stormy = [weather for weather in every if weather.fault]
    with ProtocolServer(latency=0.02) as server, tempfile.TemporaryDirectory() as folder:
        for number in range(pairs):
            pair(Case(every[number % len(every)], server, Path(folder, f"pair-{number}"), together))
        for number, weather in enumerate(every * kills):
            for row in (dying, knowing) if weather.provider == "openai" else (dying,):  # Gemini knows no key
                if left := kills - dying.kills - knowing.kills:
                    case = Case(weather, server, Path(folder, f"kill-{number}-{row is knowing}"), row, row is knowing)
                    killed(case, chance, min(left, chance.randint(1, 4)))
        for number, weather in enumerate(stormy[:storms]):
            storm(Case(weather, server, Path(folder, f"storm-{number}"), alone))
    return [together, dying, knowing, alone]


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    names = [field.name.replace("_", " ") for field in fields(Row)]
    cells = [[f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in astuple(row)] for row in rows]
    return markdown_table(names, cells, str)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--storms", type=int, help="of all storms so many; none: all")
    parser.add_argument("--seed", type=int, default=0)
    rows = campaign(**vars(parser.parse_args()))
    sys.stdout.write(table(rows) + "\n")
    return not all(row.is_good() for row in rows)


if __name__ == "__main__":
    sys.exit(main())
