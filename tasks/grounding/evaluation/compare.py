"""`penumbra compare`: is one run really better than another? A paired bootstrap over the queries of each split."""

from collections import defaultdict
from operator import itemgetter
from typing import Any

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.tasks.grounding.evaluation.choice import chosen_run
from penumbra.tasks.grounding.evaluation.figures import aligned
from penumbra.tasks.grounding.evaluation.predictions import truth_end
from penumbra.tasks.grounding.metrics.comparison import Difference, paired_bootstrap
from penumbra.tasks.grounding.metrics.retrieval import QueryScores, score_queries
from penumbra.tasks.grounding.metrics.windows import EvaluationError, Floats

Scores = dict[str, tuple[tuple[str, ...], QueryScores]]


def predictions_of(metrics: Artifact) -> Artifact:
    """The newest predictions of a run; raises `EvaluationError` where it has none yet."""
    store = Store()
    for manifest in reversed(store.find(metrics.dataset, "predictions")):
        if metrics.key in {parent.key for parent in manifest.parents}:
            return store.reference(manifest)
    raise EvaluationError(f"run {metrics.key} has no predictions: run evaluate-grounding {metrics.dataset} with it")


def scores_by_split(predictions: Artifact) -> Scores:
    """Each split's queries and their scores, of the queries whose windows are known."""
    store = Store()
    manifest = store.manifest(predictions)
    annotations, end = next(p for p in manifest.parents if p.stage == "annotations"), truth_end(manifest)
    truth = {
        row["qid"]: row
        for part in store.parts(annotations, ["qid", "windows"])
        for row in part.to_pylist()
        if row["windows"]
    }
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for part in store.parts(predictions, ["split", "qid", "windows"]):
        for row in part.to_pylist():
            if row["qid"] in truth:
                found[row["split"]].append(row)
    windows = {split: aligned(sorted(rows, key=itemgetter("qid")), truth, end) for split, rows in found.items()}
    return {split: (both.qids, score_queries(both)) for split, both in windows.items()}


def compare(dataset: str, first: str, second: str, seed: int = 0) -> list[tuple[str, str, Difference]]:
    """(split, metric, second minus first in percent) for every split that both runs predicted, in the data set's order.

    Raises `EvaluationError` where they predicted different queries of one.
    """
    one, other = (scores_by_split(predictions_of(chosen_run(dataset, run))) for run in (first, second))
    found: list[tuple[str, str, Difference]] = []
    for split in (split for split in one if split in other):
        (qids, old), (others, new) = one[split], other[split]
        if qids != others:
            raise EvaluationError(f"the runs predicted different queries of {split}: {len(qids)} and {len(others)}")
        before, after = columns(old), columns(new)
        found += [(split, name, paired_bootstrap(before[name], after[name], seed)) for name in before]
    return found


def columns(scores: QueryScores) -> dict[str, Floats]:
    """The scores of each query [N] in percent, by metric: their mean is the figure."""
    recall = {f"R1@{iou}": 100.0 * scores.recall(1, iou) for iou in (0.5, 0.7)}
    return {**recall, "mIoU": 100 * scores.iou, "mAP": 100 * scores.precision.mean(1)}
