"""`penumbra compare`: is one run really better than another? A paired bootstrap over the videos of each split."""

from collections import defaultdict
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.tasks.grounding.evaluation.choice import chosen_run
from penumbra.tasks.grounding.evaluation.figures import judged_split
from penumbra.tasks.grounding.evaluation.predictions import truth_end
from penumbra.tasks.grounding.metrics.comparison import Difference, paired_bootstrap
from penumbra.tasks.grounding.metrics.registry import scores_by_query
from penumbra.tasks.grounding.metrics.windows import EvaluationError, Floats


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
