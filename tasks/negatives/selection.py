"""Stage `negatives`: one negative for each query and level, of the candidates of all providers.

A candidate must pass `penumbra.tasks.negatives.choosing.checks`. Of those that do, a query gets the first three, in
the order of their providers, whose SentenceBERT cosine to the query falls from level to level, each level with the
words of the level before. A query that can't have all levels gets those that it can: SHINE's ranking losses then rank
the levels that there are.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from penumbra.artifacts.files import file_digest
from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.markdown import Markdown, bold, plain
from penumbra.artifacts.prefect_ui import Rows
from penumbra.artifacts.schemas import table_of
from penumbra.tasks.negatives.choosing.checks import ALWAYS, HELD_OUT, Check, CheckContext, LeakageFilter
from penumbra.tasks.negatives.choosing.choose import Chosen, Query, choose, gather_candidates
from penumbra.tasks.negatives.choosing.plausibility import HumanText, Plausibility
from penumbra.tasks.negatives.fills import masked_queries
from penumbra.tasks.stage import Parameters, Stage, read_part, run, zip_parts
from penumbra.tasks.text.dictionary import Dictionary, load_dictionary
from penumbra.tasks.text.embeddings import Encoding, encode, vectors_by_text

STAGE = "negatives"
NOT_FALLING = "no candidate keeps the level before and is further from the query than it"


class Choosing(Parameters):
    """The checks that a negative must pass, and the choice among the candidates that do."""

    ceiling: float = Field(
        0.9, gt=0, le=1, description="Highest SentenceBERT cosine to the query: above it a candidate is a paraphrase."
    )
    near_synonym: float = Field(
        0.73, gt=0, le=1, description="SentenceBERT cosine from which two words are too similar for level 1."
    )
    nested: bool = Field(True, description="Whether each level keeps the words of the level before.")
    guard: Literal["compositions", "queries", "all"] = Field(
        "compositions",
        description="What of the test splits is kept out of the negatives. queries: their queries, except those that "
        "are training queries as well; compositions: also what the novel splits hold out; all: also the training "
        "queries that are test queries, although their absence gives negatives away.",
    )
    causal_model: str = Field(
        "",
        description="A causal language model (a name on the hub or a folder) that measures how natural a candidate "
        "reads; without one, trigram models of the training queries do.",
    )

    @property
    def checks(self) -> tuple[Check, ...]:
        """The checks of a candidate's words and text."""
        return ALWAYS if self.guard == "queries" else (*ALWAYS, *HELD_OUT)

    def files(self) -> dict[str, str]:
        """Return the digest of the language model, if it is a file or a folder."""
        path = Path(self.causal_model)
        return {"causal model": file_digest(path)} if self.causal_model and path.exists() else {}


class Chooser:
    """What the choice of all parts shares: leakage filter, dictionary, models of human text, and sentence encoder."""

    def __init__(
        self, leakage: LeakageFilter, dictionary: Dictionary, human: HumanText, choosing: Choosing, encoding: Encoding
    ) -> None:
        self.leakage, self.dictionary, self.choosing, self.encoding = leakage, dictionary, choosing, encoding
        self.plausibility = Plausibility(human, choosing.causal_model)

    @cached_property
    def synonyms(self) -> dict[str, set[str]]:
        """The words of the dictionary that mean nearly the same as each."""
        words = sorted(set(self.dictionary.forms))
        vectors = encode(words, self.encoding)
        similar = (np.flatnonzero(vectors @ vector >= self.choosing.near_synonym) for vector in vectors)
        return {word: {words[i] for i in indices} for word, indices in zip(words, similar, strict=True)}

    def context(self, annotations: pa.Table) -> CheckContext:
        """Return what the checks of one part's candidates need to know."""
        videos: dict[str, set[str]] = {}
        for row in annotations.select(["vid", "query"]).to_pylist():
            videos.setdefault(row["vid"], set()).add(self.leakage.lemmatised(row["query"]))
        queries = {vid: frozenset(texts) for vid, texts in videos.items()}

        def are_synonyms(first: str, second: str) -> bool:
            return second in self.synonyms.get(first, ())

        return CheckContext(self.dictionary, self.leakage, queries, are_synonyms)

    def part(
        self, annotations: pa.Table, tags: pa.Table, masks: pa.Table, embeddings: pa.Table, *fills: pa.Table
    ) -> Part:
        """Choose one part's negatives; a query and level without one is rejected with its reason."""
        checks, context = self.choosing.checks, self.context(annotations)
        queries = gather_candidates(annotations, masked_queries(tags, masks), fills, context, checks)
        chosen = choose(
            queries,
            vectors_by_text(embeddings),
            self.plausibility,
            partial(encode, encoding=self.encoding),
            ceiling=self.choosing.ceiling,
            nested=self.choosing.nested,
        )
        return _part(queries, chosen, [check.__name__ for check in checks] + ["ceiling", "falling"])


def _part(queries: Iterable[Query], chosen: dict[str, dict[int, Chosen]], checks: list[str]) -> Part:
    rows: list[dict[str, Any]] = []
    rejected = []
    for query in queries:
        for level, candidates in sorted(query.candidates.items()):
            negative = chosen.get(query.qid, {}).get(level)
            if negative is None:
                reason = NOT_FALLING if query.has(level) else candidates.refused
                rejected.append(rejection(query.qid, STAGE, reason, f"level {level}: {query.text}"))
                continue
            rows.append(
                {
                    "qid": query.qid,
                    "level": level,
                    "query": query.text,
                    "negative": negative.candidate.text,
                    "words": list(negative.candidate.words),
                    "provider": negative.candidate.provider,
                    "model": negative.candidate.model,
                    "similarity": negative.similarity,
                    "plausibility": negative.plausibility,
                    "checks": checks,
                }
            )
    return Part(table_of(STAGE, rows), len(rows) + len(rejected), len(rows), rejected)


def _with_tokens(tagged: Iterable[tuple[pa.Table, pa.Table]]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield the annotations of each query, and its tokens."""
    for annotations, tags in tagged:
        rows = annotations.select(["split", "vid", "query", "novel"]).to_pylist()
        yield from zip(rows, tags["tokens"].to_pylist(), strict=True)


def load_chooser(
    annotations: Artifact, tags: Artifact, dictionary: Artifact, choosing: Choosing, encoding: Encoding
) -> Chooser:
    """Return a chooser that has read all queries of a data set."""
    leakage = LeakageFilter(_with_tokens(zip_parts(annotations, tags)), every=choosing.guard == "all")
    human = HumanText()
    for row, tokens in _with_tokens(zip_parts(annotations, tags)):
        if row["split"] == "train":
            human.add(row["vid"], tokens)
    return Chooser(leakage, load_dictionary(dictionary), human, choosing, encoding)


def rows_for_display(rows: Rows) -> Rows:
    """Return rows of `negatives` as people read them: the query first, and what differs from it in bold."""
    return [
        {
            "query": row["query"],
            "level": row["level"],
            "negative": mark_changes(row["query"], row["negative"]),
            "cosine": row["similarity"],
            "plausibility": row["plausibility"],
            "provider": row["provider"],
            "qid": row["qid"],
        }
        for row in rows
    ]


def mark_changes(query: str, negative: str) -> Markdown:
    """Return the negative with the words in bold that the query does not have at their place."""
    before, after = query.split(), negative.split()
    pieces = [
        (plain if kind == "equal" else bold)(" ".join(after[start:end]))
        for kind, _, _, start, end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        if end > start
    ]
    return Markdown(" ".join(pieces))


@dataclass(frozen=True)
class ChosenNegatives(Stage):
    """One negative for each query and level, of the candidates of all fills in their order."""

    name = STAGE
    version = 5
    unit = "query and level"

    annotations: Artifact
    tags: Artifact
    masks: Artifact
    dictionary: Artifact
    fills: tuple[Artifact, ...]
    embeddings: Artifact
    choosing: Choosing
    encoding: Encoding

    def shown(self, rows: Rows) -> Rows:
        """See `rows_for_display`."""
        return rows_for_display(rows)

    def inputs(self) -> dict[str, str]:
        """Return the digest of the language model's files."""
        return self.choosing.files()

    @cached_property
    def chooser(self) -> Chooser:
        """The chooser of all parts."""
        return load_chooser(self.annotations, self.tags, self.dictionary, self.choosing, self.encoding)

    def part(self, piece: int) -> Part:
        """Choose the negatives of one part."""
        return self.chooser.part(
            *read_part(piece, self.annotations, self.tags, self.masks, self.embeddings, *self.fills)
        )


def choose_negatives(
    annotations: Artifact,
    tags: Artifact,
    masks: Artifact,
    dictionary: Artifact,
    fills: Sequence[Artifact],
    embeddings: Artifact,
    choosing: Choosing,
    encoding: Encoding,
) -> Artifact:
    """Choose one negative for each query and level."""
    return run(ChosenNegatives(annotations, tags, masks, dictionary, tuple(fills), embeddings, choosing, encoding))
