"""The client with the real `openai` and `google-generativeai` libraries against a stand-in that misbehaves."""

import json
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives.providers import client as client_module
from penumbra.tasks.negatives.providers import hosted
from penumbra.tasks.negatives.providers.client import FAILURES, OVER_BUDGET, TRANSPORT_RETRIES
from penumbra.tasks.negatives.providers.questions import MOST_ATTEMPTS, Question
from penumbra.tasks.negatives.providers.settings import Price
from tests.hosted import PRICE, Session, asked_lines, lines_of, masked, question, questions
from tests.protocol_server import ProtocolServer, well_said

pytestmark = pytest.mark.slow

COST = Price(**PRICE)
FAULTS: list[dict[str, Any]] = [
    {"do": "status", "status": 500},
    {"do": "status", "status": 502, "body": "<html>Bad Gateway</html>", "headers": {"content-type": "text/html"}},
    {"do": "status", "status": 503, "retry_after_ms": 20},
    {"do": "half"},
    {"do": "reset"},
    {"do": "close"},
    {"do": "html"},
    {"do": "body"},
    {"do": "body", "body": '{"choices": [7], "candidates": [7], "model": "m"}'},
    {"do": "body", "body": "[" * 200_000},
    {"do": "hang"},
    {"do": "drip"},
    {"do": "gzip"},
]


@pytest.fixture(params=["openai", "gemini"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def session(name: str, server: ProtocolServer, tmp_path: Path) -> Session:
    return Session(name, server, tmp_path)


@pytest.fixture
def openai(server: ProtocolServer, tmp_path: Path) -> Session:
    return Session("openai", server, tmp_path)


def other(session: Session, **settings: Any) -> Session:
    """Return a session with the same answers and other parameters."""
    return Session(session.settings.provider, session.server, session.answers.folder, **settings)


def charged(server: ProtocolServer) -> float:
    """Return the USD that the stand-in has charged, for lost answers too."""
    return COST.cost(*server.charged())


def test_every_question_is_asked_once_and_its_words_are_the_models(session: Session) -> None:
    asked = questions(30)
    client = session.ask(asked, queries_a_request=7)
    assert client.stopped == ""
    assert set(asked_lines(session.server).values()) == {1}
    letters = {}
    for request in session.server.requests():
        chosen = json.loads(well_said(request["offered"]))
        for number, line in enumerate(lines_of(request)):
            letters[line] = [chosen[str(3 * number + slot)] for slot in (1, 2, 3)]
    for one in asked:
        filled = next(fill for fill in session.fills([one]) if fill.level == 3)
        for index, letter in zip(one.open, letters[one.text()], strict=True):
            assert filled.words[index] == one.options[index]["ABCDEFGH".index(letter)]


def test_a_known_answer_is_not_asked_for_again_whatever_the_settings(session: Session) -> None:
    session.ask(questions(20))
    sent = len(session.server.requests())
    again = other(session, requests_a_minute=9_999, price=None)
    again.ask(questions(20), queries_a_request=9)
    assert len(session.server.requests()) == sent
    again.ask(questions(23), queries_a_request=9)
    assert len(session.server.requests()) == sent + 1
    assert set(asked_lines(session.server).values()) == {1}


def test_the_key_is_sent_and_another_models_name_is_in_the_rows(session: Session) -> None:
    session.server.script({"do": "model", "model": "rerouted", "when": {"request": 2}})
    client = session.ask(questions(8))
    assert {request["key"] for request in session.server.requests()} <= {"sk-test", "AIza-test"}
    assert client.models == {session.settings.model: 1, "rerouted": 1}
    assert {fill.model for fill in session.fills(questions(8))} == {session.settings.model, "rerouted"}


def test_the_same_question_of_several_queries_is_asked_and_paid_once(openai: Session) -> None:
    text, options = "person opens|verb the blue|adjective door|noun.", question(0).options
    twins = [Question(masked(f"twin{number}", text), options, 0) for number in range(6)]
    client = openai.ask(twins, queries_a_request=1)
    assert client.done == 6
    assert sum(fill.prompt_tokens for fill in openai.fills(twins)) == openai.server.charged()[0]
    assert asked_lines(openai.server) == {twins[0].text(): 1}


@pytest.mark.parametrize(
    ("kind", "problem", "open_slots"),
    [
        ("foreign", "word was not on offer", 1),
        ("missing", "answer lacks a slot", 1),
        ("prose", "answer is no JSON object with words", 3),
        ("length", "answer was cut off", 3),
        ("null", "answer is empty", 3),
        ("no_choices", "answer is empty", 3),
        ("refusal", "model refused", 3),
        ("blocked", "model refused", 3),
    ],
)
def test_a_wrong_part_is_asked_again(session: Session, kind: str, problem: str, open_slots: int) -> None:
    one = question(7)
    session.server.script({"do": kind, "times": 1, **({"slot": "2"} if open_slots == 1 else {})})
    session.ask([one])
    assert session.problems(one) == [problem, ""]
    first, second = session.server.requests()
    assert len(second["offered"]) == open_slots
    if open_slots == 1:
        verb = one.options[0]["ABCDEFGH".index(json.loads(well_said(first["offered"]))["1"])]
        assert lines_of(second)[0].startswith(f"person {verb} the "), "a valid word is written into the text"
    assert {fill.level for fill in session.fills([one]) if not fill.problem} == {1, 2, 3}


def test_a_model_that_never_answers_rightly_is_asked_three_times(session: Session) -> None:
    session.server.script({"do": "refusal"})
    client = session.ask(questions(8))
    sizes = Counter(len(lines_of(request)) for request in session.server.requests())
    assert sizes == {4: 2, 2: 4, 1: 8}, "in requests of half the size, then alone"
    assert client.done == 8
    rows = session.fills(questions(1))
    assert [(fill.attempts, fill.problem) for fill in rows if fill.level == 1] == [
        (attempt, "model refused") for attempt in range(1, MOST_ATTEMPTS + 1)
    ]
    session.ask(questions(8))
    assert len(session.server.requests()) == 14, "and then never again"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: "-".join(str(value)[:12] for value in fault.values()))
def test_a_lost_request_is_sent_again(session: Session, fault: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    session.server.script({**fault, "times": 2})
    monkeypatch.setattr(hosted, "TIMEOUT", 0.4 if fault["do"] in ("hang", "drip") else 10.0)
    session.ask(questions(4))
    assert session.open(questions(4)) == []
    assert len({request["payload"] for request in session.server.requests()}) == 1
    assert len(session.server.requests()) == 3


@pytest.mark.parametrize("wait", [{"retry_after_ms": 400, "retry_delay": 0.4}, {"retry_after": 1}], ids=["ms", "s"])
def test_a_limit_is_waited_for_as_long_as_asked(session: Session, wait: dict[str, float]) -> None:
    session.server.script({"do": "status", "status": 429, "times": 1, **wait})
    session.ask(questions(8), queries_a_request=1)
    refused, *rest = session.server.requests()
    early = [request for request in rest if request["time"] < refused["time"] + min(wait.values()) - 0.02]
    assert len(early) < len(rest), "some requests are under way before the client knows of the limit; one is sent again"
    assert session.open(questions(8)) == []


def test_a_limit_never_fails_however_often_it_is_hit(session: Session) -> None:
    times = 3 * FAILURES * TRANSPORT_RETRIES
    session.server.script({"do": "status", "status": 429, "times": times})
    session.ask(questions(8))
    assert session.open(questions(8)) == []


def test_a_limit_that_a_parameter_names_spaces_the_requests(openai: Session) -> None:
    other(openai, requests_a_minute=30 * 60).ask(questions(60), queries_a_request=1)
    assert openai.open(questions(60)) == []
    times = sorted(request["time"] for request in openai.server.requests())
    assert len(times) == 60
    assert times[-1] - times[0] > 0.9 * 59 / 30


@pytest.mark.parametrize("after", ["inf", "1e9", "nan", "-5"])
def test_no_pause_is_longer_than_ten_minutes_whatever_the_service_asks(
    openai: Session, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "LONGEST_WAIT", 0.3)
    openai.server.script({"do": "status", "status": 429, "retry_after": after, "times": 1})
    openai.ask(questions(4), within=10)
    first, second = openai.server.requests()
    assert (second["time"] >= first["time"] + 0.29) == (after in ("inf", "1e9"))


@pytest.mark.parametrize("status", [400, 413])
def test_a_refused_query_is_isolated_and_none_is_lost(session: Session, status: int) -> None:
    asked, poisoned = questions(24), 5
    session.server.script({"do": "status", "status": status, "when": {"contains": f"room {poisoned}."}})
    client = session.ask(asked, queries_a_request=12)
    assert (client.stopped, client.done) == ("", 24)
    assert [session.problems(one) for one in asked if one is not asked[poisoned]] == [[""]] * 23
    assert session.problems(asked[poisoned])[0].startswith(f"request refused: status {status}")
    assert set(asked_lines(session.server, status=200).values()) == {1}
    sent = len(session.server.requests())
    session.ask(asked)
    assert len(session.server.requests()) == sent, "the refusal is stored too"


def test_a_paid_answer_outlives_an_earlier_refusal_of_the_same_question(session: Session) -> None:
    one_block = questions(1) * 40
    session.server.script({"do": "status", "status": 400, "when": {"request": 1}})
    client = session.ask([*one_block, *questions(1)])
    assert (client.requests, client.stopped, session.problems(one_block[0])) == (1, "", [""])


@pytest.mark.parametrize(
    "fault",
    [*({"do": "status", "status": status} for status in (401, 403, 404)), {"do": "quota"}],
    ids=["401", "403", "404", "quota"],
)
def test_a_service_that_answers_no_more_is_left_alone(session: Session, fault: dict[str, Any]) -> None:
    asked = questions(40)
    session.server.script({**fault, "when": {"after": 4}})
    client = session.ask(asked, within=5)
    assert client.stopped.startswith("status 4")
    assert len(session.server.requests()) <= 4 + 3 * hosted.IN_FLIGHT, "Google's library repeats requests after a 401"
    assert len(session.open(asked)) == 40 - 16
    session.server.script()
    session.ask(asked)
    assert session.open(asked) == []
    assert set(asked_lines(session.server, status=200).values()) == {1}


def test_a_wrong_key_stops_though_gemini_gives_it_status_400(session: Session) -> None:
    session.server.change(keys=["right"])
    client = session.ask(questions(40))
    assert client.stopped in ("status 401 invalid_api_key", "status 400 API_KEY_INVALID")
    assert len(session.server.requests()) <= hosted.IN_FLIGHT


@pytest.mark.usefixtures("prefect_server")  # it is asked for a Secret block
def test_a_missing_key_is_named(name: str, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = session.settings.key_variable
    monkeypatch.delenv(variable)
    assert session.ask(questions(4)).stopped == "", "a server of one's own needs none"
    with pytest.raises(PenumbraError, match=variable):
        other(session, base_url=None).ask(questions(4))


@pytest.mark.parametrize("fault", [{"status": 503}, {"status": 400}, {"do": "reset"}], ids=["503", "400", "reset"])
def test_a_service_that_fails_or_refuses_everything_is_left_alone(session: Session, fault: dict[str, Any]) -> None:
    session.server.script({"do": "status"} | fault)
    client = session.ask(questions(200), queries_a_request=1)
    assert client.stopped.startswith("nothing but failures, the last: ")
    assert len(session.server.requests()) <= (FAILURES + 1) * hosted.IN_FLIGHT
    assert client.requests == 0
    assert len(session.open(questions(200))) == 200, "no refusal is stored"
    session.server.script()
    session.ask(questions(200))
    assert session.open(questions(200)) == []


@pytest.mark.parametrize("status", [302, 308])
def test_a_redirect_is_not_followed_with_key_or_prompt(session: Session, status: int) -> None:
    with ProtocolServer() as elsewhere:
        path = {"openai": "/v1/chat/completions", "gemini": "/v1beta/models/gemini-2.5-flash:generateContent"}
        location = f"{elsewhere.url}{path[session.settings.provider]}"
        session.server.script({"do": "status", "status": status, "headers": {"location": location}})
        client = session.ask(questions(8))
        assert elsewhere.requests() == []
    assert client.stopped.startswith(f"status {status}: redirects are not followed")


def test_tokens_and_money_of_the_rows_are_what_the_server_charged(session: Session) -> None:
    asked = questions(30)
    session.server.script({"do": "null", "when": {"every": 4}}, {"do": "status", "status": 500, "when": {"every": 7}})
    client = session.ask(asked)
    assert session.open(asked) == []
    prompt, completion = session.server.charged()
    fills = session.fills(asked)
    assert (sum(fill.prompt_tokens for fill in fills), sum(fill.completion_tokens for fill in fills)) == (
        prompt,
        completion,
    )
    assert client.tokens == prompt + completion
    assert math.fsum(fill.cost_usd for fill in fills) == pytest.approx(charged(session.server))
    assert client.cost_usd == pytest.approx(charged(session.server))


def test_the_budget_stops_in_time_and_the_next_runs_continue(session: Session) -> None:
    asked, limit, before = questions(40), 0.08, 0.0
    for _ in range(10):
        client = session.ask(asked, limit=limit)
        assert charged(session.server) - before <= limit
        assert (client.stopped == OVER_BUDGET) == bool(session.open(asked))
        before = charged(session.server)
    assert session.open(asked) == []
    assert set(asked_lines(session.server).values()) == {1}


@pytest.mark.parametrize("fault", ["half", "html", "hang"])
def test_a_lost_answer_is_charged_at_its_most(session: Session, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in charges every answer; every second one does not arrive."""
    session.server.script({"do": fault, "when": {"every": 2}})
    monkeypatch.setattr(hosted, "TIMEOUT", 0.4 if fault == "hang" else 10.0)
    client = session.ask(questions(80), limit=0.15)
    assert client.stopped == OVER_BUDGET
    assert client.cost_usd < charged(session.server) <= client.budget.spent <= 0.15
    assert "for lost answers" in client.line()


@pytest.mark.parametrize("count", [-(10**9), 10**22])
def test_a_count_of_tokens_that_can_t_be_true_gives_no_money_back(session: Session, count: int) -> None:
    session.server.script({"do": "tokens", "count": count})
    client = session.ask(questions(80), limit=0.15)
    assert client.stopped == OVER_BUDGET
    assert 0 < client.budget.spent <= 0.15
    assert {fill.prompt_tokens for fill in session.fills(questions(4))} == {0}


@pytest.mark.parametrize("details", [5, [{"violations": None}], [{"violations": [1]}], [{"violations": "xy"}]])
def test_an_error_of_an_odd_shape_is_an_error(server: ProtocolServer, tmp_path: Path, details: Any) -> None:
    body = json.dumps({"error": {"code": 400, "message": "x", "details": details}})
    server.script({"do": "status", "status": 400, "body": body})
    gemini = Session("gemini", server, tmp_path)
    assert "400" in gemini.ask(questions(1)).stopped or gemini.open(questions(1))


def test_a_long_answer_is_lost(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted, "MOST_BYTES", 100)
    assert session.ask(questions(1)).requests == 0


def test_a_limit_without_a_pause_is_no_busy_loop(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_PAUSE", "LONGEST_PAUSE"):
        monkeypatch.setattr(client_module, name, 0.3)
    session.server.script({"do": "status", "status": 429, "retry_after": 0})
    with pytest.raises(TimeoutError):
        session.ask(questions(1), within=1.5)
    assert len(session.server.requests()) <= 6


@pytest.mark.parametrize(("status", "is_free"), [(500, True), (503, True), (429, True), (502, False), (504, False)])
def test_only_an_error_of_a_gateway_may_cost(session: Session, status: int, is_free: bool) -> None:
    session.server.script({"do": "status", "status": status, "times": 2})
    client = session.ask(questions(4), limit=1.0)
    assert (client.lost_usd == 0) == is_free
    assert client.budget.spent == pytest.approx(client.cost_usd + client.lost_usd)


def test_a_server_that_cannot_be_reached_costs_nothing(session: Session) -> None:
    client = other(session, base_url="http://127.0.0.1:9/v1").ask(questions(40), limit=1.0)
    assert client.stopped.startswith("nothing but failures")
    assert (client.budget.spent, client.lost_usd) == (0.0, 0.0)


def test_a_server_that_counts_no_tokens_does_not_break_the_budget(openai: Session) -> None:
    body = {"model": "m", "choices": [{"message": {"content": '{"1": "A", "2": "A", "3": "A"}'}}]}
    openai.server.script({"do": "body", "body": json.dumps(body)})
    client = openai.ask(questions(60), limit=0.4, queries_a_request=1)
    assert client.stopped == OVER_BUDGET
    assert charged(openai.server) <= client.budget.spent + 1e-9 <= 0.4 + 1e-9


def test_of_two_runs_at_once_one_pays(openai: Session) -> None:
    openai.server.change(latency=0.05)
    asked, twin = questions(32), other(openai)
    with ThreadPoolExecutor(2) as threads:
        clients = list(threads.map(lambda session: session.ask(asked, limit=1.0), [openai, twin]))
    assert sorted(client.requests for client in clients) == [0, 8]
    assert [client.done for client in clients] == [32, 32]
    assert set(asked_lines(openai.server).values()) == {1}
    assert max(client.budget.spent for client in clients) == pytest.approx(charged(openai.server))


def test_the_rest_of_an_interrupted_run_is_asked_by_the_next(openai: Session) -> None:
    asked = questions(8)
    openai.server.script({"do": "slow", "seconds": 5, "when": {"after": 1}})
    with pytest.raises(TimeoutError):
        openai.ask(asked, within=1.5, limit=1.0, queries_a_request=1)
    openai.server.script()
    client = openai.ask([*asked[1:], *questions(3, 8)], limit=1.0)
    assert (client.stopped, openai.open([*asked, *questions(3, 8)])) == ("", [])
    assert charged(openai.server) <= client.budget.spent, "requests in flight count at their most"
