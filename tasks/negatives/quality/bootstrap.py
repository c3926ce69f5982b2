"""Intervals by resampling videos: queries of one video are alike, so they are drawn together (Efron, 1979)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
INTERVAL = (2.5, 97.5)  # percentiles


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval; the interval is nan where the figure has none."""

    value: float
    low: float = float("nan")
    high: float = float("nan")


class Resamples:
    """How often each of `videos` videos is drawn in each resample; the same for the same seed."""

    def __init__(self, videos: int, count: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        draws = (np.bincount(generator.integers(0, videos, videos), minlength=videos) for _ in range(count))
        self.weights: Floats = np.array(list(draws), dtype=np.float64).reshape(count, videos)

    def estimate(self, videos: Ids, columns: Floats, figure: Callable[[Floats], Floats]) -> Estimate:
        """A figure that depends on sums alone: `figure` takes sums (…, columns) to values (…).

        `videos` (rows) gives each row's video, `columns` (rows, columns) what is summed.
        """
        sums = np.zeros((self.weights.shape[1], columns.shape[1]))
        np.add.at(sums, videos, columns)
        with np.errstate(divide="ignore", invalid="ignore"):
            return _interval(float(figure(sums.sum(axis=0))), figure(self.weights @ sums))

    def ratio(self, videos: Ids, numerators: Floats, denominators: Floats) -> Estimate:
        """Sum over sum: a mean where the denominators are 1."""
        return self.estimate(videos, np.stack([numerators, denominators], axis=1), lambda s: s[..., 0] / s[..., 1])

    def total(self, videos: Ids, counts: Floats) -> Estimate:
        """A plain sum."""
        return self.estimate(videos, counts[:, None], lambda s: s[..., 0])

    def area(self, videos: Ids, labels: Ids, scores: Floats, folds: Ids) -> Estimate:
        """Mean over the folds of the area under the ROC curve."""
        parts = [folds == fold for fold in np.unique(folds)]
        curves = [Curve(videos[part], labels[part], scores[part]) for part in parts]
        value = float(np.mean([curve.area(np.ones(self.weights.shape[1])) for curve in curves]))
        return _interval(value, np.array([np.mean([c.area(w) for c in curves]) for w in self.weights]))


def _interval(value: float, resampled: Floats) -> Estimate:
    finite = resampled[np.isfinite(resampled)]
    if not len(finite):
        return Estimate(value)
    low, high = np.percentile(finite, INTERVAL)
    return Estimate(value, float(low), float(high))


class Curve:
    """A ROC curve whose area can be had again and again under other weights of the videos."""

    def __init__(self, videos: Ids, labels: Ids, scores: Floats) -> None:
        levels, self.place = np.unique(scores, return_inverse=True)
        self.videos, self.size = videos, len(levels)
        self.positive = labels == 1

    def area(self, weights: Floats) -> float:
        """The chance that a positive scores above a negative; equal scores count half."""
        mine = weights[self.videos]
        high = np.bincount(self.place[self.positive], mine[self.positive], self.size)
        low = np.bincount(self.place[~self.positive], mine[~self.positive], self.size)
        pairs = high.sum() * low.sum()
        return float((high * (np.cumsum(low) - 0.5 * low)).sum() / pairs) if pairs else float("nan")
