"""Gemini's `generateContent` over REST, as google-generativeai 0.8.6 calls it (`transport="rest"`).

That client writes enums as numbers (`"type": 6` is OBJECT) and asks for numbers back (`?$alt=json;enum-encoding=int`).
"""

import math
import re
from typing import Any
from uuid import uuid4

from tests.protocol_server.answers import texts_of
from tests.protocol_server.faults import Answer
from tests.protocol_server.openai import tokens

PATH = re.compile(r"/v1(?:beta|alpha)?/(?:models|tunedModels)/([^/:]+):generateContent")
FINISH = {"stop": ("STOP", 1), "length": ("MAX_TOKENS", 2), "safety": ("SAFETY", 3)}
BLOCKED = ("SAFETY", 1)
CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class Gemini:
    """The service behind `POST /v1beta/models/MODEL:generateContent`."""

    name = "gemini"

    def __init__(self, model: str, numbers: bool) -> None:
        self.model = model
        self.numbers = int(numbers)  # index into (name, number)

    def key(self, headers: dict[str, str]) -> str:
        return headers.get("x-goog-api-key", "")

    def check(self, payload: Any, models: list[str] | None) -> tuple[int, str, str | None] | None:
        """Status and message if the real service would refuse this payload."""
        if not isinstance(payload, dict):
            return 400, "Invalid JSON payload received.", None
        if models is not None and self.model not in models:
            message = f"models/{self.model} is not found for API version v1beta, or is not supported."
            return 404, message, None
        if not payload.get("contents"):
            return 400, "* GenerateContentRequest.contents: contents is not specified", None
        config = payload.get("generationConfig") or {}
        if config.get("responseSchema") and config.get("responseMimeType") not in {"application/json", "text/x.enum"}:
            return 400, "response_mime_type must be 'application/json' when response_schema is set", None
        return None

    def bad_key(self) -> tuple[int, dict[str, Any]]:
        """Not 401: Gemini calls a wrong key an invalid argument."""
        info = {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "API_KEY_INVALID",
            "domain": "googleapis.com",
            "metadata": {"service": "generativelanguage.googleapis.com"},
        }
        body = self.error(400, "API key not valid. Please pass a valid API key.")
        body["error"]["details"] = [info]
        return 400, body

    def completion(self, payload: dict[str, Any], answer: Answer) -> dict[str, Any]:
        """The body of a 200."""
        prompt, said = self.prompt_tokens(payload), tokens(answer.content or "")
        usage = {"promptTokenCount": prompt, "candidatesTokenCount": said, "totalTokenCount": prompt + said}
        body: dict[str, Any] = {"usageMetadata": usage, "modelVersion": answer.model or self.model}
        body["responseId"] = uuid4().hex
        if answer.finish == "blocked":
            return body | {"promptFeedback": {"blockReason": BLOCKED[self.numbers]}}
        return body | ({"candidates": [self._candidate(answer)]} if answer.choices else {})

    def _candidate(self, answer: Answer) -> dict[str, Any]:
        candidate: dict[str, Any] = {"finishReason": FINISH[answer.finish][self.numbers], "index": 0}
        if answer.content is not None:
            candidate["content"] = {"parts": [{"text": answer.content}], "role": "model"}
        return candidate

    def error(self, status: int, message: str, code: str | None = None, kind: str | None = None) -> dict[str, Any]:
        """The body of an error."""
        return {"error": {"code": status, "message": message, "status": kind or CODES.get(status, "UNKNOWN")}}

    def quota(self, of: str = "Day") -> dict[str, Any]:
        body = self.error(429, "You exceeded your current quota, please check your plan and billing details.")
        metric = f"generate_requests_per_{of.lower()}"
        violation = {"quotaMetric": metric, "quotaId": f"GenerateRequestsPer{of}PerProject"}
        failure = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}
        body["error"]["details"] = [failure]
        return body

    def limited(self, limit: str, wait: float) -> tuple[dict[str, Any], dict[str, str]]:
        """Body and headers of a 429: Gemini says the wait in the body, as RetryInfo, and in no header."""
        body = self.quota("Minute")
        body["error"]["message"] += f" Limit: {limit} per minute."
        body["error"]["details"] += [retry_info(wait)]
        return body, {}

    def charged(self, body: dict[str, Any]) -> list[int]:
        """Tokens of the prompt and of the answer in a 200."""
        return [body["usageMetadata"]["promptTokenCount"], body["usageMetadata"]["candidatesTokenCount"]]

    def prompt_tokens(self, payload: dict[str, Any]) -> int:
        return sum(tokens(text) for text in texts_of(payload))


def retry_info(seconds: float) -> dict[str, Any]:
    """A google.rpc.RetryInfo detail."""
    whole = math.ceil(seconds * 1000) / 1000
    return {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{whole:g}s"}
