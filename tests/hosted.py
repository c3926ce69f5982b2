"""Questions that need no tagger or dictionary, and clients of the stand-in server, for tests of hosted models."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Slot, client, hosted, load_prompt
from penumbra.tasks.negatives.providers.answers import Answers, open_budget
from penumbra.tasks.negatives.providers.client import Client
from penumbra.tasks.negatives.providers.hosted import SERVICES
from penumbra.tasks.negatives.providers.questions import HostedProvider, Question, attempt_history
from penumbra.tasks.negatives.providers.settings import Gemini, HostedSettings, OpenAI
from penumbra.tasks.text.masks import VERBS_FIRST, slot_counts
from tests.protocol_server import ProtocolServer

PROMPT = load_prompt("fill-slots-1", "queries")
RATIOS = (0.25, 0.5, 0.75)
PRICE = {"input": 10.0, "output": 100.0}
WORDS = {
    "verb": ("closes", "fixes", "shuts", "takes", "throws", "holds", "paints", "moves"),
    "noun": ("window", "pillow", "cup", "lamp", "book", "chair", "towel", "phone"),
    "adjective": ("red", "green", "old", "small", "broken", "clean", "wet", "new"),
    "preposition": ("under", "behind", "near", "above", "below", "beside", "over", "inside"),
}
SLOT = re.compile(r"\[(\d+) ")


def masked(qid: str, text: str) -> MaskedQuery:
    """Return a query from words and `word|class`, masked at three levels as the stage does."""
    parts = text.split()
    words = [part.partition("|")[0] for part in parts]
    classes = [part.partition("|")[2].rstrip(".") for part in parts]
    tokens = [{"text": word, "space_after": True} for word in words]
    order = sorted((i for i, c in enumerate(classes) if c), key=lambda i: (VERBS_FIRST.index(classes[i]), i))
    slots = {i: Slot(i, classes[i], "", words[i], words[i]) for i in order}
    counts = slot_counts(len(order), RATIOS)
    return MaskedQuery(qid, tokens, tuple(tuple(slots[i] for i in sorted(order[:count])) for count in counts))


def question(number: int, offered: int = 8) -> Question:
    """Return a question of three slots that no other number has."""
    query = masked(f"q{number}", f"person opens|verb the blue|adjective door|noun of room {number}.")
    return question_about(query, number, offered)


def question_about(query: MaskedQuery, turn: int = 0, offered: int = 8) -> Question:
    """Return a question about any query; `turn` rotates its words on offer."""
    words = [WORDS[slot.primitive][turn % 8 :] + WORDS[slot.primitive][: turn % 8] for slot in query.levels[-1]]
    return Question(query, tuple(several[:offered] for several in words), 0, f"offer of {query.qid}")


def questions(count: int, start: int = 0) -> list[Question]:
    return [question(number) for number in range(start, start + count)]


MODELS = {"openai": (OpenAI, "gpt-4o-mini"), "gemini": (Gemini, "gemini-2.5-flash")}


def settings_of(name: str, server: ProtocolServer, **settings: Any) -> HostedSettings:
    """Return the parameters of a provider that the stand-in takes the place of."""
    (kind, model), address = MODELS[name], server.openai_url if name == "openai" else server.url
    return kind(**{"model": model, "base_url": address, "price": PRICE} | settings)


@pytest.fixture(scope="module")
def running() -> Iterator[ProtocolServer]:
    with ProtocolServer() as server:
        yield server


@pytest.fixture
def server(running: ProtocolServer, monkeypatch: pytest.MonkeyPatch) -> ProtocolServer:
    """Return the stand-in without faults, with two requests in flight."""
    monkeypatch.setattr(hosted, "IN_FLIGHT", 2)
    monkeypatch.setattr(hosted, "TIMEOUT", 10.0)
    return quick(running, monkeypatch, {"OPENAI_API_KEY": "sk-test", "GEMINI_API_KEY": "AIza-test"})


def quick(server: ProtocolServer, monkeypatch: pytest.MonkeyPatch, keys: dict[str, str]) -> ProtocolServer:
    """Return the stand-in without faults; make clients pause briefly and use these keys."""
    monkeypatch.setattr(client, "FIRST_PAUSE", 0.002)
    monkeypatch.setattr(client, "LONGEST_PAUSE", 0.01)
    for name, key in keys.items():
        monkeypatch.setenv(name, key)
    server.reset()
    return server


class Session:
    """One provider's parameters, the server and a folder of answers, which the clients of a test share."""

    def __init__(self, name: str, server: ProtocolServer, folder: Path, **settings: Any) -> None:
        self.server, self.settings, self.answers = server, settings_of(name, server, **settings), Answers(folder)
        self.cache_key = self.settings.cache_key(PROMPT.label)

    def ask(
        self,
        asked: Sequence[Question],
        within: float = 60.0,
        limit: float | None = None,
        queries_a_request: int = 4,
        run: str = "run",
    ) -> Client:
        """Ask in blocks of forty, like the parts of a data set."""
        service = SERVICES[self.settings.provider](self.settings, PROMPT)
        service.authenticate()
        blocks = [asked[start : start + 40] for start in range(0, len(asked), 40)]
        client = Client(service, self.answers, lambda: blocks, queries_a_request)
        with open_budget(self.answers, limit) as budget:
            asyncio.run(asyncio.wait_for(client.ask(budget, run), within))
        return client

    def open(self, asked: Sequence[Question]) -> list[Question]:
        """Return the questions that have no final answer."""
        return [question for question in asked if attempt_history(question, self.cache_key, self.answers)[1]]

    def problems(self, asked: Question) -> list[str]:
        return [attempt.problem for attempt in attempt_history(asked, self.cache_key, self.answers)[0]]

    def fills(self, asked: Sequence[Question], run: str = "run") -> list[Fill]:
        options = {(question.query.qid, question.query.part): list(question.options) for question in asked}
        lists: Any = SimpleNamespace(answers=self.answers, name=lambda query, candidate: query.qid)
        lists.draw = lambda queries, candidate: [options[query.qid, query.part] for query in queries]
        provider = HostedProvider("p", self.settings.model, PROMPT.label, self.cache_key, lists, run)
        return list(provider.fill([question.query for question in asked], 1))


def lines_of(request: dict[str, Any]) -> list[str]:
    """Return the questions of a logged request, each numbered from 1 as `Question.text()` numbers it."""
    lines = []
    for line in request.get("text", "").splitlines():
        numbers = [int(number) for number in SLOT.findall(line)]
        if numbers:
            first = min(numbers)
            lines.append(SLOT.sub(lambda match: f"[{int(match[1]) - first + 1} ", line))  # noqa: B023
    return lines


def asked_lines(server: ProtocolServer, **where: Any) -> Counter[str]:
    return Counter(line for request in server.requests(**where) for line in lines_of(request))
