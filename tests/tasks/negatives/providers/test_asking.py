"""The client with the real `openai` library against a stand-in server that misbehaves in every way."""

import asyncio
import json
import math
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penumbra.tasks.negatives.providers import asking, limits
from penumbra.tasks.negatives.providers.asking import FAILURES, OVER_BUDGET, TRANSPORT_RETRIES
from penumbra.tasks.negatives.providers.openai import _quota as openai_quota
from penumbra.tasks.negatives.providers.prices import Price
from penumbra.tasks.negatives.providers.questions import MOST_ATTEMPTS, Question
from tests.protocol_server import ProtocolServer
from tests.protocol_server.answers import pick
from tests.protocol_server.openai import tokens
from tests.talks import Talk, lines_of, masked, openai_settings, question, questions, tokens_of, well_said

pytestmark = pytest.mark.slow

PRICE = Price(input=10.0, output=100.0)
NO_LIMITS = {
    "latency": 0.0,
    "keys": None,
    "models": None,
    "requests_per_minute": None,
    "tokens_per_minute": None,
    "minute": 60.0,
    "idempotent": False,
    "announce_limits": False,
    "max_in_flight": None,
}


@pytest.fixture(scope="module")
def running() -> Iterator[ProtocolServer]:
    with ProtocolServer(log_text=True) as server:
        yield server


@pytest.fixture
def server(running: ProtocolServer, monkeypatch: pytest.MonkeyPatch) -> ProtocolServer:
    """The stand-in as if just started, and pauses too short to wait for."""
    monkeypatch.setattr(asking, "FIRST_PAUSE", 0.002)
    monkeypatch.setattr(asking, "LONGEST_PAUSE", 0.01)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    running.change(**NO_LIMITS)
    running.script()
    Path(running.settings["log"]).write_text("")
    return running


@pytest.fixture
def talk(server: ProtocolServer, tmp_path: Path) -> Talk:
    return Talk(openai_settings(server), tmp_path)


def other(talk: Talk, server: ProtocolServer, **settings: Any) -> Talk:
    """The same answers, asked for with other settings."""
    return Talk(openai_settings(server, **settings), talk.answers.folder)


def asked_lines(server: ProtocolServer, **where: Any) -> Counter[str]:
    return Counter(line for request in server.requests(**where) for line in lines_of(request))


def test_every_question_is_answered_once_and_read_as_the_model_said_it(server: ProtocolServer, talk: Talk) -> None:
    some = questions(30)
    client = talk.ask(some, queries_a_request=7)
    assert client.stopped == ""
    assert (client.statistics.done, client.statistics.asked_again, client.statistics.retries) == (30, 0, 0)
    said = {}
    for request in server.requests():
        lines = lines_of(request)
        chosen = json.loads(well_said(request))
        for number, line in enumerate(lines):
            said[line] = [chosen[str(3 * number + slot)] for slot in (1, 2, 3)]
    assert set(asked_lines(server).values()) == {1}
    for one in some:
        filled = next(fill for fill in talk.fills([one]) if fill.level == 3)
        by_token = dict(zip((slot.token for slot in one.query.levels[-1]), filled.words, strict=True))
        letters = said[one.text()]
        for place, letter in zip(one.open, letters, strict=True):
            assert by_token[one.query.levels[-1][place].token] == one.options[place]["ABCDEFGH".index(letter)]


def test_what_is_known_is_not_asked_again_whatever_the_settings(server: ProtocolServer, talk: Talk) -> None:
    talk.ask(questions(20))
    sent = len(server.requests())
    again = other(talk, server, in_flight=7, timeout=3, requests_a_minute=9_999, price=PRICE)
    assert again.ask(questions(20), queries_a_request=9).statistics.sent == 0
    assert again.ask(questions(23), queries_a_request=9).statistics.sent == 1
    assert len(server.requests()) == sent + 1
    assert set(asked_lines(server).values()) == {1}


def test_no_more_than_the_setting_is_in_flight_and_that_much_is_used(server: ProtocolServer, talk: Talk) -> None:
    server.change(latency=0.1)
    other(talk, server, in_flight=6).ask(questions(24), queries_a_request=1)
    assert max(request["in_flight"] for request in server.requests()) == 6


@pytest.mark.parametrize(
    "fault",
    [
        {"do": "status", "status": 500},
        {"do": "status", "status": 502, "body": "<html>Bad Gateway</html>", "headers": {"content-type": "text/html"}},
        {"do": "status", "status": 503, "retry_after_ms": 20},
        {"do": "status", "status": 408},
        {"do": "status", "status": 409},
        {"do": "status", "status": 529},
        {"do": "half"},
        {"do": "reset"},
        {"do": "close"},
        {"do": "html"},
        {"do": "body"},
        {"do": "body", "body": ""},
        {"do": "body", "body": "null"},
        {"do": "body", "body": "[]"},
        {"do": "body", "body": '{"choices": [7], "model": "m"}'},
        {"do": "body", "body": '{"choices": {"a": 1}, "model": "m"}'},
        {"do": "body", "body": '{"choices": [{"message": {"content": "{}"}}], "model": "m", "usage": "many"}'},
        {"do": "body", "body": '{"object": "chat.completion"}'},
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
    requests = server.requests()
    assert len(requests) == 3
    assert len({request["payload"] for request in requests}) == 1
    found = [talk.answers.find(one.key(talk.cache_key)) for one in questions(4)]
    assert [one.answer.retries for one in found if one and one.answer] == [2] * 4


@pytest.mark.parametrize(
    "body",
    [
        '{"choices": [], "model": "m", "usage": {"prompt_tokens": 1e999}}',
        '{"choices": [], "model": "m", "usage": {"prompt_tokens": Infinity}}',
        "[" * 200_000,
    ],
    ids=["1e999", "infinity", "deep"],
)
def test_a_body_that_breaks_pythons_numbers_or_stack_is_a_lost_request(
    server: ProtocolServer, talk: Talk, body: str
) -> None:
    server.script({"do": "body", "body": body, "times": 1})
    assert talk.ask(questions(4)).statistics.retries == 1
    assert talk.open(questions(4)) == []


def test_a_limit_means_waiting_as_long_as_the_service_says(server: ProtocolServer, talk: Talk) -> None:
    server.script({"do": "status", "status": 429, "retry_after_ms": 400, "times": 1})
    client = other(talk, server, in_flight=1).ask(questions(8))
    first, *rest = server.requests()
    assert min(request["time"] for request in rest) >= first["time"] + 0.39
    assert (client.statistics.limited, client.statistics.retries, dict(client.statistics.faults)) == (1, 0, {})
    assert talk.open(questions(8)) == []


def test_retry_after_in_seconds_is_honoured(server: ProtocolServer, talk: Talk) -> None:
    server.script({"do": "status", "status": 429, "retry_after": 1, "times": 1})
    other(talk, server, in_flight=1).ask(questions(4))
    first, second = server.requests()
    assert second["time"] >= first["time"] + 0.99


def test_a_limit_never_fails_however_often_it_is_hit(server: ProtocolServer, talk: Talk) -> None:
    times = 5 * FAILURES * TRANSPORT_RETRIES
    server.script({"do": "status", "status": 429, "times": times})
    client = talk.ask(questions(8))
    assert talk.open(questions(8)) == []
    assert (client.statistics.limited, client.statistics.retries, dict(client.statistics.faults)) == (times, 0, {})


def test_while_one_request_waits_for_the_limit_no_other_goes(server: ProtocolServer, talk: Talk) -> None:
    server.change(latency=0.05)
    server.script({"do": "status", "status": 429, "retry_after_ms": 500, "when": {"request": 1}, "delay": 0.0})
    other(talk, server, in_flight=4).ask(questions(40), queries_a_request=1)
    requests = sorted(server.requests(), key=lambda request: request["time"])
    refused = requests[0]["time"]
    early = [r for r in requests if refused + 0.15 < r["time"] < refused + 0.45]
    assert early == []
    assert len(requests) == 41


def test_the_servers_limit_is_kept_by_waiting_without_a_single_refusal(
    server: ProtocolServer, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A "minute" of the server is a second here, so a sixtieth of the burst."""
    monkeypatch.setattr(limits, "BURST", 5 / 1_800)
    server.change(requests_per_minute=50, minute=1.0)
    client = other(talk, server, in_flight=16, requests_a_minute=30 * 60).ask(questions(60), queries_a_request=1)
    assert talk.open(questions(60)) == []
    assert (client.statistics.limited, client.statistics.retries, client.statistics.sent) == (0, 0, 60)


@pytest.mark.parametrize("announced", [True, False])
def test_a_limit_that_no_setting_names_is_found_out_without_failures(
    server: ProtocolServer, talk: Talk, announced: bool
) -> None:
    server.change(requests_per_minute=20, minute=0.5, announce_limits=announced)
    client = other(talk, server, in_flight=16).ask(questions(60), queries_a_request=1)
    assert talk.open(questions(60)) == []
    assert (client.statistics.retries, dict(client.statistics.faults), client.stopped) == (0, {}, "")
    assert client.statistics.sent == 60 + client.statistics.limited == len(server.requests())


def test_a_limit_on_tokens_is_kept(server: ProtocolServer, talk: Talk) -> None:
    server.change(tokens_per_minute=3_000, minute=0.5)
    client = other(talk, server, in_flight=8).ask(questions(40), queries_a_request=4)
    assert talk.open(questions(40)) == []
    assert (client.statistics.retries, client.stopped) == (0, "")


@pytest.mark.parametrize(
    ("kind", "problem", "again"),
    [
        ("foreign", "word was not on offer", ["2"]),
        ("missing", "answer lacks a slot", ["2"]),
        ("duplicate", "answer lacks a slot", ["2"]),
        ("prose", "answer is no JSON object with words", ["1", "2", "3"]),
        ("long", "answer is no JSON object with words", ["1", "2", "3"]),
        ("length", "answer was cut off", ["1", "2", "3"]),
        ("null", "answer is empty", ["1", "2", "3"]),
        ("empty", "answer is empty", ["1", "2", "3"]),
        ("no_choices", "answer is empty", ["1", "2", "3"]),
        ("refusal", "model refused", ["1", "2", "3"]),
        ("blocked", "model refused", ["1", "2", "3"]),
    ],
)
def test_a_wrong_answer_is_asked_for_again_and_only_what_was_wrong(
    server: ProtocolServer, talk: Talk, kind: str, problem: str, again: list[str]
) -> None:
    one = question(7)
    slot = {"slot": "2"} if len(again) == 1 else {}
    server.script({"do": kind, "times": 1, **slot})
    client = talk.ask([one])
    assert talk.problems(one) == [problem, ""]
    assert (client.statistics.asked_again, client.statistics.retries, client.statistics.requests) == (1, 0, 2)
    first, second = server.requests()
    assert len(second["offered"]) == len(again)
    if len(again) == 1:
        chosen = json.loads(well_said(first))
        verb = one.options[one.open[0]]["ABCDEFGH".index(chosen["1"])]
        (line,) = lines_of(second)
        assert line.startswith(f"person {verb} the ")
        assert "[1 door: " in line
    fills = talk.fills([one])
    assert {fill.level for fill in fills if not fill.problem} == {1, 2, 3}
    for fill in fills:
        by_word = dict(zip((slot.word for slot in one.query.levels[fill.level - 1]), fill.words, strict=False))
        assert all(word in one.options[place] for place, word in _placed(one, by_word).items())


def _placed(one: Question, words: dict[str, str]) -> dict[int, str]:
    return {place: words[slot.word] for place, slot in enumerate(one.query.levels[-1]) if slot.word in words}


@pytest.mark.parametrize("kind", ["extra", "fenced", "model"])
def test_a_right_answer_with_something_more_is_right(server: ProtocolServer, talk: Talk, kind: str) -> None:
    server.script({"do": kind})
    client = talk.ask(questions(4))
    assert talk.open(questions(4)) == []
    assert (client.statistics.requests, client.statistics.asked_again) == (1, 0)


def test_another_models_name_is_what_the_rows_say(server: ProtocolServer, talk: Talk) -> None:
    server.script({"do": "model", "model": "gpt-4o-mini-rerouted", "when": {"request": 2}})
    client = talk.ask(questions(8))
    assert client.statistics.models == {"gpt-4o-mini": 1, "gpt-4o-mini-rerouted": 1}
    assert {fill.model for fill in talk.fills(questions(8))} == {"gpt-4o-mini", "gpt-4o-mini-rerouted"}


def test_one_querys_wrong_answer_costs_no_other_a_second_asking(server: ProtocolServer, talk: Talk) -> None:
    server.script({"do": "missing", "slot": "5", "times": 1})  # the second slot of the second query
    some = questions(4)
    talk.ask(some)
    (_, second) = server.requests()
    assert [line.split(" of room ")[1] for line in lines_of(second)] == ["1."]
    assert [len(talk.problems(one)) for one in some] == [1, 2, 1, 1]


def test_a_wrong_answer_is_asked_for_at_most_twice_more_and_then_given_up(server: ProtocolServer, talk: Talk) -> None:
    some = questions(3)
    server.script({"do": "foreign", "when": {"contains": "room 1."}})
    client = talk.ask(some, queries_a_request=1)
    assert talk.problems(some[1]) == ["word was not on offer"] * MOST_ATTEMPTS
    assert (client.statistics.asked_again, client.statistics.requests, client.statistics.done) == (2, 5, 3)
    assert [len(request["offered"]) for request in server.requests(fault="foreign")] == [3, 1, 1]
    server.script()
    assert talk.ask(some).statistics.sent == 0
    rows = [(fill.level, fill.attempts, bool(fill.problem)) for fill in talk.fills([some[1]])]
    assert rows == [
        (1, 1, True),
        (2, 1, True),
        (3, 1, True),
        (1, 2, True),
        (2, 2, True),
        (3, 2, True),
        (1, 3, True),
        (2, 3, True),
        (3, 3, True),
    ]


@pytest.mark.parametrize("kind", ["refusal", "prose", "null", "no_choices"])
def test_a_model_that_never_answers_rightly_is_asked_three_times_and_no_more(
    server: ProtocolServer, talk: Talk, kind: str
) -> None:
    server.script({"do": kind})
    client = talk.ask(questions(8))
    assert client.statistics.requests == 2 + 4 + 8, "all together, half as many together, each alone"
    assert set(asked_lines(server).values()) == {MOST_ATTEMPTS}
    assert client.statistics.done == 8
    assert talk.ask(questions(8)).statistics.sent == 0


@pytest.mark.parametrize("poisoned", [0, 5, 11])
@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refused_query_is_isolated_and_nothing_else_is_lost(
    server: ProtocolServer, talk: Talk, poisoned: int, status: int
) -> None:
    some = questions(24)
    server.script({"do": "status", "status": status, "code": "bad", "when": {"contains": f"room {poisoned}."}})
    client = other(talk, server, in_flight=1).ask(some, queries_a_request=12)
    assert client.stopped == ""
    assert [talk.problems(one) for one in some if one is not some[poisoned]] == [[""]] * 23
    assert talk.problems(some[poisoned]) == [f"request refused: status {status} bad"]
    assert dict(client.statistics.refused) == {f"status {status} bad": 1}
    assert set(asked_lines(server, status=200).values()) == {1}
    assert talk.ask(some).statistics.sent == 0, "the refusal is kept too"


def test_what_a_service_does_not_take_is_done_only_once_that_is_kept(server: ProtocolServer, talk: Talk) -> None:
    """Of a request of four only the last is refused, so its refusal comes after the last answer."""
    some = questions(4)
    server.script({"do": "status", "status": 400, "when": {"contains": "room 3."}})
    client = other(talk, server, in_flight=1).ask(some)
    assert client.statistics.done == 4 - len(talk.open(some))
    assert talk.open(some) == []


def test_a_service_that_refuses_everything_has_no_refusal_kept(server: ProtocolServer, talk: Talk) -> None:
    """It is the settings that are wrong: put right, they are all asked."""
    server.script({"do": "status", "status": 400})
    client = talk.ask(questions(40))
    assert "status 400" in client.stopped
    assert client.statistics.sent <= 10 + (FAILURES + 1) * talk.settings.in_flight + 4
    assert len(talk.open(questions(40))) == 40
    server.script()
    talk.ask(questions(40))
    assert talk.open(questions(40)) == []


@pytest.mark.parametrize(
    "fault",
    [
        {"do": "status", "status": 401, "code": "invalid_api_key"},
        {"do": "status", "status": 403},
        {"do": "status", "status": 404, "code": "model_not_found"},
        {"do": "quota"},
    ],
    ids=["401", "403", "404", "quota"],
)
def test_a_service_that_will_take_nothing_is_left_alone_at_once(
    server: ProtocolServer, talk: Talk, fault: dict[str, Any]
) -> None:
    some = questions(40)
    server.script(fault)
    client = talk.ask(some)
    assert client.stopped.startswith("status 4")
    assert client.statistics.sent <= talk.settings.in_flight
    assert len(talk.open(some)) == 40
    server.script()
    talk.ask(some)
    assert talk.open(some) == []


def test_what_was_answered_before_the_end_is_kept(server: ProtocolServer, talk: Talk) -> None:
    some = questions(40)
    server.script({"do": "quota", "when": {"after": 4}})
    client = talk.ask(some)
    assert client.stopped == "status 429 insufficient_quota"
    assert len(talk.open(some)) == 40 - 16
    server.script()
    talk.ask(some)
    assert set(asked_lines(server, status=200).values()) == {1}


def test_the_end_does_not_wait_for_a_pause(server: ProtocolServer, talk: Talk) -> None:
    server.script(
        {"do": "status", "status": 429, "retry_after": 5, "when": {"request": 1}, "delay": 0.0},
        {"do": "status", "status": 401, "delay": 0.3},
    )
    client = other(talk, server, in_flight=2).ask(questions(16), within=2.5)
    assert client.stopped.startswith("status 401")


@pytest.mark.parametrize(
    "fault", [{"do": "status", "status": 500}, {"do": "reset"}, {"do": "body"}], ids=["500", "reset", "body"]
)
def test_a_service_that_only_fails_is_left_alone(server: ProtocolServer, talk: Talk, fault: dict[str, Any]) -> None:
    server.script(fault)
    client = other(talk, server, in_flight=3).ask(questions(200))
    assert client.stopped.startswith("nothing but failures, the last: ")
    assert FAILURES * 3 <= client.statistics.sent <= FAILURES * 3 + 3
    assert client.statistics.requests == 0
    server.script()
    talk.ask(questions(200))
    assert talk.open(questions(200)) == []


def test_failures_between_answers_stop_nothing(server: ProtocolServer, talk: Talk) -> None:
    server.script({"do": "status", "status": 500, "when": {"every": 2}})
    client = talk.ask(questions(60), queries_a_request=1)
    assert client.stopped == ""
    assert talk.open(questions(60)) == []
    requests = server.requests()
    assert client.statistics.retries == sum(request["status"] == 500 for request in requests) > 50
    assert client.statistics.sent == len(requests)


def test_a_request_that_is_never_answered_is_left_for_the_next_run(server: ProtocolServer, talk: Talk) -> None:
    some = questions(24)
    server.script({"do": "status", "status": 500, "when": {"contains": "room 9."}})
    client = talk.ask(some)
    assert client.stopped == ""
    left = talk.open(some)
    assert some[9] in left
    assert len(left) <= 4
    assert client.statistics.done == 24 - len(left)
    server.script()
    talk.ask(some)
    assert talk.open(some) == []
    assert set(asked_lines(server, status=200).values()) == {1}


def test_the_budget_stops_in_time_and_the_next_run_goes_on(server: ProtocolServer, talk: Talk) -> None:
    some, limit = questions(40), 0.06
    talk = other(talk, server, price=PRICE, in_flight=1)
    first = talk.ask(some, limit=limit)
    assert first.stopped == OVER_BUDGET
    assert 0.02 < first.statistics.cost_usd <= limit
    paid = PRICE.cost(*tokens_of(server.requests(), {}))
    assert first.statistics.cost_usd == pytest.approx(paid) == pytest.approx(first.budget.account["spent"])
    answered = 40 - len(talk.open(some))
    assert answered == 4 * first.statistics.requests == len(asked_lines(server))
    for _ in range(9):
        assert talk.ask(some, limit=limit).statistics.cost_usd <= limit
    assert talk.open(some) == []
    assert set(asked_lines(server).values()) == {1}
    assert len(asked_lines(server)) == 40


def test_a_budget_is_not_given_up_while_requests_in_flight_hold_it(server: ProtocolServer, talk: Talk) -> None:
    server.change(latency=0.02)
    client = other(talk, server, price=PRICE, in_flight=8).ask(questions(200), limit=0.2)
    assert client.stopped == OVER_BUDGET
    assert 0.1 < client.statistics.cost_usd <= 0.2


def test_a_budget_below_one_request_sends_nothing(server: ProtocolServer, talk: Talk) -> None:
    client = other(talk, server, price=PRICE).ask(questions(8), limit=1e-6)
    assert (client.stopped, server.requests()) == (OVER_BUDGET, [])


def test_two_services_share_one_budget(server: ProtocolServer, talk: Talk, tmp_path: Path) -> None:
    models = ("gpt-4o-mini", "gpt-4.1")
    clients = [other(talk, server, price=PRICE, in_flight=1, model=model).client(limit=0.25) for model in models]
    clients[1].budget = clients[0].budget

    async def both() -> None:
        await asyncio.gather(*(client.ask([questions(120)]) for client in clients))

    with clients[0].budget:
        asyncio.run(both())
    assert {client.stopped for client in clients} == {OVER_BUDGET}
    spent = sum(client.statistics.cost_usd for client in clients)
    assert 0.1 < spent <= 0.25
    assert PRICE.cost(*tokens_of(server.requests(), {})) == pytest.approx(spent)


def test_tokens_and_money_of_the_rows_are_what_the_server_counted(server: ProtocolServer, talk: Talk) -> None:
    some, prose = questions(30), "I would rather not."
    server.script(
        {"do": "answer", "content": prose, "when": {"every": 3}},
        {"do": "null", "when": {"every": 5}},
        {"do": "status", "status": 500, "when": {"every": 7}},
    )
    talk = other(talk, server, price=PRICE)
    client = talk.ask(some)
    assert talk.open(some) == []
    answered = server.requests(status=200)
    prompt, completion = tokens_of(answered, {"answer": tokens(prose), "null": 0})
    fills = talk.fills(some)
    assert sum(fill.prompt_tokens for fill in fills) == prompt == client.statistics.prompt_tokens
    assert sum(fill.completion_tokens for fill in fills) == completion == client.statistics.completion_tokens
    assert math.fsum(fill.cost_usd for fill in fills) == pytest.approx(PRICE.cost(prompt, completion))
    assert client.statistics.cost_usd == pytest.approx(PRICE.cost(prompt, completion))
    assert client.statistics.retries == len(server.requests(status=500))
    wrong = sum(len(lines_of(request)) for request in answered if request["fault"])
    assert client.statistics.asked_again == wrong - _given_up(talk, some)


def _given_up(talk: Talk, some: list[Question]) -> int:
    return sum(len(talk.problems(one)) == MOST_ATTEMPTS and talk.problems(one)[-1] != "" for one in some)


@pytest.mark.parametrize("stuck", ["opens", "door", "blue"])
def test_tokens_add_up_where_a_slot_has_no_other_word(server: ProtocolServer, talk: Talk, stuck: str) -> None:
    one = question(1)
    slots = one.query.levels[-1]
    options = tuple(() if slot.word == stuck else words for slot, words in zip(slots, one.options, strict=True))
    one = Question(one.query, options, 0)
    server.script({"do": "foreign", "slot": "2", "times": 1})
    client = talk.ask([one])
    fills = talk.fills([one])
    assert sum(fill.prompt_tokens for fill in fills) == client.statistics.prompt_tokens
    assert sum(fill.completion_tokens for fill in fills) == client.statistics.completion_tokens


def test_the_same_question_of_two_queries_is_asked_and_paid_once(server: ProtocolServer, talk: Talk) -> None:
    text = "person opens|verb the blue|adjective door|noun."
    options = question(0).options
    twins = [Question(masked(f"twin{number}", text), options, 0) for number in range(6)]
    client = other(talk, server, in_flight=4).ask(twins, queries_a_request=1)
    fills = talk.fills(twins)
    assert sum(fill.prompt_tokens for fill in fills) == client.statistics.prompt_tokens
    assert asked_lines(server) == {twins[0].text(): 1}


def test_two_runs_at_once_spoil_nothing(server: ProtocolServer, talk: Talk) -> None:
    some = questions(32)
    server.change(latency=0.02)

    async def both() -> None:
        await asyncio.gather(*(client.ask([some]) for client in clients))

    clients = [talk.client(run=name) for name in "ab"]
    with clients[0].budget, clients[1].budget:
        asyncio.run(both())
    assert talk.open(some) == []
    assert [talk.problems(one) for one in some] == [[""]] * 32
    assert set(asked_lines(server).values()) == {1}


def test_json_mode_is_asked_of_old_models_and_enums_of_new_ones(server: ProtocolServer, talk: Talk) -> None:
    """The stand-in refuses a schema for gpt-3.5-turbo, as the service does."""
    old = other(talk, server, model="gpt-3.5-turbo")
    client = old.ask(questions(8))
    assert (old.open(questions(8)), client.statistics.requests) == ([], 2)
    requests = server.requests()
    assert all(set(request["offered"]) == {str(n) for n in range(1, 13)} for request in requests)
    forced = other(talk, server, model="gpt-3.5-turbo", structure="json_schema", in_flight=1)
    assert "status 400" in forced.ask(questions(20)).stopped


def test_the_key_is_sent_and_a_server_of_ones_own_needs_none(
    server: ProtocolServer, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk.ask(questions(4))
    assert {request["key"] for request in server.requests()} == {"sk-test"}
    server.change(keys=["sk-right"])
    assert talk.ask(questions(8)).stopped == "status 401 invalid_api_key"
    monkeypatch.setenv("OPENAI_API_KEY", " sk-right\n")
    assert talk.ask(questions(8)).stopped == ""


def test_an_answer_is_cached_by_what_determines_it(server: ProtocolServer, talk: Talk) -> None:
    talk.ask(questions(4))
    changes: list[dict[str, Any]] = [
        {"model": "gpt-4.1"},
        {"temperature": 0.5},
        {"extra": {"top_p": 0.5}},
        {"structure": "json_object"},
    ]
    for count, change in enumerate(changes, 2):
        assert other(talk, server, **change).ask(questions(4)).statistics.sent == 1
        assert len(server.requests()) == count
    assert talk.ask(questions(4)).statistics.sent == 0


def test_pick_is_what_the_stand_in_says() -> None:
    """What these tests take the stand-in's answers from."""
    assert json.loads(well_said({"offered": {"1": ["A", "B"]}})) == {"1": pick(["A", "B"], "1", 0)}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_with_key_or_prompt(server: ProtocolServer, talk: Talk, status: int) -> None:
    with ProtocolServer() as elsewhere:
        location = f"{elsewhere.url}/v1/chat/completions"
        server.script({"do": "status", "status": status, "headers": {"location": location}})
        client = talk.ask(questions(8))
        assert elsewhere.requests() == []
    assert client.stopped.startswith(f"status {status}: redirects are not followed")
    assert client.statistics.sent <= talk.settings.in_flight


def least(server: ProtocolServer) -> float:
    """USD that the stand-in charges so far, for lost answers too."""
    return PRICE.cost(*server.charged())


@pytest.mark.parametrize("fault", ["half", "close", "reset", "html", "body", "hang"])
def test_a_lost_answer_is_booked_at_its_most_and_the_limit_holds(
    server: ProtocolServer, talk: Talk, fault: str
) -> None:
    """The stand-in charges what it answered, whether or not the answer arrives; every second one doesn't."""
    server.script({"do": fault, "when": {"every": 2}})
    talk = other(talk, server, price=PRICE, timeout=0.4 if fault == "hang" else 10)
    client = talk.ask(questions(80), limit=0.15)
    assert client.stopped == OVER_BUDGET
    assert client.statistics.cost_usd < least(server) <= client.budget.account["spent"] <= 0.15
    booked = client.statistics.cost_usd + client.statistics.lost_usd
    assert booked == pytest.approx(client.budget.account["spent"])
    assert "for lost answers" in client.statistics.line("openai")


@pytest.mark.parametrize(
    ("fault", "free"),
    [
        ({"do": "status", "status": 500}, True),
        ({"do": "status", "status": 503}, True),
        ({"do": "status", "status": 429}, True),
        ({"do": "status", "status": 502}, False),
        ({"do": "status", "status": 504}, False),
    ],
    ids=lambda value: str(value["status"]) if isinstance(value, dict) else "",
)
def test_what_the_service_itself_refuses_costs_nothing_and_what_a_gateway_says_may(
    server: ProtocolServer, talk: Talk, fault: dict[str, Any], free: bool
) -> None:
    server.script({**fault, "times": 2})
    client = other(talk, server, price=PRICE, in_flight=1).ask(questions(4), limit=1.0)
    assert (client.statistics.lost_usd == 0) == free
    assert client.budget.account["spent"] == pytest.approx(client.statistics.cost_usd + client.statistics.lost_usd)


def test_a_server_that_is_not_there_costs_nothing(server: ProtocolServer, talk: Talk) -> None:
    client = other(talk, server, price=PRICE, base_url="http://127.0.0.1:9/v1").ask(questions(40), limit=1.0)
    assert client.stopped.startswith("nothing but failures")
    assert (client.budget.account["spent"], client.statistics.lost_usd) == (0.0, 0.0)


def test_a_server_that_counts_no_tokens_is_booked_at_the_most(server: ProtocolServer, talk: Talk) -> None:
    body = {"model": "m", "choices": [{"message": {"content": '{"1": "A", "2": "A", "3": "A"}'}}]}
    server.script({"do": "body", "body": json.dumps(body)})
    client = other(talk, server, price=PRICE).ask(questions(60), limit=0.1, queries_a_request=1)
    assert client.stopped == OVER_BUDGET
    assert least(server) <= client.budget.account["spent"] <= 0.1


def test_the_same_request_has_the_same_key_and_is_charged_once_by_who_knows_it(
    server: ProtocolServer, talk: Talk
) -> None:
    server.change(idempotent=True)
    talk = other(talk, server, in_flight=1)
    server.script({"do": "half", "times": 2})
    talk.ask(questions(1))
    requests = server.requests()
    assert len({request["idempotency"] for request in requests}) == 1
    assert [request["charged"] != [0, 0] for request in requests] == [True, False, False]
    server.script({"do": "prose"})
    talk.ask(questions(1, 5))
    asked_again = server.requests(fault="prose")
    assert len({request["prompt"] for request in asked_again}) == 1
    assert len({request["idempotency"] for request in asked_again}) == 3, "asked again it is another request"


def test_an_answer_in_prose_is_asked_for_in_halves(server: ProtocolServer, talk: Talk) -> None:
    """Of 33 requests every third is prose, and of those that follow."""
    some = questions(33 * 16)
    server.script({"do": "prose", "when": {"every": 3}})
    client = other(talk, server, in_flight=4).ask(some, queries_a_request=16)
    assert talk.open(some) == []
    assert client.statistics.requests < 130
    sizes = Counter(len(lines_of(request)) for request in server.requests())
    assert set(sizes) == {16, 8, 1}
    assert (sizes[16], sizes[8]) == (33, 2 * sum(len(lines_of(r)) == 16 for r in server.requests(fault="prose")))


def test_a_query_that_makes_every_answer_prose_costs_no_other_its_fill(server: ProtocolServer, talk: Talk) -> None:
    some = questions(16)
    server.script({"do": "prose", "when": {"contains": "room 7."}})
    client = talk.ask(some, queries_a_request=16)
    assert client.statistics.requests == 1 + 2 + 8
    assert [talk.problems(one)[-1] == "" for one in some] == [number != 7 for number in range(16)]


def test_what_an_earlier_run_got_wrong_is_asked_in_half_the_company_too(server: ProtocolServer, talk: Talk) -> None:
    some = questions(16)
    server.script({"do": "prose", "times": 1}, {"do": "status", "status": 401})
    assert talk.ask(some, queries_a_request=16).stopped.startswith("status 401")
    server.script()
    assert talk.ask([*some, *questions(4, 16)], queries_a_request=16).stopped == ""
    sizes = [len(lines_of(request)) for request in server.requests(status=200)]
    assert (sizes[0], sorted(sizes[1:])) == (16, [4, 8, 8])


@pytest.mark.parametrize("said", ["inf", "1e9", "nan", "-5", "1e999"])
@pytest.mark.parametrize("status", [429, 503])
def test_nobody_waits_longer_than_the_setting_whatever_the_service_says(
    server: ProtocolServer, talk: Talk, said: str, status: int
) -> None:
    server.script({"do": "status", "status": status, "retry_after": said, "times": 1})
    other(talk, server, longest_wait=0.3, in_flight=1).ask(questions(4), within=10)
    assert talk.open(questions(4)) == []
    first, second = server.requests()
    assert (second["time"] >= first["time"] + 0.29) == (said in ("inf", "1e9", "1e999"))


def test_headers_make_nobody_wait_longer_than_the_setting(server: ProtocolServer, talk: Talk) -> None:
    quota = {
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "-1e9",
        "x-ratelimit-reset-tokens": "99999999h",
    }
    body = {"model": "m", "choices": [{"message": {"content": "{}"}}], "usage": {"prompt_tokens": 1}}
    server.script({"do": "body", "body": json.dumps(body), "times": 1})
    client = other(talk, server, longest_wait=1.0).client()
    client.limiter.learn(None, openai_quota(quota, "tokens"))
    assert client.limiter.tokens.wait(1_000) <= 1.0


def test_how_long_is_waited_and_for_whom_is_said(
    server: ProtocolServer, talk: Talk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "WORTH_TELLING", 0.2)
    caplog.set_level("INFO", "penumbra")
    server.script({"do": "status", "status": 429, "retry_after": "inf", "times": 1})
    client = other(talk, server, longest_wait=0.6, in_flight=1).ask(questions(4))
    assert "openai: waits 1 s for openai (gpt-4o-mini) or its limits" in caplog.text
    assert "waits" not in client.statistics.line("openai"), "not once it goes on"


def test_of_two_runs_at_once_one_pays_and_the_other_says_for_whom_it_waits(
    server: ProtocolServer, talk: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penumbra")
    server.change(latency=0.05)
    clients = [talk.client(run=name) for name in ("first", "second")]

    async def both() -> None:
        await asyncio.gather(*(client.ask([questions(32)]) for client in clients))

    with clients[0].budget, clients[1].budget:
        asyncio.run(both())
    assert [client.statistics.requests for client in clients] == [8, 0]
    assert [client.statistics.done for client in clients] == [32, 32]
    assert f"openai: waits for run first (process {os.getpid()} on " in caplog.text


def test_runs_that_ask_different_models_do_not_wait_for_each_other(server: ProtocolServer, talk: Talk) -> None:
    server.change(latency=0.2)
    clients = [other(talk, server, model=model).client() for model in ("gpt-4o-mini", "gpt-4.1")]

    async def both() -> None:
        await asyncio.gather(*(client.ask([questions(8)]) for client in clients))

    with clients[0].budget, clients[1].budget:
        asyncio.run(both())
    assert {request["in_flight"] for request in server.requests()} >= {3, 4}


@pytest.mark.parametrize("queries_a_request", [4, 9], ids=["same", "other"])
def test_requests_that_a_run_was_broken_off_over_go_out_again_as_they_were(
    server: ProtocolServer, talk: Talk, queries_a_request: int
) -> None:
    """A service that knows their keys answers them again for nothing, whatever the new run's settings are."""
    some = questions(30)
    server.change(idempotent=True)
    talk.ask(questions(4, 90))  # imports take their time, too
    server.script({"do": "slow", "seconds": 8, "when": {"request": [3, 4]}})
    with pytest.raises(TimeoutError):
        talk.ask(some, within=3)
    under_way = [request for request in server.requests() if request["outcome"] == "client closed"]
    assert len(under_way) == 2
    server.script()
    client = talk.ask(some[::-1], queries_a_request=queries_a_request)
    assert (client.stopped, talk.open(some)) == ("", [])
    charged = Counter(line for request in server.requests() if any(request["charged"]) for line in lines_of(request))
    assert charged == Counter(one.text() for one in [*some, *questions(4, 90)]), "each once"


def test_of_a_request_broken_off_the_rest_is_asked_where_some_of_it_is_gone(server: ProtocolServer, talk: Talk) -> None:
    some = questions(8)
    server.script({"do": "slow", "seconds": 5})
    with pytest.raises(TimeoutError):
        other(talk, server, in_flight=1).ask(some, within=1.5)
    server.script()
    client = talk.ask([*some[1:], *questions(3, 8)])
    assert (client.stopped, talk.open([*some[1:], *questions(3, 8)])) == ("", [])
    assert talk.open(some) == some[:1]


def test_a_server_that_says_more_than_it_may_is_believed_to_do_so_again(server: ProtocolServer, talk: Talk) -> None:
    """No limit can be kept with the first such answer; with all that follow it can."""
    server.script({"do": "answer", "content": "blah " * 400})
    limit = 0.4
    client = other(talk, server, price=PRICE, in_flight=1).ask(questions(60), limit=limit, queries_a_request=1)
    assert client.stopped == OVER_BUDGET
    assert 0.2 < least(server) <= limit
