"""OpenAI's chat completions: what is refused, what an answer and an error look like."""

import json
import math
import time
from typing import Any
from uuid import uuid4

from tests.protocol_server.answers import resolve, text_of, texts_of, type_of
from tests.protocol_server.faults import Answer

CHAT = "/v1/chat/completions"
MODELS = ["gpt-3.5-turbo-0125", "gpt-4o-mini-2024-07-18", "gpt-4.1-nano-2025-04-14"]
NO_SCHEMAS = ("gpt-3.5", "gpt-4-", "gpt-4o-2024-05-13")  # models that refuse response_format json_schema
FINISH = {"stop": "stop", "length": "length", "safety": "stop", "blocked": "content_filter"}
KINDS = {401: "authentication_error", 403: "permission_error", 429: "requests", 500: "server_error"}
MOST_PROPERTIES, MOST_ENUMS, MOST_DEPTH, MOST_TEXT = 5000, 1000, 10, 120_000  # of a strict schema


class OpenAI:
    """The service behind `POST /v1/chat/completions`."""

    name = "openai"

    def key(self, headers: dict[str, str]) -> str:
        return headers.get("authorization", "").removeprefix("Bearer ")

    def check(self, payload: Any, models: list[str] | None) -> tuple[int, str, str | None] | None:
        """Status, message and code if the real service would refuse this payload."""
        if not isinstance(payload, dict):
            return 400, "We could not parse the JSON body of your request.", None
        for name, kind in (("model", str), ("messages", list)):
            if not isinstance(payload.get(name), kind) or not payload[name]:
                return 400, f"Missing required parameter: '{name}'.", "missing_required_parameter"
        if not all(isinstance(message, dict) for message in payload["messages"]):
            return 400, "Invalid type for 'messages[0]': expected an object.", "invalid_type"
        if models is not None and payload["model"] not in models:
            return (
                404,
                f"The model `{payload['model']}` does not exist or you do not have access to it.",
                "model_not_found",
            )
        if payload.get("stream"):
            return 400, "This stand-in does not stream.", "unsupported_value"
        return self._check_format(payload)

    def bad_key(self) -> tuple[int, dict[str, Any]]:
        return 401, self.error(401, "Incorrect API key provided.", code="invalid_api_key", kind="invalid_request_error")

    def _check_format(self, payload: dict[str, Any]) -> tuple[int, str, str | None] | None:
        wanted = (payload.get("response_format") or {}).get("type", "text")
        if wanted == "json_object" and "json" not in text_of(payload).lower():
            need = "'messages' must contain the word 'json' in some form"
            return 400, f"{need}, to use 'response_format' of type 'json_object'.", None
        if wanted != "json_schema":
            return None
        if payload["model"].startswith(NO_SCHEMAS) or payload["model"] == "gpt-4":
            message = "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."
            return 400, message, None
        asked = payload["response_format"].get("json_schema") or {}
        if not isinstance(asked.get("name"), str) or not isinstance(asked.get("schema"), dict):
            return 400, "Missing required parameter: 'response_format.json_schema.name'.", "missing_required_parameter"
        problem = strict_problem(asked["schema"]) if asked.get("strict") else None
        return (400, f"Invalid schema for response_format '{asked['name']}': {problem}", None) if problem else None

    def completion(self, payload: dict[str, Any], answer: Answer) -> dict[str, Any]:
        """The body of a 200."""
        prompt, said = tokens(text_of(payload)), tokens(answer.content or answer.refusal or "")
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.content,
            "refusal": answer.refusal,
            "annotations": [],
        }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": FINISH[answer.finish]}
        return {
            "id": f"chatcmpl-{uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": answer.model or payload["model"],
            "choices": [choice] if answer.choices else [],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": said,
                "total_tokens": prompt + said,
                "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
            },
            "service_tier": "default",
            "system_fingerprint": "fp_standin",
        }

    def error(self, status: int, message: str, code: str | None = None, kind: str | None = None) -> dict[str, Any]:
        """The body of an error."""
        kind = kind or ("server_error" if status >= 500 else KINDS.get(status, "invalid_request_error"))
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}

    def quota(self) -> dict[str, Any]:
        message = "You exceeded your current quota, please check your plan and billing details."
        return self.error(429, message, code="insufficient_quota", kind="insufficient_quota")

    def limited(self, limit: str, wait: float) -> tuple[dict[str, Any], dict[str, str]]:
        """Body and headers of a 429 for a limit that is over in `wait` seconds."""
        message = f"Rate limit reached on {limit} per min. Please try again in {wait:.3f}s."
        headers = {"retry-after": str(math.ceil(wait)), "retry-after-ms": str(math.ceil(wait * 1000))}
        return self.error(429, message, code="rate_limit_exceeded", kind=limit), headers

    def charged(self, body: dict[str, Any]) -> list[int]:
        """Tokens of the prompt and of the answer in a 200."""
        return [body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]]

    def prompt_tokens(self, payload: dict[str, Any]) -> int:
        return sum(tokens(text) for text in texts_of(payload))


def tokens(text: str) -> int:
    """The rule of this stand-in: four characters a token."""
    return math.ceil(len(text) / 4)


def models_list(models: list[str] | None) -> dict[str, Any]:
    """The body of `GET /v1/models`."""
    rows = [{"id": name, "object": "model", "created": 1700000000, "owned_by": "openai"} for name in models or MODELS]
    return {"object": "list", "data": rows}


def strict_problem(schema: dict[str, Any]) -> str | None:
    """Why structured outputs would refuse a schema, by the rules that OpenAI publishes."""
    sizes = {"properties": 0, "enums": 0, "text": 0}
    problem = None if type_of(schema) == "object" else "schema must be a JSON Schema of 'type: \"object\"'."
    return problem or _strict(schema, schema, sizes, 1) or _too_big(sizes)


def _strict(schema: dict[str, Any], root: dict[str, Any], sizes: dict[str, int], depth: int) -> str | None:
    """Every object closed and every property required; sizes are added up on the way."""
    if "$ref" in schema:
        return None if depth > MOST_DEPTH else _strict_definition(schema, root)
    if depth > MOST_DEPTH:
        return f"{depth} levels of nesting exceeds limit of {MOST_DEPTH}."
    values = schema.get("enum", [])
    sizes["enums"] += len(values)
    sizes["text"] += sum(len(str(value)) for value in values)
    if len(values) > 250 and sum(len(str(value)) for value in values) > 15_000:
        return "an enum of more than 250 values may have at most 15000 characters."
    properties = schema.get("properties", {})
    if type_of(schema) == "object" and "anyOf" not in schema:
        if schema.get("additionalProperties") is not False:
            return "'additionalProperties' is required to be supplied and to be false."
        if set(schema.get("required", ())) != set(properties):
            return "'required' is required to be supplied and to be an array including every key in properties."
    sizes["properties"] += len(properties)
    sizes["text"] += sum(map(len, properties))
    inner = [*properties.values(), *schema.get("anyOf", []), *schema.get("$defs", {}).values()]
    inner += [schema["items"]] if isinstance(schema.get("items"), dict) else []
    return next((found for part in inner if (found := _strict(part, root, sizes, depth + 1))), None)


def _strict_definition(schema: dict[str, Any], root: dict[str, Any]) -> str | None:
    try:
        resolve(schema, root)
    except KeyError:
        return f"reference to component {json.dumps(schema['$ref'])} which was not found."
    return None


def _too_big(sizes: dict[str, int]) -> str | None:
    if sizes["properties"] > MOST_PROPERTIES:
        return f"{sizes['properties']} object properties exceed the limit of {MOST_PROPERTIES}."
    if sizes["enums"] > MOST_ENUMS:
        return f"{sizes['enums']} enum values exceed the limit of {MOST_ENUMS}."
    if sizes["text"] > MOST_TEXT:
        return f"{sizes['text']} characters of names and values exceed the limit of {MOST_TEXT}."
    return None
