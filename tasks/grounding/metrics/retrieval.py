"""Moment retrieval: recall at 1 and 5, mean IoU and mean average precision, for all queries at once.

The definitions are those of the evaluation that Moment-DETR published for QVHighlights and the later models reuse.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from penumbra.tasks.grounding.metrics.metric import Chosen, Metric, Split
from penumbra.tasks.grounding.metrics.windows import Flags, Floats, Windows, overlaps

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
