"""`penumbra compare`: is one run really better than another? A paired bootstrap over the queries of each split."""

from collections import defaultdict
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

Scores = dict[str, tuple[tuple[str, ...], dict[str, Floats]]]  # of each split its queries, and their scores by metric


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
    truth = {row["qid"]: row for part in store.parts(annotations) for row in part.to_pylist()}
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for part in store.parts(predictions):
        for row in part.to_pylist():
            if truth[row["qid"]]["windows"]:
                found[row["split"]].append(row)
    judged = {split: judged_split(sorted(rows, key=itemgetter("qid")), truth, end) for split, rows in found.items()}
    return {split: (both.windows.qids, scores_by_query(both)) for split, both in judged.items()}


def compare(dataset: str, first: str, second: str, seed: int = 0) -> list[tuple[str, str, Difference]]:
    """(split, metric, second minus first in percent) for every split that both runs predicted, in the data set's order.

    Raises `EvaluationError` where they predicted different queries of one.
    """
    one, other = (scores_by_split(predictions_of(chosen_run(dataset, run))) for run in (first, second))
    found: list[tuple[str, str, Difference]] = []
    for split in (split for split in one if split in other):
        (qids, before), (others, after) = one[split], other[split]
        if qids != others:
            raise EvaluationError(f"the runs predicted different queries of {split}: {len(qids)} and {len(others)}")
        found += [(split, name, paired_bootstrap(before[name], after[name], seed)) for name in before]
    return found
