"""Predicted and true windows of many queries as padded arrays, and their overlap."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
