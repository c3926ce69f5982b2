"""The nearest other queries as negatives: a control that shows what other true sentences alone teach.

The candidates of a query are all training queries, in the order of their SentenceBERT cosine to it, except paraphrases
(above the ceiling), queries of the same video (lemmatised) and queries of a test split. Each level takes the candidate
at its rank: the nearest is the hardest, and the cosine falls.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from penumbra.artifacts.manifest import Part, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.tasks.negatives.choosing.checks import CheckContext
from penumbra.tasks.negatives.selection import STAGE
from penumbra.tasks.negatives.sentence_negatives.stage import Sentence, SentenceNegatives, training_rows
from penumbra.tasks.stage import read_part
from penumbra.tasks.text.embeddings import Vectors

BLOCK = 512  # queries compared with all others at once
TOO_FEW = "no training query is that far down"


@dataclass(frozen=True)
class Candidates:
    """Every distinct training query that may be shown, its lemmatised form, and its vector (texts, dimension)."""

    texts: list[str]
    lemmas: list[str]
    vectors: Vectors

    def ranked(self, cosines: Vectors, forbidden: frozenset[str], ceiling: float, ranks: tuple[int, ...]) -> list[str]:
        """Return the negatives of a query, one for each rank that there is.

        Two texts with the same lemmas count once, so that the levels differ in meaning.

        Args:
            cosines: of the query to every candidate
            forbidden: lemmatised texts that are left out
            ceiling: the highest cosine
            ranks: how many candidates are at least as near as the negative of each level

        """
        chosen: list[str] = []
        seen, rank, last = set(forbidden), 0, np.inf
        for index in np.argsort(-cosines, kind="stable"):
            if cosines[index] > ceiling or self.lemmas[index] in seen:
                continue
            seen.add(self.lemmas[index])
            rank += 1
            if rank >= ranks[len(chosen)] and cosines[index] < last:
                chosen.append(self.texts[index])
                last = float(cosines[index])
                if len(chosen) == len(ranks):
                    break
        return chosen


@dataclass(frozen=True)
class NearestNegatives(SentenceNegatives):
    """For every training query three other training queries, the nearest first."""

    version = 1

    @property
    def source(self) -> dict[str, Any]:
        """The name of the control, and the ranks."""
        return {"source": self.sourcing.source, "ranks": list(self.sourcing.ranks)}

    @cached_property
    def candidates(self) -> Candidates:
        """The training queries that are in no test split, in alphabetical order."""
        leakage = self.chooser.leakage
        texts = sorted(text for text in self.vectors if not leakage.leaks(text))
        matrix = np.stack([self.vectors[text] for text in texts]) if texts else np.zeros((0, 0), np.float32)
        return Candidates(texts, [leakage.lemmatised(text) for text in texts], matrix)

    def part(self, piece: int) -> Part:
        """Choose the negatives of one part."""
        annotations, tags = read_part(piece, self.annotations, self.tags)
        queries = list(training_rows(annotations))
        model, context = self.encoding.sentence_model, self.chooser.context(annotations)
        sentences, rejected = list[Sentence](), []
        for query, texts in zip(queries, self._negatives(queries, context), strict=True):
            sentences += [Sentence(query["qid"], level, text, model) for level, text in enumerate(texts, 1)]
            for level in range(len(texts) + 1, len(self.sourcing.ranks) + 1):
                rejected.append(rejection(query["qid"], STAGE, TOO_FEW, f"level {level}: {query['query']}"))
        rows = self.rows(annotations, tags, sentences)
        return Part(table_of(STAGE, rows), len(rows) + len(rejected), len(rows), rejected)

    def _negatives(self, queries: list[dict[str, Any]], context: CheckContext) -> Iterator[list[str]]:
        for start in range(0, len(queries), BLOCK):
            block = queries[start : start + BLOCK]
            # rounded: the last bits depend on the machine and must not decide
            vectors = np.stack([self.vectors[row["query"]] for row in block])
            cosines = (vectors @ self.candidates.vectors.T).round(4)
            for row, near in zip(block, cosines, strict=True):
                forbidden = context.queries[row["vid"]]
                yield self.candidates.ranked(near, forbidden, self.choosing.ceiling, self.sourcing.ranks)
