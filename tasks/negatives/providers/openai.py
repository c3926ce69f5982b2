"""The service of provider `openai`: OpenAI's chat completions, and servers that speak them (vLLM, Ollama, gateways).

Requests use the library's low-level `post`: its typed `create` walks the whole schema of every request, which is most
of the time that a request costs on this side. The library's own retries are off, since each may cost money.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penumbra.tasks.negatives.providers import hosted
from penumbra.tasks.negatives.providers.hosted import (
    MALFORMED,
    WORD_TOKENS,
    Reply,
    Service,
    ServiceError,
    error_of_status,
    lost,
    retry_after,
)
from penumbra.tasks.negatives.providers.questions import Question, letters, request_text
from penumbra.tasks.negatives.providers.settings import OpenAI

if TYPE_CHECKING:
    from openai import APIConnectionError, APIStatusError

COMPLETIONS = "/chat/completions"
# The least reasoning effort of each family of models that reason before they answer
REASONING_EFFORT = {"gpt-5.": "none", "gpt-6": "none", "gpt-5": "minimal", "o1": "low", "o3": "low", "o4": "low"}
REASONING_TOKENS = 2_000  # most tokens of the reasoning of models that always reason
OUT_OF_MONEY = "insufficient_quota"


class OpenAIService(Service):
    settings: OpenAI

    @cached_property
    def client(self) -> Any:
        import httpx2
        import openai

        limits = httpx2.Limits(max_connections=hosted.IN_FLIGHT, max_keepalive_connections=hosted.IN_FLIGHT)
        http = openai.DefaultAioHttpClient(limits=limits, timeout=hosted.TIMEOUT, follow_redirects=False)
        address = self.settings.address
        return openai.AsyncOpenAI(
            api_key=self.key, base_url=address, max_retries=0, timeout=hosted.TIMEOUT, http_client=http
        )

    def payload(self, questions: Sequence[Question]) -> dict[str, Any]:
        form: dict[str, Any] = {"type": "json_object"}
        if self.settings.structure == "json_schema":
            strict = {"name": "words", "strict": True, "schema": schema(questions)}
            form = {"type": "json_schema", "json_schema": strict}
        effort = next((e for start, e in REASONING_EFFORT.items() if self.settings.model.startswith(start)), None)
        most = 32 + WORD_TOKENS * sum(len(question.open) for question in questions)
        body: dict[str, Any] = {
            "model": self.settings.model,
            "messages": [
                {"role": "system", "content": self.prompt.static},
                {"role": "user", "content": self.prompt.fill(queries=request_text(questions))},
            ],
            "response_format": form,
        }
        if effort:
            body |= {"reasoning_effort": effort, "max_completion_tokens": most + (effort != "none") * REASONING_TOKENS}
        else:
            body["max_tokens"] = most
        if self.settings.temperature is not None:
            body["temperature"] = self.settings.temperature
        return body

    async def send(self, payload: dict[str, Any], key: str) -> Reply:
        """Send a request once; raise `ServiceError` if it is not answered."""
        import httpx2
        import openai

        options = {"headers": {"Idempotency-Key": key}}
        try:
            response = await self.client.post(COMPLETIONS, body=payload, cast_to=httpx2.Response, options=options)
            return reply_of(json.loads(response.content))
        except openai.APIStatusError as error:
            raise error_of(error) from None
        except openai.APIConnectionError as error:
            raise lost(type(error).__name__, is_free=_is_unsent(error)) from None
        except MALFORMED:
            raise lost("body is no chat completion") from None

    async def close(self) -> None:
        if "client" in self.__dict__:
            await self.client.close()


def reply_of(body: dict[str, Any]) -> Reply:
    """Return a chat completion as a reply; raise one of `MALFORMED` if it is no such body."""
    usage = body.get("usage") or {}
    text, problem = None, "answer is empty"
    for choice in body["choices"][:1]:
        message = choice["message"]
        text = message.get("content") or None
        if message.get("refusal") or choice.get("finish_reason") == "content_filter":
            text, problem = None, "model refused"
        elif choice.get("finish_reason") == "length":
            problem = "answer was cut off"
        elif text:
            problem = ""
    details = usage.get("prompt_tokens_details") or {}
    counts = (usage.get("prompt_tokens"), details.get("cached_tokens"), usage.get("completion_tokens"))
    prompt, cached, completion = (int(count or 0) for count in counts)
    return Reply(text if text is None else str(text), problem, str(body["model"]), prompt, cached, completion)


def error_of(error: "APIStatusError") -> ServiceError:
    """Return the error of a status, without the service's message, which may repeat the key."""
    reason = f"status {error.status_code} {error.code or error.type or ''}".strip()
    is_out_of_money = OUT_OF_MONEY in (error.code, error.type)
    return error_of_status(error.status_code, reason, retry_after(error.response.headers), stop=is_out_of_money)


def _is_unsent(error: "APIConnectionError") -> bool:
    """Return whether a request got no connection, so that it certainly was not answered."""
    import aiohttp

    return isinstance(error.__cause__ and error.__cause__.__cause__, aiohttp.ClientConnectorError)


def schema(questions: Sequence[Question]) -> dict[str, Any]:
    """Return the JSON schema of an answer: an enum of letters for each number of words on offer, used by the slots."""
    offered = letters(questions)
    return {
        "type": "object",
        "properties": {number: {"$ref": f"#/$defs/{len(choice)}"} for number, choice in offered.items()},
        "required": list(offered),
        "additionalProperties": False,
        "$defs": {str(len(choice)): {"type": "string", "enum": choice} for choice in offered.values()},
    }
