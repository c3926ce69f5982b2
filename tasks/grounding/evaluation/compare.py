"""Whether one run is better than another: a paired bootstrap over the videos of each split; intervals over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.markdown import counted
from penumbra.artifacts.store import Store
from penumbra.tasks.data.resampling import INTERVAL, Ids, Resamples
from penumbra.tasks.data.rows import FEWEST_VIDEOS
from penumbra.tasks.grounding.batches.inputs import newest_made_of
from penumbra.tasks.grounding.evaluation.figures import judged_splits
from penumbra.tasks.grounding.evaluation.rejection import asked_by_split, label, rejection_scores
from penumbra.tasks.grounding.metrics import EvaluationError, Floats, all_metrics, compared_scores
from penumbra.tasks.grounding.training.stage import chosen_run, name_of

RESAMPLES = 10_000


@dataclass(frozen=True)
class Difference:
    """Second minus first: mean, 95 % interval, and twice the share of resamples on the other side of zero."""

    mean: float
    low: float
    high: float
    p: float
    videos: int

    def cells(self) -> tuple[str, str, str]:
        """Return difference, interval and `p` for people; the resamples can't distinguish a smaller `p` from 0."""
        if self.videos < FEWEST_VIDEOS:
            return f"{self.mean:+.2f}", "–", "–"
        p = "< 0.001" if self.p < 0.001 else f"{self.p:.3f}"
        return f"{self.mean:+.2f}", f"{self.low:+.2f} … {self.high:+.2f}", p


def too_few(videos: Mapping[str, int]) -> str:
    """Return why splits of so few videos have no interval and no `p`, or ''."""
    few = [f"{split} has {counted(count, 'video')}" for split, count in videos.items() if count < FEWEST_VIDEOS]
    why = f"with fewer than {FEWEST_VIDEOS} videos resampling can't tell a difference from chance"
    return f"{', '.join(few)}: {why}" if few else ""


def paired_bootstrap(first: Floats, second: Floats, videos: Sequence[str] | Ids, seed: int = 0) -> Difference:
    """Resample videos with replacement, each with the scores [N] of both runs on all its queries.

    `videos` [N] is each query's video. The figure of a resample is the mean over the queries of the videos it draws.
    A query whose score is NaN does not count.
    """
    change = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    known = np.isfinite(change)
    change = change[known]
    names, video = np.unique(np.asarray(videos)[known], return_inverse=True)
    columns = np.stack([change, np.ones(len(change))], axis=1)
    _, sums = Resamples(len(names), RESAMPLES, seed).sums(video, columns)
    means = sums[:, 0] / sums[:, 1]
    low, high = np.percentile(means, INTERVAL)
    tail = min(float((means <= 0).mean()), float((means >= 0).mean()))
    return Difference(float(change.mean()), float(low), float(high), min(1.0, 2 * tail), len(names))


def over_seeds(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean over seeds and half of its 95 % interval (Student's t), which is infinite for a single seed."""
    from scipy.stats import t

    if len(values) == 1:
        return float(values[0]), float("inf")
    spread = float(np.std(values, ddof=1)) / len(values) ** 0.5
    return float(np.mean(values)), float(t.ppf(0.975, len(values) - 1)) * spread


@dataclass(frozen=True)
class SplitScores:
    """The queries of a split in the order of their ids, each one's video, and their scores in percent by metric.

    `asked` are the false sentences that some of the scores are about, which are NaN for queries without one.
    """

    qids: tuple[str, ...]
    videos: tuple[str, ...]
    scores: dict[str, Floats]
    asked: frozenset[tuple[str, ...]] = frozenset()

    def shared(self, other: "SplitScores") -> list[str]:
        """Return the metrics of both; those about false sentences only if both runs were asked the same ones."""
        retrieval = {name for metric in all_metrics().values() for name in metric.compared}
        return [it for it in self.scores if it in other.scores and (self.asked == other.asked or it in retrieval)]


def predictions_of(metrics: Artifact) -> Artifact:
    """Return the newest predictions of a run; raise `EvaluationError` if it has none."""
    if predictions := newest_made_of(metrics, "predictions"):
        return predictions
    name = name_of(Store().manifest(metrics))
    command = f"penumbra run evaluate-grounding {metrics.dataset} --param choice.run={name}"
    raise EvaluationError(f"run {name} has no predictions: {command}")


def scores_by_split(predictions: Artifact) -> dict[str, SplitScores]:
    """Return the scores of each split's queries whose windows are known, in the order of their ids."""
    scores: dict[str, SplitScores] = {}
    asked, threshold = asked_by_split(predictions)
    for name, split in judged_splits(predictions):
        qids, false = split.windows.qids, asked.get(name, [])
        if qids:
            several = compared_scores(split)
            several |= {label(*place): values for place, values in rejection_scores(split, false, threshold).items()}
            videos = tuple(split.annotations[qid]["vid"] for qid in qids)
            sentences = frozenset((row["qid"], row["kind"], row["sentence"]) for row in false)
            scores[name] = SplitScores(qids, videos, several, sentences)
    return scores


def compare(dataset: str, first: str, second: str, seed: int = 0) -> list[tuple[str, str, Difference]]:
    """Return (split, metric, second minus first in percent) for every split that both runs predicted.

    Raise `EvaluationError` if they predicted different queries of one.
    """
    one, other = (scores_by_split(predictions_of(chosen_run(dataset, run))) for run in (first, second))
    differences: list[tuple[str, str, Difference]] = []
    for split in (split for split in one if split in other):
        old, new = one[split], other[split]
        if old.qids != new.qids:
            raise EvaluationError(
                f"the runs predicted different queries of {split}: {len(old.qids)} and {len(new.qids)}"
            )
        for name in old.shared(new):
            differences.append((split, name, paired_bootstrap(old.scores[name], new.scores[name], old.videos, seed)))
    return differences
