"""The cache of paid answers: whatever a service has answered is never asked for again.

A question's entry is the digest of its content (service, model, prompt, text) and leads to the answer of the request
that it went out in, or holds the error that the service will give for good. So the cache outlives every other
setting: other providers, chunk sizes, limits, numbers of queries a request. Nothing is ever evicted.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import diskcache

from penumbra.artifacts.settings import answers_folder

WITHOUT_LIMIT = 1 << 62


class Place(NamedTuple):
    """Where a question stands in a request, by the number of its first slot; who asked it; the words on offer to it."""

    key: str
    first: int
    asker: str
    offer: str
    options: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Answer:
    """A service's answer to one request, which the run `run` asked for.

    `text` is None where there is none, and `problem` says why ("refused by the model").
    """

    text: str | None
    problem: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float
    seconds: float
    retries: int
    run: str
    questions: int

    def share(self, number: int) -> tuple[int, int, float]:
        """The part of the tokens and the cost of question `number` (from 1); the parts add up to the whole."""
        return (
            portion(self.prompt_tokens, self.questions, number - 1),
            portion(self.completion_tokens, self.questions, number - 1),
            self.cost_usd / self.questions,
        )


def portion(total: int, parts: int, index: int) -> int:
    """The index-th of `parts` nearly equal whole portions of a total."""
    return total * (index + 1) // parts - total * index // parts


@dataclass(frozen=True)
class CacheEntry:
    """What the cache knows of a question: an answer, or a permanent error.

    `number` (from 1) is the question's in the request, `first` the number of its first slot, `asker` who asked it.
    """

    answer: Answer | None
    number: int = 1
    first: int = 1
    asker: str = ""
    error: str = ""


class Answers:
    """The cache on disk (diskcache, SQLite): several processes may read and write it at once."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or answers_folder()
        self.cache = diskcache.Cache(
            str(self.folder), eviction_policy="none", cull_limit=0, size_limit=WITHOUT_LIMIT, statistics=0
        )

    def find(self, key: str) -> CacheEntry | None:
        """What is known of a question, or None."""
        entry = self._read(f"question {key}")
        if entry is None:
            return None
        if "error" in entry:
            return CacheEntry(None, error=entry["error"])
        answer = self._read(f"answer {entry['answer']}")
        return CacheEntry(Answer(**answer), entry["number"], entry["first"], entry["asker"]) if answer else None

    def _read(self, name: str) -> dict[str, Any] | None:
        value = self.cache.get(name, retry=True)
        return json.loads(value) if isinstance(value, str) else None

    def keep(self, name: str, places: Sequence[Place], answer: Answer) -> None:
        """Store an answer under its name, and where the answer to each question stands in it, as one transaction."""
        with self.cache.transact(retry=True):
            self.cache.set(f"answer {name}", json.dumps(asdict(answer)), retry=True)
            for number, place in enumerate(places, 1):
                entry = {"answer": name, "number": number, "first": place.first, "asker": place.asker}
                self.cache.set(f"question {place.key}", json.dumps(entry), retry=True)
                self.cache.set(f"offer {place.offer}", json.dumps(place.options), retry=True)

    def offered(self, offer: str) -> list[tuple[str, ...]] | None:
        """The words that were on offer when a question was answered, by slot."""
        value = self.cache.get(f"offer {offer}", retry=True)
        return [tuple(words) for words in json.loads(value)] if isinstance(value, str) else None

    def refuse(self, key: str, error: str) -> None:
        """Store that the service will not answer a question."""
        self.cache.set(f"question {key}", json.dumps({"error": error}), retry=True)

    def isolate(self, keys: Sequence[str]) -> None:
        """Mark questions whose request was refused for one of them: each is to be asked alone."""
        for key in keys:
            self.cache.set(f"alone {key}", 1, retry=True)

    def is_isolated(self, key: str) -> bool:
        """Whether a question is to be asked alone."""
        return f"alone {key}" in self.cache

    def close(self) -> None:
        """Let go of the database."""
        self.cache.close()
