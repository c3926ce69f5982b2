"""The quality report of any negatives: counts of every row, and what judges make of samples of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from penumbra.tasks.data.resampling import Resamples
from penumbra.tasks.negatives.quality.controls import nearest_rows, originals, random_rows, random_words
from penumbra.tasks.negatives.quality.counts import Counts
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
from penumbra.tasks.negatives.quality.judging import Judging, draw
from penumbra.tasks.negatives.quality.negative import Negative
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
    """What reads texts: `encode` gives unit vectors by text, `parse` tokens by text."""

    encode: Callable[[set[str]], Vectors]
    parse: Callable[[set[str]], dict[str, Tokens]]


class QuerySample:
    """The rows of at most `limit` queries (0: of all), drawn by their ids: the same whatever their order."""

    def __init__(self, limit: int, seed: int) -> None:
        self.limit, self.seed = limit, seed
        self.queries: dict[str, list[Negative]] = {}
        self.seen = 0

    def add(self, rows: Iterable[Negative]) -> None:
        """Add a part's rows, and let go of the queries that are over the limit."""
        before = len(self.queries)
        for row in rows:
            self.queries.setdefault(row.qid, []).append(row)
        self.seen += len(self.queries) - before
        if self.limit and len(self.queries) > self.limit:
            self.queries = {qid: self.queries[qid] for qid in self._drawn(self.limit)}

    def _drawn(self, count: int) -> list[str]:
        return sorted(self.queries, key=lambda qid: draw(self.seed, qid))[:count]

    def rows(self, count: int = 0) -> list[Negative]:
        """The rows of the first `count` queries drawn; of all that were kept where it is 0."""
        wanted = set(self._drawn(count)) if count else self.queries.keys()
        return [row for qid, rows in self.queries.items() if qid in wanted for row in rows]


@dataclass
class Report:
    """The figures, and what could not be judged or was judged on a sample."""

    figures: Figures = field(default_factory=Figures)
    notes: list[str] = field(default_factory=list)


def assess_rows(
    parts: Iterable[list[Negative]], reference: Reference, judges: Judges, judging: Judging,
    drawn: Sequence[Iterable[list[Negative]]] = (),
) -> Report:  # fmt: skip
    """Judge negatives; `drawn` are the providers' first fills, of which only what equals what is counted."""
    videos: dict[str, int] = {}
    counts, similarities, equalities = (Counts(reference, videos) for _ in range(3))
    sample = QuerySample(judging.queries, judging.sampling_seed)
    for rows in parts:
        counts.add(rows)
        similarities.add_nearness(rows)
        sample.add(rows)
    for rows in chain.from_iterable(drawn):
        equalities.add_equalities(replace(row, provider=f"{AS_DRAWN}{row.provider}") for row in rows)
    resamples = Resamples(len(videos), judging.resamples, judging.sampling_seed)
    assessor = SampleAssessor(reference, judges, judging, videos, resamples)
    counted(counts, resamples, assessor.figures)
    assessor.figures.rows += _equalities(equalities, resamples)
    assessor.judge(sample, similarities)
    report = Report(assessor.figures, notes(reference, counts, similarities, sample, judging))
    if len(counts.providers) == 1:  # so that a figure is found under its provider's name, too
        alone = [row for row in report.figures.rows if row["provider"] == ALL]
        report.figures.rows += [{**row, "provider": counts.providers[0]} for row in alone]
    return report


def _equalities(counts: Counts, resamples: Resamples) -> list[dict[str, Any]]:
    """Of the fills as drawn, whom they equal: what the filter is there to keep out."""
    figures = Figures()
    counted(counts, resamples, figures)
    return figures.rows


@dataclass
class SampleAssessor:
    """Judges samples of negatives and of controls by the same measures."""

    reference: Reference
    judges: Judges
    judging: Judging
    videos: dict[str, int]
    resamples: Resamples
    figures: Figures = field(default_factory=Figures)

    def judge(self, sample: QuerySample, similarities: Counts) -> None:
        """Put down what classifiers, language model, encoder and parser make of the rows and of the controls."""
        several, few = sample.rows(), sample.rows(self.judging.sample)
        sampled = {
            row.qid for row in sample.rows(max(self.judging.sample // CONTROL_DIVISOR, 1) if self.judging.sample else 0)
        }
        randoms = list(random_rows(several, self.reference, self.judging.sampling_seed))
        controls = [row for row in randoms if row.qid in sampled] if self.judging.controls else []
        vectors = self.judges.encode(texts_of([*few, *controls]))
        if not similarities.metrics:
            similarities.add_nearness(with_similarity(few, vectors))
        counted(similarities, self.resamples, self.figures)
        models = LanguageModels(self.reference)
        self._blind(several, few, vectors)
        any_words = list(random_words(several, self.reference, self.judging.sampling_seed))
        for zero, variants in ((randoms, SAME_CLASS), (any_words, ANY_WORDS)):
            plausible(several, zero, variants, models, self.videos, self.resamples, self.figures)
        self._read(several, few, models)
        if self.judging.controls:
            self._controls(randoms, controls, few, vectors, models)

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
        self, randoms: Sequence[Negative], some: Sequence[Negative], few: Sequence[Negative], vectors: Vectors,
        models: LanguageModels,
    ) -> None:  # fmt: skip
        """Random fills of the same masks, the nearest other queries of the sample's, and the queries themselves."""
        candidates: dict[str, set[str]] = {}
        for qid, text in self.reference.training.items():
            candidates.setdefault(text, set()).add(self.reference.videos[qid])
        nearest = list(nearest_rows(few, candidates, vectors))
        own = list(originals(few))
        for rows, sample in ((randoms, with_similarity(some, vectors)), (nearest, nearest), (own, own)):
            if rows is not own:
                self._count(rows, sample)
                self._blind(rows, (), vectors)
            self._read(rows, sample, models)

    def _count(self, rows: Sequence[Negative], sample: Sequence[Negative]) -> None:
        counts, similarities = Counts(self.reference, self.videos), Counts(self.reference, self.videos)
        counts.add(rows)
        similarities.add_nearness(sample)
        counted(counts, self.resamples, self.figures)
        counted(similarities, self.resamples, self.figures)


def texts_of(rows: Iterable[Negative]) -> set[str]:
    """All texts of some rows."""
    return {text for row in rows for text in (row.positive, row.negative)}


def notes(
    reference: Reference, counts: Counts, similarities: Counts, sample: QuerySample, judging: Judging
) -> list[str]:
    """What could not be judged, and what was judged on a sample."""
    rows = sum(int(counts.chosen(level, None).sum()) for level in counts.levels)
    lines = []
    if not reference.tests:
        lines += [f"{reference.dataset} has no test split: leaks are not judged",
                  "plausibility and relations are judged by other folds of the training queries, which the filler "
                  "may have drawn from"]  # fmt: skip
    if not reference.labelled:
        lines.append(f"{reference.dataset} has no labels of novel compositions or words: held-out ones are not judged")
    for metric, why in UNKNOWN_REASONS.items():
        missing = rows - counts.known(metric)
        if missing:
            lines.append(f"{missing:,} of {rows:,} rows {why}")
    if len(counts.levels) < 2:
        lines.append("there is one level only: hierarchy is not judged")
    if reference.training and counts.strangers:
        lines.append(f"{counts.strangers:,} of {rows:,} rows have a query that {reference.dataset} lacks")
    for limit, what in ((judging.queries, BY_QUERIES), (judging.sample, BY_SAMPLE)):
        if limit and sample.seen > limit:
            lines.append(f"{what}: judged on {limit:,} of {sample.seen:,} queries")
    if similarities.known("similarity") < rows:
        lines.append(
            f"similarity, paraphrases and hierarchy: judged on {similarities.known('similarity'):,} of {rows:,} rows"
        )
    return lines
