"""The protocols of OpenAI's chat completions and of Gemini's `generateContent` over REST.

google-generativeai writes enums as numbers (`"type": 6` is OBJECT) and asks for numbers back.
"""

import json
import math
import re
import zlib
from typing import Any
from uuid import uuid4

from tests.protocol_server.faults import Answer

SLOT = re.compile(r"\[(\d+) ([^:\[\]]+): ([^\[\]]+)\]")  # [3 opens: A closes B holds]
LETTER = re.compile(r"(?:^| )([A-Z]) \S+")
OUT_OF_QUOTA = "You exceeded your current quota, please check your plan and billing details."


def tokens(text: str) -> int:
    """Return the number of tokens of a text; this stand-in counts four characters a token."""
    return math.ceil(len(text) / 4)


def pick(options: list[str], number: str) -> str:
    """Return one of the options, always the same for the same slot and options."""
    return options[(zlib.crc32(f"0\0{number}\0{options}".encode()) * 2654435761 >> 16) % len(options)]


def well_said(offered: dict[str, list[str]]) -> str:
    return json.dumps({number: pick(options, number) for number, options in offered.items()})


class OpenAI:
    """The service behind `POST /v1/chat/completions`."""

    def key(self, headers: Any) -> str:
        return str(headers.get("authorization", "")).removeprefix("Bearer ")

    def text(self, payload: dict[str, Any]) -> str:
        return "\n".join(message["content"] for message in payload["messages"])

    def offered(self, payload: dict[str, Any]) -> dict[str, list[str]]:
        """Return the letters of each slot, from the schema or, in JSON mode, from the text."""
        form = payload.get("response_format", {})
        if form.get("type") == "json_schema":
            schema = form["json_schema"]["schema"]
            references = {number: part["$ref"].split("/")[-1] for number, part in schema["properties"].items()}
            return {number: schema["$defs"][name]["enum"] for number, name in references.items()}
        return {number: LETTER.findall(options) for number, _, options in SLOT.findall(self.text(payload))}

    def problem(self, payload: dict[str, Any]) -> str:
        """Return why the real service would refuse this payload, or ''."""
        form = payload.get("response_format", {})
        if form.get("type") == "json_object":
            return "" if "json" in self.text(payload).lower() else "the messages must contain the word json"
        if payload["model"].startswith(("gpt-3.5", "gpt-4-")):
            return "'response_format' of type 'json_schema' is not supported with this model."
        schema = form["json_schema"]["schema"]
        is_strict = schema["additionalProperties"] is False and set(schema["required"]) == set(schema["properties"])
        return "" if is_strict and schema["type"] == "object" else "Invalid schema for response_format"

    def completion(self, payload: dict[str, Any], answer: Answer) -> tuple[dict[str, Any], list[int]]:
        """Return the body of a 200, and the tokens that are charged."""
        charged = [tokens(self.text(payload)), tokens(answer.content or answer.refusal or "")]
        finish = {"safety": "stop", "blocked": "content_filter"}.get(answer.finish, answer.finish)
        message = {"role": "assistant", "content": answer.content, "refusal": answer.refusal}
        choices = [{"index": 0, "message": message, "finish_reason": finish}] if answer.choices else []
        usage = {"prompt_tokens": charged[0], "completion_tokens": charged[1], "total_tokens": sum(charged)}
        body = {"id": uuid4().hex, "object": "chat.completion", "created": 0, "choices": choices, "usage": usage}
        return body | {"model": answer.model or payload["model"]}, charged

    def error(self, status: int, message: str, code: str | None = None) -> dict[str, Any]:
        kind = "server_error" if status >= 500 else "invalid_request_error"
        return {"error": {"message": message, "type": code if status == 429 else kind, "param": None, "code": code}}

    def bad_key(self) -> tuple[int, dict[str, Any]]:
        return 401, self.error(401, "Incorrect API key provided.", "invalid_api_key")

    def quota(self) -> dict[str, Any]:
        return self.error(429, OUT_OF_QUOTA, "insufficient_quota")


class Gemini:
    """The service behind `POST /v1beta/models/MODEL:generateContent`."""

    def __init__(self, model: str) -> None:
        self.model = model

    def key(self, headers: Any) -> str:
        return str(headers.get("x-goog-api-key", ""))

    def text(self, payload: dict[str, Any]) -> str:
        contents = [*filter(None, [payload.get("systemInstruction")]), *payload["contents"]]
        return "\n".join(part["text"] for content in contents for part in content["parts"])

    def offered(self, payload: dict[str, Any]) -> dict[str, list[str]]:
        """Return the letters of each slot."""
        properties = payload["generationConfig"]["responseSchema"]["properties"]
        return {number: properties[number]["enum"] for number in sorted(properties, key=int)}

    def problem(self, payload: dict[str, Any]) -> str:
        """Return why the real service would refuse this payload, or ''."""
        is_json = payload["generationConfig"]["responseMimeType"] == "application/json"
        return "" if is_json else "response_mime_type must be 'application/json' when response_schema is set"

    def completion(self, payload: dict[str, Any], answer: Answer) -> tuple[dict[str, Any], list[int]]:
        """Return the body of a 200, and the tokens that are charged."""
        charged = [tokens(self.text(payload)), tokens(answer.content or "")]
        usage = {"promptTokenCount": charged[0], "candidatesTokenCount": charged[1], "totalTokenCount": sum(charged)}
        body: dict[str, Any] = {"usageMetadata": usage, "modelVersion": answer.model or self.model}
        if answer.finish == "blocked":
            return body | {"promptFeedback": {"blockReason": 1}}, charged
        candidate: dict[str, Any] = {"finishReason": {"stop": 1, "length": 2, "safety": 3}[answer.finish], "index": 0}
        if answer.content is not None:
            candidate["content"] = {"parts": [{"text": answer.content}], "role": "model"}
        return body | ({"candidates": [candidate]} if answer.choices else {}), charged

    def error(self, status: int, message: str, code: str | None = None) -> dict[str, Any]:
        return {"error": {"code": status, "message": message, "status": code or "UNKNOWN"}}

    def bad_key(self) -> tuple[int, dict[str, Any]]:
        """Return status and body: Gemini calls a wrong key an invalid argument."""
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID", "domain": "g"}
        return 400, self._detailed(400, "API key not valid. Please pass a valid API key.", info)

    def quota(self) -> dict[str, Any]:
        violations = [{"quotaMetric": "requests", "quotaId": "GenerateRequestsPerDayPerProject"}]
        failure = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": violations}
        return self._detailed(429, OUT_OF_QUOTA, failure)

    def _detailed(self, status: int, message: str, detail: dict[str, Any]) -> dict[str, Any]:
        body = self.error(status, message)
        body["error"]["details"] = [detail]
        return body


def retry_info(seconds: float) -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{math.ceil(seconds * 1000) / 1000:g}s"}
