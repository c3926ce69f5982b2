"""Provider `openai`: OpenAI's chat completions, and every server that speaks them (vLLM, Ollama, gateways).

Requests go out through the library's low-level `post` and answers come back as they are: its typed `create` walks
the whole schema of every request, which is most of the time that a request costs this side.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from penumbra.tasks.negatives.providers.batch import BatchSettings
from penumbra.tasks.negatives.providers.prompts import Prompt
from penumbra.tasks.negatives.providers.questions import Question, asked_text, letters
from penumbra.tasks.negatives.providers.service import (
    CLOSED,
    FAILED,
    MALFORMED,
    REFUSED,
    WORD_TOKENS,
    ClosedError,
    LimitedError,
    Quota,
    RefusedError,
    Reply,
    ServiceError,
    UnavailableError,
    api_key,
    redirected,
    retry_after,
)

if TYPE_CHECKING:
    from openai import APIConnectionError, APIStatusError, AsyncOpenAI
    from openai._types import RequestOptions

VARIABLE = "OPENAI_API_KEY"
COMPLETIONS = "/chat/completions"
# The families of models that think before they answer, and how little they can be asked to.
REASONING_EFFORT = {"gpt-5.": "none", "gpt-6": "none", "gpt-5": "minimal", "o1": "low", "o3": "low", "o4": "low"}
# Models whose names begin so know JSON mode only, no schema.
JSON_MODE_ONLY = ("gpt-3.5", "gpt-4-")
REASONING_TOKENS = 2_000  # tokens that a model which can't be kept from thinking may think
OUT_OF_MONEY = "insufficient_quota"


class OpenAI(BatchSettings):
    """How OpenAI, or a server that speaks its protocol, is asked."""

    provider: ClassVar[str] = "openai"
    about: ClassVar[str] = "OpenAI's models, or a server that speaks its protocol, over the network"
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

    def cache_key(self, prompt: str) -> dict[str, Any]:
        """What determines an answer besides the question's text."""
        return {**super().cache_key(prompt), "structure": self.enforced}

    @property
    def enforced(self) -> str:
        """json_schema or json_object."""
        if self.structure != "auto":
            return self.structure
        old = self.model == "gpt-4" or self.model.startswith(JSON_MODE_ONLY)
        return "json_object" if old else "json_schema"

    def service(self, prompt: Prompt) -> "OpenAIService":
        """A client of the server that these settings name."""
        return OpenAIService(self, prompt)


class OpenAIService:
    """One client of one server; its library is imported when the first request goes out."""

    endpoint = COMPLETIONS

    def __init__(self, settings: OpenAI, prompt: Prompt) -> None:
        self.settings, self.prompt = settings, prompt
        self.name, self.cache_key = settings.provider, settings.cache_key(prompt.label)

    @cached_property
    def client(self) -> "AsyncOpenAI":
        """The library's client; raises `KeyMissingError` without a key."""
        import httpx2
        import openai

        settings = self.settings
        connections = httpx2.Limits(max_connections=settings.in_flight, max_keepalive_connections=settings.in_flight)
        return openai.AsyncOpenAI(
            api_key=api_key(self.name, VARIABLE, settings.key_block, settings.address),
            base_url=settings.address,
            max_retries=0,  # whoever sends tells retries apart and counts them
            timeout=settings.timeout,
            http_client=openai.DefaultAioHttpClient(  # a redirect would hand prompts to whoever it names
                limits=connections, timeout=settings.timeout, follow_redirects=False
            ),
        )

    def payload(self, questions: Sequence[Question]) -> dict[str, Any]:
        """The body of a chat completion, static text first."""
        form: dict[str, Any] = {"type": "json_object"}
        if self.settings.enforced == "json_schema":
            form = {
                "type": "json_schema",
                "json_schema": {"name": "words", "strict": True, "schema": schema(questions)},
            }
        effort = next((e for start, e in REASONING_EFFORT.items() if self.settings.model.startswith(start)), None)
        most = 32 + WORD_TOKENS * sum(len(question.open) for question in questions)
        body: dict[str, Any] = {
            "model": self.settings.model,
            "messages": [
                {"role": "system", "content": self.prompt.static},
                {"role": "user", "content": self.prompt.fill(queries=asked_text(questions))},
            ],
            "response_format": form,
        }
        if effort:
            body |= {"reasoning_effort": effort, "max_completion_tokens": most + (effort != "none") * REASONING_TOKENS}
        else:
            body["max_tokens"] = most
        if self.settings.temperature is not None:
            body["temperature"] = self.settings.temperature
        return body | self.settings.extra

    async def send(self, payload: dict[str, Any], key: str) -> Reply:
        """Send one request; raises `LimitedError`, `UnavailableError`, `RefusedError` or `ClosedError`."""
        import httpx2
        import openai

        once: RequestOptions = {"headers": {"Idempotency-Key": key}}
        try:
            response = await self.client.post(COMPLETIONS, body=payload, cast_to=httpx2.Response, options=once)
            return self.reply(json.loads(response.content), response.headers)
        except openai.APIStatusError as error:
            raise self.classed(error) from None
        except openai.APIConnectionError as error:
            raise UnavailableError(type(error).__name__, free=_is_unsent(error)) from None
        except MALFORMED:
            raise UnavailableError("body is no chat completion") from None

    async def close(self) -> None:
        """Close the connections."""
        if "client" in self.__dict__:
            await self.client.close()

    @staticmethod
    def reply(body: dict[str, Any], headers: Mapping[str, str]) -> Reply:
        """A chat completion as a reply; raises one of Python's look-up errors where it is none."""
        usage = body.get("usage") or {}
        text, problem = None, "answer is empty"
        for choice in body["choices"][:1]:
            message = choice["message"]
            text = message.get("content") or None
            if message.get("refusal") or choice.get("finish_reason") == "content_filter":
                text, problem = None, "model refused"
            elif choice.get("finish_reason") == "length":
                problem = "answer was cut off"
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return Reply(
            text=text if text is None else str(text),
            problem="" if text and problem == "answer is empty" else problem,
            model=str(body["model"]),
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            cached_tokens=int(cached),
            completion_tokens=int(usage.get("completion_tokens") or 0),
            requests=_quota(headers, "requests"),
            tokens=_quota(headers, "tokens"),
        )

    @staticmethod
    def classed(error: "APIStatusError") -> ServiceError:
        """The error of a status; what the service writes beside it stays out, for it may repeat the key."""
        status, code = error.status_code, str(error.code or error.type or "")
        reason = f"status {status} {code}".strip()
        if status < 400:
            return redirected(status)
        if status in CLOSED or OUT_OF_MONEY in (error.code, error.type):
            return ClosedError(reason)
        if status in REFUSED:
            return RefusedError(reason)
        after = retry_after(error.response.headers)
        return LimitedError(reason, after) if status == 429 else UnavailableError(reason, after, status in FAILED)


def _is_unsent(error: "APIConnectionError") -> bool:
    """Whether a request got no connection, so that nobody can have answered it."""
    import aiohttp

    return isinstance(error.__cause__ and error.__cause__.__cause__, aiohttp.ClientConnectorError)


def schema(questions: Sequence[Question]) -> dict[str, Any]:
    """The JSON schema of an answer: an enum of letters for each number of words on offer, and which slot has which."""
    offered = letters(questions)
    return {
        "type": "object",
        "properties": {number: {"$ref": f"#/$defs/{len(choice)}"} for number, choice in offered.items()},
        "required": list(offered),
        "additionalProperties": False,
        "$defs": {str(len(choice)): {"type": "string", "enum": choice} for choice in offered.values()},
    }


def _quota(headers: Mapping[str, str], what: str) -> Quota | None:
    """One of the limits in a response's headers; None where it says nothing of it."""
    try:
        limit, remaining = (float(headers[f"x-ratelimit-{part}-{what}"]) for part in ("limit", "remaining"))
        quota = Quota(limit, remaining, seconds(headers[f"x-ratelimit-reset-{what}"]))
    except (KeyError, ValueError):
        return None
    return quota if math.isfinite(limit) and math.isfinite(remaining) else None


def seconds(text: str) -> float:
    """A duration as the headers write it, "6m0s", "1.5s" or "120ms"; raises `ValueError` for anything else."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|h|m|s)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is no duration")
    return sum(float(number) * units[unit] for number, unit in parts)
