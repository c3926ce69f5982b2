"""What asking may cost: an account that is kept with the answers and shared by all runs that ask at the same time.

What a request can cost at most is set aside before it is sent. What it did cost is booked once that is known. Where
nobody can know it, because the answer was lost or the run was killed, the most that it can have cost is booked.

An account begins with the first run that asks. Whoever begins to ask before all others have ended shares it, and so
does whoever asks after a run that was killed. It ends with the last run that ended by itself, be it for want of money.
So neither runs at once nor a run that is killed and repeated spend more than `max_cost_usd`.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives.providers.answers import Answers
from penumbra.tasks.negatives.providers.claims import is_held, lock

ROW = "account"
POLL = 0.05  # seconds between two looks at an account that others hold money of

Account = dict[str, Any]  # spent: USD; runs: by name, the requests under way and the USD that are set aside for them


class BudgetError(PenumbraError):
    """The next request could cost more than is left of `max_cost_usd`."""


class Budget:
    """What one run may spend over all its services, in USD, while it is open (`with`); no limit where it is None."""

    def __init__(self, limit: float | None, answers: Answers) -> None:
        self.limit, self.answers, self.name = limit, answers, f"run-{uuid4().hex}"
        self.lock = lock(answers, self.name)  # held as long as this run lives

    def __enter__(self) -> Self:
        self.lock.acquire(blocking=False)
        with self._account() as account:
            if not account["runs"]:
                account["spent"] = 0.0
            self._bury(account)
            account["runs"][self.name] = {"requests": 0, "set_aside": 0.0}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:  # otherwise the run is as good as killed
            with self._account() as account:
                self._bury(account)
                del account["runs"][self.name]
        os.unlink(self.lock.lock_file)
        self.lock.release()

    @property
    def account(self) -> Account:
        """The account as it stands."""
        return self.answers.cache.get(ROW, retry=True) or {"spent": 0.0, "runs": {}}

    def reserve(self, most: float) -> bool:
        """Set an amount aside for a request; False where it would go beyond the limit."""
        if not most:
            return True
        with self._account() as account:
            set_aside = sum(run["set_aside"] for run in account["runs"].values())
            if self.limit is not None and account["spent"] + set_aside + most > self.limit:
                return False
            account["runs"][self.name]["requests"] += 1
            account["runs"][self.name]["set_aside"] += most
        return True

    async def wait_and_reserve(self, most: float) -> bool:
        """As `reserve`, but waits for requests under way: most give back some of what they have set aside."""
        while not self.reserve(most):
            with self._account() as account:
                self._bury(account)
                if not any(run["requests"] for run in account["runs"].values()):
                    return False
            await asyncio.sleep(POLL)
        return True

    def charge(self, most: float, cost: float) -> None:
        """Give a reserved amount back and book what the request did cost."""
        if not most:
            return
        with self._account() as account:
            mine = account["runs"][self.name]
            mine["requests"] -= 1
            mine["set_aside"] = mine["set_aside"] - most if mine["requests"] else 0.0
            account["spent"] += cost

    @contextmanager
    def _account(self) -> Iterator[Account]:
        """The account, to be changed while no other process can."""
        cache = self.answers.cache
        with cache.transact(retry=True):
            account = self.account
            yield account
            cache.set(ROW, account)

    def _bury(self, account: Account) -> None:
        """Book what runs that were killed had set aside."""
        for name in [name for name in account["runs"] if name != self.name and not is_held(self.answers, name)]:
            account["spent"] += account["runs"].pop(name)["set_aside"]
