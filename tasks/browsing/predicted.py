"""Predictions of a run for the page: the best windows of each query, their IoU with the truth, and saliency."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_letters, digits

import numpy as np

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.tasks.browsing.columns import Column, Row, by_query, whole
from penumbra.tasks.grounding.evaluation.compare import predictions_of
from penumbra.tasks.grounding.evaluation.figures import aligned
from penumbra.tasks.grounding.evaluation.predictions import truth_end
from penumbra.tasks.grounding.metrics import score_queries
from penumbra.tasks.grounding.training.stage import chosen_run, name_of

WINDOWS = 5  # of a query
STEPS = digits + ascii_letters + "-_"  # 64 steps from the least saliency of a query to its greatest


@dataclass(frozen=True)
class PredictedRun:
    """A run and its newest predictions."""

    name: str
    predictions: Artifact

    @classmethod
    def named(cls, store: Store, dataset: str, run: str) -> "PredictedRun":
        """The run of this key or name; raises `ArtifactError` or `EvaluationError` where it or its predictions lack."""
        metrics = chosen_run(dataset, run)
        return cls(name_of(store.manifest(metrics)), predictions_of(metrics))

    def columns(self, store: Store, annotations: Mapping[str, Row], places: Mapping[str, int]) -> Column:
        """Of each query at most one row: windows in hundredths of a second, scores and IoU in thousandths."""
        told = (row for part in store.parts(self.predictions) for row in part.to_pylist())
        count, rows = by_query(told, places)
        manifest = store.manifest(self.predictions)
        overlap = overlaps(rows, annotations, truth_end(manifest))
        saliency = [steps(row["saliency"]) for row in rows]
        best = [row["windows"][:WINDOWS] for row in rows]
        return {
            "name": self.name,
            "key": f"predictions/{self.predictions.key}",
            "clip": clip_length(store, manifest.parents),
            "count": count,
            "windows": [[whole(it[end], 100) for it in several for end in ("start", "end")] for several in best],
            "scores": [[whole(it["score"], 1000) for it in several] for several in best],
            "iou": [whole(overlap.get(row["qid"]), 1000) for row in rows],
            "saliency": [text for text, _, _ in saliency],
            "least": [low for _, low, _ in saliency],
            "greatest": [high for _, _, high in saliency],
        }


def overlaps(rows: Sequence[Row], annotations: Mapping[str, Row], end: float | None) -> dict[str, float]:
    """IoU of the first window with the truth, as R1 counts it, of the queries that have both.

    `end`: see `Ranking.truth_ends`.
    """
    known = (row for row in rows if row["windows"] and row["qid"] in annotations)
    judged = [row for row in known if annotations[row["qid"]]["windows"]]
    windows = aligned(judged, annotations, end)
    return dict(zip(windows.qids, score_queries(windows).iou.tolist(), strict=True)) if windows.qids else {}


def steps(saliency: Sequence[float]) -> tuple[str, float, float]:
    """Return saliency as one character for each clip, and its least and greatest value."""
    values = np.nan_to_num(np.array(saliency, np.float64), posinf=0, neginf=0)
    if not len(values):
        return "", 0.0, 0.0
    low, high = float(values.min()), float(values.max())
    scaled = (values - low) / ((high - low) or 1) * (len(STEPS) - 1)
    return "".join(STEPS[step] for step in scaled.round().astype(int)), round(low, 4), round(high, 4)


def clip_length(store: Store, parents: Sequence[Artifact]) -> float | None:
    """Return the seconds of a clip, if the features that the run was trained on have them."""
    features = (store.manifest(it).parameters for it in parents if it.stage == "video_features")
    return next((float(told["clip_length"]) for told in features if "clip_length" in told), None)
