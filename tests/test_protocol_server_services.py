"""The stand-in server's Batch API, asked by `openai`, and its Gemini, asked by `google-generativeai`."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import requests
from google.api_core import exceptions

from tests.protocol_server import ProtocolServer
from tests.protocol_server.batches import read_lines

pytestmark = pytest.mark.slow

genai = pytest.importorskip("google.generativeai")
SLOTS = {"1a": ["closes", "washes", "holds"], "1b": ["cup", "table"]}
TEXT = "[1a opens: closes, washes, holds] the [1b door: cup, table]"
CHAT = "/v1/chat/completions"
STATUSES = [
    (400, exceptions.BadRequest),
    (403, exceptions.Forbidden),
    (404, exceptions.NotFound),
    (429, exceptions.TooManyRequests),
    (500, exceptions.InternalServerError),
    (503, exceptions.ServiceUnavailable),
]


@pytest.fixture
def server() -> Iterator[ProtocolServer]:
    with ProtocolServer(log_text=True) as server:
        yield server


@pytest.fixture
def client(server: ProtocolServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.openai_url, api_key="sk-test", max_retries=0)


def line(number: int, **more: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": f"{number}: {TEXT}"}]}
    return {"custom_id": f"row-{number}", "method": "POST", "url": CHAT, "body": body} | more


def submit(client: openai.OpenAI, lines: list[dict[str, Any]], **metadata: str) -> Any:
    content = "".join(json.dumps(row) + "\n" for row in lines).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    assert client.files.content(file.id).content == content
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata=metadata
    )


def rows(client: openai.OpenAI, file: str | None) -> dict[str, dict[str, Any]]:
    if file is None:
        return {}
    found = [json.loads(text) for text in client.files.content(file).text.splitlines()]
    return {row["custom_id"]: row for row in found}


def test_a_batch_goes_through_its_states_and_answers_every_line(server: ProtocolServer, client: openai.OpenAI) -> None:
    server.change(batch_polls=5)
    batch = submit(client, [line(n) for n in range(6)], job="x")
    states = [batch.status] + [client.batches.retrieve(batch.id).status for _ in range(5)]
    assert states == ["validating", "in_progress", "in_progress", "in_progress", "finalizing", "completed"]
    done = client.batches.retrieve(batch.id)
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (6, 6, 0)
    assert (done.metadata, done.error_file_id) == ({"job": "x"}, None)
    found = rows(client, done.output_file_id)
    assert found.keys() == {f"row-{n}" for n in range(6)}
    assert list(found) != sorted(found), "the output is in another order than the input"
    answers = [json.loads(row["response"]["body"]["choices"][0]["message"]["content"]) for row in found.values()]
    assert all(word in SLOTS[label] for chosen in answers for label, word in chosen.items())


def test_a_batch_that_expires_half_way(server: ProtocolServer, client: openai.OpenAI) -> None:
    server.change(batch_polls=1, batch_outcome="expired")
    done = client.batches.retrieve(submit(client, [line(n) for n in range(6)]).id)
    assert done.status == "expired"
    assert len(rows(client, done.output_file_id)) == 3
    missed = rows(client, done.error_file_id).values()
    assert [row["error"]["code"] for row in missed] == ["batch_expired"] * 3
    assert (done.request_counts.completed, done.request_counts.failed) == (3, 3)


def test_a_batch_that_fails_is_cancelled_or_takes_its_time(server: ProtocolServer, client: openai.OpenAI) -> None:
    server.change(batch_polls=1, batch_outcome="failed")
    failed = client.batches.retrieve(submit(client, [line(1)]).id)
    assert (failed.status, failed.errors.data[0].code) == ("failed", "token_limit_exceeded")
    server.change(batch_outcome="completed", batch_seconds=60.0)
    slow = submit(client, [line(1), line(2)])
    assert [client.batches.retrieve(slow.id).status for _ in range(3)] == ["in_progress"] * 3
    assert client.batches.cancel(slow.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError):
        client.batches.cancel(slow.id)


def test_a_line_of_a_batch_can_fail_or_be_spoilt(server: ProtocolServer, client: openai.OpenAI) -> None:
    path = f"batch:{CHAT}"
    server.change(batch_polls=1)
    server.script(
        {"when": {"path": path, "request": 1}, "do": "status", "status": 500},
        {"when": {"path": path, "request": 2}, "do": "refusal"},
    )
    done = client.batches.retrieve(submit(client, [line(n) for n in range(3)]).id)
    assert rows(client, done.error_file_id)["row-0"]["response"]["status_code"] == 500
    refused = rows(client, done.output_file_id)["row-1"]["response"]["body"]["choices"][0]["message"]
    assert (refused["content"], bool(refused["refusal"])) == (None, True)


def test_files_and_batches_misbehave_too(server: ProtocolServer, client: openai.OpenAI) -> None:
    server.script({"when": {"path": "/v1/batches"}, "do": "status", "status": 503, "times": 1})
    with pytest.raises(openai.InternalServerError):
        submit(client, [line(1)])
    server.script({"when": {"path": "/v1/batches"}, "do": "reset", "times": 1})
    with pytest.raises(openai.APIConnectionError):
        submit(client, [line(1)])
    assert len(list(client.batches.list())) == 1, "the connection broke after the batch was made"


def test_batches_are_listed_in_pages_and_unknown_ones_are_404(client: openai.OpenAI) -> None:
    made = [submit(client, [line(n)], number=str(n)).id for n in range(5)]
    page = client.batches.list(limit=2)
    assert ([batch.id for batch in page.data], page.has_more) == ([made[4], made[3]], True)
    assert [batch.id for batch in client.batches.list(limit=2)] == made[::-1]
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_none")
    with pytest.raises(openai.NotFoundError):
        client.files.content("file-none")


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([line(1), line(1)], "duplicate_custom_id"),
        ([line(1, url="/v1/embeddings")], "invalid_url"),
        ([line(1), line(2, body={"model": "n", "messages": []})], "mismatched_model"),
        ([{"nothing": 1}], "invalid_json_line"),
        ([], "invalid_file"),
    ],
)
def test_an_input_file_that_is_wrong_fails_its_batch(
    client: openai.OpenAI, lines: list[dict[str, Any]], code: str
) -> None:
    assert read_lines(b"".join(json.dumps(row).encode() + b"\n" for row in lines), CHAT)[1][0]["code"] == code
    batch = submit(client, lines)
    assert (batch.status, batch.errors.data[0].code) == ("failed", code)


SCHEMA = {
    "type": "object",
    "properties": {label: {"type": "string", "enum": options} for label, options in SLOTS.items()},
    "required": list(SLOTS),
}


def ask(server: ProtocolServer, timeout: float = 5.0, **config: Any) -> Any:
    genai.configure(api_key="AIza-test", transport="rest", client_options={"api_endpoint": server.url})
    config = {"response_mime_type": "application/json", "response_schema": SCHEMA} | config
    model = genai.GenerativeModel("gemini-2.0-flash", system_instruction="Answer.", generation_config=config)
    return model.generate_content(TEXT, request_options={"timeout": timeout, "retry": None})


def test_gemini_answers_by_the_schema(server: ProtocolServer) -> None:
    done = ask(server)
    chosen = json.loads(done.text)
    assert chosen.keys() == SLOTS.keys()
    assert all(word in SLOTS[label] for label, word in chosen.items())
    assert done.candidates[0].finish_reason.name == "STOP"
    assert (done.usage_metadata.prompt_token_count, done.to_dict()["model_version"]) == (17, "gemini-2.0-flash")
    asked = server.requests()[0]
    assert (asked["path"], asked["key"]) == ("/v1beta/models/gemini-2.0-flash:generateContent", "AIza-test")
    assert (asked["offered"], asked["text"]) == (SLOTS, f"Answer.\n{TEXT}")


@pytest.mark.parametrize(("status", "error"), STATUSES)
def test_gemini_statuses(server: ProtocolServer, status: int, error: type[Exception]) -> None:
    server.script({"do": "status", "status": status, "retry_delay": 17})
    with pytest.raises(error) as caught:
        ask(server)
    assert (caught.value.code, caught.value.details[0]["retryDelay"]) == (status, "17s")


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("hang", requests.exceptions.ReadTimeout),
        ("half", requests.exceptions.ChunkedEncodingError),
        ("close", requests.exceptions.ConnectionError),
        ("reset", requests.exceptions.ConnectionError),
    ],
)
def test_gemini_broken_connections(server: ProtocolServer, kind: str, error: type[Exception]) -> None:
    server.script({"do": kind})
    with pytest.raises(error):
        ask(server, timeout=0.5)


def test_gemini_refusals(server: ProtocolServer) -> None:
    kinds = ["refusal", "blocked", "no_choices", "length", "model"]
    server.script(*[{"do": kind, "when": {"request": n}} for n, kind in enumerate(kinds, 1)])
    refused, blocked, empty, cut, other = (ask(server) for _ in kinds)
    assert refused.candidates[0].finish_reason.name == "SAFETY"
    assert not refused.candidates[0].content.parts
    assert blocked.prompt_feedback.block_reason.name == "SAFETY"
    assert not blocked.candidates
    assert not empty.candidates
    assert not empty.prompt_feedback
    assert cut.candidates[0].finish_reason.name == "MAX_TOKENS"
    assert other.to_dict()["model_version"] == "another-model-0613"


def test_gemini_says_its_limits_in_the_body_and_a_wrong_key_is_a_bad_request(server: ProtocolServer) -> None:
    server.change(requests_per_minute=1)
    ask(server)
    with pytest.raises(exceptions.TooManyRequests) as caught:
        ask(server)
    delays = [detail["retryDelay"] for detail in caught.value.details if "retryDelay" in detail]
    assert 50 < float(delays[0].rstrip("s")) <= 60
    assert "retry-after" not in caught.value.response.headers
    server.change(keys=["AIza-good"], requests_per_minute=None)
    with pytest.raises(exceptions.BadRequest) as wrong:
        ask(server)
    assert wrong.value.details[0]["reason"] == "API_KEY_INVALID"


def test_gemini_wants_the_mime_type_with_the_schema(server: ProtocolServer) -> None:
    with pytest.raises(exceptions.BadRequest, match="response_mime_type"):
        ask(server, response_mime_type="text/plain")
