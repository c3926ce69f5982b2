"""The quality report of any negatives: counts of every row, and what judges make of samples of them."""

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penumbra.tasks.data.resampling import Resamples
from penumbra.tasks.negatives.parameters import QualityConfig
from penumbra.tasks.negatives.quality.controls import nearest_rows, originals, random_rows, random_words
from penumbra.tasks.negatives.quality.counts import Counts, counts_of, equalities_of, nearness_of, placed
from penumbra.tasks.negatives.quality.figures import (
    ALL,
    AS_DRAWN,
    Figures,
    LanguageModels,
    Vectors,
    blind,
    counted,
    log_probability,
    plausible,
    related,
    same_class_parsed,
    with_similarity,
)
from penumbra.tasks.negatives.quality.measures import measured
from penumbra.tasks.negatives.quality.negative import Negative, draw
from penumbra.tasks.negatives.quality.reference import Reference, Tokens

SAME_CLASS = {"plausibility": False, "plausibility.by_token": True}  # metric: whether every token weighs alike
ANY_WORDS = {"plausibility.any_words": False}
CONTROL_DIVISOR = 3  # random fills are encoded and parsed for a third of the sample: no figure of theirs is close
BY_QUERIES = "blind AUC by words, and plausibility"
BY_SAMPLE = "attested relations, same slot class as parsed, and the other classifiers"
UNKNOWN_REASONS = {
    "template_kept": "have no masked query: template is not judged",
    "same_slot_class": "keep no template, or masks that don't fit their query: slots are not judged",
}


@dataclass(frozen=True)
class Judges:
    """What reads texts: `encode` gives unit vectors by text, `parse` tokens by text.

    `training` gives the vectors of the training queries, part by part.
    """

    encode: Callable[[set[str]], Vectors]
    training: Callable[[], Iterable[Vectors]]
    parse: Callable[[set[str]], dict[str, Tokens]]


class Negatives(Protocol):
    """Negatives of any origin."""

    def parts(self, queries: Collection[str] | None = None) -> Iterator[list[Negative]]:
        """Yield the rows part by part, of all queries or of these."""


class QuerySample:
    """The rows of at most `judging.queries` queries (0: of all), drawn by their ids: the same whatever their order."""

    def __init__(self, negatives: Negatives, queries: Sequence[str], judging: QualityConfig) -> None:
        self.seed, self.seen = judging.sampling_seed, len(queries)
        drawn = self._drawn(queries, judging.queries) if 0 < judging.queries < len(queries) else None
        self._rows = list(chain.from_iterable(negatives.parts(drawn)))

    def _drawn(self, queries: Iterable[str], count: int) -> set[str]:
        return set(heapq.nsmallest(count, queries, key=lambda qid: draw(self.seed, qid)))

    def rows(self, count: int = 0) -> list[Negative]:
        """The rows of the first `count` queries drawn; of all that were kept where it is 0."""
        wanted = self._drawn({row.qid for row in self._rows}, count) if count else None
        return [row for row in self._rows if wanted is None or row.qid in wanted]


@dataclass
class Report:
    """The figures, and what could not be judged or was judged on a sample."""

    figures: Figures = field(default_factory=Figures)
    notes: list[str] = field(default_factory=list)


def assess_rows(
    negatives: Negatives,
    measures: pa.Table,
    drawn: Sequence[pa.Table],
    reference: Reference,
    judges: Judges,
    judging: QualityConfig,
) -> Report:
    """Judge negatives with what was measured of each.

    `drawn` is what was measured of the providers' first fills, of which only what equals what is counted.
    """
    videos: dict[str, int] = {}
    held_against = list(reference.tests), reference.labelled
    counts, similarities = counts_of(measures, *held_against, videos), nearness_of(measures, videos)
    equalities = [equalities_of(_as_drawn(table), *held_against, videos) for table in drawn]
    sample = QuerySample(negatives, measures["qid"].unique().to_pylist(), judging)
    resamples = Resamples(len(videos), judging.resamples, judging.sampling_seed)
    assessor = SampleAssessor(reference, judges, judging, videos, resamples)
    counted(counts, resamples, assessor.figures)
    for several in equalities:
        counted(several, resamples, assessor.figures)
    similarities = assessor.judge(sample, similarities)
    strangers = len(measures) - pc.sum(measures["known_query"]).as_py() if len(measures) else 0
    report = Report(assessor.figures, notes(reference, counts, similarities, strangers, sample, judging))
    if len(counts.providers) == 1:  # so that a figure is found under its provider's name, too
        alone = [row for row in report.figures.rows if row["provider"] == ALL]
        report.figures.rows += [{**row, "provider": counts.providers[0]} for row in alone]
    return report


def _as_drawn(measures: pa.Table) -> pa.Table:
    """The same of fills as drawn, not as chosen, under a name that says so."""
    names = pc.binary_join_element_wise(pa.scalar(AS_DRAWN), measures["provider"], "")
    return measures.set_column(measures.schema.get_field_index("provider"), "provider", names)


@dataclass
class SampleAssessor:
    """Judges samples of negatives and of controls by the same measures."""

    reference: Reference
    judges: Judges
    judging: QualityConfig
    videos: dict[str, int]
    resamples: Resamples
    figures: Figures = field(default_factory=Figures)

    def judge(self, sample: QuerySample, similarities: Counts) -> Counts:
        """Put down what classifiers, language model, encoder and parser make of the rows and of the controls.

        Gives back the cosines that were judged: the rows' own, or those of a sample where they had none.
        """
        several, few = sample.rows(), sample.rows(self.judging.sample)
        sampled = {
            row.qid for row in sample.rows(max(self.judging.sample // CONTROL_DIVISOR, 1) if self.judging.sample else 0)
        }
        randoms = list(random_rows(several, self.reference, self.judging.sampling_seed))
        controls = [row for row in randoms if row.qid in sampled] if self.judging.controls else []
        vectors = self.judges.encode(texts_of([*few, *controls]))
        if not similarities.metrics:
            similarities = nearness_of(placed(with_similarity(few, vectors)), self.videos)
        counted(similarities, self.resamples, self.figures)
        models = LanguageModels(self.reference)
        self._blind(several, few, vectors)
        any_words = list(random_words(several, self.reference, self.judging.sampling_seed))
        for zero, variants in ((randoms, SAME_CLASS), (any_words, ANY_WORDS)):
            plausible(several, zero, variants, models, self.videos, self.resamples, self.figures)
        self._read(several, few, models)
        if self.judging.controls:
            self._controls(randoms, controls, few, vectors, models)
        return similarities

    def _blind(self, several: Sequence[Negative], few: Sequence[Negative], vectors: Vectors) -> None:
        """The definition's classifier sees all that were kept, the others the sample."""
        for classifier in self.judging.classifiers:
            rows = several if classifier == "words" else few
            blind(rows, classifier, vectors, self.videos, self.resamples, self.judging.sampling_seed, self.figures)

    def _read(self, several: Sequence[Negative], few: Sequence[Negative], models: LanguageModels) -> None:
        """Log-probability of all that were kept, relations and parsed classes of the sample."""
        log_probability(several, models, self.videos, self.resamples, self.figures)
        parsed = self.judges.parse(texts_of(few))
        related(few, parsed, self.reference, self.videos, self.resamples, self.figures)
        same_class_parsed(few, parsed, self.reference, self.videos, self.resamples, self.figures)

    def _controls(
        self,
        randoms: Sequence[Negative],
        some: Sequence[Negative],
        few: Sequence[Negative],
        vectors: Vectors,
        models: LanguageModels,
    ) -> None:
        """Random fills of the same masks, the nearest other queries of the sample's, and the queries themselves."""
        known = {row.positive: vectors[row.positive] for row in few}  # where nothing else has been encoded
        nearest = list(nearest_rows(few, vectors, chain([known], self.judges.training()), self.reference))
        own = list(originals(few))
        for rows, sample in ((randoms, with_similarity(some, vectors)), (nearest, nearest), (own, own)):
            if rows is not own:
                self._count(rows, sample)
                self._blind(rows, (), vectors)
            self._read(rows, sample, models)

    def _count(self, rows: Sequence[Negative], sample: Sequence[Negative]) -> None:
        held_against = list(self.reference.tests), self.reference.labelled
        counts = counts_of(measured(rows, self.reference), *held_against, self.videos)
        counted(counts, self.resamples, self.figures)
        counted(nearness_of(placed(sample), self.videos), self.resamples, self.figures)


def texts_of(rows: Iterable[Negative]) -> set[str]:
    """All texts of some rows."""
    return {text for row in rows for text in (row.positive, row.negative)}


def notes(
    reference: Reference,
    counts: Counts,
    similarities: Counts,
    strangers: int,
    sample: QuerySample,
    judging: QualityConfig,
) -> list[str]:
    """What could not be judged, and what was judged on a sample; `strangers` are rows of queries nobody knows."""
    rows = sum(int(counts.chosen(level, None).sum()) for level in counts.levels)
    lines = []
    if not reference.tests:
        lines += [
            f"{reference.dataset} has no test split: leaks are not judged",
            "plausibility and relations are judged by other folds of the training queries, which the filler "
            "may have drawn from",
        ]
    if not reference.labelled:
        lines.append(f"{reference.dataset} has no labels of novel compositions or words: held-out ones are not judged")
    for metric, why in UNKNOWN_REASONS.items():
        missing = rows - counts.known(metric)
        if missing:
            lines.append(f"{missing:,} of {rows:,} rows {why}")
    if len(counts.levels) < 2:
        lines.append("there is one level only: hierarchy is not judged")
    if reference.trained and strangers:
        lines.append(f"{strangers:,} of {rows:,} rows have a query that {reference.dataset} lacks")
    for limit, what in ((judging.queries, BY_QUERIES), (judging.sample, BY_SAMPLE)):
        if limit and sample.seen > limit:
            lines.append(f"{what}: judged on {limit:,} of {sample.seen:,} queries")
    if similarities.known("similarity") < rows:
        lines.append(
            f"similarity, paraphrases and hierarchy: judged on {similarities.known('similarity'):,} of {rows:,} rows"
        )
    return lines
