"""The service of provider `openai`: OpenAI's chat completions, and servers that speak them (vLLM, Ollama, gateways)."""

from collections.abc import Mapping, Sequence
from typing import Any

from penumbra.tasks.negatives.providers.hosted import (
    WORD_TOKENS,
    Reply,
    Service,
    ServiceError,
    error_of_status,
    retry_after,
)
from penumbra.tasks.negatives.providers.questions import Question, letters, request_text
from penumbra.tasks.negatives.providers.settings import OpenAI

PUBLIC = "https://api.openai.com/v1"
COMPLETIONS = "/chat/completions"
# The least reasoning effort of each family of models that reason before they answer
REASONING_EFFORT = {"gpt-5.": "none", "gpt-6": "none", "gpt-5": "minimal", "o1": "low", "o3": "low", "o4": "low"}
REASONING_TOKENS = 2_000  # most tokens of the reasoning of models that always reason
OUT_OF_MONEY = "insufficient_quota"


class OpenAIService(Service):
    """A client of one server."""

    settings: OpenAI

    def endpoint(self, key: str) -> tuple[str, dict[str, str]]:
        """Return the URL and the headers of a request."""
        headers = {"Authorization": f"Bearer {self.key}", "Idempotency-Key": key}
        return f"{self.settings.address or PUBLIC}{COMPLETIONS}", headers

    def payload(self, questions: Sequence[Question]) -> dict[str, Any]:
        """Return the body of a chat completion."""
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

    def reply_of(self, body: Any) -> Reply:
        """Return a chat completion as a reply; raise one of `MALFORMED` if it is none."""
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

    def error_of(self, status: int, body: Any, headers: Mapping[str, str]) -> ServiceError:
        """Return the error of a status, with the code or the type of the body."""
        names = [(body.get("error") or body).get(name) for name in ("code", "type")]
        reason = f"status {status} {names[0] or names[1] or ''}".strip()
        return error_of_status(status, reason, retry_after(headers), stop=OUT_OF_MONEY in names)


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
