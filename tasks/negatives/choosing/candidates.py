"""The candidates of a part, and the chains of them that could be a query's negatives."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, islice
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penumbra.tasks.negatives.choosing.checks import Check, Judge, Proposal, Verdict, check
from penumbra.tasks.negatives.fills import FILLED
from penumbra.tasks.negatives.providers import MaskedQuery

MOST_CHAINS = 256  # considered at a time
Chain = tuple["Candidate", ...]


@dataclass(eq=False)
class Candidate:
    """A fill, as its provider gave it."""

    text: str
    words: tuple[str, ...]
    provider: str
    model: str


class Candidates:
    """What could be a query's negative at one level, in the providers' order, each text once.

    A fill is checked when it is asked for: most queries take the first that passes. `refused` is the reason of the
    first refusal.
    """

    def __init__(self, fills: Iterable[Candidate], check: Callable[[Candidate], Verdict] = lambda fill: True) -> None:
        distinct: dict[str, Candidate] = {}
        for fill in fills:
            distinct.setdefault(fill.text, fill)
        self._untried, self._check = iter(distinct.values()), check
        self._passed: list[Candidate] = []
        self.refused = ""

    def first(self, most: int) -> list[Candidate]:
        """The first that pass, so many or all that there are."""
        while len(self._passed) < most and (fill := next(self._untried, None)):
            verdict = self._check(fill)
            if verdict is True:
                self._passed.append(fill)
            else:
                self.refused = self.refused or verdict
        return self._passed[:most]


@dataclass
class Query:
    """A query with what could be its negatives, by level."""

    masked: MaskedQuery
    text: str
    vid: str
    candidates: dict[int, Candidates] = field(default_factory=dict)

    @property
    def qid(self) -> str:
        return self.masked.qid

    def has(self, level: int) -> bool:
        """Whether any candidate of this level passes."""
        return level in self.candidates and bool(self.candidates[level].first(1))

    def keeps(self, level: int, words: Sequence[str], before: int) -> tuple[str, ...] | None:
        """The words that a level has in the slots of a level before; None where both have the same slots."""
        slots, fewer = self.masked.levels[level - 1], self.masked.levels[before - 1]
        if slots == fewer:
            return None
        placed = dict(zip((slot.token for slot in slots), words, strict=True))
        return tuple(placed[slot.token] for slot in fewer)

    def chains(self, levels: Sequence[int], nested: bool) -> Iterator[Chain]:
        """What could be chosen together for these levels: no two texts alike and, if nested, each keeping the last.

        The first are of what their providers gave first: of one candidate a level, then of two, of four, and so on.
        """
        done, most = 0, 1
        while True:
            offered = [self.candidates[level].first(most) for level in levels]
            if max(map(len, offered)) <= done:
                return
            rows = self._nested(levels, offered) if nested else _abreast(offered)
            several = islice((row for row in rows if len({c.text for c in row}) == len(row)), MOST_CHAINS)
            places = [{id(candidate): place for place, candidate in enumerate(some)} for some in offered]
            furthest = [(max(of[id(c)] for of, c in zip(places, row, strict=True)), row) for row in several]
            yield from (row for place, row in sorted(furthest, key=itemgetter(0)) if place >= done)
            done, most = most, 2 * most

    def _nested(self, levels: Sequence[int], offered: Sequence[Sequence[Candidate]]) -> Iterator[Chain]:
        (*before, last), (*earlier, latest) = levels, offered
        if not before:
            yield from ((candidate,) for candidate in latest)
            return
        shorter: dict[tuple[str, ...], list[Chain]] = {}
        everything = list(self._nested(before, earlier))
        for chain in everything:
            shorter.setdefault(chain[-1].words, []).append(chain)
        for candidate in latest:
            kept = self.keeps(last, candidate.words, before[-1])
            yield from ((*chain, candidate) for chain in (everything if kept is None else shorter.get(kept, ())))


def _abreast(offered: Sequence[Sequence[Candidate]]) -> Iterator[Chain]:
    """The first of each level, the second of each, and so on; a level with fewer begins again."""
    if all(offered):
        yield from (tuple(some[i % len(some)] for some in offered) for i in range(max(map(len, offered))))


def gather(
    annotations: pa.Table,
    queries: Iterable[MaskedQuery],
    fills: Iterable[pa.Table],
    judge: Judge,
    checks: Sequence[Check],
) -> list[Query]:
    """Each query of a part with its fills as candidates, in the providers' order."""
    texts = {row["qid"]: row for row in annotations.select(["qid", "vid", "query"]).to_pylist()}
    filled: dict[tuple[str, int], list[Candidate]] = {}
    for row in _filled(fills):
        candidate = Candidate(row["negative"], tuple(row["words"]), row["provider"], row["model"])
        filled.setdefault((row["qid"], row["level"]), []).append(candidate)
    gathered = {query.qid: Query(query, texts[query.qid]["query"], texts[query.qid]["vid"]) for query in queries}
    for (qid, level), several in filled.items():
        gathered[qid].candidates[level] = Candidates(several, partial(_passes, gathered[qid], level, judge, checks))
    return list(gathered.values())


def _passes(query: Query, level: int, judge: Judge, checks: Sequence[Check], candidate: Candidate) -> Verdict:
    return check(Proposal(query.masked, level, candidate.words, candidate.text, query.vid), judge, checks)


def _filled(fills: Iterable[pa.Table]) -> Iterator[Mapping[str, Any]]:
    names = ["qid", "level", "words", "negative", "provider", "model"]
    for table in fills:
        for batch in table.filter(pc.equal(table["status"], FILLED)).select(names).to_batches(1 << 14):
            yield from batch.to_pylist()


def level_sets(levels: Iterable[int]) -> Iterator[tuple[int, ...]]:
    """The levels to be had together, as many as can first, then the mildest."""
    several = sorted(levels)
    for size in range(len(several), 0, -1):
        yield from combinations(several, size)
