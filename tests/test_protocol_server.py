"""The stand-in server, asked by the real client libraries and by bare sockets."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from tests.protocol_server import ROOT, ProtocolServer
from tests.protocol_server.answers import answer, instance, slots_of
from tests.protocol_server.faults import Script
from tests.protocol_server.limits import Window, duration
from tests.protocol_server.openai import strict_problem

pytestmark = pytest.mark.slow

SLOTS = {"1a": ["closes", "washes", "holds"], "1b": ["cup", "table"]}
TEXT = "[1a opens: closes, washes, holds] the [1b door: cup, table]"
MESSAGES = [{"role": "system", "content": "Answer in JSON."}, {"role": "user", "content": TEXT}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {label: {"type": "string", "enum": options} for label, options in SLOTS.items()},
    "required": list(SLOTS),
    "additionalProperties": False,
}
STRICT = {"type": "json_schema", "json_schema": {"name": "fills", "strict": True, "schema": SCHEMA}}
JSON_MODE = {"type": "json_object"}


def shout(payload: dict[str, Any]) -> str:
    return f"ANSWER TO {payload['model'].upper()}"


@pytest.fixture(scope="module")
def shared() -> Iterator[ProtocolServer]:
    with ProtocolServer() as server:
        yield server


@pytest.fixture
def server(shared: ProtocolServer) -> ProtocolServer:
    shared.script()
    return shared


def client_of(server: ProtocolServer, **more: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.openai_url, api_key="sk-test", max_retries=0, **more)


def chat(server: ProtocolServer, form: dict[str, Any] = JSON_MODE, model: str = "gpt-4o-mini", **more: Any) -> Any:
    with client_of(server, **more) as client:
        return client.chat.completions.create(model=model, messages=MESSAGES, response_format=form)


def content_of(server: ProtocolServer, **fault: Any) -> Any:
    server.script(fault)
    return chat(server).choices[0].message.content


@pytest.mark.parametrize("form", [JSON_MODE, STRICT])
def test_openai_answers_with_one_of_the_options_for_every_slot(server: ProtocolServer, form: dict[str, Any]) -> None:
    done = chat(server, form)
    chosen = json.loads(done.choices[0].message.content)
    assert chosen.keys() == SLOTS.keys()
    assert all(word in SLOTS[label] for label, word in chosen.items())
    assert (done.object, done.model, done.choices[0].finish_reason) == ("chat.completion", "gpt-4o-mini", "stop")
    assert done.usage.prompt_tokens == -(-len("Answer in JSON.\n" + TEXT) // 4) == 19
    assert done._request_id.startswith("req_")


def test_the_same_question_gets_the_same_answer_and_another_seed_another() -> None:
    payloads = [{"messages": [{"role": "user", "content": f"[{n}a x: a, b, c, d]"}]} for n in range(50)]
    first = [answer(payload) for payload in payloads]
    assert first == [answer(payload) for payload in payloads]
    assert first != [answer(payload, seed=1) for payload in payloads]
    assert {next(iter(json.loads(text).values())) for text in first} == {"a", "b", "c", "d"}


def test_slots_are_read_from_the_last_message_only() -> None:
    example = {"role": "system", "content": "For instance [9z old: new, newer]."}
    assert slots_of({"messages": [example, {"role": "user", "content": TEXT}]}) == SLOTS


def test_a_schema_is_walked_whatever_it_holds() -> None:
    schema = {
        "$defs": {"word": {"enum": ["x", "y"]}, "tree": _tree()},
        "type": "object",
        "properties": {
            "words": {"type": "array", "minItems": 3, "items": _ref("word")},
            "count": {"type": "integer", "minimum": 5, "maximum": 6},
            "sure": {"type": ["boolean", "null"]},
            "tree": _ref("tree"),
            "gemini": {"type": 6, "properties": {"list": {"type": "ARRAY", "minItems": "2", "items": {"type": 1}}}},
            "fixed": {"const": 7},
        },
    }
    found = instance(schema, schema, "", 0)
    assert len(found["words"]) == 3
    assert set(found["words"]) <= {"x", "y"}
    assert found["count"] in {5, 6}
    assert isinstance(found["sure"], bool)
    assert len(found["gemini"]["list"]) == 2
    assert found["fixed"] == 7
    assert "null" in json.dumps(found["tree"])


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def _tree() -> dict[str, Any]:
    return {"properties": {"next": {"anyOf": [_ref("tree"), {"type": "null"}]}}, "required": ["next"]}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"additionalProperties": True}, "additionalProperties"),
        ({"required": ["1a"]}, "required"),
        ({"properties": {"1a": {"enum": [str(n) for n in range(1001)]}}, "required": ["1a"]}, "251|15000|1000"),
        ({"properties": {str(n): {"type": "string"} for n in range(5001)}}, "required"),
    ],
)
def test_schemas_that_openai_refuses_are_refused(server: ProtocolServer, change: dict[str, Any], part: str) -> None:
    assert strict_problem(SCHEMA) is None
    form = {"type": "json_schema", "json_schema": {"name": "fills", "strict": True, "schema": SCHEMA | change}}
    with pytest.raises(openai.BadRequestError, match=part):
        chat(server, form)


def test_what_old_models_and_json_mode_refuse(server: ProtocolServer) -> None:
    with pytest.raises(openai.BadRequestError, match="json_schema"):
        chat(server, STRICT, model="gpt-3.5-turbo")
    with pytest.raises(openai.BadRequestError, match="word 'json'"):
        client_of(server).chat.completions.create(
            model="gpt-3.5-turbo", messages=[{"role": "user", "content": TEXT}], response_format={"type": "json_object"}
        )


STATUSES = [
    (400, openai.BadRequestError),
    (401, openai.AuthenticationError),
    (403, openai.PermissionDeniedError),
    (404, openai.NotFoundError),
    (429, openai.RateLimitError),
    (500, openai.InternalServerError),
    (503, openai.InternalServerError),
]


@pytest.mark.parametrize(("status", "error"), STATUSES)
def test_a_status_on_demand(server: ProtocolServer, status: int, error: type[openai.APIStatusError]) -> None:
    server.script({"do": "status", "status": status, "code": "why", "headers": {"x-more": "1"}, "times": 1})
    with pytest.raises(error) as caught:
        chat(server)
    assert (caught.value.status_code, caught.value.code, caught.value.response.headers["x-more"]) == (
        status,
        "why",
        "1",
    )
    assert chat(server).choices


def test_429_in_its_four_forms(server: ProtocolServer) -> None:
    forms: list[dict[str, Any]] = [{}, {"retry_after": 7}, {"retry_after_ms": 70}]
    faults = [{"do": "status", "status": 429, "when": {"request": n}} | form for n, form in enumerate(forms, 1)]
    server.script(*faults, {"do": "quota"})
    seen = []
    for _ in range(4):
        with pytest.raises(openai.RateLimitError) as caught:
            chat(server)
        headers = caught.value.response.headers
        seen.append((headers.get("retry-after"), headers.get("retry-after-ms"), caught.value.code))
    assert seen == [(None, None, None), ("7", None, None), (None, "70", None), (None, None, "insufficient_quota")]


@pytest.mark.parametrize("kind", ["half", "close", "reset"])
def test_broken_connections(server: ProtocolServer, kind: str) -> None:
    server.script({"do": kind})
    with pytest.raises(openai.APIConnectionError):
        chat(server)
    assert server.requests()[-1]["outcome"] == kind


def test_a_reset_is_a_reset_and_half_a_body_is_half(server: ProtocolServer) -> None:
    server.script({"do": "reset", "when": {"request": 1}}, {"do": "half", "when": {"request": 2}})
    with pytest.raises(ConnectionResetError):
        raw(server, request_bytes())
    head, _, body = raw(server, request_bytes()).partition(b"\r\n\r\n")
    length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    assert 0 < len(body) < length


def test_a_hang_ends_with_the_clients_patience_and_leaves_nothing_in_flight(server: ProtocolServer) -> None:
    server.script({"do": "hang"})
    with pytest.raises(openai.APITimeoutError):
        chat(server, timeout=0.2)
    wait_for(lambda: server.stats()["in_flight"] == 0)
    last = server.requests()[-1]
    assert (last["outcome"], last["status"]) == ("hang", None)


def test_slow_is_slow(server: ProtocolServer) -> None:
    server.script({"do": "slow", "seconds": 0.4})
    started = time.monotonic()
    assert chat(server).choices
    assert time.monotonic() - started >= 0.4


def test_a_page_and_a_broken_body_with_status_200(server: ProtocolServer) -> None:
    server.script({"do": "html", "times": 1}, {"do": "body"})
    assert raw(server, request_bytes()).endswith(b"</html>")
    with pytest.raises(json.JSONDecodeError):
        json.loads(raw(server, request_bytes()).partition(b"\r\n\r\n")[2])


def test_wrong_words_missing_extra_and_double_slots(server: ProtocolServer) -> None:
    plain = json.loads(content_of(server, do="status", status=500, when={"request": 99}))
    assert json.loads(content_of(server, do="foreign")) == plain | {"1a": "xylophone"}
    assert json.loads(content_of(server, do="foreign", slot="1b", word="moon")) == plain | {"1b": "moon"}
    assert json.loads(content_of(server, do="missing")) == {"1b": plain["1b"]}
    assert json.loads(content_of(server, do="extra")) == plain | {"99z": "xylophone"}
    pairs = json.loads(content_of(server, do="duplicate"), object_pairs_hook=list)
    assert [label for label, _ in pairs] == ["1a", "1b", "1a"]
    assert pairs[0][1] != pairs[2][1]
    assert pairs[2][1] in SLOTS["1a"]


def test_wrong_slots_deep_in_a_schema(server: ProtocolServer) -> None:
    deep = {"type": "object", "properties": {"q1": SCHEMA}, "required": ["q1"], "additionalProperties": False}
    server.script({"do": "missing", "slot": "1b"})
    form = {"type": "json_schema", "json_schema": {"name": "fills", "strict": True, "schema": deep}}
    assert json.loads(chat(server, form).choices[0].message.content)["q1"].keys() == {"1a"}
    assert server.requests()[-1]["offered"] == {f"q1.{label}": options for label, options in SLOTS.items()}


def test_answers_that_are_no_json(server: ProtocolServer) -> None:
    for kind in ("prose", "fenced", "length", "long"):
        with pytest.raises(json.JSONDecodeError):
            json.loads(content_of(server, do=kind))
    assert len(content_of(server, do="long")) == 10_000
    assert content_of(server, do="answer", content="null") == "null"
    assert content_of(server, do="null") is None
    assert content_of(server, do="empty") == ""


def test_refusals_finish_reasons_no_choices_and_another_model(server: ProtocolServer) -> None:
    kinds = ["refusal", "length", "blocked", "no_choices", "model"]
    server.script(*[{"do": kind, "when": {"request": n}} for n, kind in enumerate(kinds, 1)])
    refused, cut, blocked, empty, other = (chat(server) for _ in kinds)
    assert refused.choices[0].message.refusal.startswith("I'm sorry")
    assert refused.choices[0].message.content is None
    assert cut.choices[0].finish_reason == "length"
    assert blocked.choices[0].finish_reason == "content_filter"
    assert empty.choices == []
    assert other.model == "another-model-0613"


def hits(when: dict[str, Any], count: int = 30, body: bytes = b"", path: str = "/x", **more: Any) -> list[int]:
    script = Script({"faults": [{"when": when, "do": "hang"} | more]})
    return [n for n in range(1, count + 1) if script.choose(path, "sk", body, is_model=path == "/x")]


def test_which_requests_a_fault_takes() -> None:
    assert hits({"request": 3}) == [3]
    assert hits({"request": [2, 5]}) == [2, 5]
    assert hits({"every": 7}) == [7, 14, 21, 28]
    assert hits({"first": 2}) == [1, 2]
    assert hits({"after": 28}) == [29, 30]
    assert hits({}, times=4) == [1, 2, 3, 4]
    assert hits({"every": 2, "after": 10}, times=2) == [12, 14]
    assert hits({"contains": "garage"}, body=b"no") == []
    assert len(hits({"contains": "garage"}, body=b"a garage")) == 30
    assert hits({"path": "/v1/files"}) == hits({}, path="/v1/files") == hits({"key": "other"}) == []
    assert hits({"path": "/v1/files", "first": 1}, path="/v1/files/f") == [1]
    chance = hits({"probability": 0.1, "seed": 1}, 2000)
    assert 150 < len(chance) < 250
    assert chance == hits({"probability": 0.1, "seed": 1}, 2000) != hits({"probability": 0.1, "seed": 2}, 2000)


def test_the_first_fault_wins_and_all_of_them_count() -> None:
    script = Script({"faults": [{"when": {"request": 1}, "do": "hang"}, {"when": {"request": 2}, "do": "reset"}]})
    chosen = [script.choose("/x", "", b"", is_model=True) for _ in range(3)]
    assert [fault.kind if fault else None for fault in chosen] == ["hang", "reset", None]


@pytest.mark.parametrize("fault", [{"do": "nonsense"}, {"do": "status"}, {"do": "hang", "when": {"evry": 2}}])
def test_a_script_that_means_nothing_is_refused(server: ProtocolServer, fault: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no such|needs"):
        server.script(fault)


def test_poison_is_found_in_the_request(server: ProtocolServer) -> None:
    server.script({"when": {"contains": "washes"}, "do": "status", "status": 400})
    with pytest.raises(openai.BadRequestError):
        chat(server)
    client_of(server).chat.completions.create(model="m", messages=[{"role": "user", "content": "other"}])


def test_the_log_and_the_counts() -> None:
    with ProtocolServer(log_text=True, script={"faults": [{"when": {"request": 2}, "do": "quota"}]}) as server:
        chat(server)
        with pytest.raises(openai.RateLimitError):
            chat(server)
        chat(server)
        first, second, third = server.requests()
        stats = server.stats()
        assert [line["status"] for line in (first, second, third)] == [200, 429, 200]
        assert [line["number"] for line in (first, second, third)] == [1, 2, 3]
        assert (first["key"], first["offered"], second["fault"]) == ("sk-test", SLOTS, "quota")
        assert first["text"].endswith(TEXT)
        assert first["payload"] == third["payload"]
        assert len(first["payload"]) == 64
        assert server.requests(status=429) == [second]
        assert (stats["requests"], stats["by_status"]) == (3, {"200": 2, "429": 1})
        assert stats["answered"] == {first["prompt"]: 2}
        assert stats["by_path"] == {"/v1/chat/completions": 3}


def test_a_killed_client_is_in_the_log_with_what_it_was_answered(server: ProtocolServer) -> None:
    before = len(server.requests())
    server.script({"do": "slow", "seconds": 60, "when": {"after": 1}})
    program = f"""
import openai
client = openai.OpenAI(base_url={server.openai_url!r}, api_key="sk-killed", max_retries=0)
for _ in range(2):
    client.chat.completions.create(model="m", messages=[{{"role": "user", "content": "hello"}}])
    print("answered", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "answered\n"
        wait_for(lambda: server.stats()["in_flight"] == 1)
        process.send_signal(signal.SIGKILL)
    wait_for(lambda: server.stats()["in_flight"] == 0)
    lines = server.requests(key="sk-killed")
    assert [(line["outcome"], line["status"]) for line in lines] == [("answered", 200), ("client closed", None)]
    assert len(server.requests()) == before + 2


def test_latency_and_the_most_in_flight() -> None:
    with ProtocolServer(latency=0.3) as server, ThreadPoolExecutor(8) as pool:
        started = time.monotonic()
        list(pool.map(lambda _: raw(server, request_bytes()), range(8)))
        assert 0.3 <= time.monotonic() - started < 1.5
        assert server.stats()["max_in_flight"] == 8
        assert max(line["max_in_flight"] for line in server.requests()) == 8


def test_too_many_in_flight_are_turned_away() -> None:
    with ProtocolServer(latency=0.5, max_in_flight=3) as server, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: raw(server, request_bytes()), range(8)))
        assert sum(text.startswith(b"HTTP/1.1 429") for text in answers) == 5
        assert len(server.requests(fault="limit on requests in flight")) == 5


def test_requests_and_tokens_a_minute_with_their_headers() -> None:
    limits = {"requests_per_minute": 3, "tokens_per_minute": 1000, "minute": 1.0, "announce_limits": True}
    with ProtocolServer(**limits) as server, client_of(server) as client:
        asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x" * 400}]}
        headers = [client.chat.completions.with_raw_response.create(**asked).headers for _ in range(3)]
        assert [found["x-ratelimit-remaining-requests"] for found in headers] == ["2", "1", "0"]
        assert [found["x-ratelimit-remaining-tokens"] for found in headers] == ["900", "800", "700"]
        assert headers[0]["x-ratelimit-limit-requests"] == "3"
        assert headers[0]["x-ratelimit-reset-requests"].endswith("s")
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(**asked)
        told = caught.value.response.headers
        assert (told["retry-after"], caught.value.code) == ("1", "rate_limit_exceeded")
        time.sleep(int(told["retry-after-ms"]) / 1000 + 0.01)
        assert client.chat.completions.create(**asked)
        assert server.stats()["most_in_a_minute"] == {"requests": 3, "tokens": 300}


def test_a_window_slides_and_a_duration_is_written_as_openai_does() -> None:
    window = Window(limit=10, span=60.0)
    for now in (0.0, 10.0):
        assert window.wait(now, 5) == 0
        window.add(now, 5)
    assert window.wait(20.0, 5) == 40
    assert window.wait(20.0, 6) == 50
    assert window.wait(61.0, 5) == 0
    assert [duration(t) for t in (0.0121, 1, 360, 3725)] == ["13ms", "1s", "6m0s", "1h2m5s"]


def test_keys_and_models_that_do_not_exist() -> None:
    with ProtocolServer(keys=["sk-good"], models=["m"]) as server:
        with pytest.raises(openai.AuthenticationError):
            chat(server)
        good = openai.OpenAI(base_url=server.openai_url, api_key="sk-good", max_retries=0)
        assert [model.id for model in good.models.list()] == ["m"]
        with pytest.raises(openai.NotFoundError):
            good.chat.completions.create(model="n", messages=[{"role": "user", "content": "x"}])


def test_another_function_can_answer() -> None:
    with ProtocolServer(answer="tests.test_protocol_server:shout") as server:
        assert chat(server).choices[0].message.content == "ANSWER TO GPT-4O-MINI"


def request_bytes(headers: str = "connection: close\r\n", body: bytes | None = None) -> bytes:
    body = json.dumps({"model": "m", "messages": MESSAGES}).encode() if body is None else body
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{headers}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def raw(server: ProtocolServer, data: bytes, pause: float = 0.0) -> bytes:
    """Send bytes, all at once or in pieces, and read to the end."""
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
        pieces = [data] if not pause else [data[n : n + 97] for n in range(0, len(data), 97)]
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(pause)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def wait_for(true: Any, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.01)


def test_requests_in_pieces_in_chunks_and_one_behind_the_other(server: ProtocolServer) -> None:
    assert raw(server, request_bytes(), pause=0.005).startswith(b"HTTP/1.1 200 OK")
    body = json.dumps({"model": "m", "messages": MESSAGES}).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:9], body[9:])) + b"0\r\n\r\n"
    head = b"POST /v1/chat/completions HTTP/1.1\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    assert raw(server, head + chunks, pause=0.005).startswith(b"HTTP/1.1 200 OK")
    assert raw(server, request_bytes("") + request_bytes("") + request_bytes()).count(b"HTTP/1.1 200 OK") == 3


def test_bytes_that_are_no_request(server: ProtocolServer) -> None:
    assert raw(server, b"\x16\x03\x01 nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert raw(server, request_bytes(body=b"{not json")).startswith(b"HTTP/1.1 400")
    for body in (b"[]", b'{"model": 1}', b'{"model": "m", "messages": [3]}', b'{"model": "m", "messages": "x"}'):
        assert raw(server, request_bytes(body=body)).startswith(b"HTTP/1.1 400"), body
    assert chat(server).choices


def test_the_program_says_where_it_listens_and_ends_with_its_parent() -> None:
    command = [sys.executable, "-m", "tests.protocol_server", "--port", "0", "--latency", "0.2", "--die-with-parent"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=dict(os.environ), stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline().startswith("listening on http://127.0.0.1:")
        process.stdin.close()
        assert process.wait(timeout=10) == 0


def test_it_serves_many_connections_at_once(server: ProtocolServer) -> None:
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(raw(server, request_bytes()))) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(text.startswith(b"HTTP/1.1 200") for text in results) == 100
