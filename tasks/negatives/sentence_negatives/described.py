"""Whole sentences as rows of `negatives`: what of them stands in a slot, how near and natural they are, what they pass.

The checks are those of `penumbra.tasks.negatives.choosing.checks`. None is enforced here: a row names those that it
passes. A sentence of as many tokens as its query is that query with a slot for each token that differs; of any other
there are no slots to judge.
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
from penumbra.tasks.negatives.choosing.checks import Judge, Proposal
from penumbra.tasks.negatives.marked import beside_their_queries
from penumbra.tasks.negatives.parameters import NegativeSource
from penumbra.tasks.negatives.providers import MaskedQuery, Slot
from penumbra.tasks.negatives.selection import STAGE, Chooser, Choosing, chooser_of
from penumbra.tasks.stage import Stage
from penumbra.tasks.text.embeddings import Encoding, Vectors, encode, vectors_by_text
from penumbra.tasks.text.tags import load_pipeline

OF_SLOTS = {"vocabulary", "near_synonym"}  # checks that say nothing where the template is not kept
Tokens = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Sentence:
    """A negative as it came: of a query, at a level, from `model`."""

    qid: str
    level: int
    text: str
    model: str


@dataclass(frozen=True)
class WholeNegatives(Stage):
    """Whole sentences as negatives, described as those that are chosen of fills."""

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
        """See `beside_their_queries`."""
        return beside_their_queries(rows)

    @property
    def label(self) -> str:
        """Names their source."""
        return f"{self.name}: {self.sourcing.source}"

    def parameters(self) -> dict[str, Any]:
        """The source, and what the checks ask."""
        return {**self.source, **self.choosing.model_dump(mode="json")}

    def determines(self) -> dict[str, Any]:
        """The same, of the checks what is not default."""
        return {**self.source, **self.choosing.model_dump(mode="json", exclude_defaults=True)}

    def inputs(self) -> dict[str, str]:
        """The files of human text and of a language model."""
        return self.choosing.files()

    @property
    @abstractmethod
    def source(self) -> dict[str, Any]:
        """What is told of the source, and enters the key."""

    @cached_property
    def chooser(self) -> Chooser:
        """What judges: it has seen all training queries, and all that is held out."""
        return chooser_of(self.annotations, self.tags, self.dictionary, self.choosing, self.encoding)

    @cached_property
    def tokeniser(self) -> Any:
        """Cuts a sentence into the tokens that the tagger makes of it."""
        return load_pipeline(str(Store().manifest(self.tags).parameters["spacy_model"])).make_doc

    @cached_property
    def vectors(self) -> dict[str, Vectors]:
        """The embedding of every training query."""
        return {text: v for part in Store().parts(self.embeddings) for text, v in vectors_by_text(part).items()}

    def rows(self, annotations: pa.Table, tags: pa.Table, sentences: Sequence[Sentence]) -> list[dict[str, Any]]:
        """The rows of a part's sentences, a query's one after the other with rising level."""
        queries = {row["qid"]: row for row in annotations.select(["qid", "vid", "query"]).to_pylist()}
        wanted = {sentence.qid for sentence in sentences}
        pairs = zip(tags["qid"].to_pylist(), tags["tokens"], strict=True)
        tokens = {qid: parsed.as_py() for qid, parsed in pairs if qid in wanted}
        judge = self.chooser.judge(annotations)
        found = [self._row(queries[s.qid], tokens[s.qid], s, judge) for s in sentences]
        self._put_similarity(found)
        self._put_plausibility(found, tokens)
        return found

    def _row(self, query: Mapping[str, Any], tokens: Tokens, sentence: Sentence, judge: Judge) -> dict[str, Any]:
        slots, words = changed(tokens, [token.text for token in self.tokeniser(sentence.text)])
        masked = MaskedQuery(sentence.qid, list(tokens), (slots,) * sentence.level)  # type: ignore[arg-type]
        proposal = Proposal(masked, sentence.level, words, sentence.text, query["vid"])
        passed = [check.__name__ for check in self.choosing.checks if check(proposal, judge) is True]
        return {
            "qid": sentence.qid,
            "level": sentence.level,
            "query": query["query"],
            "negative": sentence.text,
            "words": list(words),
            "provider": self.sourcing.source,
            "model": sentence.model,
            "checks": passed if "template" in passed else [name for name in passed if name not in OF_SLOTS],
        }

    def _put_similarity(self, rows: Sequence[dict[str, Any]]) -> None:
        """Put in each cosine, and whether it is below the ceiling and falls from level to level."""
        fresh = sorted({text for row in rows for text in (row["negative"], row["query"])} - self.vectors.keys())
        known = self.vectors | dict(zip(fresh, encode(fresh, self.encoding), strict=True))
        last: dict[str, float] = {}
        for row in rows:
            # the last bits depend on the machine: they must not decide
            cosine = round(float(np.dot(known[row["query"]], known[row["negative"]])), 4)
            row["similarity"] = cosine
            row["checks"] += ["ceiling"] if cosine <= self.choosing.ceiling else []
            row["checks"] += ["falling"] if cosine < last.get(row["qid"], np.inf) else []
            last[row["qid"]] = min(cosine, last.get(row["qid"], np.inf))

    def _put_plausibility(self, rows: Sequence[dict[str, Any]], tokens: Mapping[str, Tokens]) -> None:
        """Put in how much more natural than its query each reads: mean log-probabilities a token, subtracted."""
        words = {row["negative"]: [token.lower_ for token in self.tokeniser(row["negative"])] for row in rows}
        words |= {row["query"]: [token["text"].lower() for token in tokens[row["qid"]]] for row in rows}
        read = self.chooser.plausibility.read(list(words), list(words.values())).round(4) if words else ()
        natural = dict(zip(words, read, strict=True))
        for row in rows:
            row["plausibility"] = float(natural[row["negative"]] - natural[row["query"]])


def changed(tokens: Tokens, others: Sequence[str]) -> tuple[tuple[Slot, ...], tuple[str, ...]]:
    """The tokens that differ, whatever their case, as slots, and the words in their place; none where lengths do."""
    if len(tokens) != len(others):
        return (), ()
    pairs = [(at, token, other.lower()) for at, (token, other) in enumerate(zip(tokens, others, strict=True))]
    apart = [(at, token, other) for at, token, other in pairs if token["text"].lower() != other]
    slots = [Slot(at, t["primitive"] or "", t["tag"], t["text"], t["lemma"]) for at, t, _ in apart]
    return tuple(slots), tuple(other for _, _, other in apart)


def training_rows(annotations: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the training queries of a part."""
    rows: Iterable[dict[str, Any]] = annotations.select(["qid", "vid", "split", "query"]).to_pylist()
    yield from (row for row in rows if row["split"] == "train")
