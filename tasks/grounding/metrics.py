"""All metrics that a run is judged by; evaluation, comparison and tables walk them in this order.

One more is a file beside this one, its import here and its line in `SHIPPED`; one of another package is an entry point
of that package, so that every process finds it:

    [project.entry-points."penumbra.metrics"]
    late-start = "my_package.metrics:LATE_START"

A script may call `register` instead; processes that it did not start don't know of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penumbra.artifacts.errors import PenumbraError

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Rows = NDArray[np.bool_] | NDArray[np.int64]


class EvaluationError(PenumbraError):
    """Predictions and truth do not belong together, or hold what can't be judged."""


@dataclass(frozen=True)
class Windows:
    """Predictions and truth of N queries.

    predicted [N, P, 3] (start s, end s, score) in the order listed, NaN where a query lists fewer; truth [N, W, 2],
    NaN likewise.
    """

    qids: tuple[str, ...]
    predicted: Floats
    truth: Floats

    @property
    def listed(self) -> Flags:
        """Which predictions are there [N, P]."""
        return ~np.isnan(self.predicted[..., 0])

    @property
    def known(self) -> Flags:
        """Which true windows are there [N, W]."""
        return ~np.isnan(self.truth[..., 0])

    def take(self, rows: Rows) -> "Windows":
        """The same for some of the queries."""
        index = np.arange(len(self.qids))[rows]
        return Windows(tuple(self.qids[i] for i in index), self.predicted[index], self.truth[index])

    def keep(self, wanted: Flags) -> "Windows":
        """Only some of the true windows [N, W], and only queries that have one of these."""
        first = np.argsort(~wanted, axis=1, kind="stable")  # bring the kept ones to the front
        truth = np.take_along_axis(np.where(wanted[..., None], self.truth, np.nan), first[..., None], 1)
        return replace(self, truth=truth).take(np.flatnonzero(wanted.any(1)))

    def until(self, end: float | None) -> "Windows":
        """True windows cut at `end` seconds (None: as they are), without those that begin there or later."""
        if end is None:
            return self
        truth = np.minimum(self.truth, end)
        return replace(self, truth=truth).keep(truth[..., 0] < truth[..., 1])


def align(
    predictions: Mapping[str, Sequence[Sequence[float]]], truth: Mapping[str, Sequence[Sequence[float]]]
) -> Windows:
    """Put predictions and truth of the same queries side by side, in the truth's order.

    Raises `EvaluationError` naming the queries that only one side has, or that have no prediction or no window.
    """
    for kind, names in (
        ("prediction", truth.keys() - predictions.keys()),
        ("truth", predictions.keys() - truth.keys()),
    ):
        if names:
            raise EvaluationError(f"{len(names)} queries have no {kind}, the first is {min(names)}")
    for kind, rows in (("prediction", predictions), ("window", truth)):
        empty = [qid for qid, windows in rows.items() if not len(windows)]
        if empty:
            raise EvaluationError(f"{len(empty)} queries have an empty list of {kind}s, the first is {min(empty)}")
    qids = tuple(truth)
    found = Windows(qids, _padded([predictions[q] for q in qids], 3), _padded([truth[q] for q in qids], 2))
    wrong = np.isnan(found.predicted).any(-1) & found.listed
    if wrong.any():
        raise EvaluationError(f"the predictions of query {qids[int(np.argmax(wrong.any(1)))]} hold a NaN")
    return found


def _padded(rows: Sequence[Sequence[Sequence[float]]], columns: int) -> Floats:
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    padded = np.full((len(rows), int(lengths.max(initial=0)), columns), np.nan)
    flat = [window[:columns] for row in rows for window in row]
    if flat:
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = np.array(flat, dtype=np.float64)
    return padded


def overlaps(predicted: Floats, truth: Floats) -> tuple[Floats, Floats]:
    """Intersection over union [N, P, W], and intersection over the hull, of windows [N, P, 2+] and [N, W, 2].

    The field decides R@1 by the hull (0 where it is empty) and average precision by the union (NaN where that is 0).
    """
    start, end = predicted[:, :, None, 0], predicted[:, :, None, 1]
    first, last = truth[:, None, :, 0], truth[:, None, :, 1]
    inter = np.maximum(0, np.minimum(end, last) - np.maximum(start, first))
    hull = np.maximum(end, last) - np.minimum(start, first)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_union = inter / ((end - start) + (last - first) - inter)
        by_hull = np.where(hull == 0, 0.0, inter / hull)
    return by_union, by_hull


Chosen = Flags | slice  # which of a split's N queries
Figures = Callable[[Chosen], dict[str, float]]


@dataclass(frozen=True)
class Split:
    """The N queries of a split whose true windows are known.

    `predictions` and `annotations` are these tables' rows by qid. They may hold more queries than `windows`, which
    leaves out those whose true windows begin after `Ranking.truth_ends`; every array [N] follows `windows.qids`.
    """

    windows: Windows
    predictions: Mapping[str, Mapping[str, Any]]
    annotations: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Metric:
    """One or several figures of a split.

    `figures` looks at a split once and gives a function from some of its queries to their figures by name (none where
    the data have nothing to judge). `by_query` gives scores [N] by name, whose mean is the figure: they are what
    `penumbra compare` and ablations resample. `shown` are the names that tables for people have as columns. A metric
    that is not `by_type` is only given a whole split. A change to what is computed raises `version`.
    """

    figures: Callable[[Split], Figures]
    by_query: Callable[[Split], dict[str, Floats]] | None = None
    shown: tuple[str, ...] = ()
    by_type: bool = True
    version: int = 1


def mean_of(name: str, scores: Callable[[Split], Floats], shown: bool = False, version: int = 1) -> Metric:
    """A metric that is the mean over queries of a score [N], by split and composition type, in comparisons as well."""

    def figures(split: Split) -> Figures:
        values = scores(split)
        return lambda chosen: {name: float(values[chosen].mean())}

    return Metric(figures, lambda split: {name: scores(split)}, (name,) if shown else (), version=version)


IOUS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))  # of average precision
JUDGED = 10  # predictions that average precision looks at


@dataclass(frozen=True)
class QueryScores:
    """Scores query by query: iou [N] of the first prediction, its best among the first five [N], ap [N, 10]."""

    iou: Floats
    best_of_five: Floats
    precision: Floats

    def recall(self, among: int, threshold: float) -> Flags:
        """Whether one of the first 1 or 5 predictions reaches the IoU."""
        found: Flags = (self.iou if among == 1 else self.best_of_five) >= threshold
        return found


def score_queries(windows: Windows) -> QueryScores:
    """Score every query by itself; any mean over queries is then a mean over rows."""
    union, hull = overlaps(windows.predicted[:, :5], windows.truth)
    chosen = np.nan_to_num(union[:, 0], nan=-1).argmax(1)  # the first true window of the highest IoU
    first = np.take_along_axis(hull[:, 0], chosen[:, None], 1)[:, 0]
    any_of_five = np.nan_to_num(hull, nan=0).max(axis=(1, 2))
    return QueryScores(first, any_of_five, average_precision(windows))


def average_precision(windows: Windows, thresholds: tuple[float, ...] = IOUS) -> Floats:
    """Average precision [N, thresholds] of each query's first ten predictions, by score."""
    predicted = windows.predicted[:, :JUDGED]
    score = np.where(np.isnan(predicted[..., 2]), -np.inf, predicted[..., 2])
    order = np.argsort(-score, axis=1, kind="stable")
    predicted = np.take_along_axis(predicted, order[..., None], 1)
    hits = _hits(overlaps(predicted, windows.truth)[0], windows.known, np.array(thresholds))
    listed = ~np.isnan(predicted[..., 0])
    return _area(hits & listed[:, :, None], listed, windows.known.sum(1))


def _hits(iou: Floats, known: Flags, thresholds: Floats) -> Flags:
    """Which predictions are true [N, P, T]: the closest true window that is still free and near enough.

    Of equally close windows the last listed is taken. Two empty windows have no IoU and count as equal, as published.
    """
    iou = np.where(known[:, None], np.where(np.isnan(iou), np.inf, iou), -1.0)
    free = np.repeat(known[:, :, None], len(thresholds), axis=2)
    hits = np.zeros((*iou.shape[:2], len(thresholds)), dtype=bool)
    for rank in range(iou.shape[1]):
        near = iou[:, rank, :, None]
        candidates = np.where((near >= thresholds) & free, near, -1.0)[:, ::-1]
        chosen = iou.shape[2] - 1 - candidates.argmax(1)[:, None]
        hits[:, rank] = candidates.max(1) >= 0
        taken = np.take_along_axis(free, chosen, 1) & ~hits[:, rank][:, None]
        np.put_along_axis(free, chosen, taken, 1)
    return hits


def _area(hits: Flags, listed: Flags, truths: np.ndarray) -> Floats:
    """Area [N, T] under the precision-recall curve, precision replaced by the highest to its right (VOC)."""
    true = hits.cumsum(1).astype(np.float64)
    precision = np.where(listed[..., None], true / np.arange(1, hits.shape[1] + 1)[:, None], 0.0)
    recall = true / truths[:, None, None]
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    before = np.concatenate([np.zeros_like(recall[:, :1]), recall[:, :-1]], axis=1)
    area: Floats = ((recall - before) * envelope).sum(1)
    return area


def retrieval_metrics(scores: QueryScores, rows: Chosen = slice(None)) -> dict[str, float]:
    """The usual figures in percent, unrounded, over some of the queries."""
    figures = {
        f"R{among}@{iou}": 100 * float(scores.recall(among, iou)[rows].mean())
        for among in (1, 5)
        for iou in (0.3, 0.5, 0.7)
    }
    figures["mIoU"] = 100 * float(scores.iou[rows].mean())
    precision = scores.precision[rows].mean(0)
    figures |= {f"mAP@{iou}": 100 * float(precision[IOUS.index(iou)]) for iou in (0.5, 0.75)}
    figures["mAP"] = 100 * float(np.mean(precision))
    return figures


def retrieval_by_query(split: Split) -> dict[str, Floats]:
    """Those of the figures that runs are compared by, query by query [N], in percent."""
    scores = score_queries(split.windows)
    recall = {f"R1@{iou}": 100.0 * scores.recall(1, iou) for iou in (0.5, 0.7)}
    return {**recall, "mIoU": 100 * scores.iou, "mAP": 100 * scores.precision.mean(1)}


RETRIEVAL = Metric(
    figures=lambda split: partial(retrieval_metrics, score_queries(split.windows)),
    by_query=retrieval_by_query,
    shown=("R1@0.3", "R1@0.5", "R1@0.7", "R5@0.5", "R5@0.7", "mIoU", "mAP"),
)


CLIP_SECONDS = 2
LEVELS = {"Fair": 2, "Good": 3, "VeryGood": 4}  # lowest score of an annotator that counts


@dataclass(frozen=True)
class Saliency:
    """Saliency of N queries: predicted [N, L] (NaN beyond its end), scores [N, L, 3] and length [N] of the labels."""

    predicted: Floats
    scores: np.ndarray
    length: np.ndarray


def align_saliency(
    predicted: Sequence[Sequence[float]],
    durations: Sequence[float],
    clips: Sequence[Sequence[int]],
    scores: Sequence[Sequence[Sequence[int]]],
) -> Saliency:
    """Arrays of predicted saliency and of the annotators' scores (0 to 4) of the clips that they judged."""
    length = np.array([int(duration / CLIP_SECONDS) for duration in durations])
    longest = max(int(length.max(initial=0)), max(map(len, predicted), default=0))
    labels = np.zeros((len(length), longest, 3), dtype=np.int64)
    padded = np.full((len(length), longest), np.nan)
    for row, (saliency, places, given) in enumerate(zip(predicted, clips, scores, strict=True)):
        if not len(saliency):
            raise EvaluationError(f"query {row} has no saliency")
        padded[row, : len(saliency)] = saliency
        if len(places):
            labels[row, np.asarray(places)] = np.asarray(given)
    return Saliency(padded, labels, length)


def highlight_metrics(saliency: Saliency, rows: Chosen = slice(None)) -> dict[str, float]:
    """Mean average precision and Hit@1 in percent, unrounded, for each level."""
    found: dict[str, float] = {}
    for name, least in LEVELS.items():
        relevant = saliency.scores[rows] >= least
        precision = _average_precision(relevant, saliency.predicted[rows], saliency.length[rows])
        found[f"HL-{name}-mAP"] = 100 * float(precision.mean())
        found[f"HL-{name}-Hit1"] = 100 * float(_hit(relevant, saliency.predicted[rows], saliency.length[rows]).mean())
    return found


def _hit(relevant: np.ndarray, predicted: Floats, length: np.ndarray) -> Flags:
    """Whether any annotator calls the highest clip [N] relevant; a clip beyond the labels is none."""
    highest = np.nan_to_num(predicted, nan=-np.inf).argmax(1)
    by_any: Flags = np.asarray(relevant.any(2))
    found: Flags = by_any[np.arange(len(highest)), highest] & (highest < length)
    return found


def _average_precision(relevant: np.ndarray, predicted: Floats, length: np.ndarray) -> Floats:
    """Average precision [N, 3]; predictions are cut or filled with zeros to the labels' length.

    Precision is made never to fall with the threshold, and its mean taken over the thresholds at which recall
    changes, each once. All labels alike give 0 or 1.
    """
    inside = np.arange(predicted.shape[1]) < length[:, None]
    score = np.where(inside, np.nan_to_num(predicted, nan=0.0), -np.inf)
    order = np.argsort(-score, axis=1, kind="stable")
    score = np.take_along_axis(score, order, 1)
    relevant = np.take_along_axis(relevant & inside[..., None], order[..., None], 1)
    inside = np.take_along_axis(inside, order, 1)
    last = np.ones_like(inside)
    last[:, :-1] = score[:, :-1] != score[:, 1:]  # equal scores are one threshold
    edge = (last & inside)[..., None]
    true = relevant.cumsum(1)
    reached = np.maximum.accumulate(np.where(edge, true, 0), axis=1)
    before = np.concatenate([np.zeros_like(reached[:, :1]), reached[:, :-1]], axis=1)
    precision = np.where(edge, true / np.arange(1, true.shape[1] + 1)[:, None], 0.0)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    changes = edge & (true != before)
    positives = true[:, -1]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (envelope * changes).sum(1) / changes.sum(1)
    return np.where(positives == 0, 0.0, np.where(positives == length[:, None], 1.0, mean))


def highlights_of(split: Split) -> Figures:
    """The figures of all queries of a split; none where not every query is annotated with saliency."""
    truth = [split.annotations[qid] for qid in split.predictions]
    if not all(row["saliency"] for row in truth):
        return lambda _: {}
    saliency = align_saliency(
        [row["saliency"] for row in split.predictions.values()],
        [row["duration"] for row in truth],
        [[clip["clip"] for clip in row["saliency"]] for row in truth],
        [[clip["scores"] for clip in row["saliency"]] for row in truth],
    )
    return partial(highlight_metrics, saliency)


HIGHLIGHTS = Metric(figures=highlights_of, by_type=False)


NAMES = ("positive", "level 1", "level 2", "level 3", "random")


def ordering_metrics(saliency: Floats) -> dict[str, float]:
    """How often, in percent, mean saliency inside the moment is in the right order.

    saliency [N, 5] under the positive, the three hard negatives and a random text; NaN where a query has no such
    text, which leaves out the pairs that need it. "ordering" asks for all four pairs at once.
    """
    falls = saliency[:, :-1] > saliency[:, 1:]
    there = ~np.isnan(saliency)
    pairs = there[:, :-1] & there[:, 1:]
    found: dict[str, float] = {}
    for index in range(saliency.shape[1] - 1):
        if pairs[:, index].any():
            name = f"ordering {NAMES[index]} > {NAMES[index + 1]}"
            found[name] = 100 * float(falls[pairs[:, index], index].mean())
    whole = there.all(1)
    if whole.any():
        found["ordering"] = 100 * float(falls[whole].all(1).mean())
    return found


GROUP = "penumbra.metrics"
SHIPPED: dict[str, Metric] = {"retrieval": RETRIEVAL, "highlights": HIGHLIGHTS}


class MetricError(PenumbraError):
    """A metric can't be registered."""


@cache
def all_metrics() -> dict[str, Metric]:
    """The metrics by name, those of other packages too; they are imported only now."""
    found = dict(SHIPPED)
    for point in entry_points(group=GROUP):
        _add(found, point.name, point.load())
    return found


def register(name: str, metric: Metric) -> None:
    """Add a metric in this process; raises `MetricError` where one of this name is there, or where it is none."""
    _add(all_metrics(), name, metric)


def _add(found: dict[str, Metric], name: str, metric: Metric) -> None:
    if not isinstance(metric, Metric):
        raise MetricError(f"metric {name!r} is a {type(metric).__name__}, no Metric")
    if name in found:
        raise MetricError(f"there are two metrics {name!r}: call one of them otherwise")
    found[name] = metric


def shown() -> tuple[str, ...]:
    """The names of the figures that tables for people have as columns."""
    return tuple(name for metric in all_metrics().values() for name in metric.shown)


def versions() -> dict[str, int]:
    """Each metric's version: what determines which figures an evaluation holds."""
    return {name: metric.version for name, metric in all_metrics().items()}


def scores_by_query(split: Split) -> dict[str, Floats]:
    """The scores [N] of each query, in percent where the figures are, by figure: their mean is the figure."""
    found: dict[str, Floats] = {}
    for metric in all_metrics().values():
        found |= metric.by_query(split) if metric.by_query else {}
    return found
