"""The cache of paid answers: whatever a service has answered is never asked for again.

A question's entry is the digest of its content (service, model, prompt, text) and leads to the answer of the request
that it went out in, or holds the error that the service will give for good. So the cache outlives every other
setting: other providers, chunk sizes, limits, numbers of queries a request. Nothing is ever evicted.
"""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import diskcache
from diskcache.core import MODE_RAW, MODE_TEXT

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.locations import answers_folder

WITHOUT_LIMIT = 1 << 62
MOST_IN_FLIGHT = 1024  # requests of one run under way


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


class AnswersError(PenumbraError):
    """The cache of answers holds what Penumbra doesn't write, or is no database."""


class JSONText(diskcache.Disk):  # type: ignore[misc]
    """Names and values are text, and values JSON: diskcache's own disk would unpickle what a row calls a pickle.

    Caches of every version of Penumbra are read as they are, for all of them wrote JSON. diskcache's `JSONDisk` would
    find nothing in them.
    """

    def put(self, key: str) -> tuple[str, bool]:
        """A name as it stands in the database."""
        return key, True

    def get(self, key: Any, raw: bool) -> str:
        """A name; raises `AnswersError` for what is none."""
        return key if raw and isinstance(key, str) else self._refuse()

    def store(self, value: Any, read: bool, key: Any = diskcache.UNKNOWN) -> Any:
        """A value as JSON, in a file of its own where it is long."""
        return super().store(json.dumps(value), False, key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        """A row's value; raises `AnswersError` for a pickle, for no JSON and for a file that lies elsewhere."""
        if mode == MODE_TEXT and filename:
            folder = Path(self._directory).resolve()
            path = (folder / filename).resolve()
            value = path.read_text("utf-8") if path.is_relative_to(folder) else None
        elif mode == MODE_RAW and isinstance(value, int):  # "alone", of version 0.1.0
            return value
        try:
            return json.loads(value) if mode in (MODE_RAW, MODE_TEXT) and isinstance(value, str) else self._refuse()
        except (ValueError, RecursionError):
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise AnswersError(
            f"{self._directory}: the cache of answers holds a row that is no JSON, so not Penumbra's, and is left "
            "unread: restore the folder from a copy, or have PENUMBRA_ANSWERS name another"
        )


class Answers:
    """The cache on disk (diskcache, SQLite): several processes of one machine may read and write it at once."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or answers_folder()
        try:
            self.cache = diskcache.Cache(
                str(self.folder),
                disk=JSONText,
                eviction_policy="none",
                cull_limit=0,
                size_limit=WITHOUT_LIMIT,
                statistics=0,
            )
        except (sqlite3.DatabaseError, OSError) as error:
            raise AnswersError(
                f"{self.folder}: the cache of answers can't be opened ({error}): restore the folder from a copy, or "
                "have PENUMBRA_ANSWERS name another"
            ) from None

    def find(self, key: str) -> CacheEntry | None:
        """What is known of a question, or None."""
        entry = self.cache.get(f"question {key}", retry=True)
        if entry is None:
            return None
        if "error" in entry:
            return CacheEntry(None, error=entry["error"])
        answer = self.cache.get(f"answer {entry['answer']}", retry=True)
        return CacheEntry(Answer(**answer), entry["number"], entry["first"], entry["asker"]) if answer else None

    def keep(self, name: str, places: Sequence[Place], answer: Answer) -> None:
        """Store an answer under its name, and where the answer to each question stands in it, as one transaction."""
        with self.cache.transact(retry=True):
            self.cache.set(f"answer {name}", asdict(answer), retry=True)
            for number, place in enumerate(places, 1):
                entry = {"answer": name, "number": number, "first": place.first, "asker": place.asker}
                self.cache.set(f"question {place.key}", entry, retry=True)
                self.cache.set(f"offer {place.offer}", place.options, retry=True)

    def offered(self, offer: str) -> list[tuple[str, ...]] | None:
        """The words that were on offer when a question was answered, by slot."""
        lists = self.cache.get(f"offer {offer}", retry=True)
        return None if lists is None else [tuple(words) for words in lists]

    def refuse(self, key: str, error: str) -> None:
        """Store that the service will not answer a question."""
        self.cache.set(f"question {key}", {"error": error}, retry=True)

    def isolate(self, keys: Sequence[str]) -> None:
        """Mark questions whose request was refused for one of them: each is to be asked alone."""
        for key in keys:
            self.cache.set(f"alone {key}", 1, retry=True)

    def is_isolated(self, key: str) -> bool:
        """Whether a question is to be asked alone."""
        return f"alone {key}" in self.cache

    def note_sent(self, claim: str, worker: int, keys: Sequence[str]) -> None:
        """Write down what the next request of a worker asks, before it is sent."""
        self.cache.set(f"sent {claim} {worker}", list(keys), retry=True)

    def last_sent(self, claim: str) -> list[list[str]]:
        """What the last requests asked, one of each worker of the run that had this claim before."""
        sent = (self.cache.get(f"sent {claim} {worker}", retry=True) for worker in range(MOST_IN_FLIGHT))
        return [keys for keys in sent if keys]

    def close(self) -> None:
        """Let go of the database."""
        self.cache.close()
