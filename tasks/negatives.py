"""Stage `negatives`: of all candidates, one a query and level.

The first candidate that passes wins, providers in the order of preference. A candidate passes when it keeps the
template, uses offered words only, equals no positive of its video and no query of a test split, is not a
near-paraphrase of its positive, and lies further from it (SentenceBERT cosine) than the level above.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, combinations, pairwise, product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from prefect import task
from pydantic import Field

from artifacts.manifest import Artifact, Part, Work, rejection
from artifacts.schemas import table_of
from artifacts.store import Store
from tasks.dictionary import Dictionary, load_dictionary
from tasks.embeddings import Encoding, Vectors, encode, vectors_by_text
from tasks.fills import FILLED, masked_queries, put_words
from tasks.providers import MaskedQuery
from tasks.stage import Parameters, number_of_parts, part_by_part, run_stage

STAGE = "negatives"
VERSION = 1
CHECKS = ("template", "vocabulary", "same_video", "test_split", "ceiling", "falling")


class Choosing(Parameters):
    """What a negative must pass."""

    ceiling: float = Field(
        0.95,
        gt=0,
        le=1,
        description="Highest SentenceBERT cosine to the positive: above it a candidate is a paraphrase.",
    )


def normal_form(text: str) -> str:
    """What makes two queries the same: letters and digits, not case, blanks or punctuation."""
    return " ".join("".join(c if c.isalnum() or c == "'" else " " for c in text.lower()).split())


@dataclass
class Candidate:
    """One fill that passed the checks on its text; `similarity` is set when it has been encoded."""

    query: str
    words: list[str]
    provider: str
    model: str
    similarity: float = 0.0


@dataclass
class Choice:
    """What is known of a query while its negatives are chosen; every dictionary goes by level.

    `waiting` gives the candidates not tried yet whose text passes, `tried` holds those whose similarity is known,
    `refused` the reason of the first that did not pass.
    """

    text: str
    waiting: dict[int, Iterator[Candidate]] = field(default_factory=dict)
    tried: dict[int, list[Candidate]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    chosen: dict[int, Candidate] = field(default_factory=dict)

    def another(self, level: int) -> Candidate | None:
        """Move the next candidate of a level from `waiting` to `tried`."""
        candidate = next(self.waiting[level], None)
        if candidate:
            self.tried[level].append(candidate)
        return candidate


def text_check(
    query: MaskedQuery, level: int, dictionary: Dictionary, taken: set[str], tests: frozenset[str],
    words: Sequence[str], text: str,
) -> str:  # fmt: skip
    """Why a candidate is refused for its text alone, or ''.

    `taken` holds the normal forms of the video's positives, `tests` those of all test queries.
    """
    slots = query.levels[level - 1]
    if len(words) != len(slots) or text != put_words(query, level, words):
        return "template is not kept"
    for slot, word in zip(slots, words, strict=True):
        if not slot.may_take(word, dictionary):
            return "word is not on offer for its slot"
    form = normal_form(text)
    if form in taken:
        return "equals a positive of the same video"
    return "equals a query of a test split" if form in tests else ""


def gather(
    annotations: pa.Table, queries: Iterable[MaskedQuery], fills: Iterable[pa.Table], dictionary: Dictionary,
    tests: frozenset[str],
) -> dict[str, Choice]:  # fmt: skip
    """Each query of a part with the candidates of every level that was filled, in the providers' order."""
    texts = dict(zip(annotations["qid"].to_pylist(), annotations["query"].to_pylist(), strict=True))
    videos = dict(zip(annotations["qid"].to_pylist(), annotations["vid"].to_pylist(), strict=True))
    positives: dict[str, set[str]] = {}
    for qid, vid in videos.items():
        positives.setdefault(vid, set()).add(normal_form(texts[qid]))
    rows: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for table in fills:
        names = ["qid", "level", "words", "query", "provider", "model"]
        for row in table.filter(pc.equal(table["status"], FILLED)).select(names).to_pylist():
            rows.setdefault(row["qid"], {}).setdefault(row["level"], []).append(row)
    choices = {}
    for query in queries:
        choice = choices[query.qid] = Choice(texts[query.qid])
        for level, candidates in sorted(rows.get(query.qid, {}).items()):
            check = partial(text_check, query, level, dictionary, positives[videos[query.qid]], tests)
            choice.waiting[level] = _passing(candidates, check, choice.refused)
            choice.tried[level] = []
    return choices


def _passing(
    rows: Iterable[dict[str, Any]], check: Callable[[list[str], str], str], refused: dict[int, str]
) -> Iterator[Candidate]:
    """Yield the candidates whose text passes, each text once."""
    seen: set[str] = set()
    for row in rows:
        problem = "" if row["query"] in seen else check(row["words"], row["query"])
        if problem:
            refused.setdefault(row["level"], problem)
        elif row["query"] not in seen:
            seen.add(row["query"])
            yield Candidate(row["query"], row["words"], row["provider"], row["model"])


def falling(levels: dict[int, list[Candidate]], ceiling: float) -> dict[int, Candidate]:
    """The first candidates whose cosines fall from level to level, or {} where there are none."""
    depths = sorted(levels)
    for several in product(*(levels[depth] for depth in depths)):
        cosines = [ceiling + 1e-6, *(candidate.similarity for candidate in several)]
        if all(above > below for above, below in pairwise(cosines)):
            return dict(zip(depths, several, strict=True))
    return {}


def another_candidate(choice: Choice, ceiling: float) -> Candidate | None:
    """The next candidate of the first level that nothing tried so far can fill, or of a level near it."""
    levels = sorted(choice.tried)
    prefixes = ({level: choice.tried[level] for level in levels[:depth]} for depth in range(1, len(levels)))
    depth = next((len(prefix) for prefix in prefixes if not falling(prefix, ceiling)), len(levels))
    order = [*reversed(levels[:depth]), *levels[depth:]]
    return next(filter(None, map(choice.another, order)), None)


def choose(choices: Sequence[Choice], positives: dict[str, Vectors], choosing: Choosing, encoding: Encoding) -> None:
    """Fill in `chosen`: encode the first candidate of each level, then one more where a query still needs it."""
    fresh = [(choice, choice.another(level)) for choice in choices for level in choice.waiting]
    while fresh:
        texts = sorted({candidate.query for _, candidate in fresh if candidate})
        vectors = dict(zip(texts, encode(texts, encoding), strict=True))
        for choice, candidate in fresh:
            if candidate:
                cosine = float(np.dot(positives[choice.text], vectors[candidate.query]))
                candidate.similarity = round(cosine, 4)  # the last bits depend on the machine: they must not decide
        for choice in {id(choice): choice for choice, _ in fresh}.values():
            choice.chosen = falling(choice.tried, choosing.ceiling)
        still_open = [choice for choice in choices if choice.tried and not choice.chosen]
        found = ((choice, another_candidate(choice, choosing.ceiling)) for choice in still_open)
        fresh = [(choice, candidate) for choice, candidate in found if candidate]
    for choice in choices:  # not every level can be had: as many as can, the mildest first
        levels = sorted(level for level, tried in choice.tried.items() if tried)
        for some in chain.from_iterable(combinations(levels, size) for size in range(len(levels), 0, -1)):
            choice.chosen = choice.chosen or falling({level: choice.tried[level] for level in some}, choosing.ceiling)


def negatives_part(
    annotations: pa.Table, tags: pa.Table, masks: pa.Table, fills: Sequence[pa.Table], embeddings: pa.Table,
    dictionary: Dictionary, tests: frozenset[str], choosing: Choosing,
    encoding: Encoding,
) -> Part:  # fmt: skip
    """Choose one part's negatives; a query and level without one is rejected with its reason."""
    choices = gather(annotations, masked_queries(tags, masks), fills, dictionary, tests)
    choose(list(choices.values()), vectors_by_text(embeddings), choosing, encoding)
    rows: list[dict[str, Any]] = []
    rejected = []
    for qid, choice in choices.items():
        for level, tried in choice.tried.items():
            if level not in choice.chosen:
                reason = "no candidate is further from the query than the level above"
                if not tried:
                    reason = choice.refused[level]
                rejected.append(rejection(qid, STAGE, reason, f"level {level}: {choice.text}"))
                continue
            found = choice.chosen[level]
            rows.append(
                {
                    "qid": qid,
                    "level": level,
                    "query": found.query,
                    "words": found.words,
                    "provider": found.provider,
                    "model": found.model,
                    "similarity": found.similarity,
                    "plausibility": None,
                    "checks": list(CHECKS),
                }
            )
    return Part(table_of(STAGE, rows), len(rows) + len(rejected), len(rows), rejected)


def test_queries(annotations: Iterable[pa.Table]) -> frozenset[str]:
    """The normal forms of every query that is not in the training split."""
    found: set[str] = set()
    for part in annotations:
        for split, query in zip(part["split"].to_pylist(), part["query"].to_pylist(), strict=True):
            if split != "train":
                found.add(normal_form(query))
    return frozenset(found)


def work(
    annotations: Artifact, tags: Artifact, masks: Artifact, dictionary: Artifact, fills: Sequence[Artifact],
    embeddings: Artifact, choosing: Choosing,
    encoding: Encoding,
) -> Work:  # fmt: skip
    """Key material: the candidates, in the order of preference, and what they must pass."""
    return Work(
        dataset=masks.dataset,
        stage=STAGE,
        version=VERSION,
        parameters={**choosing.model_dump(), **encoding.model_dump()},
        parents=(annotations, tags, masks, dictionary, *fills, embeddings),
        unit="query and level",
    )


@task(name=STAGE)
def choose_negatives(
    annotations: Artifact, tags: Artifact, masks: Artifact, dictionary: Artifact, fills: list[Artifact],
    embeddings: Artifact, choosing: Choosing, encoding: Encoding,
) -> Artifact:  # fmt: skip
    """Choose one negative a query and level."""

    def parts() -> Iterator[Callable[[], Part]]:
        words = load_dictionary(dictionary)
        tests = test_queries(Store().parts(annotations, ["split", "query"]))

        def make(first: pa.Table, tagged: pa.Table, masked: pa.Table, vectors: pa.Table, *filled: pa.Table) -> Part:
            return negatives_part(first, tagged, masked, filled, vectors, words, tests, choosing, encoding)

        return part_by_part(make, annotations, tags, masks, embeddings, *fills)()

    key = work(annotations, tags, masks, dictionary, fills, embeddings, choosing, encoding)
    return run_stage(key, parts, number_of_parts(masks))
