"""`penumbra compare`: is one run really better than another? A paired bootstrap over the videos of each split."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.tasks.data.resampling import INTERVAL, Ids, Resamples
from penumbra.tasks.grounding.evaluation.figures import judged_split
from penumbra.tasks.grounding.evaluation.predictions import truth_end
from penumbra.tasks.grounding.metrics import EvaluationError, Floats, scores_by_query
from penumbra.tasks.grounding.training.stage import chosen_run

RESAMPLES = 10_000


@dataclass(frozen=True)
class Difference:
    """Second minus first: its mean, 95 % interval, and the share of resamples on the other side of zero, doubled."""

    mean: float
    low: float
    high: float
    p: float

    @property
    def p_text(self) -> str:
        """`p` for people; so many resamples can't tell a smaller one from 0."""
        return "< 0.001" if self.p < 0.001 else f"{self.p:.3f}"


def paired_bootstrap(
    first: Floats, second: Floats, videos: Sequence[str] | Ids, seed: int = 0, resamples: int = RESAMPLES
) -> Difference:
    """Draw videos with replacement, both runs' scores [N] of all their queries together.

    `videos` [N] is each query's. A resample's figure is the mean over the queries of the videos that it draws.
    Raises `EvaluationError` where the three are not of the same queries.
    """
    if first.shape != second.shape or first.ndim != 1 or not len(first) or len(videos) != len(first):
        raise EvaluationError(
            f"scores of the same queries, and their videos, are wanted, not {first.shape}, {second.shape} and "
            f"{len(videos)} videos"
        )
    change = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    names, video = np.unique(np.asarray(videos), return_inverse=True)
    columns = np.stack([change, np.ones(len(change))], axis=1)
    _, sums = Resamples(len(names), resamples, seed).sums(video, columns)
    means = sums[:, 0] / sums[:, 1]
    low, high = np.percentile(means, INTERVAL)
    tail = min(float((means <= 0).mean()), float((means >= 0).mean()))
    return Difference(float(change.mean()), float(low), float(high), min(1.0, 2 * tail))


@dataclass(frozen=True)
class OverSeeds:
    """Mean over seeds and the half width of its 95 % interval (Student's t); infinite for a single seed."""

    mean: float
    half_width: float
    seeds: int


def over_seeds(values: Sequence[float]) -> OverSeeds:
    """Sum up one figure of several seeds."""
    from scipy.stats import t

    count = len(values)
    if not count:
        raise EvaluationError("no seed, no figure")
    if count == 1:
        return OverSeeds(float(values[0]), float("inf"), 1)
    spread = float(np.std(values, ddof=1)) / count**0.5
    return OverSeeds(float(np.mean(values)), float(t.ppf(0.975, count - 1)) * spread, count)


def seeds_differ(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether one figure differs between two sets of seeds: Welch's 95 % interval leaves out zero.

    A bootstrap over videos takes the trained models as they are, so that a lucky seed looks like a better method.
    """
    from scipy.stats import ttest_ind

    interval = ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    return bool(interval.low > 0 or interval.high < 0)


@dataclass(frozen=True)
class SplitScores:
    """The queries of a split in the order of their ids, each one's video, and their scores."""

    qids: tuple[str, ...]
    videos: tuple[str, ...]
    scores: dict[str, Floats]  # by metric, in percent


def predictions_of(metrics: Artifact) -> Artifact:
    """The newest predictions of a run; raises `EvaluationError` where it has none yet."""
    store = Store()
    for manifest in reversed(store.find(metrics.dataset, "predictions")):
        if metrics.key in {parent.key for parent in manifest.parents}:
            return store.reference(manifest)
    raise EvaluationError(f"run {metrics.key} has no predictions: run evaluate-grounding {metrics.dataset} with it")


def scores_by_split(predictions: Artifact) -> dict[str, SplitScores]:
    """Each split's queries whose windows are known, and their scores."""
    store = Store()
    manifest = store.manifest(predictions)
    annotations, end = next(p for p in manifest.parents if p.stage == "annotations"), truth_end(manifest)
    truth = {row["qid"]: row for part in store.parts(annotations) for row in part.to_pylist()}
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for part in store.parts(predictions):
        for row in part.to_pylist():
            if truth[row["qid"]]["windows"]:
                found[row["split"]].append(row)
    judged = {split: judged_split(sorted(rows, key=itemgetter("qid")), truth, end) for split, rows in found.items()}
    return {
        split: SplitScores(
            both.windows.qids, tuple(truth[qid]["vid"] for qid in both.windows.qids), scores_by_query(both)
        )
        for split, both in judged.items()
    }


def compare(dataset: str, first: str, second: str, seed: int = 0) -> list[tuple[str, str, Difference]]:
    """(split, metric, second minus first in percent) for every split that both runs predicted, in the data set's order.

    Raises `EvaluationError` where they predicted different queries of one.
    """
    one, other = (scores_by_split(predictions_of(chosen_run(dataset, run))) for run in (first, second))
    found: list[tuple[str, str, Difference]] = []
    for split in (split for split in one if split in other):
        old, new = one[split], other[split]
        if old.qids != new.qids:
            raise EvaluationError(
                f"the runs predicted different queries of {split}: {len(old.qids)} and {len(new.qids)}"
            )
        before, after = old.scores, new.scores
        found += [(split, name, paired_bootstrap(before[name], after[name], old.videos, seed)) for name in before]
    return found
