"""Stage `negatives`: of all candidates, one a query and level.

The first candidate that passes wins, providers in the order of preference. A candidate passes when it keeps the
template, uses offered words only, equals no positive of its video and no query of a test split, is not a
near-paraphrase of its positive, and lies further from it (SentenceBERT cosine) than the level above.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

import numpy as np
import pyarrow as pa
from prefect import task
from pydantic import BaseModel, Field

from artifacts.manifest import Artifact, Part, Work, rejection
from artifacts.schemas import table_of
from artifacts.store import Store
from tasks.dictionary import Dictionary, load_dictionary
from tasks.embeddings import Encoding, Vectors, encode, vectors_by_text
from tasks.fills import FILLED, masked_queries, put_words
from tasks.providers import MaskedQuery
from tasks.stage import number_of_parts, part_by_part, run_stage

STAGE = "negatives"
VERSION = 1
CHECKS = ("template", "vocabulary", "same_video", "test_split", "ceiling", "falling")


class Choosing(BaseModel):
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
    """A query's candidates at each level that was filled, why others were refused, and which were chosen."""

    query: MaskedQuery
    text: str
    candidates: dict[int, list[Candidate]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    chosen: dict[int, Candidate] = field(default_factory=dict)


def text_check(
    query: MaskedQuery, level: int, words: Sequence[str], text: str, dictionary: Dictionary, taken: set[str],
    tests: frozenset[str],
) -> str:  # fmt: skip
    """Why a candidate is refused for its text alone, or ''.

    `taken` holds the normal forms of the video's positives, `tests` those of all test queries.
    """
    slots = query.levels[level - 1]
    if len(words) != len(slots) or text != put_words(query, level, words):
        return "template is not kept"
    for slot, word in zip(slots, words, strict=True):
        if not slot.allowed(dictionary).get(word):
            return "word is not on offer for its slot"
    form = normal_form(text)
    if form in taken:
        return "equals a positive of the same video"
    return "equals a query of a test split" if form in tests else ""


def gather(
    annotations: pa.Table, queries: Iterable[MaskedQuery], fills: Iterable[pa.Table], dictionary: Dictionary,
    tests: frozenset[str],
) -> list[Choice]:  # fmt: skip
    """Every query of a part with the candidates whose text passes, in the providers' order."""
    texts = dict(zip(annotations["qid"].to_pylist(), annotations["query"].to_pylist(), strict=True))
    videos = dict(zip(annotations["qid"].to_pylist(), annotations["vid"].to_pylist(), strict=True))
    positives: dict[str, set[str]] = {}
    for qid, vid in videos.items():
        positives.setdefault(vid, set()).add(normal_form(texts[qid]))
    choices = {query.qid: Choice(query, texts[query.qid]) for query in queries}
    for table in fills:
        for row in table.select(["qid", "level", "words", "query", "provider", "model", "status"]).to_pylist():
            choice, level = choices[row["qid"]], row["level"]
            if row["status"] != FILLED:
                continue
            found = choice.candidates.setdefault(level, [])
            taken = positives[videos[row["qid"]]]
            problem = text_check(choice.query, level, row["words"], row["query"], dictionary, taken, tests)
            if problem:
                choice.refused.setdefault(level, problem)
            elif all(row["query"] != other.query for other in found):
                found.append(Candidate(row["query"], row["words"], row["provider"], row["model"]))
    return list(choices.values())


def falling(levels: dict[int, list[Candidate]], ceiling: float) -> dict[int, Candidate]:
    """The first candidates whose cosines fall from level to level, or {} where there are none."""
    depths = sorted(levels)
    for several in product(*(levels[depth] for depth in depths)):
        cosines = [ceiling + 1e-6, *(candidate.similarity for candidate in several)]
        if all(above > below for above, below in pairwise(cosines)):
            return dict(zip(depths, several, strict=True))
    return {}


def choose(choices: Sequence[Choice], positives: dict[str, Vectors], choosing: Choosing, encoding: Encoding) -> None:
    """Fill in `chosen`: encode candidates round by round, only for the queries that still need one."""
    open_ = [choice for choice in choices if choice.candidates]
    rounds = max((len(found) for choice in open_ for found in choice.candidates.values()), default=0)
    for turn in range(rounds):
        fresh = [(c, found[turn]) for c in open_ for found in c.candidates.values() if turn < len(found)]
        texts = sorted({candidate.query for _, candidate in fresh})
        vectors = dict(zip(texts, encode(texts, encoding), strict=True))
        for choice, candidate in fresh:
            cosine = float(np.dot(positives[choice.text], vectors[candidate.query]))
            candidate.similarity = round(cosine, 4)  # the last bits depend on the machine: they must not decide
        for choice in open_:
            so_far = {level: found[: turn + 1] for level, found in choice.candidates.items()}
            choice.chosen = falling(so_far, choosing.ceiling)
        open_ = [choice for choice in open_ if not choice.chosen]
    for choice in open_:  # not every level can be had: as many as can, the mildest first
        levels = {level: found for level, found in choice.candidates.items() if found}
        while levels and not choice.chosen:
            choice.chosen = falling(levels, choosing.ceiling)
            levels.pop(max(levels))


def negatives_part(
    annotations: pa.Table, tags: pa.Table, masks: pa.Table, fills: Sequence[pa.Table], embeddings: pa.Table,
    dictionary: Dictionary, tests: frozenset[str], choosing: Choosing,
    encoding: Encoding,
) -> Part:  # fmt: skip
    """Choose one part's negatives; a query and level without one is rejected with its reason."""
    choices = gather(annotations, masked_queries(tags, masks), fills, dictionary, tests)
    choose(choices, vectors_by_text(embeddings), choosing, encoding)
    rows: list[dict[str, Any]] = []
    rejected = []
    for choice in choices:
        for level, candidates in sorted(choice.candidates.items()):
            if level not in choice.chosen:
                reason = "no candidate is further from the query than the level above"
                if not candidates:
                    reason = choice.refused[level]
                rejected.append(rejection(choice.query.qid, STAGE, reason, f"level {level}: {choice.text}"))
                continue
            found = choice.chosen[level]
            rows.append(
                {
                    "qid": choice.query.qid,
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
