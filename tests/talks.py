"""Questions without a tagger or a dictionary, and clients of the stand-in server: what the tests of asking share."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penumbra.tasks.negatives.providers import Fill, MaskedQuery, Slot
from penumbra.tasks.negatives.providers.answers import Answers
from penumbra.tasks.negatives.providers.asking import Client
from penumbra.tasks.negatives.providers.budget import Budget
from penumbra.tasks.negatives.providers.dialogue import dialogue
from penumbra.tasks.negatives.providers.gemini import Gemini
from penumbra.tasks.negatives.providers.hosted import Hosted, HostedProvider
from penumbra.tasks.negatives.providers.openai import OpenAI
from penumbra.tasks.negatives.providers.prompts import Prompt, load_prompt
from penumbra.tasks.negatives.providers.questions import Question
from penumbra.tasks.negatives.providers.service import Service
from penumbra.tasks.text.masks import ORDER, slot_counts
from tests.protocol_server import ProtocolServer
from tests.protocol_server.answers import pick
from tests.protocol_server.openai import tokens

PROMPT = load_prompt("fill-slots-1", "queries")
RATIOS = (0.25, 0.5, 0.75)
WORDS = {
    "verb": ("closes", "fixes", "shuts", "takes", "throws", "holds", "paints", "moves"),
    "noun": ("window", "pillow", "cup", "lamp", "book", "chair", "towel", "phone"),
    "adjective": ("red", "green", "old", "small", "broken", "clean", "wet", "new"),
    "preposition": ("under", "behind", "near", "above", "below", "beside", "over", "inside"),
}
SLOT = re.compile(r"\[(\d+) ")


def masked(qid: str, text: str) -> MaskedQuery:
    """A query from words and `word|class`, masked at three levels as the stage does."""
    parts = text.split()
    words = [part.partition("|")[0] for part in parts]
    classes = [part.partition("|")[2].rstrip(".") for part in parts]
    tokens = [{"text": word, "space_after": True} for word in words]
    order = sorted((i for i, c in enumerate(classes) if c), key=lambda i: (ORDER.index(classes[i]), i))
    slots = {i: Slot(i, classes[i], "", words[i], words[i]) for i in order}
    counts = slot_counts(len(order), RATIOS)
    return MaskedQuery(qid, tokens, tuple(tuple(slots[i] for i in sorted(order[:count])) for count in counts))


def question(number: int, offered: int = 8) -> Question:
    """A question of three slots that no other number has."""
    return of(
        masked(f"q{number}", f"person opens|verb the blue|adjective door|noun of room {number}."), number, offered
    )


def of(query: MaskedQuery, turn: int = 0, offered: int = 8) -> Question:
    """A question about any query; `turn` says in which order its words are offered."""
    slots = query.levels[-1]
    words = [WORDS[slot.primitive][turn % 8 :] + WORDS[slot.primitive][: turn % 8] for slot in slots]
    return Question(query, tuple(some[:offered] for some in words), 0)


def questions(count: int, start: int = 0) -> list[Question]:
    return [question(number) for number in range(start, start + count)]


def openai_settings(server: ProtocolServer, **settings: Any) -> OpenAI:
    return OpenAI(**{"model": "gpt-4o-mini", "base_url": server.openai_url, "in_flight": 2, "timeout": 10} | settings)


def gemini_settings(server: ProtocolServer, **settings: Any) -> Gemini:
    return Gemini(**{"model": "gemini-2.5-flash", "base_url": server.url, "in_flight": 2, "timeout": 10} | settings)


def service_of(settings: Hosted, prompt: Prompt = PROMPT) -> Service:
    return settings.service(prompt)


class Talk:
    """One settings' answers in a folder, and as many clients after each other as a test wants."""

    def __init__(self, settings: Hosted, folder: Path) -> None:
        self.settings, self.answers = settings, Answers(folder)
        self.cache_key = settings.cache_key(PROMPT.label)

    def client(self, limit: float | None = None, queries_a_request: int = 4, run: str = "run") -> Client:
        service = service_of(self.settings)
        return Client(service, self.answers, self.settings, Budget(limit, self.answers), run, queries_a_request)

    def ask(self, some: Sequence[Question], within: float = 60.0, **client: Any) -> Client:
        """Ask in blocks of eight, as parts of a data set come."""
        made = self.client(**client)
        blocks = [some[start : start + 8] for start in range(0, len(some), 8)]
        with made.budget:
            asyncio.run(asyncio.wait_for(made.ask(blocks), within))
        return made

    def open(self, some: Sequence[Question]) -> list[Question]:
        """The questions that are open: never answered, or not to the end."""
        return [q for q in some if dialogue(q, self.cache_key, self.answers).next]

    def problems(self, one: Question) -> list[str]:
        """What was wrong at each attempt."""
        return [attempt.problem for attempt in dialogue(one, self.cache_key, self.answers).attempts]

    def fills(self, some: Sequence[Question], run: str = "run") -> list[Fill]:
        """The rows that these questions become."""
        provider = HostedProvider(
            "p", self.settings.model, PROMPT.label, self.cache_key, Given(some), self.answers, run
        )  # type: ignore[arg-type]
        return list(provider.fill([q.query for q in some], 1))


class Given:
    """Offers what the questions offer."""

    def __init__(self, some: Sequence[Question]) -> None:
        self.lists = {(q.query.qid, q.query.part): list(q.options) for q in some}

    def draw(self, queries: Sequence[MaskedQuery], candidate: int) -> list[list[tuple[str, ...]]]:
        return [self.lists[query.qid, query.part] for query in queries]

    def name(self, query: MaskedQuery, candidate: int) -> str:
        return f"{query.qid} {query.part} {candidate}"


def lines_of(request: dict[str, Any]) -> list[str]:
    """The questions of a logged request (`log_text`), each numbered from 1 as `Question.text()` numbers it."""
    found = []
    for line in request["text"].splitlines():
        numbers = [int(number) for number in SLOT.findall(line)]
        if numbers:
            first = min(numbers)
            found.append(SLOT.sub(lambda match: f"[{int(match[1]) - first + 1} ", line))  # noqa: B023
    return found


def tokens_of(requests: Sequence[dict[str, Any]], said: dict[str, int]) -> tuple[int, int]:
    """The tokens that the stand-in counted for these answered requests; `said` has those of its faults' texts."""
    prompt = sum(tokens(request["text"]) for request in requests)
    return prompt, sum(said[r["fault"]] if r["fault"] else tokens(well_said(r)) for r in requests)


def well_said(request: dict[str, Any]) -> str:
    """What the stand-in answers to a request that it does not spoil."""
    return json.dumps({number: pick(letters, number, 0) for number, letters in request["offered"].items()})
