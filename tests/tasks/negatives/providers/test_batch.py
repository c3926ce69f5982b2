"""OpenAI's Batch API through the real client library: submitted once, collected later, whatever happens between."""

import json
from pathlib import Path
from typing import Any

import pytest

from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.providers.batch import JOBS
from penumbra.tasks.negatives.providers.client import OVER_BUDGET, UNDER_WAY, Client
from tests.hosted import PRICE, Session, openai_settings, questions
from tests.protocol_server import ProtocolServer

pytestmark = pytest.mark.slow

SUBMITTED = "/v1/batches"


@pytest.fixture
def session(server: ProtocolServer, store: Store) -> Session:
    return Session(openai_settings(server, mode="batch"), Path(store.root) / ".answers")


def collect(session: Session) -> Client:
    """Run until no job is under way."""
    client = session.ask(questions(30))
    while client.stopped == UNDER_WAY:
        client = session.ask(questions(30))
    return client


def jobs(store: Store) -> list[dict[str, Any]]:
    """Return the jobs that the store has noted."""
    return [json.loads(store.files.read(path)) for path in store.files.matching(f"{JOBS}/*.json")]


def submitted(server: ProtocolServer) -> int:
    return sum(request["path"] == SUBMITTED and request["method"] == "POST" for request in server.requests())


def test_jobs_are_submitted_once_and_collected_by_a_later_run_at_half_the_price(
    server: ProtocolServer, session: Session, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penumbra.tasks.negatives.providers.batch.MOST_REQUESTS", 3)
    first = session.ask(questions(30))
    assert first.stopped == UNDER_WAY
    assert len(jobs(store)) == submitted(server) == 3
    last = collect(session)
    assert (last.stopped, last.statistics.done, submitted(server)) == ("", 30, 3)
    assert session.open(questions(30)) == []
    assert jobs(store) == []
    fills = session.fills(questions(30))
    prompt, completion = sum(f.prompt_tokens for f in fills), sum(f.completion_tokens for f in fills)
    cost = (prompt * PRICE["input"] + completion * PRICE["output"]) / 1e6
    assert sum(f.cost_usd for f in fills) == pytest.approx(cost / 2)


def test_what_expired_is_submitted_again_and_nothing_else(server: ProtocolServer, session: Session) -> None:
    server.change(batch_outcome="expired")
    session.ask(questions(30))
    while submitted(server) == 1:
        session.ask(questions(30))
    left = len(session.open(questions(30)))
    assert 0 < left < 30
    server.change(batch_outcome="completed")
    assert collect(session).statistics.done == 30
    assert submitted(server) == 2


@pytest.mark.parametrize("note", [{"job": None}, {"job": None, "token": "never"}], ids=["lost id", "not submitted"])
def test_after_a_kill_at_the_submission_a_job_is_found_by_its_token_or_forgotten(
    server: ProtocolServer, session: Session, store: Store, note: dict[str, str | None]
) -> None:
    session.ask(questions(30))
    (job,) = jobs(store)
    changed = job | note
    store.files.write(f"{JOBS}/{changed['token']}.json", json.dumps(changed).encode())
    assert collect(session).statistics.done == 30
    assert jobs(store) == []
    assert submitted(server) == 1


def test_a_refused_request_is_submitted_again_question_by_question(server: ProtocolServer, session: Session) -> None:
    server.script({"do": "status", "status": 400, "when": {"contains": "room 7."}})
    assert collect(session).stopped == ""
    problems = [session.problems(one)[-1] for one in questions(30)]
    assert [number for number, problem in enumerate(problems) if problem] == [7]


def test_the_budget_bounds_what_is_submitted(server: ProtocolServer, session: Session, store: Store) -> None:
    assert session.ask(questions(30), limit=0.02).stopped == OVER_BUDGET
    (job,) = jobs(store)
    assert 0 < len(job["requests"]) < 8
