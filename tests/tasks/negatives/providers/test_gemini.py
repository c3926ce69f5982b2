"""The client with the real `google-generativeai` library against a stand-in server that misbehaves."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penumbra.tasks.negatives.providers import asking
from penumbra.tasks.negatives.providers.asking import FAILURES, OVER_BUDGET
from penumbra.tasks.negatives.providers.prices import Price
from penumbra.tasks.negatives.providers.questions import MOST_ATTEMPTS
from tests.protocol_server import ProtocolServer
from tests.talks import Talk, gemini_settings, lines_of, question, questions, tokens_of, well_said

pytestmark = pytest.mark.slow

PRICE = Price(input=10.0, output=100.0)
NO_LIMITS = {"latency": 0.0, "keys": None, "models": None, "requests_per_minute": None, "minute": 60.0}


@pytest.fixture(scope="module")
def running() -> Iterator[ProtocolServer]:
    with ProtocolServer(log_text=True) as server:
        yield server


@pytest.fixture
def server(running: ProtocolServer, monkeypatch: pytest.MonkeyPatch) -> ProtocolServer:
    """The stand-in as if just started, and pauses too short to wait for."""
    monkeypatch.setattr(asking, "FIRST_PAUSE", 0.002)
    monkeypatch.setattr(asking, "LONGEST_PAUSE", 0.01)
    monkeypatch.setenv("GEMINI_API_KEY", "AIza-test")
    running.change(**NO_LIMITS)
    running.script()
    Path(running.settings["log"]).write_text("")
    return running


@pytest.fixture
def talk(server: ProtocolServer, tmp_path: Path) -> Talk:
    return Talk(gemini_settings(server), tmp_path)


def other(talk: Talk, server: ProtocolServer, **settings: Any) -> Talk:
    """The same answers, asked for with other settings."""
    return Talk(gemini_settings(server, **settings), talk.answers.folder)


def asked_lines(server: ProtocolServer, **where: Any) -> Counter[str]:
    return Counter(line for request in server.requests(**where) for line in lines_of(request))


def test_every_question_is_answered_once_and_the_next_run_asks_nothing(server: ProtocolServer, talk: Talk) -> None:
    some = questions(30)
    client = talk.ask(some, queries_a_request=7)
    assert (client.stopped, client.statistics.done, client.statistics.asked_again, client.statistics.retries) == (
        "",
        30,
        0,
        0,
    )
    assert talk.open(some) == []
    assert set(asked_lines(server).values()) == {1}
    assert {request["key"] for request in server.requests()} == {"AIza-test"}
    assert all(request["path"].endswith("/gemini-2.5-flash:generateContent") for request in server.requests())
    sent = len(server.requests())
    assert other(talk, server, in_flight=9).ask(some, queries_a_request=3).statistics.sent == 0
    assert len(server.requests()) == sent


def test_the_words_are_those_that_the_model_said(server: ProtocolServer, talk: Talk) -> None:
    one = question(5)
    talk.ask([one])
    (request,) = server.requests()
    assert [len(letters) for letters in request["offered"].values()] == [8, 8, 8]
    chosen = json.loads(well_said(request))
    words = next(fill.words for fill in talk.fills([one]) if fill.level == 3)
    said = {place: one.options[place]["ABCDEFGH".index(chosen[str(n)])] for n, place in enumerate(one.open, 1)}
    assert words == tuple(said[place] for place in range(3))


def test_as_many_requests_as_the_setting_says_are_in_flight(server: ProtocolServer, talk: Talk) -> None:
    server.change(latency=0.15)
    other(talk, server, in_flight=13).ask(questions(40), queries_a_request=1)
    assert max(request["in_flight"] for request in server.requests()) == 13


@pytest.mark.parametrize(
    "fault",
    [
        {"do": "status", "status": 500},
        {"do": "status", "status": 502, "body": "<html>Bad Gateway</html>", "headers": {"content-type": "text/html"}},
        {"do": "status", "status": 503, "retry_delay": 0.02},
        {"do": "status", "status": 504},
        {"do": "half"},
        {"do": "reset"},
        {"do": "close"},
        {"do": "html"},
        {"do": "body"},
        {"do": "body", "body": ""},
        {"do": "body", "body": "null"},
        {"do": "body", "body": '{"candidates": [7]}'},
        {"do": "body", "body": '{"candidates": "none"}'},
        {"do": "hang"},
    ],
    ids=lambda fault: "-".join(str(value)[:12] for value in fault.values()),
)
def test_a_lost_request_goes_out_again_as_it_was(server: ProtocolServer, talk: Talk, fault: dict[str, Any]) -> None:
    server.script({**fault, "times": 2})
    talk = other(talk, server, timeout=0.4 if fault["do"] == "hang" else 10, in_flight=1)
    client = talk.ask(questions(4))
    assert talk.open(questions(4)) == []
    assert (client.statistics.retries, sum(client.statistics.faults.values()), client.statistics.requests) == (2, 2, 1)
    assert (client.statistics.limited, client.statistics.asked_again, client.stopped) == (0, 0, "")
    assert len({request["payload"] for request in server.requests()}) == 1
    assert len(server.requests()) == 3


@pytest.mark.parametrize(
    "body", ["[" * 200_000, '{"usageMetadata": {"promptTokenCount": 1e999}}'], ids=["deep", "1e999"]
)
def test_a_body_that_breaks_pythons_numbers_or_stack_is_a_lost_request(
    server: ProtocolServer, talk: Talk, body: str
) -> None:
    server.script({"do": "body", "body": body, "times": 1})
    assert talk.ask(questions(4)).statistics.retries == 1
    assert talk.open(questions(4)) == []


def test_a_limit_means_waiting_as_long_as_the_service_says(server: ProtocolServer, talk: Talk) -> None:
    server.script({"do": "status", "status": 429, "retry_delay": 0.4, "times": 1})
    client = other(talk, server, in_flight=1).ask(questions(8))
    first, *rest = server.requests()
    assert min(request["time"] for request in rest) >= first["time"] + 0.39
    assert (client.statistics.limited, client.statistics.retries, dict(client.statistics.faults)) == (1, 0, {})
    assert talk.open(questions(8)) == []


def test_a_limit_never_fails_however_often_it_is_hit(server: ProtocolServer, talk: Talk) -> None:
    server.script({"do": "status", "status": 429, "times": 8 * FAILURES})
    client = talk.ask(questions(8))
    assert talk.open(questions(8)) == []
    assert (client.statistics.limited, client.statistics.retries) == (8 * FAILURES, 0)


def test_a_limit_that_no_setting_names_is_kept_without_failures(server: ProtocolServer, talk: Talk) -> None:
    server.change(requests_per_minute=20, minute=0.5)
    client = other(talk, server, in_flight=8).ask(questions(50), queries_a_request=1)
    assert talk.open(questions(50)) == []
    assert (client.statistics.retries, dict(client.statistics.faults), client.stopped) == (0, {}, "")
    assert client.statistics.sent == 50 + client.statistics.limited == len(server.requests())


@pytest.mark.parametrize(
    ("kind", "problem", "again"),
    [
        ("foreign", "word was not on offer", 1),
        ("missing", "answer lacks a slot", 1),
        ("duplicate", "answer lacks a slot", 1),
        ("prose", "answer is no JSON object with words", 3),
        ("long", "answer is no JSON object with words", 3),
        ("length", "answer was cut off", 3),
        ("null", "answer is empty", 3),
        ("empty", "answer is empty", 3),
        ("no_choices", "answer is empty", 3),
        ("refusal", "model refused", 3),
        ("blocked", "model refused", 3),
    ],
)
def test_a_wrong_answer_is_asked_for_again_and_only_what_was_wrong(
    server: ProtocolServer, talk: Talk, kind: str, problem: str, again: int
) -> None:
    one = question(7)
    server.script({"do": kind, "times": 1, **({"slot": "2"} if again == 1 else {})})
    client = talk.ask([one])
    assert talk.problems(one) == [problem, ""]
    assert (client.statistics.asked_again, client.statistics.retries, client.statistics.requests) == (1, 0, 2)
    assert [len(request["offered"]) for request in server.requests()] == [3, again]
    assert {fill.level for fill in talk.fills([one]) if not fill.problem} == {1, 2, 3}


@pytest.mark.parametrize("kind", ["extra", "fenced"])
def test_a_right_answer_with_something_more_is_right(server: ProtocolServer, talk: Talk, kind: str) -> None:
    server.script({"do": kind})
    client = talk.ask(questions(4))
    assert (talk.open(questions(4)), client.statistics.requests) == ([], 1)


def test_another_models_name_is_what_the_rows_say(server: ProtocolServer, talk: Talk) -> None:
    server.script({"do": "model", "model": "gemini-rerouted", "when": {"request": 2}})
    client = talk.ask(questions(8))
    assert client.statistics.models == {"gemini-2.5-flash": 1, "gemini-rerouted": 1}
    assert {fill.model for fill in talk.fills(questions(8))} == {"gemini-2.5-flash", "gemini-rerouted"}


def test_a_model_that_always_refuses_is_asked_three_times_and_no_more(server: ProtocolServer, talk: Talk) -> None:
    server.script({"do": "blocked"})
    client = talk.ask(questions(8))
    assert set(asked_lines(server).values()) == {MOST_ATTEMPTS}
    assert (client.statistics.done, talk.ask(questions(8)).statistics.sent) == (8, 0)


@pytest.mark.parametrize("poisoned", [0, 5])
def test_a_refused_query_is_isolated_and_nothing_else_is_lost(
    server: ProtocolServer, talk: Talk, poisoned: int
) -> None:
    some = questions(24)
    server.script({"do": "status", "status": 400, "when": {"contains": f"room {poisoned}."}})
    client = other(talk, server, in_flight=1).ask(some, queries_a_request=12)
    assert client.stopped == ""
    assert [talk.problems(one) for one in some if one is not some[poisoned]] == [[""]] * 23
    assert talk.problems(some[poisoned])[0].startswith("request refused: status 400")
    assert set(asked_lines(server, status=200).values()) == {1}
    assert talk.ask(some).statistics.sent == 0


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_service_that_will_take_nothing_is_left_alone_at_once(
    server: ProtocolServer, talk: Talk, status: int
) -> None:
    server.script({"do": "status", "status": status})
    client = talk.ask(questions(40))
    assert client.stopped.startswith(f"status {status}")
    assert client.statistics.sent <= talk.settings.in_flight
    assert len(talk.open(questions(40))) == 40


def test_a_wrong_key_is_no_refused_query_though_gemini_says_400(server: ProtocolServer, talk: Talk) -> None:
    server.change(keys=["AIza-right"])
    client = talk.ask(questions(40))
    assert client.stopped == "status 400 API_KEY_INVALID"
    assert client.statistics.sent <= talk.settings.in_flight
    server.change(keys=None)
    talk.ask(questions(40))
    assert talk.open(questions(40)) == []


def test_a_quota_that_is_spent_for_the_day_ends_the_asking(server: ProtocolServer, talk: Talk) -> None:
    server.script({"do": "quota"})
    assert talk.ask(questions(8), within=1.5).stopped.startswith("status 429")


def test_a_service_that_only_fails_is_left_alone(server: ProtocolServer, talk: Talk) -> None:
    server.script({"do": "status", "status": 503})
    client = other(talk, server, in_flight=3).ask(questions(200))
    assert client.stopped.startswith("nothing but failures, the last: status 503")
    assert FAILURES * 3 <= client.statistics.sent <= FAILURES * 3 + 3


def test_tokens_and_money_of_the_rows_are_what_the_server_counted(server: ProtocolServer, talk: Talk) -> None:
    some = questions(30)
    server.script({"do": "null", "when": {"every": 4}}, {"do": "status", "status": 500, "when": {"every": 5}})
    talk = other(talk, server, price=PRICE)
    client = talk.ask(some)
    assert talk.open(some) == []
    prompt, completion = tokens_of(server.requests(status=200), {"null": 0})
    fills = talk.fills(some)
    assert sum(fill.prompt_tokens for fill in fills) == prompt == client.statistics.prompt_tokens
    assert sum(fill.completion_tokens for fill in fills) == completion == client.statistics.completion_tokens
    assert sum(fill.cost_usd for fill in fills) == pytest.approx(PRICE.cost(prompt, completion))
    assert client.statistics.retries == len(server.requests(status=500))


def test_the_budget_stops_in_time_and_the_next_run_goes_on(server: ProtocolServer, talk: Talk) -> None:
    some, limit = questions(40), 0.06
    talk = other(talk, server, price=PRICE, in_flight=1)
    for _ in range(10):
        client = talk.ask(some, limit=limit)
        assert client.statistics.cost_usd <= limit
        assert (client.stopped == OVER_BUDGET) == bool(talk.open(some))
    assert talk.open(some) == []
    assert set(asked_lines(server).values()) == {1}


def test_the_schema_is_sent_as_enums_and_a_temperature_is_passed_on(server: ProtocolServer, talk: Talk) -> None:
    service = other(talk, server, temperature=0.3).client().service
    body = service.payload([question(1), question(2, offered=2)])
    form = body["generation_config"]["response_schema"]
    assert form["required"] == ["1", "2", "3", "4", "5", "6"]
    assert form["properties"]["4"] == {"type": "STRING", "format": "enum", "enum": ["A", "B"]}
    assert body["generation_config"]["temperature"] == 0.3


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_with_key_or_prompt(server: ProtocolServer, talk: Talk, status: int) -> None:
    with ProtocolServer() as elsewhere:
        location = f"{elsewhere.url}/v1beta/models/gemini-2.5-flash:generateContent"
        server.script({"do": "status", "status": status, "headers": {"location": location}})
        client = talk.ask(questions(8))
        assert elsewhere.requests() == []
    assert client.stopped.startswith(f"status {status}: redirects are not followed")
    assert client.statistics.sent <= talk.settings.in_flight


@pytest.mark.parametrize("fault", ["half", "close", "reset", "html", "body", "hang"])
def test_a_lost_answer_is_booked_at_its_most_and_the_limit_holds(
    server: ProtocolServer, talk: Talk, fault: str
) -> None:
    server.script({"do": fault, "when": {"every": 2}})
    talk = other(talk, server, price=PRICE, timeout=0.4 if fault == "hang" else 10)
    client = talk.ask(questions(80), limit=0.15)
    assert client.stopped == OVER_BUDGET
    assert client.statistics.cost_usd < PRICE.cost(*server.charged()) <= client.budget.account["spent"] <= 0.15


def test_a_server_that_is_not_there_costs_nothing(server: ProtocolServer, talk: Talk) -> None:
    client = other(talk, server, price=PRICE, base_url="http://127.0.0.1:9").ask(questions(40), limit=1.0)
    assert client.stopped == "nothing but failures, the last: ConnectionError"
    assert (client.budget.account["spent"], client.statistics.lost_usd) == (0.0, 0.0)


@pytest.mark.parametrize("said", [float("inf"), 1e9])
def test_nobody_waits_longer_than_the_setting_whatever_the_service_says(
    server: ProtocolServer, talk: Talk, said: float
) -> None:
    server.script({"do": "status", "status": 429, "retry_after": said, "times": 1})
    other(talk, server, longest_wait=0.3, in_flight=1).ask(questions(4), within=10)
    first, second = server.requests()
    assert second["time"] >= first["time"] + 0.29


@pytest.mark.parametrize("said", ["infs", "nans", "1e9s", "-3s", "soon"])
def test_a_delay_in_an_errors_details_is_bounded_too(server: ProtocolServer, talk: Talk, said: str) -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": said}]
    body = json.dumps({"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": details}})
    server.script({"do": "status", "status": 429, "body": body, "times": 1})
    other(talk, server, longest_wait=0.3, in_flight=1).ask(questions(4), within=10)
    assert talk.open(questions(4)) == []
