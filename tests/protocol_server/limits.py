"""Limits as the services have them: so much in any minute, and what their headers say of it."""

import math
from collections import deque
from dataclasses import dataclass, field

from tests.protocol_server.settings import Settings


@dataclass(slots=True)
class Window:
    """A sliding window: at most `limit` in any `span` seconds."""

    limit: int
    span: float
    events: deque[tuple[float, int]] = field(default_factory=deque)
    used: int = 0
    most: int = 0

    def wait(self, now: float, weight: int) -> float:
        """Seconds until `weight` more fits: 0 when it does now."""
        while self.events and self.events[0][0] <= now - self.span:
            self.used -= self.events.popleft()[1]
        over = self.used + weight - self.limit
        for when, amount in self.events:
            if over <= 0:
                break
            over -= amount
            if over <= 0:
                return when + self.span - now
        return 0.0 if over <= 0 else self.span

    def add(self, now: float, weight: int) -> None:
        """Count it."""
        self.events.append((now, weight))
        self.used += weight
        self.most = max(self.most, self.used)

    def reset(self, now: float) -> float:
        """Seconds until it is empty again."""
        return max(0.0, self.events[-1][0] + self.span - now) if self.events else 0.0


class Limits:
    """The windows of the settings, by the names of OpenAI's headers."""

    def __init__(self, settings: Settings) -> None:
        wanted = {"requests": settings.requests_per_minute, "tokens": settings.tokens_per_minute}
        self.windows = {name: Window(limit, settings.minute) for name, limit in wanted.items() if limit is not None}

    def admit(self, now: float, tokens: int) -> tuple[str, float] | None:
        """Count a request; or say which limit it is over and for how many seconds."""
        weights = {"requests": 1, "tokens": tokens}
        for name, window in self.windows.items():
            if (wait := window.wait(now, weights[name])) > 0:
                return name, wait
        for name, window in self.windows.items():
            window.add(now, weights[name])
        return None

    def headers(self, now: float) -> dict[str, str]:
        """`x-ratelimit-limit-requests` and the five others."""
        found = {}
        for name, window in self.windows.items():
            window.wait(now, 0)
            found[f"x-ratelimit-limit-{name}"] = str(window.limit)
            found[f"x-ratelimit-remaining-{name}"] = str(window.limit - window.used)
            found[f"x-ratelimit-reset-{name}"] = duration(window.reset(now))
        return found


def duration(seconds: float) -> str:
    """As OpenAI writes it: 120ms, 1s, 6m0s, 1h2m3s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    whole = math.ceil(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
