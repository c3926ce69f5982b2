"""Stage `negatives`: of all candidates of all providers, one a query and level.

A candidate must pass `penumbra.tasks.negatives.choosing.checks`. Of those that do, a query gets the first three, in
their providers' order, that fall in SentenceBERT cosine from level to level, each level keeping the words of the level
before. A query that can't have all levels keeps those it can have: SHINE's ranking losses then rank the levels that
there are.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from penumbra.artifacts.digests import file_digest
from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.prefect_ui import Rows
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.choosing.candidates import Query, gather
from penumbra.tasks.negatives.choosing.causal import scorer
from penumbra.tasks.negatives.choosing.checks import ALWAYS, HELD_OUT, Check, Judge
from penumbra.tasks.negatives.choosing.choose import Chosen, Rules, choose
from penumbra.tasks.negatives.choosing.guard import LeakageFilter
from penumbra.tasks.negatives.choosing.plausibility import HumanText, Plausibility
from penumbra.tasks.negatives.fills import masked_queries
from penumbra.tasks.negatives.marked import beside_their_queries
from penumbra.tasks.stage import Parameters, Stage, read_part, run, zip_parts
from penumbra.tasks.text.dictionary import Dictionary, load_dictionary
from penumbra.tasks.text.embeddings import Encoding, encode, vectors_by_text
from penumbra.tasks.text.tags import load_pipeline, tag_texts

STAGE = "negatives"


class Choosing(Parameters):
    """What a negative must pass, and which of those that do is taken."""

    ceiling: float = Field(
        0.9, gt=0, le=1, description="Highest SentenceBERT cosine to the query: above it a candidate is a paraphrase."
    )
    near_synonym: float = Field(
        0.73, gt=0, le=1, description="SentenceBERT cosine from which two words are too alike to tell level 1 apart."
    )
    nested: bool = Field(True, description="Whether each level keeps the words of the level before.")
    guard: Literal["compositions", "queries", "all"] = Field(
        "compositions",
        description="What of the test splits is kept out. queries: their queries, but for those that are training "
        "queries as well; compositions: also what the novel splits hold out; all: also the training queries that are "
        "test queries, whose absence gives negatives away.",
    )
    text: str = Field("", description="A text file of more human sentences, one a line, for `plausibility`.")
    causal_model: str = Field(
        "",
        description="A causal language model (a name on the hub or a folder) that says how natural a candidate reads; "
        "without one, trigram models of the training queries do.",
    )

    @property
    def checks(self) -> tuple[Check, ...]:
        """What a candidate's words and text must pass."""
        return ALWAYS if self.guard == "queries" else (*ALWAYS, *HELD_OUT)

    @property
    def rules(self) -> Rules:
        """What the choice must keep."""
        return Rules(self.ceiling, self.nested)

    def files(self) -> dict[str, str]:
        """The digests of the files of human text and of a language model."""
        files = {"text": self.text, "causal model": self.causal_model}
        return {name: file_digest(Path(path)) for name, path in files.items() if path and Path(path).exists()}


class TextError(PenumbraError):
    """The text of human sentences can't be read."""


class Chooser:
    """What the choice of every part shares: the guard, the dictionary, the models of human text, the encoder."""

    def __init__(
        self, guard: LeakageFilter, dictionary: Dictionary, human: HumanText, choosing: Choosing, encoding: Encoding
    ) -> None:
        self.guard, self.dictionary, self.choosing, self.encoding = guard, dictionary, choosing, encoding
        self.plausibility = Plausibility(human, scorer(choosing.causal_model))
        self._synonyms: dict[str, set[str]] | None = None

    def synonyms(self, first: str, second: str) -> bool:
        """Whether two words of the dictionary mean nearly the same."""
        if self._synonyms is None:
            words = sorted(set(self.dictionary.forms))
            vectors = encode(words, self.encoding)
            self._synonyms = {}
            for word, vector in zip(words, vectors, strict=True):
                near = np.flatnonzero(vectors @ vector >= self.choosing.near_synonym)
                self._synonyms[word] = {words[i] for i in near}
        return second in self._synonyms.get(first, ())

    def judge(self, annotations: pa.Table) -> Judge:
        """What the checks of one part's candidates need to know."""
        videos: dict[str, set[str]] = {}
        for row in annotations.select(["vid", "query"]).to_pylist():
            videos.setdefault(row["vid"], set()).add(self.guard.lemmatised(row["query"]))
        positives = {vid: frozenset(texts) for vid, texts in videos.items()}
        return Judge(self.dictionary, self.guard, positives, self.synonyms)

    def part(
        self, annotations: pa.Table, tags: pa.Table, masks: pa.Table, embeddings: pa.Table, *fills: pa.Table
    ) -> Part:
        """Choose one part's negatives; a query and level without one is rejected with its reason."""
        judge = self.judge(annotations)
        queries = gather(annotations, masked_queries(tags, masks), fills, judge, self.choosing.checks)
        chosen = choose(
            queries,
            vectors_by_text(embeddings),
            self.plausibility,
            partial(encode, encoding=self.encoding),
            self.choosing.rules,
        )
        return _part(queries, chosen, [check.__name__ for check in self.choosing.checks] + ["ceiling", "falling"])


def _part(queries: Iterable[Query], chosen: dict[str, dict[int, Chosen]], checks: list[str]) -> Part:
    rows: list[dict[str, Any]] = []
    rejected = []
    for query in queries:
        for level, candidates in sorted(query.candidates.items()):
            negative = chosen.get(query.qid, {}).get(level)
            if negative:
                rows.append(_row(query, level, negative, checks))
                continue
            reason = "no candidate keeps the level before and is further from the query than it"
            if not query.has(level):
                reason = candidates.refused
            rejected.append(rejection(query.qid, STAGE, reason, f"level {level}: {query.text}"))
    return Part(table_of(STAGE, rows), len(rows) + len(rejected), len(rows), rejected)


def _row(query: Query, level: int, chosen: Chosen, checks: list[str]) -> dict[str, Any]:
    return {
        "qid": query.qid,
        "level": level,
        "query": query.text,
        "negative": chosen.candidate.text,
        "words": list(chosen.candidate.words),
        "provider": chosen.candidate.provider,
        "model": chosen.candidate.model,
        "similarity": chosen.similarity,
        "plausibility": chosen.plausibility,
        "checks": checks,
    }


def human_text(tagged: Iterable[tuple[pa.Table, pa.Table]], text: str, spacy_model: str) -> HumanText:
    """The training queries and the sentences of a text file, parsed; raises `TextError` naming the file."""
    human = HumanText()
    for annotations, tags in tagged:
        for row, tokens in zip(annotations.select(["split", "vid"]).to_pylist(), tags["tokens"], strict=True):
            if row["split"] == "train":
                human.add(row["vid"], tokens.as_py())
    if text:
        try:
            lines = [line.strip() for line in Path(text).read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise TextError(
                f"choosing.text: {text} can't be read ({type(error).__name__}): one sentence a line"
            ) from None
        for tokens in tag_texts(filter(None, lines), load_pipeline(spacy_model)):
            human.add_text(tokens)
    return human


def _labelled(tagged: Iterable[tuple[pa.Table, pa.Table]]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each query's split, text and labels, and its tokens."""
    for annotations, tags in tagged:
        rows = annotations.select(["split", "query", "novel"]).to_pylist()
        yield from zip(rows, tags["tokens"].to_pylist(), strict=True)


def chooser_of(
    annotations: Artifact, tags: Artifact, dictionary: Artifact, choosing: Choosing, encoding: Encoding
) -> Chooser:
    """What has seen all training queries of a data set, and all that it holds out."""
    spacy_model = str(Store().manifest(tags).parameters["spacy_model"])
    guard = LeakageFilter(_labelled(zip_parts(annotations, tags)), every=choosing.guard == "all")
    human = human_text(zip_parts(annotations, tags), choosing.text, spacy_model)
    return Chooser(guard, load_dictionary(dictionary), human, choosing, encoding)


@dataclass(frozen=True)
class ChosenNegatives(Stage):
    """One negative a query and level, of the candidates of all fills in their order."""

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
        """See `beside_their_queries`."""
        return beside_their_queries(rows)

    def inputs(self) -> dict[str, str]:
        """The files of human text and of a language model."""
        return self.choosing.files()

    @cached_property
    def chooser(self) -> Chooser:
        """What chooses: it has seen all training queries, and all that is held out."""
        return chooser_of(self.annotations, self.tags, self.dictionary, self.choosing, self.encoding)

    def part(self, piece: int) -> Part:
        """Choose one part's negatives."""
        read = self.annotations, self.tags, self.masks, self.embeddings, *self.fills
        return self.chooser.part(*read_part(piece, *read))


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
    """Choose one negative a query and level."""
    return run(ChosenNegatives(annotations, tags, masks, dictionary, tuple(fills), embeddings, choosing, encoding))
