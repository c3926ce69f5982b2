"""Negatives from the nearest other real queries: the control that tells what other true sentences alone would teach.

A query's candidates are all training queries, in the order of their SentenceBERT cosine to it, but for paraphrases
(above the ceiling), what equals a positive of the same video in its lemmas, and queries of a test split. Level by level
the candidate at the next rank is taken: the nearest is the hardest, and the cosine falls.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from penumbra.artifacts.manifest import Part, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.tasks.negatives.choosing.checks import Judge
from penumbra.tasks.negatives.selection import STAGE
from penumbra.tasks.negatives.sentence_negatives.described import Sentence, WholeNegatives, training_rows
from penumbra.tasks.stage import read_part
from penumbra.tasks.text.embeddings import Vectors

BLOCK = 512  # queries compared with all others at once
TOO_FEW = "no training query is that far down"


@dataclass(frozen=True)
class Candidates:
    """Every distinct training query that may be shown, its lemmas, and its vector (texts, dimension)."""

    texts: list[str]
    lemmas: list[str]
    vectors: Vectors

    def taken(self, cosines: Vectors, forbidden: frozenset[str], ceiling: float, ranks: tuple[int, ...]) -> list[str]:
        """A query's negatives, one a rank as long as there are: `cosines` (texts) to it, and the lemmas to leave out.

        Two texts of the same lemmas count once, so that the levels say different things.
        """
        found: list[str] = []
        seen, place, last = set(forbidden), 0, np.inf
        for at in np.argsort(-cosines, kind="stable"):
            if cosines[at] > ceiling or self.lemmas[at] in seen:
                continue
            seen.add(self.lemmas[at])
            place += 1
            if place >= ranks[len(found)] and cosines[at] < last:
                found.append(self.texts[at])
                last = float(cosines[at])
                if len(found) == len(ranks):
                    break
        return found


@dataclass(frozen=True)
class NearestNegatives(WholeNegatives):
    """For every training query three other training queries, the nearest first."""

    version = 1

    @property
    def source(self) -> dict[str, Any]:
        """That it is this control, and the ranks."""
        return {"source": self.sourcing.source, "ranks": list(self.sourcing.ranks)}

    @cached_property
    def candidates(self) -> Candidates:
        """The training queries that are none of a test split, in alphabetical order."""
        guard = self.chooser.guard
        texts = sorted(text for text in self.vectors if not guard.leaks(text))
        matrix = np.stack([self.vectors[text] for text in texts]) if texts else np.zeros((0, 0), np.float32)
        return Candidates(texts, [guard.lemmatised(text) for text in texts], matrix)

    def part(self, piece: int) -> Part:
        """Take one part's negatives."""
        annotations, tags = read_part(piece, self.annotations, self.tags)
        queries = list(training_rows(annotations))
        model, judge = self.encoding.sentence_model, self.chooser.judge(annotations)
        sentences, rejected = list[Sentence](), []
        for query, texts in zip(queries, self._taken(queries, judge), strict=True):
            sentences += [Sentence(query["qid"], level, text, model) for level, text in enumerate(texts, 1)]
            for level in range(len(texts) + 1, len(self.sourcing.ranks) + 1):
                rejected.append(rejection(query["qid"], STAGE, TOO_FEW, f"level {level}: {query['query']}"))
        rows = self.rows(annotations, tags, sentences)
        return Part(table_of(STAGE, rows), len(rows) + len(rejected), len(rows), rejected)

    def _taken(self, queries: list[dict[str, Any]], judge: Judge) -> Iterator[list[str]]:
        among, ceiling = self.candidates, self.choosing.ceiling
        for start in range(0, len(queries), BLOCK):
            block = queries[start : start + BLOCK]
            # the last bits depend on the machine: they must not decide
            cosines = (np.stack([self.vectors[row["query"]] for row in block]) @ among.vectors.T).round(4)
            for row, near in zip(block, cosines, strict=True):
                yield among.taken(near, judge.positives[row["vid"]], ceiling, self.sourcing.ranks)
