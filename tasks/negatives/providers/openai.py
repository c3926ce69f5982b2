"""Provider `openai`: OpenAI's chat completions, and every server that speaks them (vLLM, Ollama, gateways).

Requests go out through the library's low-level `post` and answers come back as they are: its typed `create` walks
the whole schema of every request, which is most of the time that a request costs this side.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import httpx2
import openai
from penumbra.tasks.negatives.providers.prompts import Prompt
from penumbra.tasks.negatives.providers.questions import Question, asked_text, letters
from penumbra.tasks.negatives.providers.service import (
    CLOSED,
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
    retry_after,
)
from penumbra.tasks.negatives.providers.settings import OpenAI

VARIABLE = "OPENAI_API_KEY"
COMPLETIONS = "/chat/completions"
# The families of models that think before they answer, and how little they can be asked to.
THINKING = {"gpt-5.": "none", "gpt-6": "none", "gpt-5": "minimal", "o1": "low", "o3": "low", "o4": "low"}
THOUGHTS = 2_000  # tokens that a model which can't be kept from thinking may think
OUT_OF_MONEY = "insufficient_quota"


class OpenAIService:
    """One client of one server."""

    def __init__(self, settings: OpenAI, prompt: Prompt) -> None:
        self.settings, self.prompt = settings, prompt
        self.name, self.asked = settings.provider, settings.asked(prompt.label)

    @cached_property
    def client(self) -> openai.AsyncOpenAI:
        """The library's client, made when the first request goes out; raises `KeyMissingError` without a key."""
        settings = self.settings
        connections = httpx2.Limits(max_connections=settings.in_flight, max_keepalive_connections=settings.in_flight)
        return openai.AsyncOpenAI(
            api_key=api_key(self.name, VARIABLE, settings.key_block, settings.address),
            base_url=settings.address,
            max_retries=0,  # whoever sends tells retries apart and counts them
            timeout=settings.timeout,
            http_client=openai.DefaultAioHttpClient(limits=connections, timeout=settings.timeout),
        )

    def payload(self, questions: Sequence[Question]) -> dict[str, Any]:
        """The body of a chat completion, static text first."""
        form: dict[str, Any] = {"type": "json_object"}
        if self.settings.enforced == "json_schema":
            form = {
                "type": "json_schema",
                "json_schema": {"name": "words", "strict": True, "schema": schema(questions)},
            }
        effort = next((e for start, e in THINKING.items() if self.settings.model.startswith(start)), None)
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
            body |= {"reasoning_effort": effort, "max_completion_tokens": most + (effort != "none") * THOUGHTS}
        else:
            body["max_tokens"] = most
        if self.settings.temperature is not None:
            body["temperature"] = self.settings.temperature
        return body | self.settings.extra

    async def send(self, payload: dict[str, Any]) -> Reply:
        """Send one request; raises `LimitedError`, `UnavailableError`, `RefusedError` or `ClosedError`."""
        try:
            response = await self.client.post(COMPLETIONS, body=payload, cast_to=httpx2.Response)
            return reply(json.loads(response.content), response.headers)
        except openai.APIStatusError as error:
            raise classed(error) from None
        except openai.APIConnectionError as error:
            raise UnavailableError(type(error).__name__) from None
        except MALFORMED:
            raise UnavailableError("body is no chat completion") from None

    async def close(self) -> None:
        """Close the connections."""
        if "client" in self.__dict__:
            await self.client.close()


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


def classed(error: openai.APIStatusError) -> ServiceError:
    """The error of a status; what the service writes beside it stays out, for it may repeat the key."""
    status, code = error.status_code, str(error.code or error.type or "")
    reason = f"status {status} {code}".strip()
    if status in CLOSED or OUT_OF_MONEY in (error.code, error.type):
        return ClosedError(reason)
    if status in REFUSED:
        return RefusedError(reason)
    after = retry_after(error.response.headers)
    return LimitedError(reason, after) if status == 429 else UnavailableError(reason, after)


def _quota(headers: Mapping[str, str], what: str) -> Quota | None:
    """One of the limits in a response's headers; None where it says nothing of it."""
    try:
        limit, remaining = (float(headers[f"x-ratelimit-{part}-{what}"]) for part in ("limit", "remaining"))
        return Quota(limit, remaining, seconds(headers[f"x-ratelimit-reset-{what}"]))
    except (KeyError, ValueError):
        return None


def seconds(text: str) -> float:
    """A duration as the headers write it, "6m0s", "1.5s" or "120ms"; raises `ValueError` for anything else."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|h|m|s)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is no duration")
    return sum(float(number) * units[unit] for number, unit in parts)
