"""The service of provider `gemini`: Google's Gemini over REST.

The asynchronous calls of google-generativeai speak gRPC only, so requests wait in threads, one for each request in
flight. The library's successor is google-genai: no other file depends on either.
"""

import asyncio
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from penumbra.tasks.negatives.providers import Prompt, hosted
from penumbra.tasks.negatives.providers.hosted import (
    MALFORMED,
    WORD_TOKENS,
    Reply,
    Service,
    ServiceError,
    error_of_status,
    lost,
    retry_after,
    seconds_of,
)
from penumbra.tasks.negatives.providers.questions import Question, letters, request_text
from penumbra.tasks.negatives.providers.settings import Gemini

if TYPE_CHECKING:
    from google.api_core.exceptions import GoogleAPICallError


@cache
def library() -> Any:
    """Return google-generativeai, which takes seconds to import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # that the library has a successor
        import google.generativeai as genai
    return genai


class GeminiService(Service):
    def __init__(self, settings: Gemini, prompt: Prompt) -> None:
        super().__init__(settings, prompt)
        self.threads = ThreadPoolExecutor(hosted.IN_FLIGHT, thread_name_prefix=self.name)

    @cached_property
    def model(self) -> Any:
        """The library's model, with a connection for each request in flight."""
        genai, address = library(), self.settings.address
        from google.generativeai.client import get_default_generative_client
        from requests.adapters import HTTPAdapter

        options = {"api_endpoint": address} if address else None
        genai.configure(api_key=self.key, transport="rest", client_options=options)
        model = genai.GenerativeModel(self.settings.model, system_instruction=self.prompt.static)
        model._client = get_default_generative_client()
        session = model._client.transport._session
        session.max_redirects = 0
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(pool_connections=1, pool_maxsize=hosted.IN_FLIGHT))
        return model

    def payload(self, questions: Sequence[Question]) -> dict[str, Any]:
        offered = letters(questions)
        choices = {number: {"type": "STRING", "format": "enum", "enum": choice} for number, choice in offered.items()}
        form = {
            "response_mime_type": "application/json",
            "response_schema": {"type": "OBJECT", "properties": choices, "required": list(offered)},
            "max_output_tokens": 32 + WORD_TOKENS * len(offered),
        }
        if self.settings.temperature is not None:
            form["temperature"] = self.settings.temperature
        return {"contents": self.prompt.fill(queries=request_text(questions)), "generation_config": form}

    async def send(self, payload: dict[str, Any], key: str) -> Reply:
        """Send a request once; raise `ServiceError` if it is not answered."""
        model = self.model  # made here, before threads need it
        return await asyncio.get_running_loop().run_in_executor(self.threads, self._send, model, payload)

    def _send(self, model: Any, payload: dict[str, Any]) -> Reply:
        import requests
        from google.api_core import exceptions
        from google.protobuf.json_format import ParseError

        options = {"timeout": hosted.TIMEOUT, "retry": None}
        try:
            response = model.generate_content(**payload, request_options=options)
            return reply_of(response.to_dict(), self.settings.model)
        except exceptions.GoogleAPICallError as error:
            raise error_of(error) from None
        except requests.TooManyRedirects as error:
            raise error_of_status(error.response.status_code if error.response is not None else 302, "") from None
        except (requests.RequestException, exceptions.RetryError) as error:
            raise lost(type(error).__name__, is_free=_is_unsent(error)) from None
        except (ParseError, *MALFORMED):
            raise lost("body is no answer") from None

    async def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)


def reply_of(body: dict[str, Any], model: str) -> Reply:
    """Return Gemini's answer as a reply; raise one of `MALFORMED` if it is no answer."""
    usage = body.get("usage_metadata") or {}
    is_blocked = (body.get("prompt_feedback") or {}).get("block_reason")
    text, problem = None, "model refused" if is_blocked else "answer is empty"
    for candidate in body.get("candidates", [])[:1]:
        parts = (candidate.get("content") or {}).get("parts") or []
        text = "".join(part.get("text", "") for part in parts) or None
        reason = library().protos.Candidate.FinishReason(candidate.get("finish_reason", 1)).name
        if reason == "MAX_TOKENS":
            problem = "answer was cut off"
        elif reason != "STOP":
            text, problem = None, "model refused"
        elif text:
            problem = ""
    names = ("prompt_token_count", "cached_content_token_count", "candidates_token_count")
    prompt, cached, completion = (int(usage.get(name) or 0) for name in names)
    return Reply(text, problem, str(body.get("model_version") or model), prompt, cached, completion)


def error_of(error: "GoogleAPICallError") -> ServiceError:
    """Return the error of a status, without the service's message, which may repeat the key."""
    details = [detail for detail in error.details or [] if isinstance(detail, dict)]
    reasons = [str(detail["reason"]) for detail in details if "reason" in detail]
    quotas = [str(failed.get("quotaId")) for detail in details for failed in detail.get("violations", [])]
    delays = [str(detail["retryDelay"]) for detail in details if "retryDelay" in detail]  # "17s"
    after = seconds_of(delays[0].removesuffix("s")) if delays else retry_after(error.response.headers)
    status = int(error.code or 500)
    stop = "API_KEY_INVALID" in reasons or any("PerDay" in quota for quota in quotas)  # a wrong key has status 400
    return error_of_status(status, " ".join([f"status {status}", *reasons, *quotas]), after, stop)


def _is_unsent(error: Exception) -> bool:
    """Return whether a request got no connection, so that it certainly was not answered."""
    import requests
    import urllib3

    cause = error.args[0] if error.args else None
    is_refused = isinstance(getattr(cause, "reason", None), urllib3.exceptions.NewConnectionError)
    return is_refused or isinstance(error, requests.ConnectTimeout)
