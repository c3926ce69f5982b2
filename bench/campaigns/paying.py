"""Ask a faulty service from concurrent and from killed runs: no answer is paid for twice, no limit is exceeded.

python -m bench.campaigns.paying --pairs 20 --kills 20

The stand-in server charges every answer, whether or not it arrives. docs/reliability.md defines the figures.
"""

import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import typer
from filelock import FileLock

from bench.campaigns.table import Row as TableRow
from bench.campaigns.table import print_table
from penumbra.tasks.negatives.providers import answers, hosted
from penumbra.tasks.negatives.providers import client as client_module
from penumbra.tasks.negatives.providers.settings import Price
from tests.hosted import MODELS, Session, lines_of, questions
from tests.hosted import PRICE as PRICES
from tests.protocol_server import KINDS, WIRE, ProtocolServer

PRICE = Price(**PRICES)
PATIENCE = 120.0  # seconds that a run may take
QUESTIONS = 48
ENOUGH, SCARCE = 2.0, 0.12  # USD: for all questions with any fault, and for some of them
LOST = WIRE | {"html", "body"}  # faults that lose an answer
HALF_WRONG = {"foreign", "missing"}  # faults after which the first question is asked again
# faults after which all questions are asked again
WRONG = {"answer", "prose", "length", "null", "refusal", "blocked", "no_choices"}
STATUSES = (408, 429, 500, 502, 503, 504, 529)


@dataclass
class Row(TableRow):
    ZERO = ("paid_twice", "over_limit", "unbooked", "hung", "crashed", "open")
    requests: int = 0
    kills: int = 0
    charged_again: int = 0  # questions whose charged answer was lost on its way or with the killed run
    paid_twice: int = 0  # questions charged again although the answer had arrived
    over_limit: float = 0.0  # USD
    unbooked: float = 0.0  # USD charged that are missing in the account
    hung: int = 0  # runs that did not end
    crashed: int = 0  # runs that ended with an error
    open: int = 0  # unanswered questions that could have been answered


@dataclass(frozen=True)
class Setting:
    """A provider, a fault of its server, and a cost limit of the runs."""

    provider: str
    fault: dict[str, Any]
    limit: float

    @property
    def timeout(self) -> float:
        return 0.5 if self.fault.get("do") == "hang" else 10.0


def settings() -> Iterator[Setting]:
    """Yield every fault for each provider, and no fault in between, alternately with a low limit."""
    faults: list[dict[str, Any]] = [{"do": kind} for kind in sorted(KINDS - {"status", "answer", "quota", "slow"})]
    faults += [{"do": "status", "status": status} for status in STATUSES]
    faults += [{"do": "answer", "content": "{}"}, {"do": "slow", "seconds": 0.2}, {"do": "quota", "after": 9}]
    for turn, fault in enumerate(faults):
        for provider in MODELS:
            yield Setting(provider, {}, (ENOUGH, SCARCE)[turn % 2])
            yield Setting(provider, fault, (SCARCE, ENOUGH)[turn % 2])


def run(setting: Setting, url: str, folder: Path, begin: Any) -> None:
    """Ask all questions once all processes are ready to."""
    client_module.FIRST_PAUSE, client_module.LONGEST_PAUSE = 0.01, 0.05
    hosted.IN_FLIGHT, hosted.TIMEOUT = 4, setting.timeout
    os.environ |= {"OPENAI_API_KEY": "sk-campaign", "GEMINI_API_KEY": "campaign"}
    server = ProtocolServer()
    server.url = url
    session = Session(setting.provider, server, folder)

    class TriedByAll(FileLock):
        """The lock of the run that asks; no run asks before all have tried it, so that they share one account."""

        def acquire(self, *arguments: Any, **options: Any) -> Any:
            try:
                return super().acquire(*arguments, **options)
            finally:
                if options.get("blocking") is False:
                    begin.wait()

    answers.FileLock = TriedByAll  # type: ignore[attr-defined]
    session.ask(questions(QUESTIONS), within=PATIENCE, limit=setting.limit, run=f"run of process {os.getpid()}")


class Case:
    """A folder of answers and a server, for the runs of one case."""

    def __init__(self, setting: Setting, server: ProtocolServer, folder: Path, row: Row) -> None:
        self.setting, self.server, self.row = setting, server, row
        self.session = Session(setting.provider, server, folder)
        self.some = questions(QUESTIONS)
        self.context = get_context("forkserver")  # imports once
        server.reset()
        server.change(latency=0.02)
        after = setting.fault.get("after")
        if setting.fault:
            server.script({**setting.fault, "when": {"after": after} if after else {"every": 3}})

    def start(self, count: int) -> list[BaseProcess]:
        """Start runs that begin at the same time."""
        self.begin = self.context.Barrier(count, timeout=60)  # must outlive this call
        arguments = (self.setting, self.server.url, self.session.answers.folder, self.begin)
        runs = [self.context.Process(target=run, args=arguments) for _ in range(count)]
        for process in runs:
            process.start()
        return runs

    def end(self, runs: Sequence[BaseProcess]) -> None:
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
        """Add the case's charges to the row; `paid_twice` defaults to the answers that arrived twice."""
        requests = self.asked()
        charged = PRICE.cost(*self.server.charged())
        account = self.session.answers.get("account")
        paid = [request for request in requests if any(request.get("charged", ())) and request["fault"] not in WRONG]
        if paid_twice is None:
            paid_twice = again(r for r in paid if r["outcome"] == "answered" and r["fault"] not in LOST)
        self.row.cases, self.row.requests = self.row.cases + 1, self.row.requests + len(requests)
        self.row.paid_twice += paid_twice
        self.row.charged_again += again(paid) - paid_twice
        self.row.over_limit += over(charged, self.setting.limit)
        self.row.unbooked += over(charged, account["spent"])
        if self.setting.limit == ENOUGH and self.setting.fault.get("do") != "quota":
            self.row.open += len(self.session.open(self.some))
        self.session.answers.close()


def again(requests: Iterable[dict[str, Any]]) -> int:
    """Return the number of questions with a correct answer to one of these requests that another of them repeats."""
    lines = Counter(line for request in requests for line in lines_of(request)[request["fault"] in HALF_WRONG :])
    return lines.total() - len(lines)


def over(amount: float, limit: float) -> float:
    """Return the USD above a limit, apart from rounding."""
    return amount - limit if amount > limit + 1e-9 else 0.0


def ask(case: Case, runs: int) -> None:
    """Ask the same from this many runs at once."""
    case.end(case.start(runs))
    case.count()


def killed(case: Case, chance: random.Random, kills: int) -> None:
    """Kill a run that many times while it asks, then let it finish."""
    asked_again = 0
    for turn in range(kills + 1):
        known = len(case.asked())
        still_open = {one.query.qid for one in case.session.open(case.some)}
        closed = {one.text() for one in case.some if one.query.qid not in still_open}
        runs = case.start(1)
        if turn < kills:
            until = known + chance.randint(1, 8)
            while runs[0].is_alive() and len(case.asked()) + case.server.in_flight < until:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.03))
            runs[0].kill()
            case.row.kills += 1
        case.end(runs)
        while case.server.in_flight and case.setting.fault.get("do") != "hang":
            time.sleep(0.005)
        asked_again += sum(line in closed for request in case.asked()[known:] for line in lines_of(request))
        if turn < kills and runs[0].exitcode == 0:
            break  # it ended before the kill; another run would have a new account
    case.count(asked_again)


def campaign(pairs: int, kills: int, faults: int | None, seed: int) -> list[Row]:
    """Return the rows of the table."""
    get_context("forkserver").set_forkserver_preload(["tests.hosted", "openai", "google.generativeai"])
    chance = random.Random(seed)
    every = list(settings())
    together, dying = Row("two runs at once"), Row("kill -9 while asking")
    single = Row("every fault of the server, one run")
    with ProtocolServer() as server, tempfile.TemporaryDirectory() as folder:
        for number in range(pairs):
            ask(Case(every[number % len(every)], server, Path(folder, f"pair-{number}"), together), 2)
        for number, setting in enumerate(every * kills):
            if left := kills - dying.kills:
                case = Case(setting, server, Path(folder, f"kill-{number}"), dying)
                killed(case, chance, min(left, chance.randint(1, 4)))
        for number, setting in enumerate([setting for setting in every if setting.fault][:faults]):
            ask(Case(setting, server, Path(folder, f"fault-{number}"), single), 1)
    return [together, dying, single]


def main(pairs: int = 20, kills: int = 20, faults: int | None = None, seed: int = 0) -> None:
    """Run the campaign, with this number of faults or all."""
    print_table(campaign(pairs, kills, faults, seed), 4)


if __name__ == "__main__":
    typer.run(main)
