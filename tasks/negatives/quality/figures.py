"""Every figure of a set of negatives, a level and a provider: the rows of `quality`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import isfinite, isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penumbra.tasks.data.resampling import Estimate, Floats, Resamples
from penumbra.tasks.negatives.parameters import Classifier
from penumbra.tasks.negatives.quality.blind import judge
from penumbra.tasks.negatives.quality.controls import CONTROL, EVERY_LEVEL, ORIGINALS
from penumbra.tasks.negatives.quality.counts import SIMILARITY, Counts, is_total
from penumbra.tasks.negatives.quality.negative import Negative
from penumbra.tasks.negatives.quality.plausibility import language_model, log_probabilities, plausibility
from penumbra.tasks.negatives.quality.reference import Reference, Tokens
from penumbra.tasks.negatives.quality.relations import attested

ALL = "all"
AS_DRAWN = "as drawn: "
COMMONEST = 10
COMMON_FILL = "common_fill: "
PERCENTILES = (5, 25, 50, 75, 95)
DECIMALS = 6  # beyond them the number of threads tells
MIN_ROWS = 50  # rows of a provider at a level: fewer train no classifier
Vectors = dict[str, NDArray[np.float32]]


@dataclass
class Figures:
    """Rows of the table, gathered."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def put(self, level: int, provider: str, metric: str, estimate: Estimate | float) -> None:
        """Add a figure, with `metric.low` and `metric.high` where it has an interval; what is undefined is left out."""
        estimate = estimate if isinstance(estimate, Estimate) else Estimate(float(estimate))
        if not isfinite(estimate.value):
            return
        named = {metric: estimate.value, f"{metric}.low": estimate.low, f"{metric}.high": estimate.high}
        for name, value in named.items():
            if not isnan(value):
                figure = round(value, DECIMALS)
                self.rows.append({"level": level, "provider": provider, "metric": name, "value": figure})


def is_control(provider: str) -> bool:
    """Whether this names something that negatives are held against."""
    return provider == ORIGINALS or provider.startswith((CONTROL, AS_DRAWN))


def names(providers: Iterable[str]) -> list[tuple[str, str | None]]:
    """What figures are put down for: all providers together and, where there are several, each; a control is itself."""
    several = sorted(set(providers))
    alone: list[tuple[str, str | None]] = [(name, name) for name in several]
    if any(is_control(name) for name in several):
        return alone
    return [(ALL, None), *(alone if len(several) > 1 else [])]


def groups(rows: Sequence[Negative]) -> Iterator[tuple[int, str, list[Negative]]]:
    """Yield the rows of each level and name."""
    for level in sorted({row.level for row in rows}):
        here = [row for row in rows if row.level == level]
        for name, provider in names(row.provider for row in here):
            yield level, name, [row for row in here if provider in (None, row.provider)]


def counted(counts: Counts, resamples: Resamples, figures: Figures) -> None:
    """Put down all that was counted."""
    for level, (name, provider) in product(counts.levels, names(counts.providers)):
        rows = int(counts.chosen(level, provider).sum())
        if not rows:
            continue
        figures.put(level, name, "rows_with_similarity" if SIMILARITY in counts.metrics else "rows", rows)
        for metric in counts.metrics:
            videos, numerators, denominators = counts.column(metric, level, provider)
            if len(videos) and is_total(metric):
                figures.put(level, name, metric, resamples.total(videos, numerators))
            elif len(videos):
                figures.put(level, name, metric, resamples.ratio(videos, numerators, denominators))
        _words(counts, level, name, provider, figures)
        _spread(counts, level, name, provider, figures)
    for name, provider in names(counts.providers):
        videos, falls = counts.falls(provider)
        if len(videos):
            figures.put(EVERY_LEVEL, name, "hierarchy", resamples.ratio(videos, falls, np.ones(len(falls))))


def _words(counts: Counts, level: int, name: str, provider: str | None, figures: Figures) -> None:
    """How many words the fills are, and how much of them the ten commonest."""
    words = counts.fills(level, provider)
    if words:
        slots = words.total()
        figures.put(level, name, "distinct_fills", len(words))
        figures.put(level, name, "distinct_fills_a_slot", len(words) / slots)
        commonest = words.most_common(COMMONEST)
        figures.put(level, name, "ten_commonest", sum(count for _, count in commonest) / slots)
        for word, count in sorted(commonest, key=lambda pair: (-pair[1], pair[0])):
            figures.put(level, name, f"{COMMON_FILL}{word}", count / slots)


def _spread(counts: Counts, level: int, name: str, provider: str | None, figures: Figures) -> None:
    """Percentiles of the cosines."""
    if SIMILARITY in counts.metrics:
        _, cosines, _ = counts.column(SIMILARITY, level, provider)
        for percent in PERCENTILES if len(cosines) else ():
            figures.put(level, name, f"{SIMILARITY}.p{percent:02d}", float(np.percentile(cosines, percent)))


def blind(
    rows: Sequence[Negative],
    classifier: Classifier,
    vectors: Vectors,
    videos: dict[str, int],
    resamples: Resamples,
    seed: int,
    figures: Figures,
) -> None:
    """Put down the AUC of a classifier; `blind_auc` is the definition's, the others carry their names."""
    for level, name, several in groups(rows):
        matrix = None
        if len(several) < MIN_ROWS:
            continue
        if classifier == "sentences":
            texts = [*(row.positive for row in several), *(row.negative for row in several)]
            matrix = np.stack([vectors[text] for text in texts])
        verdict = judge(
            [row.positive for row in several],
            [row.negative for row in several],
            [videos[row.vid] for row in several],
            classifier,
            matrix,
            seed,
        )
        if verdict:
            metric = "blind_auc" if classifier == "words" else f"blind_auc.{classifier}"
            area = resamples.area(verdict.videos, verdict.labels, verdict.scores, verdict.folds)
            figures.put(level, name, metric, area)


class LanguageModels:
    """Judges how much text reads like what people wrote."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self.models = [language_model(human.sentences) for human in reference.human]

    def score(self, rows: Sequence[Negative], texts: Sequence[str]) -> Floats:
        """Log-probability and tokens (rows, 2) of a text for each row, by the model that judges the row's video."""
        scores = np.zeros((len(rows), 2))
        judges = np.array([self.reference.human_for(row.vid) for row in rows], dtype=np.int64)
        for number, model in enumerate(self.models):
            mine = np.flatnonzero(judges == number)
            if len(mine):
                scores[mine] = np.stack(log_probabilities(model, [texts[int(i)] for i in mine]), axis=1)
        return scores


def plausible(
    rows: Sequence[Negative],
    randoms: Sequence[Negative],
    variants: Mapping[str, bool],
    models: LanguageModels,
    videos: dict[str, int],
    resamples: Resamples,
    figures: Figures,
) -> None:
    """Put down plausibility against these random fills, over the rows that have one.

    `variants` maps a metric to whether every token weighs alike, not every sentence.
    """
    filled = {(row.qid, row.level): row.negative for row in randoms}
    for level, name, several in groups([row for row in rows if (row.qid, row.level) in filled]):
        texts = (
            [row.negative for row in several],
            [filled[row.qid, row.level] for row in several],
            [row.positive for row in several],
        )
        sums = np.concatenate([models.score(several, side) for side in texts], axis=1)
        means = np.stack(
            [sums[:, i // 2 * 2] / sums[:, i // 2 * 2 + 1] if i % 2 == 0 else np.ones(len(sums)) for i in range(6)],
            axis=1,
        )
        numbers = np.array([videos[row.vid] for row in several], dtype=np.int64)
        for metric, by_token in variants.items():
            figures.put(level, name, metric, resamples.estimate(numbers, sums if by_token else means, plausibility))


def log_probability(
    rows: Sequence[Negative], models: LanguageModels, videos: dict[str, int], resamples: Resamples, figures: Figures
) -> None:
    """Put down the mean natural log-probability a token."""
    for level, name, several in groups(rows):
        sums = models.score(several, [row.negative for row in several])
        numbers = np.array([videos[row.vid] for row in several], dtype=np.int64)
        figures.put(level, name, "log_probability", resamples.ratio(numbers, sums[:, 0], sums[:, 1]))


def related(
    rows: Sequence[Negative],
    parsed: dict[str, Tokens],
    reference: Reference,
    videos: dict[str, int],
    resamples: Resamples,
    figures: Figures,
) -> None:
    """Put down the share of attested relations; of the originals, of all their relations."""
    for level, name, several in groups(rows):
        pairs = []
        for row in several:
            human = reference.human[reference.human_for(row.vid)].relations
            positive = [] if row.provider == ORIGINALS else parsed[row.positive]
            pairs.append(attested(parsed[row.negative], positive, human))
        numbers = np.array([videos[row.vid] for row in several], dtype=np.int64)
        table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
        figures.put(level, name, "attested_relations", resamples.ratio(numbers, table[:, 0], table[:, 1]))
        figures.put(level, name, "new_relations", resamples.ratio(numbers, table[:, 1], np.ones(len(table))))


def same_class_parsed(
    rows: Sequence[Negative],
    parsed: dict[str, Tokens],
    reference: Reference,
    videos: dict[str, int],
    resamples: Resamples,
    figures: Figures,
) -> None:
    """Put down how many fills a parse of the whole negative gives their slot's class and fine tag."""
    for level, name, several in groups(rows):
        counts = []
        for row in several:
            slots, tokens = reference.slots(row) or (), parsed[row.negative]
            fits = bool(slots) and max(slot.token for slot in slots) < len(tokens)
            hits = [
                (tokens[s.token]["primitive"], tokens[s.token]["tag"]) == (s.primitive, s.tag) for s in slots if fits
            ]
            counts.append((videos[row.vid], sum(hits), len(hits)))
        table = np.array(counts, dtype=np.float64).reshape(-1, 3)
        share = resamples.ratio(table[:, 0].astype(np.int64), table[:, 1], table[:, 2])
        figures.put(level, name, "same_slot_class.parsed", share)


def with_similarity(rows: Iterable[Negative], vectors: Vectors) -> list[Negative]:
    """The rows, with cosines where they had none and both texts have a vector."""

    def completed(row: Negative) -> Negative:
        if row.similarity is not None or not {row.positive, row.negative} <= vectors.keys():
            return row
        return replace(row, similarity=float(vectors[row.positive] @ vectors[row.negative]))

    return [completed(row) for row in rows]
