"""All trainings of the store, each with the figures of its newest evaluation."""

from collections.abc import Iterator
from typing import Any

from penumbra.artifacts.manifest import Manifest
from penumbra.artifacts.store import Store
from penumbra.tasks.grounding.evaluation.choice import called
from penumbra.tasks.grounding.evaluation.figures import ALL


def trained_runs(dataset: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield a row a training, oldest first: `run`, `dataset`, `key`, `finished`, `seconds`, and `SPLIT METRIC` each.

    Figures are over all queries of a split; a run that was not evaluated has none.
    """
    store = Store()
    evaluations = {
        parent.key: manifest
        for manifest in store.find(dataset, "evaluation")
        for parent in manifest.parents
        if parent.stage == "metrics"
    }
    for manifest in store.find(dataset, "metrics"):
        about = {"run": called(manifest), "dataset": manifest.dataset, "key": manifest.key}
        times = {"finished": manifest.ended, "seconds": manifest.seconds}
        evaluation = evaluations.get(manifest.key)
        yield about | times | (_figures(store, evaluation) if evaluation else {})


def _figures(store: Store, evaluation: Manifest) -> dict[str, float]:
    rows = store.table(store.reference(evaluation)).to_pylist()
    return {f"{row['split']} {row['metric']}": row["value"] for row in rows if row["subset"] == ALL}
