"""Confidence intervals by resampling videos: the queries of a video are similar, so they are drawn together.

A clustered bootstrap (Efron, 1979; Davison & Hinkley, 1997, section 3.8): as many videos as there are, drawn with
replacement. A resample is a row of counts (how often each video is drawn), so one matrix product gives all sums.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
INTERVAL = (2.5, 97.5)  # percentiles
CELLS = 1 << 22  # counts that are multiplied together, 32 MB
KEPT = 1 << 27  # counts that are kept for the next figure, 256 MB; more are drawn again


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval, which is nan if the figure has none."""

    value: float
    low: float = float("nan")
    high: float = float("nan")


class Resamples:
    """`count` resamples of `videos` videos with replacement, determined by the seed."""

    def __init__(self, videos: int, count: int, seed: int) -> None:
        self.videos, self.count, self.seed = videos, count, seed
        self._at_once = max(1, CELLS // max(1, videos))
        self._kept: list[NDArray[np.uint16]] = []

    def weights(self) -> Iterator[Floats]:
        """Yield how often each video is drawn, in blocks (resamples, videos)."""
        if not self._kept and self.count * self.videos <= KEPT:
            self._kept = list(self._drawn())
        yield from (block.astype(np.float64) for block in self._kept or self._drawn())

    def _drawn(self) -> Iterator[NDArray[np.uint16]]:
        generator = np.random.default_rng(self.seed)
        for done in range(0, self.count, self._at_once):
            block = np.empty((min(self._at_once, self.count - done), self.videos), dtype=np.uint16)
            for row in block:
                row[:] = np.bincount(generator.integers(0, self.videos, self.videos), minlength=self.videos)
            yield block

    def sums(self, videos: Ids, columns: Floats) -> tuple[Floats, Floats]:
        """Return the sums (columns) of `columns` (rows, columns), and those of each resample (resamples, columns)."""
        by_video = np.zeros((self.videos, columns.shape[1]))
        np.add.at(by_video, videos, columns)
        blocks = [block @ by_video for block in self.weights()]
        return by_video.sum(axis=0), np.concatenate([*blocks, np.empty((0, columns.shape[1]))])

    def estimate(self, videos: Ids, columns: Floats, figure: Callable[[Floats], Floats]) -> Estimate:
        """Estimate a figure that is a function of sums: `figure` maps sums (…, columns) to values (…)."""
        total, resampled = self.sums(videos, columns)
        with np.errstate(divide="ignore", invalid="ignore"):
            return _interval(float(figure(total)), figure(resampled))

    def ratio(self, videos: Ids, numerators: Floats, denominators: Floats) -> Estimate:
        """Estimate a ratio of two sums; a mean if the denominators are 1."""
        return self.estimate(videos, np.stack([numerators, denominators], axis=1), lambda s: s[..., 0] / s[..., 1])

    def total(self, videos: Ids, counts: Floats) -> Estimate:
        return self.estimate(videos, counts[:, None], lambda s: s[..., 0])

    def area(self, videos: Ids, labels: Ids, scores: Floats, folds: Ids) -> Estimate:
        """Estimate the mean over the folds of the area under the ROC curve."""
        parts = [folds == fold for fold in np.unique(folds)]
        areas = [_area_of(videos[part], labels[part] == 1, scores[part]) for part in parts]
        value = float(np.mean([area(np.ones(self.videos)) for area in areas]))
        return _interval(value, np.array([np.mean([area(w) for area in areas]) for ws in self.weights() for w in ws]))


def wilson(successes: float, total: int) -> Estimate:
    """Estimate a share of `total` independent rows by Wilson's interval (1927), which has a width at 0 and 1, too."""
    from scipy.stats import binomtest

    if not total:
        return Estimate(float("nan"))
    interval = binomtest(round(successes), total).proportion_ci(method="wilson")
    return Estimate(successes / total, float(interval.low), float(interval.high))


def _interval(value: float, resampled: Floats) -> Estimate:
    finite = resampled[np.isfinite(resampled)]
    if not len(finite):
        return Estimate(value)
    low, high = np.percentile(finite, INTERVAL)
    return Estimate(value, float(low), float(high))


def _area_of(videos: Ids, positive: NDArray[np.bool_], scores: Floats) -> Callable[[Floats], float]:
    """Return the area under the ROC curve as a function of the videos' weights.

    It is the probability that a positive scores above a negative; equal scores count half.
    """
    levels, place = np.unique(scores, return_inverse=True)

    def area(weights: Floats) -> float:
        mine = weights[videos]
        high, low = (np.bincount(place[own], mine[own], len(levels)) for own in (positive, ~positive))
        pairs = high.sum() * low.sum()
        return float((high * (np.cumsum(low) - 0.5 * low)).sum() / pairs) if pairs else float("nan")

    return area
