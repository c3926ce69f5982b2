"""Requests and tokens a minute: a limit means waiting, never failing.

Two token buckets and a pause. Where a setting gives no limit, the service's own headers do: what is left, and how
long until all of it is back, say how fast the bucket fills.
"""

import asyncio
import time
from collections.abc import Callable

from penumbra.tasks.negatives.providers.service import Quota

BURST = 1 / 50  # of a minute's quota may go at once; the rest flows, so that no minute has more than its quota
LONGEST = 600.0  # seconds, unless a setting says otherwise
LOOK_EVERY = 30.0  # seconds after which a bucket is looked at again: headers may have changed it


class Bucket:
    """An amount that flows back at a steady rate; without a rate there is no limit."""

    def __init__(
        self, a_minute: float | None, clock: Callable[[], float] = time.monotonic, longest: float = LONGEST
    ) -> None:
        self.clock, self.longest, self.fixed = clock, longest, a_minute is not None
        self.capacity = max(1.0, a_minute * BURST) if a_minute else 0.0
        self.rate = None
        if a_minute:  # requests that go one at a time, evenly spaced, need nothing kept back
            self.rate = (a_minute if self.capacity == 1 else a_minute - self.capacity) / 60
        self.level, self.then = self.capacity, clock()

    def wait(self, amount: float) -> float:
        """Seconds until the amount can be taken; more than the capacity counts as the capacity."""
        if self.rate is None:
            return 0.0
        now = self.clock()
        self.level = min(self.capacity, self.level + (now - self.then) * self.rate)
        self.then = now
        return max(0.0, min(amount, self.capacity) - self.level) / self.rate

    def take(self, amount: float) -> None:
        """Take the amount; what is more than the capacity is owed."""
        if self.rate is not None:
            self.level -= amount

    def adopt(self, quota: Quota) -> None:
        """Learn the limit from the service, where no setting gives it."""
        used = quota.limit - quota.remaining
        if self.fixed or quota.limit <= 0:
            return
        unlimited = self.rate is None
        rate = used / quota.reset if used > 0 and quota.reset > 0 else max(self.rate or 0.0, quota.limit / 60)
        self.rate = max(rate, quota.limit / self.longest)
        self.capacity = quota.limit
        remaining = max(0.0, quota.remaining)
        self.level = remaining if unlimited else min(self.level, remaining)
        self.then = self.clock()


class RateLimiter:
    """Admits requests one after the other, in the order in which they ask.

    What the service says makes nobody wait longer than `longest` seconds. `tell` is told the seconds that a wait takes.
    """

    def __init__(
        self,
        requests_a_minute: float | None,
        tokens_a_minute: float | None,
        clock: Callable[[], float] = time.monotonic,
        longest: float = LONGEST,
        tell: Callable[[float], object] = lambda seconds: None,
    ) -> None:
        self.clock, self.longest, self.tell = clock, longest, tell
        self.requests, self.tokens = (Bucket(most, clock, longest) for most in (requests_a_minute, tokens_a_minute))
        self.resume = 0.0
        self._turn = asyncio.Lock()

    async def admit(self, tokens: float) -> None:
        """Wait until a request of so many tokens may go, and count it."""
        async with self._turn:
            while wait := max(self.resume - self.clock(), self.requests.wait(1), self.tokens.wait(tokens)):
                self.tell(wait)
                await asyncio.sleep(min(wait, LOOK_EVERY))
            self.requests.take(1)
            self.tokens.take(tokens)

    def pause(self, seconds: float) -> None:
        """Admit nothing for so many seconds, or for the longest that may be waited."""
        self.resume = max(self.resume, self.clock() + min(seconds, self.longest))

    def learn(self, requests: Quota | None, tokens: Quota | None) -> None:
        """Take over what an answer's headers say of the limits."""
        if requests:
            self.requests.adopt(requests)
        if tokens:
            self.tokens.adopt(tokens)
