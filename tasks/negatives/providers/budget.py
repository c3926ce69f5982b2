"""The price table, and the budget that all runs at one time share.

The account is stored with the answers. The most that a request can cost is reserved before it is sent, and charged if
its cost stays unknown (the answer was lost, the run was killed). A killed run and the next one share an account, and so
do concurrent runs: together they spend at most `max_cost_usd`.
"""

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import yaml

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives.providers.answers import Answers
from penumbra.tasks.negatives.providers.settings import HostedSettings, Price

TABLE = Path(__file__).with_name("prices.yaml")
ROW = "account"
POLL = 0.05  # seconds between two looks at an account of which others have reserved a part

Account = dict[str, Any]  # "spent": USD; "runs": by name, the number of requests under way and the USD reserved


@cache
def price_table() -> tuple[str, dict[str, Price]]:
    """Return the date of the project's price table, and the prices by model."""
    content = yaml.safe_load(TABLE.read_text())
    return str(content["date"]), {name: Price(**price) for name, price in content["models"].items()}


def price_of(settings: HostedSettings) -> Price | None:
    """Return the price that is set, else the table's; a snapshot ("gpt-4o-2024-08-06") has its model's price."""
    prices = price_table()[1]
    names = [name for name in prices if re.fullmatch(rf"{re.escape(name)}(-\d[-\d]*)?", settings.model)]
    return settings.price or (prices[max(names, key=len)] if names else None)


class BudgetError(PenumbraError):
    """The next request could cost more than is left of `max_cost_usd`."""


class Budget:
    """The USD that a run may spend on all its services while the budget is open (`with`); None for no limit."""

    def __init__(self, limit: float | None, answers: Answers) -> None:
        self.limit, self.answers, self.name = limit, answers, f"run-{uuid4().hex}"
        self.lock = answers.lock(self.name)  # held while this run lives

    def __enter__(self) -> Self:
        self.lock.acquire(blocking=False)
        with self._account() as account:
            if not account["runs"]:
                account["spent"] = 0.0
            self._charge_killed_runs(account)
            account["runs"][self.name] = {"requests": 0, "set_aside": 0.0}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:  # a run that fails leaves its entry, as a killed run does
            with self._account() as account:
                self._charge_killed_runs(account)
                del account["runs"][self.name]
        os.unlink(self.lock.lock_file)
        self.lock.release()

    @property
    def account(self) -> Account:
        return self.answers.cache.get(ROW, retry=True) or {"spent": 0.0, "runs": {}}

    def try_reserve(self, most: float) -> bool:
        """Reserve an amount for a request; return False if it exceeds the limit."""
        if not most:
            return True
        with self._account() as account:
            reserved = sum(run["set_aside"] for run in account["runs"].values())
            if self.limit is not None and account["spent"] + reserved + most > self.limit:
                return False
            account["runs"][self.name]["requests"] += 1
            account["runs"][self.name]["set_aside"] += most
        return True

    async def reserve(self, most: float) -> bool:
        """Reserve an amount, if need be after requests under way have returned a part of theirs."""
        while not self.try_reserve(most):
            with self._account() as account:
                self._charge_killed_runs(account)
                if not any(run["requests"] for run in account["runs"].values()):
                    return False
            await asyncio.sleep(POLL)
        return True

    def charge(self, most: float, cost: float) -> None:
        """Return a reserved amount and charge what the request did cost."""
        if not most:
            return
        with self._account() as account:
            own = account["runs"][self.name]
            own["requests"] -= 1
            own["set_aside"] = own["set_aside"] - most if own["requests"] else 0.0
            account["spent"] += cost

    @contextmanager
    def _account(self) -> Iterator[Account]:
        """Yield the account, to be changed while no other process can change it."""
        cache = self.answers.cache
        with cache.transact(retry=True):
            account = self.account
            yield account
            cache.set(ROW, account)

    def _charge_killed_runs(self, account: Account) -> None:
        names = [name for name in account["runs"] if name != self.name and not self.answers.is_locked(name)]
        for name in names:
            account["spent"] += account["runs"].pop(name)["set_aside"]
