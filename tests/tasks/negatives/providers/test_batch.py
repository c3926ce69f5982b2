"""OpenAI's Batch API through the real client library: submitted once, collected later, whatever happens between."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.providers import batch
from penumbra.tasks.negatives.providers.asking import OVER_BUDGET, UNDER_WAY
from penumbra.tasks.negatives.providers.batch import JOBS, BatchClient
from penumbra.tasks.negatives.providers.budget import Budget
from penumbra.tasks.negatives.providers.openai import OpenAIService
from penumbra.tasks.negatives.providers.prices import Price
from tests.protocol_server import ProtocolServer
from tests.hosted import PROMPT, Talk, openai_settings, questions

pytestmark = pytest.mark.slow

PRICE = Price(input=10.0, output=100.0)
SUBMITTED = "/v1/batches"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProtocolServer]:
    monkeypatch.setattr(batch, "POLL", 0.02)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with ProtocolServer(log_text=True) as running:
        yield running


@pytest.fixture
def talk(server: ProtocolServer, store: Store) -> Talk:
    return Talk(openai_settings(server, mode="batch", price=PRICE), Path(store.root) / ".answers")


def ask(talk: Talk, store: Store, count: int = 30, limit: float | None = None, **settings: Any) -> BatchClient:
    chosen = talk.settings.model_copy(update=settings)
    service = OpenAIService(chosen, PROMPT)  # type: ignore[arg-type]
    with Budget(limit, talk.answers) as budget:
        client = BatchClient(service, talk.answers, chosen, budget, "run", 4, store)  # type: ignore[arg-type]
        asyncio.run(client.ask([questions(count)]))
    return client


def submitted(server: ProtocolServer) -> int:
    return sum(request["path"] == SUBMITTED and request["method"] == "POST" for request in server.requests())


def test_jobs_are_submitted_once_and_collected_by_a_later_run(server: ProtocolServer, talk: Talk, store: Store) -> None:
    first = ask(talk, store, requests_a_job=3)
    assert first.stopped == UNDER_WAY
    assert len(store.json_folder(JOBS).read_all()) == submitted(server) == 3
    last = first
    while last.stopped == UNDER_WAY:
        last = ask(talk, store, requests_a_job=3)
    assert (last.stopped, last.statistics.done, submitted(server)) == ("", 30, 3)
    assert talk.open(questions(30)) == []
    assert store.json_folder(JOBS).read_all() == []


def test_a_run_may_wait_and_pays_half(server: ProtocolServer, talk: Talk, store: Store) -> None:
    client = ask(talk, store, batch_wait=30.0)
    assert (client.stopped, client.statistics.done) == ("", 30)
    fills = talk.fills(questions(30))
    prompt, completion = sum(f.prompt_tokens for f in fills), sum(f.completion_tokens for f in fills)
    assert (prompt, completion) == (client.statistics.prompt_tokens, client.statistics.completion_tokens)
    assert sum(f.cost_usd for f in fills) == pytest.approx(PRICE.cost(prompt, completion) / 2)


def test_what_expired_is_submitted_again_and_nothing_else(server: ProtocolServer, talk: Talk, store: Store) -> None:
    server.change(batch_outcome="expired")
    client = ask(talk, store, batch_wait=0.0)
    while client.stopped == UNDER_WAY and submitted(server) == 1:
        client = ask(talk, store)
    left = len(talk.open(questions(30)))
    assert 0 < left < 30
    server.change(batch_outcome="completed")
    assert ask(talk, store, batch_wait=30.0).statistics.done == 30
    assert submitted(server) == 2
    lines = [request for request in server.requests() if request["path"].startswith("batch:")]
    assert sum(request["status"] == 200 for request in lines) <= 8 + 1


def test_a_job_whose_id_was_lost_is_found_by_its_token(server: ProtocolServer, talk: Talk, store: Store) -> None:
    """Killed after the submission and before the id was written down."""
    ask(talk, store)
    (note,) = store.json_folder(JOBS).read_all()
    store.json_folder(JOBS).write(note["token"], note | {"job": None})
    assert ask(talk, store, batch_wait=30.0).statistics.done == 30
    assert submitted(server) == 1


def test_a_job_that_was_never_submitted_is_forgotten(server: ProtocolServer, talk: Talk, store: Store) -> None:
    ask(talk, store)
    (note,) = store.json_folder(JOBS).read_all()
    store.json_folder(JOBS).write("never", note | {"token": "never", "job": None})
    assert ask(talk, store, batch_wait=30.0).statistics.done == 30
    assert store.json_folder(JOBS).read_all() == []
    assert submitted(server) == 1


def test_a_job_that_failed_ends_the_run_and_says_so(server: ProtocolServer, talk: Talk, store: Store) -> None:
    server.change(batch_outcome="failed")
    client = ask(talk, store, batch_wait=30.0)
    assert client.stopped.startswith("batch job failed")
    assert submitted(server) == 1


def test_the_budget_bounds_what_is_submitted(server: ProtocolServer, talk: Talk, store: Store) -> None:
    client = ask(talk, store, limit=0.02)
    assert client.stopped in (OVER_BUDGET, UNDER_WAY)
    (note,) = store.json_folder(JOBS).read_all()
    assert 0 < len(note["requests"]) < 8
