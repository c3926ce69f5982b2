"""The service of provider `gemini`: `generateContent` of Google's Gemini over REST."""

from collections.abc import Mapping, Sequence
from typing import Any

from penumbra.tasks.negatives.providers.hosted import (
    WORD_TOKENS,
    Reply,
    Service,
    ServiceError,
    error_of_status,
    retry_after,
    seconds_of,
)
from penumbra.tasks.negatives.providers.questions import Question, letters, request_text

PUBLIC = "https://generativelanguage.googleapis.com"


class GeminiService(Service):
    """A client of one server."""

    def endpoint(self, key: str) -> tuple[str, dict[str, str]]:
        """Return the URL and the headers of a request."""
        address, model = self.settings.address or PUBLIC, self.settings.model.removeprefix("models/")
        return f"{address}/v1beta/models/{model}:generateContent", {"x-goog-api-key": self.key}

    def payload(self, questions: Sequence[Question]) -> dict[str, Any]:
        """Return the request's body; the static text is the system instruction."""
        offered = letters(questions)
        choices = {number: {"type": "STRING", "format": "enum", "enum": choice} for number, choice in offered.items()}
        form: dict[str, Any] = {
            "responseMimeType": "application/json",
            "responseSchema": {"type": "OBJECT", "properties": choices, "required": list(offered)},
            "maxOutputTokens": 32 + WORD_TOKENS * len(offered),
        }
        if self.settings.temperature is not None:
            form["temperature"] = self.settings.temperature
        return {
            "systemInstruction": {"parts": [{"text": self.prompt.static}]},
            "contents": [{"role": "user", "parts": [{"text": self.prompt.fill(queries=request_text(questions))}]}],
            "generationConfig": form,
        }

    def reply_of(self, body: Any) -> Reply:
        """Return Gemini's answer as a reply; raise one of `MALFORMED` if it is none."""
        usage = body.get("usageMetadata") or {}
        is_blocked = (body.get("promptFeedback") or {}).get("blockReason")
        text, problem = None, "model refused" if is_blocked else "answer is empty"
        for candidate in body.get("candidates", [])[:1]:
            parts = (candidate.get("content") or {}).get("parts") or []
            text = "".join(part.get("text", "") for part in parts) or None
            reason = candidate.get("finishReason", "STOP")
            if reason == "MAX_TOKENS":
                problem = "answer was cut off"
            elif reason != "STOP":
                text, problem = None, "model refused"
            elif text:
                problem = ""
        names = ("promptTokenCount", "cachedContentTokenCount", "candidatesTokenCount")
        prompt, cached, completion = (int(usage.get(name) or 0) for name in names)
        return Reply(text, problem, str(body.get("modelVersion") or self.settings.model), prompt, cached, completion)

    def error_of(self, status: int, body: Any, headers: Mapping[str, str]) -> ServiceError:
        """Return the error of a status, with the reasons and the quotas that its details name."""
        details = [detail for detail in body["error"].get("details", []) if isinstance(detail, dict)]
        reasons = [str(detail["reason"]) for detail in details if "reason" in detail]
        quotas = [str(failed.get("quotaId")) for detail in details for failed in detail.get("violations", [])]
        delays = [str(detail["retryDelay"]) for detail in details if "retryDelay" in detail]  # "17s"
        after = seconds_of(delays[0].removesuffix("s")) if delays else retry_after(headers)
        stop = "API_KEY_INVALID" in reasons or any("PerDay" in quota for quota in quotas)  # a wrong key has status 400
        return error_of_status(status, " ".join([f"status {status}", *reasons, *quotas]), after, stop)
