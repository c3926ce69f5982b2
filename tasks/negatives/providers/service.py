"""What the client needs of a service that hosts language models: how it is asked, and its errors in four classes.

A service's own module turns its library's exceptions into these, by status and type, never by their messages.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives.providers.answers import MOST_IN_FLIGHT
from penumbra.tasks.negatives.providers.prices import Price, price_of
from penumbra.tasks.negatives.providers.questions import Question
from penumbra.tasks.negatives.providers.registry import ProviderSettings

# What a status says of a service, or of a request.
CLOSED, REFUSED = {401, 402, 403, 404}, {400, 413, 422}
FAILED = {500, 503, 529}  # the service's own word that it failed; what a gateway says (502, 504, …) leaves it open
WORD_TOKENS = 16  # tokens of an answer a slot, at most
# What reading a body raises where it is not what it should be: numbers too large and nesting too deep among it.
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class ServiceError(Exception):
    """A request that was not answered; `after` is how long the service asks to wait, in seconds.

    `free` says that it surely cost nothing: the service refused it, or never saw it.
    """

    def __init__(self, reason: str, after: float | None = None, free: bool = True) -> None:
        super().__init__(reason)
        self.reason, self.after, self.free = reason, after, free


class LimitedError(ServiceError):
    """Too many requests or tokens a minute: wait, as often as it takes."""


class UnavailableError(ServiceError):
    """The request was lost on the way or the service failed: send the same again, though both may be charged."""

    def __init__(self, reason: str, after: float | None = None, free: bool = False) -> None:
        super().__init__(reason, after, free)


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
    cache_key: dict[str, Any]  # what determines an answer besides the question; holds no API key

    def payload(self, questions: Sequence[Question]) -> dict[str, Any]:
        """The request's body."""
        ...

    async def send(self, payload: dict[str, Any], key: str) -> Reply:
        """Send one request, once; raises one of the four errors.

        `key` is the same whenever the same request is sent again, for services that then answer and charge it once.
        """
        ...

    async def close(self) -> None:
        """Close its connections."""
        ...


class AddressError(PenumbraError):
    """An environment variable holds no plain address."""


def plain_address(url: str | None) -> str | None:
    """The address without a last slash; raises `ValueError` for what is none, or holds a key."""
    parts = urlsplit(url or "http://unset")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("no http(s) address")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("more than an address: a key belongs in the environment or a Secret block")
    return url.rstrip("/") if url else url


class ServiceSettings(ProviderSettings):
    """How a hosted model is reached and asked."""

    address_variable: ClassVar[str]

    model: str = Field(description="The model's name at the service.")
    base_url: str | None = Field(
        None, description="Address of the service, where it is not the public one: a gateway, vLLM, Ollama, …"
    )
    key_block: str = Field(
        description="Prefect Secret block with the API key, used where the environment variable is not set."
    )
    temperature: float | None = Field(None, ge=0, le=2, description="Sampling temperature; none: the service's own.")
    in_flight: int = Field(16, ge=1, le=MOST_IN_FLIGHT, description="Requests under way at the same time, at most.")
    requests_a_minute: float | None = Field(None, gt=0, description="Limit; none: as the service's headers say.")
    tokens_a_minute: float | None = Field(None, gt=0, description="Limit; none: as the service's headers say.")
    timeout: float = Field(60.0, gt=0, description="Seconds that a request may take before it is sent again.")
    longest_wait: float = Field(
        600.0, gt=0, description="Seconds to wait before asking again, at most, however long the service says."
    )
    price: Price | None = Field(None, description="USD a million tokens, instead of the project's own table.")
    extra: dict[str, Any] = Field({}, description="Fields added to every request as they are.")

    @property
    def address(self) -> str | None:
        """Where the service is; None for the public one. Raises `AddressError` for what the environment says wrong."""
        try:
            return self.base_url or plain_address(os.environ.get(self.address_variable) or None)
        except ValueError as error:
            raise AddressError(f"{self.address_variable}: {error}") from None

    @property
    def known_price(self) -> Price | None:
        """What the model costs: as set, or as the project's table has it."""
        return self.price or price_of(self.model)

    @property
    def discount(self) -> float:
        """The share of the price that is paid."""
        return 1.0

    def cache_key(self, prompt: str) -> dict[str, Any]:
        """What determines an answer besides the question's text; it holds no API key."""
        return {
            "service": self.provider,
            "address": self.address,
            "model": self.model,
            "prompt": prompt,
            "temperature": self.temperature,
            "extra": self.extra,
        }

    @field_validator("base_url")
    @classmethod
    def _plain(cls, url: str | None) -> str | None:
        return plain_address(url)


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


def redirected(status: int) -> ClosedError:
    """The error of a redirect, which is never followed: where it leads must not learn the key or the prompts."""
    return ClosedError(f"status {status}: redirects are not followed, so give the address that answers as base_url")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a response asks to wait: `retry-after-ms`, or `Retry-After` in seconds."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        if name in headers and (asked := seconds_of(headers[name])) is not None:
            return asked * unit
    return None


def seconds_of(text: str) -> float | None:
    """A number of seconds, which may be infinite; None where the text is no number."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return None if math.isnan(seconds) else max(0.0, seconds)
