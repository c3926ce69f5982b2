"""The parameters of the language models, apart from the libraries that take seconds to import."""

import os
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives.providers.prices import Price
from penumbra.tasks.stage import Parameters
from pydantic import Field, field_validator

# Models whose names begin so know JSON mode only, no schema.
JSON_MODE_ONLY = ("gpt-3.5", "gpt-4-")


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


class Hosted(Parameters):
    """How a hosted model is asked."""

    provider: ClassVar[str]
    address_variable: ClassVar[str]

    model: str = Field(description="The model's name at the service.")
    base_url: str | None = Field(
        None, description="Address of the service, where it is not the public one: a gateway, vLLM, Ollama, …"
    )
    key_block: str = Field(
        description="Prefect Secret block with the API key, used where the environment variable is not set."
    )
    temperature: float | None = Field(None, ge=0, le=2, description="Sampling temperature; none: the service's own.")
    in_flight: int = Field(16, ge=1, le=1024, description="Requests under way at the same time, at most.")
    requests_a_minute: float | None = Field(None, gt=0, description="Limit; none: as the service's headers say.")
    tokens_a_minute: float | None = Field(None, gt=0, description="Limit; none: as the service's headers say.")
    timeout: float = Field(60.0, gt=0, description="Seconds that a request may take before it is sent again.")
    price: Price | None = Field(None, description="USD a million tokens, instead of the project's own table.")
    extra: dict[str, Any] = Field({}, description="Fields added to every request as they are.")

    @property
    def address(self) -> str | None:
        """Where the service is; None for the public one. Raises `AddressError` for what the environment says wrong."""
        try:
            return self.base_url or plain_address(os.environ.get(self.address_variable) or None)
        except ValueError as error:
            raise AddressError(f"{self.address_variable}: {error}") from None

    def asked(self, prompt: str) -> dict[str, Any]:
        """What determines an answer besides the question's text; it holds no key."""
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


class OpenAI(Hosted):
    """How OpenAI, or a server that speaks its protocol, is asked."""

    provider: ClassVar[str] = "openai"
    address_variable: ClassVar[str] = "OPENAI_BASE_URL"

    model: str = Field("gpt-5.6-luna", description="The model's name at the service, as in gpt-3.5-turbo.")
    key_block: str = Field(
        "openai-api-key", description="Prefect Secret block with the API key, used where OPENAI_API_KEY is not set."
    )
    structure: Literal["auto", "json_schema", "json_object"] = Field(
        "auto",
        description="How the answer's form is enforced. json_schema: words on offer as enums; json_object: JSON mode, "
        "for models as old as gpt-3.5-turbo; auto: by the model's name.",
    )
    mode: Literal["live", "batch"] = Field(
        "live", description="batch: the Batch API, half the price, answers within a day; run again to collect them."
    )
    requests_a_job: int = Field(10_000, ge=1, le=50_000, description="Requests a batch job holds, at most.")
    batch_wait: float = Field(
        0.0, ge=0, description="Seconds to wait for batch jobs before the run ends and leaves them for the next."
    )

    def asked(self, prompt: str) -> dict[str, Any]:
        """What determines an answer besides the question's text."""
        return {**super().asked(prompt), "structure": self.enforced}

    @property
    def enforced(self) -> str:
        """json_schema or json_object."""
        if self.structure != "auto":
            return self.structure
        old = self.model == "gpt-4" or self.model.startswith(JSON_MODE_ONLY)
        return "json_object" if old else "json_schema"


class Gemini(Hosted):
    """How Google's Gemini is asked."""

    provider: ClassVar[str] = "gemini"
    address_variable: ClassVar[str] = "GEMINI_BASE_URL"

    model: str = Field("gemini-3.1-flash-lite", description="The model's name at the service.")
    key_block: str = Field(
        "gemini-api-key", description="Prefect Secret block with the API key, used where GEMINI_API_KEY is not set."
    )
