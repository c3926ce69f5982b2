"""Whole sentences as rows of `negatives`.

The checks are those of `penumbra.tasks.negatives.choosing.checks`. None is enforced here: a row names those that it
passes. A sentence with as many tokens as its query is that query with a slot for each token that differs; any other has
no slots.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.prefect_ui import Rows
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.choosing.checks import CheckContext, Proposal
from penumbra.tasks.negatives.parameters import NegativeSource
from penumbra.tasks.negatives.providers import MaskedQuery, Slot
from penumbra.tasks.negatives.selection import STAGE, Chooser, Choosing, load_chooser, rows_for_display
from penumbra.tasks.stage import Stage
from penumbra.tasks.text.embeddings import Encoding, Vectors, encode, vectors_by_text
from penumbra.tasks.text.tags import load_pipeline

SLOT_CHECKS = {"vocabulary", "near_synonym"}  # have no meaning if the template is not kept
Tokens = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Sentence:
    """A negative of a query at a level; `model` names its origin."""

    qid: str
    level: int
    text: str
    model: str


@dataclass(frozen=True)
class SentenceNegatives(Stage):
    """Whole sentences as negatives, with the same columns as those that are chosen from fills."""

    name = STAGE
    unit = "query and level"

    annotations: Artifact
    tags: Artifact
    dictionary: Artifact
    embeddings: Artifact
    sourcing: NegativeSource
    choosing: Choosing
    encoding: Encoding

    def shown(self, rows: Rows) -> Rows:
        """See `rows_for_display`."""
        return rows_for_display(rows)

    @property
    def label(self) -> str:
        """The stage and the source."""
        return f"{self.name}: {self.sourcing.source}"

    def parameters(self) -> dict[str, Any]:
        """Return the source and the settings of the checks."""
        return {**self.source, **self.choosing.model_dump(mode="json")}

    def determines(self) -> dict[str, Any]:
        """Return the source and the settings of the checks that have not their default."""
        return {**self.source, **self.choosing.model_dump(mode="json", exclude_defaults=True)}

    def inputs(self) -> dict[str, str]:
        """Return the digest of the language model's files."""
        return self.choosing.files()

    @property
    @abstractmethod
    def source(self) -> dict[str, Any]:
        """The settings of the source, which enter the key."""

    @cached_property
    def chooser(self) -> Chooser:
        """The chooser, whose checks are applied."""
        return load_chooser(self.annotations, self.tags, self.dictionary, self.choosing, self.encoding)

    @cached_property
    def tokeniser(self) -> Any:
        """The tokeniser of the pipeline that tagged the queries."""
        return load_pipeline(str(Store().manifest(self.tags).parameters["spacy_model"])).make_doc

    @cached_property
    def vectors(self) -> dict[str, Vectors]:
        """The embedding of every training query."""
        return {text: v for part in Store().parts(self.embeddings) for text, v in vectors_by_text(part).items()}

    def rows(self, annotations: pa.Table, tags: pa.Table, sentences: Sequence[Sentence]) -> list[dict[str, Any]]:
        """Return the rows of a part's sentences, which come query by query with rising levels."""
        queries = {row["qid"]: row for row in annotations.select(["qid", "vid", "query"]).to_pylist()}
        wanted = {sentence.qid for sentence in sentences}
        pairs = zip(tags["qid"].to_pylist(), tags["tokens"], strict=True)
        tokens = {qid: parsed.as_py() for qid, parsed in pairs if qid in wanted}
        context = self.chooser.context(annotations)
        rows = [self._row(queries[s.qid], tokens[s.qid], s, context) for s in sentences]
        self._add_similarity(rows)
        self._add_plausibility(rows, tokens)
        return rows

    def _row(
        self, query: Mapping[str, Any], tokens: Tokens, sentence: Sentence, context: CheckContext
    ) -> dict[str, Any]:
        slots, words = changed_slots(tokens, [token.text for token in self.tokeniser(sentence.text)])
        masked = MaskedQuery(sentence.qid, list(tokens), (slots,) * sentence.level)  # type: ignore[arg-type]
        proposal = Proposal(masked, sentence.level, words, sentence.text, query["vid"])
        passed = [check.__name__ for check in self.choosing.checks if check(proposal, context) is True]
        return {
            "qid": sentence.qid,
            "level": sentence.level,
            "query": query["query"],
            "negative": sentence.text,
            "words": list(words),
            "provider": self.sourcing.source,
            "model": sentence.model,
            "checks": passed if "template" in passed else [name for name in passed if name not in SLOT_CHECKS],
        }

    def _add_similarity(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add the cosine of each row, and whether it is below the ceiling and falls from level to level."""
        fresh = sorted({text for row in rows for text in (row["negative"], row["query"])} - self.vectors.keys())
        known = self.vectors | dict(zip(fresh, encode(fresh, self.encoding), strict=True))
        last: dict[str, float] = {}
        for row in rows:
            # rounded: the last bits depend on the machine and must not decide
            cosine = round(float(np.dot(known[row["query"]], known[row["negative"]])), 4)
            row["similarity"] = cosine
            row["checks"] += ["ceiling"] if cosine <= self.choosing.ceiling else []
            row["checks"] += ["falling"] if cosine < last.get(row["qid"], np.inf) else []
            last[row["qid"]] = min(cosine, last.get(row["qid"], np.inf))

    def _add_plausibility(self, rows: Sequence[dict[str, Any]], tokens: Mapping[str, Tokens]) -> None:
        """Add how much more natural than its query each negative reads: a difference of mean log-probabilities."""
        words = {row["negative"]: [token.lower_ for token in self.tokeniser(row["negative"])] for row in rows}
        words |= {row["query"]: [token["text"].lower() for token in tokens[row["qid"]]] for row in rows}
        scores = self.chooser.plausibility.score(list(words), list(words.values())).round(4) if words else ()
        natural = dict(zip(words, scores, strict=True))
        for row in rows:
            row["plausibility"] = float(natural[row["negative"]] - natural[row["query"]])


def changed_slots(tokens: Tokens, others: Sequence[str]) -> tuple[tuple[Slot, ...], tuple[str, ...]]:
    """Return a slot for each token that differs, and the words in the slots; none if the numbers of tokens differ."""
    if len(tokens) != len(others):
        return (), ()
    pairs = enumerate(zip(tokens, others, strict=True))
    apart = [(at, token, other.lower()) for at, (token, other) in pairs if token["text"].lower() != other.lower()]
    slots = [Slot(at, t["primitive"] or "", t["tag"], t["text"], t["lemma"]) for at, t, _ in apart]
    return tuple(slots), tuple(other for _, _, other in apart)


def training_rows(annotations: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the training queries of a part."""
    rows: Iterable[dict[str, Any]] = annotations.select(["qid", "vid", "split", "query"]).to_pylist()
    yield from (row for row in rows if row["split"] == "train")
