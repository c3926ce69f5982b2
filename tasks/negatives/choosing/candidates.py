"""The candidates of a part, and the chains of them that could be a query's negatives."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penumbra.tasks.negatives.choosing.checks import Check, Judge, Proposal, check
from penumbra.tasks.negatives.fills import FILLED
from penumbra.tasks.negatives.providers import MaskedQuery

MOST_CHAINS = 256  # considered of a query
Chain = tuple["Candidate", ...]


@dataclass(eq=False)
class Candidate:
    """One fill that passed the checks on its words and text."""

    query: str
    words: tuple[str, ...]
    provider: str
    model: str


@dataclass
class Query:
    """A query with what could be its negatives, by level; `refused` has the reason of each level's first refusal."""

    masked: MaskedQuery
    text: str
    vid: str
    candidates: dict[int, list[Candidate]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)

    @property
    def qid(self) -> str:
        return self.masked.qid

    def keeps(self, level: int, words: Sequence[str], before: int) -> tuple[str, ...] | None:
        """The words that a level has in the slots of a level before; None where both have the same slots."""
        slots, fewer = self.masked.levels[level - 1], self.masked.levels[before - 1]
        if slots == fewer:
            return None
        placed = dict(zip((slot.token for slot in slots), words, strict=True))
        return tuple(placed[slot.token] for slot in fewer)

    def chains(self, levels: Sequence[int], nested: bool) -> list[Chain]:
        """What could be chosen together for these levels: no two texts alike and, if nested, each keeping the last.

        The first are of what their providers gave first.
        """
        rows: Iterator[Chain]
        if not nested:
            offered = [self.candidates[level] for level in levels]
            most = max(map(len, offered), default=0)
            rows = (tuple(some[i % len(some)] for some in offered) for i in range(most))
        else:
            rows = self._nested(list(levels))
        several = list(islice((row for row in rows if len({c.query for c in row}) == len(row)), MOST_CHAINS))
        place = {id(c): place for level in levels for place, c in enumerate(self.candidates[level])}
        return sorted(several, key=lambda row: max(place[id(candidate)] for candidate in row))

    def _nested(self, levels: list[int]) -> Iterator[Chain]:
        *before, last = levels
        if not before:
            yield from ((candidate,) for candidate in self.candidates[last])
            return
        shorter: dict[tuple[str, ...], list[Chain]] = {}
        everything = list(self._nested(before))
        for chain in everything:
            shorter.setdefault(chain[-1].words, []).append(chain)
        for candidate in self.candidates[last]:
            kept = self.keeps(last, candidate.words, before[-1])
            yield from ((*chain, candidate) for chain in (everything if kept is None else shorter.get(kept, ())))


def gather(
    annotations: pa.Table, queries: Iterable[MaskedQuery], fills: Iterable[pa.Table], judge: Judge,
    checks: Sequence[Check],
) -> list[Query]:  # fmt: skip
    """Each query of a part with the candidates that pass, in the providers' order, each text of a level once."""
    texts = {row["qid"]: row for row in annotations.select(["qid", "vid", "query"]).to_pylist()}
    gathered = {query.qid: Query(query, texts[query.qid]["query"], texts[query.qid]["vid"]) for query in queries}
    seen: set[tuple[str, int, str]] = set()
    for row in _filled(fills):
        query = gathered[row["qid"]]
        place = (query.qid, row["level"], row["query"])
        if place in seen:
            continue
        seen.add(place)
        several = query.candidates.setdefault(row["level"], [])
        verdict = check(Proposal(query.masked, row["level"], row["words"], row["query"], query.vid), judge, checks)
        if verdict is True:
            several.append(Candidate(row["query"], tuple(row["words"]), row["provider"], row["model"]))
        else:
            query.refused.setdefault(row["level"], verdict)
    return list(gathered.values())


def _filled(fills: Iterable[pa.Table]) -> Iterator[Mapping[str, Any]]:
    names = ["qid", "level", "words", "query", "provider", "model"]
    for table in fills:
        for batch in table.filter(pc.equal(table["status"], FILLED)).select(names).to_batches(1 << 14):
            yield from batch.to_pylist()


def level_sets(levels: Iterable[int]) -> Iterator[tuple[int, ...]]:
    """The levels to be had together, as many as can first, then the mildest."""
    several = sorted(levels)
    for size in range(len(several), 0, -1):
        yield from combinations(several, size)
