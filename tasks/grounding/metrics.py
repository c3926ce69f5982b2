"""The metrics of a run, from windows and scores: moment retrieval, highlights, and SHINE's order of saliency.

The definitions are those of the evaluation that Moment-DETR published for QVHighlights and that later models reuse.
Evaluation, comparison and tables use all metrics in the order of `all_metrics`. To add one, write it in a file of
this folder and add a line to `SHIPPED`; another package adds one by an entry point, so that every process finds it:

    [project.entry-points."penumbra.metrics"]
    late-start = "my_package.metrics:LATE_START"
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.markdown import counted

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Scores = dict[str, Floats]  # scores [N] of the queries, by the name of the figure that is their mean
Rows = Sequence[Sequence[float]]


class EvaluationError(PenumbraError):
    """Error for predictions that do not match the true windows or can't be evaluated."""


# -- windows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """Predicted and true windows of N queries.

    predicted [N, P, 3] (start s, end s, score) in the order of the predictions, truth [N, W, 2]; NaN is padding.
    """

    qids: tuple[str, ...]
    predicted: Floats
    truth: Floats

    @property
    def known(self) -> Flags:
        """Which true windows are not padding [N, W]."""
        return ~np.isnan(self.truth[..., 0])

    def keep(self, wanted: Flags) -> "Windows":
        """Return only some of the true windows [N, W], and only the queries that have one of these."""
        first = np.argsort(~wanted, axis=1, kind="stable")  # bring them to the front
        truth = np.take_along_axis(np.where(wanted[..., None], self.truth, np.nan), first[..., None], 1)
        rows = np.flatnonzero(wanted.any(1))
        return Windows(tuple(self.qids[i] for i in rows), self.predicted[rows], truth[rows])

    def until(self, end: float | None) -> "Windows":
        """Return true windows cut at `end` seconds (None: all), without those that begin there or later."""
        if end is None:
            return self
        truth = np.minimum(self.truth, end)
        return replace(self, truth=truth).keep(truth[..., 0] < truth[..., 1])


def align(predictions: Mapping[str, Rows], truth: Mapping[str, Rows]) -> Windows:
    """Return predictions and truth of the same queries side by side, in the truth's order.

    Raise `EvaluationError` naming the queries that only one side has, or that have no prediction or no window.
    """
    for fault, names in (
        ("no prediction", truth.keys() - predictions),
        ("no truth", predictions.keys() - truth),
        ("an empty list of predictions", {qid for qid, windows in predictions.items() if not len(windows)}),
        ("an empty list of windows", {qid for qid, windows in truth.items() if not len(windows)}),
    ):
        if names:
            raise EvaluationError(f"{fault} for {counted(len(names), 'query')}, the first is {min(names)}")
    qids = tuple(truth)
    windows = Windows(qids, _padded([predictions[q] for q in qids], 3), _padded([truth[q] for q in qids], 2))
    wrong = np.isnan(windows.predicted).any(-1) & ~np.isnan(windows.predicted[..., 0])
    if wrong.any():
        raise EvaluationError(f"the predictions of query {qids[int(np.argmax(wrong.any(1)))]} hold a NaN")
    return windows


def _padded(rows: Sequence[Rows], columns: int) -> Floats:
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    padded = np.full((len(rows), int(lengths.max(initial=0)), columns), np.nan)
    flat = [window[:columns] for row in rows for window in row]
    if flat:
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = np.array(flat, dtype=np.float64)
    return padded


def overlaps(predicted: Floats, truth: Floats) -> tuple[Floats, Floats]:
    """Return intersection over union and over the hull [N, P, W] of windows [N, P, 2+] and [N, W, 2].

    R@1 uses the hull (0 where the hull is empty), average precision the union (NaN where the union is empty).
    """
    start, end = predicted[:, :, None, 0], predicted[:, :, None, 1]
    first, last = truth[:, None, :, 0], truth[:, None, :, 1]
    inter = np.maximum(0, np.minimum(end, last) - np.maximum(start, first))
    hull = np.maximum(end, last) - np.minimum(start, first)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_union = inter / ((end - start) + (last - first) - inter)
        by_hull = np.where(hull == 0, 0.0, inter / hull)
    return by_union, by_hull


@dataclass(frozen=True)
class Split:
    """The N queries of a split whose true windows are known; arrays [N] follow `windows.qids`.

    `predictions` and `annotations` are rows of these tables by qid. They may hold more queries than `windows`, which
    leaves out those whose true windows begin after `Ranking.truth_ends`.
    """

    windows: Windows
    predictions: Mapping[str, Mapping[str, Any]]
    annotations: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Metric:
    """One or several figures of a split, each the mean over queries of a score.

    `shown` figures are columns of printed tables; `penumbra compare` resamples `compared` ones. A metric that is not
    `by_type` is computed on whole splits only. Increase `version` with every change.
    """

    scores: Callable[[Split], Scores]
    shown: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    by_type: bool = True
    version: int = 1


# -- moment retrieval --------------------------------------------------------------------------------------------------

IOUS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))  # of average precision
JUDGED = 10  # predictions of a query that average precision takes


@dataclass(frozen=True)
class QueryScores:
    """Scores of each query: IoU [N] of the first prediction, the best of the first five [N], precision [N, 10]."""

    iou: Floats
    best_of_five: Floats
    precision: Floats


def score_queries(windows: Windows) -> QueryScores:
    """Return the scores of each query; the mean over any queries is the mean over their rows."""
    union, hull = overlaps(windows.predicted[:, :5], windows.truth)
    chosen = np.nan_to_num(union[:, 0], nan=-1).argmax(1)  # the first true window of the highest IoU
    first = np.take_along_axis(hull[:, 0], chosen[:, None], 1)[:, 0]
    return QueryScores(first, np.nan_to_num(hull, nan=0).max(axis=(1, 2)), average_precision(windows))


def average_precision(windows: Windows, thresholds: tuple[float, ...] = IOUS) -> Floats:
    """Return the average precision [N, T] of each query's first ten predictions, by score.

    It is the area under the precision-recall curve, with precision replaced by its maximum at higher recall (VOC).
    """
    predicted = windows.predicted[:, :JUDGED]
    order = np.argsort(-np.where(np.isnan(predicted[..., 2]), -np.inf, predicted[..., 2]), axis=1, kind="stable")
    predicted = np.take_along_axis(predicted, order[..., None], 1)
    hits = _hits(overlaps(predicted, windows.truth)[0], windows.known, np.array(thresholds))
    listed = ~np.isnan(predicted[..., 0])[..., None]
    true = (hits & listed).cumsum(1).astype(np.float64)
    precision = np.where(listed, true / np.arange(1, true.shape[1] + 1)[:, None], 0.0)
    recall = true / windows.known.sum(1)[:, None, None]
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    return np.asarray((np.diff(recall, axis=1, prepend=0.0) * envelope).sum(1))


def _hits(iou: Floats, known: Flags, thresholds: Floats) -> Flags:
    """Return which predictions [N, P, T] match a true window: the unmatched one with the highest IoU >= threshold.

    If several windows have this IoU, the last is matched. As published, two empty windows count as equal.
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


def retrieval_scores(windows: Windows) -> Scores:
    """Return the scores of recall, mean IoU and mean average precision in percent."""
    scores = score_queries(windows)
    best = {1: scores.iou, 5: scores.best_of_five}
    recall = {f"R{n}@{iou}": 100.0 * (best[n] >= iou) for n in best for iou in (0.3, 0.5, 0.7)}
    precision = {f"mAP@{iou}": 100 * scores.precision[:, IOUS.index(iou)] for iou in (0.5, 0.75)}
    return {**recall, "mIoU": 100 * scores.iou, **precision, "mAP": 100 * scores.precision.mean(1)}


RETRIEVAL = Metric(
    scores=lambda split: retrieval_scores(split.windows),
    shown=("R1@0.3", "R1@0.5", "R1@0.7", "R5@0.5", "R5@0.7", "mIoU", "mAP"),
    compared=("R1@0.5", "R1@0.7", "mIoU", "mAP"),
)


# -- highlights (QVHighlights) -----------------------------------------------------------------------------------------

CLIP_SECONDS = 2  # length of the clips that annotators scored
SAMPLES = 4  # samples of the predicted saliency per scored clip
LEVELS = {"Fair": 2, "Good": 3, "VeryGood": 4}  # lowest score of an annotator that counts


def highlight_scores(
    predicted: Sequence[Sequence[float]],
    durations: Sequence[float],
    clips: Sequence[Sequence[int]],
    scores: Sequence[Sequence[Sequence[int]]],
) -> Scores:
    """Return the scores of mean average precision and Hit@1 in percent, for each level.

    For each query, `predicted` is the saliency of clips of two seconds, `durations` the seconds of the video, `clips`
    the indices of the clips that annotators scored, and `scores` the scores (0 to 4) of three annotators per clip.
    """
    figures: dict[str, list[float]] = {f"HL-{level}-{kind}": [] for level in LEVELS for kind in ("mAP", "Hit1")}
    for row, (values, duration, places, given) in enumerate(zip(predicted, durations, clips, scores, strict=True)):
        if not len(values):
            raise EvaluationError(f"query {row} has no saliency")
        length = int(duration / CLIP_SECONDS)
        judged = np.zeros((length, 3), np.int64)
        for place, of_clip in zip(places, given, strict=True):
            judged[place : place + 1] = of_clip  # the labels end with the video
        highest = int(np.nan_to_num(values, nan=-np.inf).argmax())
        saliency = np.zeros(length)  # predictions are cut or filled with zeros to the length of the labels
        saliency[: len(values)] = np.nan_to_num(values[:length])
        for name, least in LEVELS.items():
            relevant = judged >= least
            precision = [_highlight_precision(of_one, saliency) for of_one in relevant.T]
            figures[f"HL-{name}-mAP"].append(100 * float(np.mean(precision)))
            figures[f"HL-{name}-Hit1"].append(100.0 * (highest < length and relevant[highest].any()))
    return {name: np.array(values) for name, values in figures.items()}


def _highlight_precision(relevant: Flags, saliency: Floats) -> float:
    """Return the average precision of the clips [C] that an annotator finds relevant.

    Precision is replaced by its maximum at higher recall, and averaged over the thresholds at which recall changes. If
    all labels are equal, the result is 0 or 1.
    """
    if relevant.all() or not relevant.any():
        return float(relevant.any())
    order = np.argsort(-saliency, kind="stable")
    score, true = saliency[order], relevant[order].cumsum()
    edge = np.append(score[:-1] != score[1:], True)  # equal scores are one threshold
    precision = true[edge] / (np.flatnonzero(edge) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float(envelope[np.diff(true[edge], prepend=0) > 0].mean())


def _in_judged_clips(saliency: Sequence[float], duration: float) -> Sequence[float]:
    """Return saliency by clips of two seconds, resampled (mean of a few samples) if the features' clips differ."""
    count, wanted = len(saliency), int(duration / CLIP_SECONDS)
    if not wanted or abs(count - duration / CLIP_SECONDS) <= 1:
        return saliency
    middles = (np.arange(wanted * SAMPLES) + 0.5) * CLIP_SECONDS / SAMPLES  # seconds
    places = np.minimum((middles * count / duration).astype(int), count - 1)
    return list(np.asarray(saliency)[places].reshape(wanted, SAMPLES).mean(1))


def _highlights_of(split: Split) -> Scores:
    """Return the highlight scores of a whole split; none unless every query has saliency labels."""
    truth = [split.annotations[qid] for qid in split.predictions]
    if not all(row["saliency"] for row in truth):
        return {}
    predicted = [row["saliency"] for row in split.predictions.values()]
    return highlight_scores(
        [_in_judged_clips(values, row["duration"]) for values, row in zip(predicted, truth, strict=True)],
        [row["duration"] for row in truth],
        [[clip["clip"] for clip in row["saliency"]] for row in truth],
        [[clip["scores"] for clip in row["saliency"]] for row in truth],
    )


HIGHLIGHTS = Metric(_highlights_of, by_type=False, version=2)


# -- SHINE's order of saliency -----------------------------------------------------------------------------------------

NAMES = ("positive", "level 1", "level 2", "level 3", "random")


def ordering_metrics(saliency: Floats) -> dict[str, float]:
    """Return how often, in percent, mean saliency inside the moment falls from the positive to the random text.

    saliency [N, 5] is of the positive, the three hard negatives and a random text; NaN marks a missing text, whose
    pairs are left out. "ordering" is the share of queries with all four pairs in order.
    """
    falls, present = saliency[:, :-1] > saliency[:, 1:], ~np.isnan(saliency)
    figures: dict[str, float] = {}
    for index, (first, second) in enumerate(pairwise(NAMES)):
        known = present[:, index] & present[:, index + 1]
        if known.any():
            figures[f"ordering {first} > {second}"] = 100 * float(falls[known, index].mean())
    complete = present.all(1)
    if complete.any():
        figures["ordering"] = 100 * float(falls[complete].all(1).mean())
    return figures


# -- all metrics -------------------------------------------------------------------------------------------------------

SHIPPED: dict[str, Metric] = {"retrieval": RETRIEVAL, "highlights": HIGHLIGHTS}


@cache
def all_metrics() -> dict[str, Metric]:
    """Return the metrics by name, including those of other packages."""
    return SHIPPED | {point.name: point.load() for point in entry_points(group="penumbra.metrics")}


def means(scores: Scores, rows: np.ndarray | slice = slice(None)) -> dict[str, float]:
    """Return the figures of some of the queries: the means of their scores."""
    return {name: float(values[rows].mean()) for name, values in scores.items()}


def compared_scores(split: Split) -> Scores:
    """Return the scores that `penumbra compare` compares."""
    several = ((metric, metric.scores(split)) for metric in all_metrics().values() if metric.compared)
    return {name: scores[name] for metric, scores in several for name in metric.compared}
