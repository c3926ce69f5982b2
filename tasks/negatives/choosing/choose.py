"""Choose the negatives of each query: the first candidates, in the order of their providers, that go together.

Candidates go together if level 1 is no paraphrase of the query and each level is less similar to the query than the
level before. Other criteria were tried (likeness to all queries, naturalness beyond the provider's own, a floor), and
models learned less from the negatives that they chose (docs/does-it-help.md).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penumbra.tasks.negatives.choosing.checks import Check, CheckContext, Proposal, Verdict, check
from penumbra.tasks.negatives.choosing.plausibility import Plausibility
from penumbra.tasks.negatives.fills import FILLED
from penumbra.tasks.negatives.providers import MaskedQuery
from penumbra.tasks.progress import counting
from penumbra.tasks.text.embeddings import Vectors

LEVELS = (1, 2, 3)
MOST_CHAINS = 256  # considered at a time
Chain = tuple["Candidate", ...]  # candidates, one for each of some levels
Encode = Callable[[Sequence[str]], Vectors]


@dataclass(eq=False)
class Candidate:
    """A fill as its provider gave it."""

    text: str
    words: tuple[str, ...]
    provider: str
    model: str


class Candidates:
    """The candidates of a query at a level, in the order of the providers, each text once.

    A candidate is checked when it is asked for: most queries take the first that passes. `refused` is the reason of the
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
        """Return the first `most` candidates that pass, or all if there are fewer."""
        while len(self._passed) < most and (fill := next(self._untried, None)):
            verdict = self._check(fill)
            if verdict is True:
                self._passed.append(fill)
            else:
                self.refused = self.refused or verdict
        return self._passed[:most]


@dataclass
class Query:
    """A query with its candidates by level."""

    masked: MaskedQuery
    text: str
    vid: str
    candidates: dict[int, Candidates] = field(default_factory=dict)

    @property
    def qid(self) -> str:
        return self.masked.qid

    def has(self, level: int) -> bool:
        """Return whether any candidate of this level passes."""
        return level in self.candidates and bool(self.candidates[level].first(1))

    def chains(self, levels: Sequence[int], nested: bool) -> Iterator[Chain]:
        """Yield the chains of candidates of these levels: of distinct texts and, if nested, with the last one's words.

        Chains of the first candidate of each level come first, then those of the first two, of four, and so on.
        """
        done, most = 0, 1
        while True:
            offered = [self.candidates[level].first(most) for level in levels]
            if max(map(len, offered)) <= done:
                return
            chains = self._nested(levels, offered) if nested else _in_parallel(offered)
            distinct = islice((row for row in chains if len({c.text for c in row}) == len(row)), MOST_CHAINS)
            ranks = {id(candidate): rank for level in offered for rank, candidate in enumerate(level)}
            ranked = [(max(ranks[id(c)] for c in chain), chain) for chain in distinct]
            yield from (chain for rank, chain in sorted(ranked, key=lambda pair: pair[0]) if rank >= done)
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
            kept = self._kept_words(last, candidate.words, before[-1])
            yield from ((*chain, candidate) for chain in (everything if kept is None else shorter.get(kept, ())))

    def _kept_words(self, level: int, words: Sequence[str], before: int) -> tuple[str, ...] | None:
        """Return a level's words in the slots of a level before; None if both have the same slots."""
        slots, fewer = self.masked.levels[level - 1], self.masked.levels[before - 1]
        if slots == fewer:
            return None
        placed = dict(zip((slot.token for slot in slots), words, strict=True))
        return tuple(placed[slot.token] for slot in fewer)


def _in_parallel(offered: Sequence[Sequence[Candidate]]) -> Iterator[Chain]:
    """Yield the first candidate of each level, the second of each, and so on; a level with fewer begins again."""
    if all(offered):
        yield from (tuple(level[i % len(level)] for level in offered) for i in range(max(map(len, offered))))


def gather_candidates(
    annotations: pa.Table,
    queries: Iterable[MaskedQuery],
    fills: Iterable[pa.Table],
    context: CheckContext,
    checks: Sequence[Check],
) -> list[Query]:
    """Return each query of a part with its fills as candidates, in the order of the providers."""
    texts = {row["qid"]: row for row in annotations.select(["qid", "vid", "query"]).to_pylist()}
    filled: dict[tuple[str, int], list[Candidate]] = {}
    for row in _filled_rows(fills):
        candidate = Candidate(row["negative"], tuple(row["words"]), row["provider"], row["model"])
        filled.setdefault((row["qid"], row["level"]), []).append(candidate)
    gathered = {query.qid: Query(query, texts[query.qid]["query"], texts[query.qid]["vid"]) for query in queries}

    def passes(query: Query, level: int, candidate: Candidate) -> Verdict:
        return check(Proposal(query.masked, level, candidate.words, candidate.text, query.vid), context, checks)

    for (qid, level), several in filled.items():
        gathered[qid].candidates[level] = Candidates(several, partial(passes, gathered[qid], level))
    return list(gathered.values())


def _filled_rows(fills: Iterable[pa.Table]) -> Iterator[Mapping[str, Any]]:
    names = ["qid", "level", "words", "negative", "provider", "model"]
    for table in fills:
        for batch in table.filter(pc.equal(table["status"], FILLED)).select(names).to_batches(1 << 14):
            yield from batch.to_pylist()


@dataclass
class Chosen:
    """A negative: the candidate, its cosine to the query, and how much less natural than the query it reads."""

    candidate: Candidate
    similarity: float
    plausibility: float


@dataclass
class Choice:
    """Candidates that go together: one for each of some levels of a query, and their cosines to the query."""

    query: Query
    levels: Sequence[int]
    chain: Chain
    cosines: tuple[float, ...] = ()


def choose(
    queries: Sequence[Query],
    vectors: dict[str, Vectors],
    plausibility: Plausibility,
    encode: Encode,
    *,
    ceiling: float,
    nested: bool,
) -> dict[str, dict[int, Chosen]]:
    """Return the negatives of each query by level: of all levels if they go together, else of as many as do.

    Args:
        queries: those of a part, with their candidates
        vectors: the embedding of each query by its text
        plausibility: measures how natural texts read
        encode: the sentence encoder
        ceiling: the highest cosine of level 1 to the query
        nested: whether each level keeps the words of the level before

    """
    similarity, choices = Similarity(vectors, encode), dict[str, Choice]()
    tick = counting("queries", len(queries))
    for levels in level_sets(LEVELS):
        undecided = [q for q in queries if q.qid not in choices and all(q.has(level) for level in levels)]
        chains = [(query, query.chains(levels, nested)) for query in undecided]
        for choice in first_that_hold(chains, levels, similarity, ceiling):
            choices[choice.query.qid] = choice
            tick(1)
    return _described(choices, plausibility)


def level_sets(levels: Iterable[int]) -> Iterator[tuple[int, ...]]:
    """Yield the sets of levels to be chosen together: as many levels as possible first, then the lowest."""
    ordered = sorted(levels)
    for size in range(len(ordered), 0, -1):
        yield from combinations(ordered, size)


class Similarity:
    """Cosines of texts to queries. Each text is encoded once, and only if it is asked for."""

    def __init__(self, queries: dict[str, Vectors], encode: Encode) -> None:
        self.queries, self.encode, self.texts = queries, encode, dict[str, Vectors]()

    def add(self, texts: Iterable[str]) -> None:
        """Encode the texts that are not encoded yet."""
        fresh = sorted(set(texts) - self.texts.keys())
        if fresh:
            self.texts |= zip(fresh, self.encode(fresh), strict=True)

    def of(self, query: str, text: str) -> float:
        """Return a cosine, rounded: the last bits depend on the machine and must not decide."""
        return round(float(np.dot(self.queries[query], self.texts[text])), 4)


def first_that_hold(
    queries: Iterable[tuple[Query, Iterator[Chain]]], levels: Sequence[int], similarity: Similarity, ceiling: float
) -> list[Choice]:
    """Return for each query the first of its chains that holds, if one does.

    All queries try their first chain, those for which it does not hold their second, and so on. The levels of a chain
    are compared one after the other, so that no text is encoded whose chain has failed before.
    """
    left, choices = list(queries), list[Choice]()
    while left:
        trying = [(query, chains, chain) for query, chains in left if (chain := next(chains, None))]
        holding = [Choice(query, levels, chain) for query, _, chain in trying]
        for place in range(len(levels)):
            similarity.add(choice.chain[place].text for choice in holding)
            holding = [choice for choice in holding if _holds(choice, place, similarity, ceiling)]
        choices += holding
        done = {choice.query.qid for choice in holding}
        left = [(query, chains) for query, chains, _ in trying if query.qid not in done]
    return choices


def _holds(choice: Choice, place: int, similarity: Similarity, ceiling: float) -> bool:
    """Add the cosine of the candidate at a place, and return whether the chain holds up to there."""
    cosine, before = similarity.of(choice.query.text, choice.chain[place].text), choice.cosines
    choice.cosines = (*before, cosine)
    return cosine < before[-1] if before else cosine <= ceiling


def _described(choices: Mapping[str, Choice], plausibility: Plausibility) -> dict[str, dict[int, Chosen]]:
    """Return what was chosen, with how natural it reads in comparison with its query."""
    queries = [choice.query for choice in choices.values()]
    words = {query.text: [token["text"].lower() for token in query.masked.tokens] for query in queries}
    for choice in choices.values():
        for level, candidate in zip(choice.levels, choice.chain, strict=True):
            words[candidate.text] = filled = [token["text"].lower() for token in choice.query.masked.tokens]
            for slot, word in zip(choice.query.masked.levels[level - 1], candidate.words, strict=True):
                filled[slot.token] = word
    scores = plausibility.score(list(words), list(words.values())).round(4) if words else ()
    natural = dict(zip(words, map(float, scores), strict=True))
    return {
        qid: {
            level: Chosen(candidate, cosine, natural[candidate.text] - natural[choice.query.text])
            for level, candidate, cosine in zip(choice.levels, choice.chain, choice.cosines, strict=True)
        }
        for qid, choice in choices.items()
    }
