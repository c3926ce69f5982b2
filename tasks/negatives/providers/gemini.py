"""Provider `gemini`: Google's Gemini over REST.

The library's asynchronous calls speak gRPC only, so requests wait in threads, one for each request in flight. Its
successor is google-genai: nothing but this file knows either.
"""

import asyncio
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from penumbra.tasks.negatives.providers.hosted import Hosted
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
    RefusedError,
    Reply,
    ServiceError,
    UnavailableError,
    api_key,
    redirected,
    retry_after,
    seconds_of,
)

if TYPE_CHECKING:
    from google.api_core.exceptions import GoogleAPICallError

VARIABLE = "GEMINI_API_KEY"
NO_KEY = "API_KEY_INVALID"  # Gemini says so with status 400
A_DAY = "PerDay"  # in the name of a quota: nothing more today, however long one waits
ANSWERED, CUT = "STOP", "MAX_TOKENS"


class Gemini(Hosted):
    """How Google's Gemini is asked."""

    provider: ClassVar[str] = "gemini"
    about: ClassVar[str] = "Google's Gemini, over the network"
    address_variable: ClassVar[str] = "GEMINI_BASE_URL"

    model: str = Field("gemini-3.1-flash-lite", description="The model's name at the service.")
    key_block: str = Field(
        "gemini-api-key", description="Prefect Secret block with the API key, used where GEMINI_API_KEY is not set."
    )

    def service(self, prompt: Prompt) -> "GeminiService":
        """A client of the server that these settings name."""
        return GeminiService(self, prompt)


@cache
def library() -> Any:
    """google-generativeai, which takes seconds to import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # that the library has a successor: see above
        import google.generativeai as genai
    return genai


class GeminiService:
    """One client of one server; its library is imported when the first request goes out."""

    def __init__(self, settings: Gemini, prompt: Prompt) -> None:
        self.settings, self.prompt = settings, prompt
        self.name, self.cache_key = settings.provider, settings.cache_key(prompt.label)

    @cached_property
    def model(self) -> Any:
        """The library's model, made when the first request goes out; raises `KeyMissingError` without a key."""
        genai = library()
        from google.generativeai.client import get_default_generative_client
        from requests.adapters import HTTPAdapter

        address = self.settings.address
        genai.configure(
            api_key=api_key(self.name, VARIABLE, self.settings.key_block, address),
            transport="rest",
            client_options={"api_endpoint": address} if address else None,
        )
        model = genai.GenerativeModel(self.settings.model, system_instruction=self.prompt.static)
        client = get_default_generative_client()
        model._client = client
        session = client.transport._session
        session.max_redirects = 0  # one would hand key and prompts to whoever it names
        pool = HTTPAdapter(pool_connections=1, pool_maxsize=self.settings.in_flight)  # requests keeps ten otherwise
        for scheme in ("http://", "https://"):
            session.mount(scheme, pool)
        return model

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        """A thread for every request in flight."""
        return ThreadPoolExecutor(self.settings.in_flight, thread_name_prefix=self.name)

    def payload(self, questions: Sequence[Question]) -> dict[str, Any]:
        """The variable text and the generation's settings; the static text is the model's system instruction."""
        offered = letters(questions)
        choices = {number: {"type": "STRING", "format": "enum", "enum": choice} for number, choice in offered.items()}
        form = {
            "response_mime_type": "application/json",
            "response_schema": {"type": "OBJECT", "properties": choices, "required": list(offered)},
            "max_output_tokens": 32 + WORD_TOKENS * len(offered),
        }
        if self.settings.temperature is not None:
            form["temperature"] = self.settings.temperature
        return {"contents": self.prompt.fill(queries=asked_text(questions)), "generation_config": form}

    async def send(self, payload: dict[str, Any], key: str) -> Reply:
        """Send one request; raises one of the four errors of `service`. Gemini knows no key of a request."""
        model = self.model
        return await asyncio.get_running_loop().run_in_executor(self.threads, self._send, model, payload)

    def _send(self, model: Any, payload: dict[str, Any]) -> Reply:
        import requests
        from google.api_core import exceptions
        from google.protobuf.json_format import ParseError

        config = payload["generation_config"] | self.settings.extra
        options = {"timeout": self.settings.timeout, "retry": None}  # whoever sends counts the retries
        try:
            response = model.generate_content(payload["contents"], generation_config=config, request_options=options)
            return reply(response.to_dict(), self.settings.model)
        except exceptions.GoogleAPICallError as error:
            raise classed(error) from None
        except requests.TooManyRedirects as error:
            raise redirected(error.response.status_code if error.response is not None else 302) from None
        except (requests.RequestException, exceptions.RetryError) as error:
            raise UnavailableError(type(error).__name__, free=_is_unsent(error)) from None
        except (ParseError, *MALFORMED):
            raise UnavailableError("body is no answer") from None

    async def close(self) -> None:
        """End the threads."""
        if "threads" in self.__dict__:
            self.threads.shutdown(wait=False, cancel_futures=True)


def reply(body: dict[str, Any], model: str) -> Reply:
    """Gemini's answer as a reply."""
    usage = body.get("usage_metadata") or {}
    text, problem = None, "answer is empty"
    if (body.get("prompt_feedback") or {}).get("block_reason"):
        problem = "model refused"
    for candidate in body.get("candidates", [])[:1]:
        parts = (candidate.get("content") or {}).get("parts") or []
        text = "".join(part.get("text", "") for part in parts) or None
        reason = library().protos.Candidate.FinishReason(candidate.get("finish_reason", 1)).name
        if reason == CUT:
            problem = "answer was cut off"
        elif reason != ANSWERED:
            text, problem = None, "model refused"
        elif text:
            problem = ""
    return Reply(
        text=text,
        problem=problem,
        model=str(body.get("model_version") or model),
        prompt_tokens=int(usage.get("prompt_token_count") or 0),
        cached_tokens=int(usage.get("cached_content_token_count") or 0),
        completion_tokens=int(usage.get("candidates_token_count") or 0),
    )


def classed(error: "GoogleAPICallError") -> ServiceError:
    """The error of a status; what the service writes beside it stays out, for it may repeat the key."""
    details = [detail for detail in error.details or [] if isinstance(detail, dict)]
    reasons = [str(detail["reason"]) for detail in details if "reason" in detail]
    quotas = [str(failed.get("quotaId")) for detail in details for failed in detail.get("violations", [])]
    status = int(error.code or 500)
    reason = " ".join([f"status {status}", *reasons, *quotas])
    if status in CLOSED or NO_KEY in reasons or any(A_DAY in quota for quota in quotas):
        return ClosedError(reason)
    if status in REFUSED:
        return RefusedError(reason)
    delays = [str(detail["retryDelay"]) for detail in details if "retryDelay" in detail]  # "17s"
    after = seconds_of(delays[0].removesuffix("s")) if delays else retry_after(error.response.headers)
    return LimitedError(reason, after) if status == 429 else UnavailableError(reason, after, status in FAILED)


def _is_unsent(error: Exception) -> bool:
    """Whether a request got no connection, so that nobody can have answered it."""
    import requests
    import urllib3

    cause = error.args[0] if error.args else None
    refused = isinstance(getattr(cause, "reason", None), urllib3.exceptions.NewConnectionError)
    return refused or isinstance(error, requests.ConnectTimeout)
