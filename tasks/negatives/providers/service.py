"""What the client needs of a service that hosts language models, and its errors in four classes.

A service's own module turns its library's exceptions into these, by status and type, never by their messages.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives.providers.questions import Question

# What a status says of a service, or of a request.
CLOSED, REFUSED = {401, 402, 403, 404}, {400, 413, 422}
WORD_TOKENS = 16  # tokens of an answer a slot, at most
# What reading a body raises where it is not what it should be: numbers too large and nesting too deep among it.
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class ServiceError(Exception):
    """A request that was not answered; `after` is how long the service asks to wait, in seconds."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.after = reason, after


class LimitedError(ServiceError):
    """Too many requests or tokens a minute: wait, as often as it takes."""


class UnavailableError(ServiceError):
    """The request was lost on the way or the service failed: send the same again."""


class RefusedError(ServiceError):
    """The service will not take this request, now or later."""


class ClosedError(ServiceError):
    """The service will take no request at all: no key, no money, no such model."""


@dataclass(frozen=True)
class Quota:
    """What a service says of one of its limits: how much a minute, how much is left, seconds until it is full again."""

    limit: float
    remaining: float
    reset: float


@dataclass(frozen=True)
class Reply:
    """A service's answer. `text` is None where it gave none, `problem` why; quotas as far as its headers tell them."""

    text: str | None
    problem: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    requests: Quota | None = None
    tokens: Quota | None = None


class Service(Protocol):
    """A hosted language model."""

    name: str
    asked: dict[str, Any]  # what determines an answer besides the question; holds no key

    def payload(self, questions: Sequence[Question]) -> dict[str, Any]:
        """The request's body."""
        ...

    async def send(self, payload: dict[str, Any]) -> Reply:
        """Send one request, once; raises one of the four errors."""
        ...

    async def close(self) -> None:
        """Close its connections."""
        ...


class KeyMissingError(PenumbraError):
    """No API key for a service that is asked to fill masks."""


def api_key(service: str, variable: str, block: str, base_url: str | None) -> str:
    """The key from the environment, else from the Prefect Secret block; a service of one's own may need none."""
    if key := os.environ.get(variable, "").strip():
        return key
    from prefect.blocks.system import Secret

    try:
        return str(Secret.load(block).get())  # type: ignore[union-attr]
    except ValueError:  # what Prefect raises where there is no such block
        if base_url:
            return "none"
        raise KeyMissingError(
            f"{service}: no API key: set {variable}, or make a Prefect Secret block named {block!r}"
        ) from None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a response asks to wait: `retry-after-ms`, or `Retry-After` in seconds."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit)
        except (KeyError, ValueError):
            continue
    return None
