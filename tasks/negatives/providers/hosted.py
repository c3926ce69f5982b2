"""The services of hosted language models: OpenAI's, which other servers speak as well, and Google's Gemini.

A service sends a request once. The libraries' own retries are off, since each may cost money; they are imported when
the first request is sent.
"""

import asyncio
import json
import os
import re
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Literal

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives.providers import Prompt
from penumbra.tasks.negatives.providers.questions import Answer, Question, letters, request_text
from penumbra.tasks.negatives.providers.settings import Gemini, HostedSettings, OpenAI

IDENTITY = "identity"  # HTTP's content coding without compression
IN_FLIGHT = 16  # requests of one service under way at the same time
TIMEOUT = 120.0  # seconds until a request is given up as lost
MOST_BYTES = 8_000_000  # of an answer, which is never compressed: a small one could unpack to gigabytes
MOST_TOKENS = 10**9  # of an answer; a service that reports more is not believed
WORD_TOKENS = 16  # most tokens of an answer for each slot
# The least reasoning effort of each family of OpenAI's models that reason before they answer
REASONING_EFFORT = {"gpt-5.": "none", "gpt-6": "none", "gpt-5": "minimal", "o1": "low", "o3": "low", "o4": "low"}
REASONING_TOKENS = 2_000  # most tokens of the reasoning of models that always reason
Action = Literal["wait", "retry", "refuse", "stop"]
ACTIONS: dict[int, Action] = {401: "stop", 402: "stop", 403: "stop", 404: "stop", 429: "wait"}  # others: retry
ACTIONS |= {400: "refuse", 413: "refuse", 422: "refuse"}
# Exceptions of reading a malformed response, such as one with a too large number or too deep nesting
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class ServiceError(PenumbraError):
    """A request that was not answered; `action` says what to do.

    wait: too many requests or tokens a minute, send it again as often as it takes. retry: the request was lost or the
    service failed, send it again. refuse: the service will never answer this request. stop: the service will answer no
    request at all (no key, no money, no such model).

    `after` is the pause in seconds that the service asks for, or 0. `is_free` says that the request certainly cost
    nothing, because the service refused or never received it.
    """

    def __init__(self, reason: str, action: Action, after: float = 0.0, is_free: bool = True) -> None:
        super().__init__(reason)
        self.reason, self.action, self.after, self.is_free = reason, action, after, is_free


def error_of_status(status: int, reason: str, after: float = 0.0, stop: bool = False) -> ServiceError:
    """Return the error of an HTTP status; `stop`: the response's body says that the key is wrong or the money spent.

    Redirects are not followed, because the key and the prompts would go to another server. A service that reports its
    own failure (500, 503, 529) charges nothing; an error of a gateway (502, 504, …) may have cost something.
    """
    if status < 400:
        return ServiceError(f"status {status}: redirects are not followed, so give the final address", "stop")
    action: Action = "stop" if stop else ACTIONS.get(status, "retry")
    is_free = action != "retry" or status in (500, 503, 529)
    return ServiceError(f"status {status} {reason}".strip(), action, after, is_free)


def retry_after(headers: Mapping[str, str]) -> float:
    """Return the pause in seconds that the headers ask for: `retry-after-ms`, or `Retry-After` in seconds; else 0."""
    return seconds_of(headers.get("retry-after-ms")) * 1e-3 or seconds_of(headers.get("retry-after"))


def seconds_of(text: str | None) -> float:
    """Return a number of seconds, which may be infinite; 0 if the text is no number."""
    try:
        return max(0.0, float(text or 0))  # 0 for NaN
    except ValueError:
        return 0.0


async def read_bounded(response: Any) -> None:
    """Read a response of httpx; raise `ValueError` if it is compressed or longer than `MOST_BYTES`."""
    if response.headers.get("content-encoding", IDENTITY) != IDENTITY:
        raise ValueError("answer is compressed")
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > MOST_BYTES:
            raise ValueError("answer is too long")
    response._content = bytes(body)


def read_bounded_in_time(response: Any, **_: Any) -> None:
    """Read a response of requests; raise `requests.ConnectionError` if it is compressed, too long or too slow."""
    import requests
    import urllib3

    if response.headers.get("Content-Encoding", IDENTITY) != IDENTITY:
        raise requests.ConnectionError("answer is compressed")
    body, end = bytearray(), time.monotonic() + TIMEOUT
    try:
        while piece := response.raw.read1(MOST_BYTES):
            body += piece
            if len(body) > MOST_BYTES or time.monotonic() > end:
                raise requests.ConnectionError("answer is too long or too slow")
    except urllib3.exceptions.HTTPError as error:
        raise requests.ConnectionError(error) from None
    response._content, response._content_consumed = bytes(body), True


class Service(ABC):
    """A hosted language model."""

    def __init__(self, settings: HostedSettings, prompt: Prompt) -> None:
        self.settings, self.prompt, self.key = settings, prompt, ""
        self.name, self.price = settings.provider, settings.known_price
        self.cache_key = settings.cache_key(prompt.label)

    def authenticate(self) -> None:
        """Read the key from the environment, or else the Prefect Secret block; must be called outside an event loop.

        Raises `PenumbraError` if there is no key, except for the user's own server (`base_url`), which may need none.
        """
        settings = self.settings
        self.key = os.environ.get(settings.key_variable, "").strip()
        if self.key:
            return
        from prefect.blocks.system import Secret

        try:
            self.key = str(Secret.load(settings.key_block).get())  # type: ignore[union-attr]
        except ValueError:  # Prefect knows no such block
            if not settings.address:
                raise PenumbraError(
                    f"{self.name}: no API key: set {settings.key_variable}, or make a Prefect Secret block named "
                    f"{settings.key_block!r}"
                ) from None
            self.key = "none"

    def most_tokens(self, questions: Sequence[Question]) -> int:
        """Return the most tokens that an answer may have."""
        return 32 + WORD_TOKENS * sum(len(question.open) for question in questions)

    def harmless(self, named: Any) -> str:
        """Return a name that a service gave, or "" if it is no name or contains the key."""
        name = str(named)
        return name if re.fullmatch(r"[\w./:@-]{1,100}", name) and not (self.key and self.key in name) else ""

    def answer(self, text: Any, is_refused: bool, is_cut: bool, model: Any, tokens: Iterable[Any]) -> Answer:
        """Return a service's answer with its cost; `tokens` are numbers or None: prompt, completion, cached prompt."""
        problems = {"model refused": is_refused, "answer was cut off": is_cut, "answer is empty": not text}
        problem = next((problem for problem, is_so in problems.items() if is_so), "")
        counts = [int(count or 0) for count in tokens]
        # other numbers are ignored: negative ones would reduce the cost, larger ones exceed the table's type
        prompt, completion, cached = counts if all(0 <= count <= MOST_TOKENS for count in counts) else (0, 0, 0)
        model = self.harmless(model) or self.settings.model
        cost = self.price.cost(prompt, completion, cached) if self.price else 0.0
        return Answer(str(text) if text and not is_refused else None, problem, model, prompt, completion, cost)

    @abstractmethod
    def payload(self, questions: Sequence[Question]) -> dict[str, Any]:
        """Return the request's body; the static text of the prompt comes first."""

    @abstractmethod
    async def send(self, payload: dict[str, Any]) -> Answer:
        """Send a request once; raise `ServiceError`, without the service's message, which may repeat the key."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""


class OpenAIService(Service):
    """OpenAI's chat completions, and servers that speak them (vLLM, Ollama, gateways).

    Requests use the library's low-level `post`: its typed `create` walks the whole schema of every request, which takes
    most of a request's CPU time.
    """

    settings: OpenAI

    @cached_property
    def client(self) -> Any:
        import httpx2
        import openai

        limits = httpx2.Limits(max_connections=IN_FLIGHT, max_keepalive_connections=IN_FLIGHT)
        hooks = {"response": [read_bounded]}
        http = openai.DefaultAioHttpClient(limits=limits, timeout=TIMEOUT, follow_redirects=False, event_hooks=hooks)
        options: dict[str, Any] = {"max_retries": 0, "timeout": TIMEOUT, "http_client": http}
        headers = {"Accept-Encoding": IDENTITY}
        return openai.AsyncOpenAI(api_key=self.key, base_url=self.settings.address, default_headers=headers, **options)

    @property
    def effort(self) -> str | None:
        """The reasoning effort, None for a model that does not reason."""
        return next((e for start, e in REASONING_EFFORT.items() if self.settings.model.startswith(start)), None)

    def most_tokens(self, questions: Sequence[Question]) -> int:
        return super().most_tokens(questions) + (self.effort not in (None, "none")) * REASONING_TOKENS

    def payload(self, questions: Sequence[Question]) -> dict[str, Any]:
        """Return the body of a chat completion.

        The schema of the answer has an enum of letters for each number of words on offer, which the slots refer to.
        """
        form: dict[str, Any] = {"type": "json_object"}
        if self.settings.structure == "json_schema":
            offered = letters(questions)
            schema = {
                "type": "object",
                "properties": {number: {"$ref": f"#/$defs/{len(choice)}"} for number, choice in offered.items()},
                "required": list(offered),
                "additionalProperties": False,
                "$defs": {str(len(choice)): {"type": "string", "enum": choice} for choice in offered.values()},
            }
            form = {"type": "json_schema", "json_schema": {"name": "words", "strict": True, "schema": schema}}
        body = {
            "model": self.settings.model,
            "messages": [
                {"role": "system", "content": self.prompt.static},
                {"role": "user", "content": self.prompt.fill(queries=request_text(questions))},
            ],
            "response_format": form,
            "max_completion_tokens" if self.effort else "max_tokens": self.most_tokens(questions),
        }
        options = {"reasoning_effort": self.effort, "temperature": self.settings.temperature}
        return body | {name: value for name, value in options.items() if value is not None}

    async def send(self, payload: dict[str, Any]) -> Answer:
        import aiohttp
        import httpx2
        import openai

        try:
            response = await self.client.post("/chat/completions", body=payload, cast_to=httpx2.Response)
            return self._read(json.loads(response.content))
        except openai.APIStatusError as error:
            is_out_of_money = "insufficient_quota" in (error.code, error.type)
            reason, after = self.harmless(error.code or error.type or ""), retry_after(error.response.headers)
            raise error_of_status(error.status_code, reason, after, stop=is_out_of_money) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__ and error.__cause__.__cause__
            is_unsent = isinstance(cause, aiohttp.ClientConnectorError)  # it got no connection
            raise ServiceError(type(error).__name__, "retry", is_free=is_unsent) from None
        except MALFORMED:
            raise ServiceError("body is no chat completion", "retry", is_free=False) from None

    def _read(self, body: dict[str, Any]) -> Answer:
        [choice] = body["choices"][:1] or [{"message": {}}]
        message, reason, usage = choice["message"], choice.get("finish_reason"), body.get("usage") or {}
        is_refused = bool(message.get("refusal")) or reason == "content_filter"
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        tokens = usage.get("prompt_tokens"), usage.get("completion_tokens"), cached
        return self.answer(message.get("content"), is_refused, reason == "length", body["model"], tokens)

    async def close(self) -> None:
        if "client" in self.__dict__:
            await self.client.close()


class GeminiService(Service):
    """Google's Gemini over REST.

    The asynchronous calls of google-generativeai speak gRPC only, so requests wait in threads, one for each request in
    flight. The library's successor is google-genai: no other code depends on either.
    """

    settings: Gemini

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix=self.name)

    @cached_property
    def model(self) -> Any:
        """The library's model, with a connection for each request in flight."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the library warns that it has a successor
            import google.generativeai as genai
        from google.generativeai.client import get_default_generative_client
        from requests.adapters import HTTPAdapter

        options = {"api_endpoint": self.settings.address} if self.settings.address else None
        genai.configure(api_key=self.key, transport="rest", client_options=options)
        model = genai.GenerativeModel(self.settings.model, system_instruction=self.prompt.static)
        model._client = get_default_generative_client()
        session = model._client.transport._session
        session.max_redirects, session.stream, session.hooks["response"] = 0, True, [read_bounded_in_time]
        session.headers["Accept-Encoding"] = IDENTITY
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(pool_connections=1, pool_maxsize=IN_FLIGHT))
        return model

    def payload(self, questions: Sequence[Question]) -> dict[str, Any]:
        offered = letters(questions)
        choices = {number: {"type": "STRING", "format": "enum", "enum": choice} for number, choice in offered.items()}
        form = {
            "response_mime_type": "application/json",
            "response_schema": {"type": "OBJECT", "properties": choices, "required": list(offered)},
            "max_output_tokens": self.most_tokens(questions),
        }
        if self.settings.temperature is not None:
            form["temperature"] = self.settings.temperature
        return {"contents": self.prompt.fill(queries=request_text(questions)), "generation_config": form}

    async def send(self, payload: dict[str, Any]) -> Answer:
        model = self.model  # made here, before threads need it
        return await asyncio.get_running_loop().run_in_executor(self.threads, self._send, model, payload)

    def _send(self, model: Any, payload: dict[str, Any]) -> Answer:
        import requests
        import urllib3
        from google.api_core import exceptions
        from google.protobuf.json_format import ParseError

        try:
            response = model.generate_content(**payload, request_options={"timeout": TIMEOUT, "retry": None})
            return self._read(response.to_dict())
        except exceptions.GoogleAPICallError as error:
            raise self._google_error(error) from None
        except requests.TooManyRedirects as error:
            raise error_of_status(error.response.status_code if error.response is not None else 302, "") from None
        except (requests.RequestException, exceptions.RetryError) as error:
            cause = getattr(error.args[0] if error.args else None, "reason", None)
            is_refused = isinstance(cause, urllib3.exceptions.NewConnectionError)  # it got no connection
            is_unsent = is_refused or isinstance(error, requests.ConnectTimeout)
            raise ServiceError(type(error).__name__, "retry", is_free=is_unsent) from None
        except (ParseError, *MALFORMED):
            raise ServiceError("body is no answer", "retry", is_free=False) from None

    def _read(self, body: dict[str, Any]) -> Answer:
        from google.generativeai.protos import Candidate

        [candidate] = body.get("candidates", [])[:1] or [{}]  # none if the prompt was blocked
        text = "".join(part.get("text", "") for part in (candidate.get("content") or {}).get("parts") or [])
        reason = Candidate.FinishReason(candidate.get("finish_reason", 1)).name
        is_blocked = bool((body.get("prompt_feedback") or {}).get("block_reason"))
        is_refused = is_blocked or reason not in ("STOP", "MAX_TOKENS")
        names = ("prompt_token_count", "candidates_token_count", "cached_content_token_count")
        tokens = map((body.get("usage_metadata") or {}).get, names)
        return self.answer(text, is_refused, reason == "MAX_TOKENS", body.get("model_version") or "", tokens)

    def _google_error(self, error: Any) -> ServiceError:
        several = error.details if isinstance(error.details, list) else []
        details = [detail for detail in several if isinstance(detail, dict)]
        reasons = [self.harmless(detail["reason"]) for detail in details if "reason" in detail]
        violations = [found for detail in details if isinstance(found := detail.get("violations"), list)]
        quotas = [self.harmless(it.get("quotaId")) for found in violations for it in found if isinstance(it, dict)]
        delays = [str(detail["retryDelay"]) for detail in details if "retryDelay" in detail]  # "17s"
        after = seconds_of(delays[0].removesuffix("s")) if delays else retry_after(error.response.headers)
        stop = "API_KEY_INVALID" in reasons or any("PerDay" in quota for quota in quotas)  # a wrong key has status 400
        return error_of_status(int(error.code or 500), " ".join([*reasons, *quotas]), after, stop)

    async def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)


SERVICES: dict[str, type[Service]] = {"openai": OpenAIService, "gemini": GeminiService}
