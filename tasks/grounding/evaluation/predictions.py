"""Stage `predictions`: the windows, saliency and existence that a run predicts for the queries of some splits."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.grounding.batches.inputs import Sources
from penumbra.tasks.grounding.configs import Ranking, RunChoice
from penumbra.tasks.grounding.evaluation.calibration import Calibration, Calibrator, read_calibrator
from penumbra.tasks.grounding.evaluation.run_stage import RunStage
from penumbra.tasks.grounding.families.base import Prediction
from penumbra.tasks.grounding.metrics import EvaluationError
from penumbra.tasks.grounding.runs import METRICS
from penumbra.tasks.grounding.training.stage import chosen_run, name_of, require_checkpoints, run_name, settings_of
from penumbra.tasks.progress import logger
from penumbra.tasks.stage import is_planned, run, work_of

SECONDS, QUERIES = "seconds of prediction", "queries predicted"  # measurements in the manifest
Row = dict[str, Any]


@dataclass(frozen=True)
class Predictions(RunStage):
    """The predictions of a run, one part per split; the default is every split except the training split."""

    name = "predictions"
    version = 2
    by_workers = False  # prediction takes seconds, and each worker would load all features again

    calibration: Artifact
    ranking: Ranking
    splits: tuple[str, ...]

    def parameters(self) -> dict[str, Any]:
        return {"ranking": self.ranking.model_dump(mode="json"), "splits": list(self.splits)}

    def key_parameters(self) -> dict[str, Any]:
        return {**self.parameters(), "ranking": self.ranking.model_dump(mode="json", exclude_defaults=True)}

    @cached_property
    def pieces(self) -> Sequence[str]:
        """Return the splits; raise `EvaluationError` naming one that does not exist."""
        known = self.loaded.splits()
        unknown = set(self.splits) - set(known)
        if unknown:
            raise EvaluationError(f"no split {', '.join(sorted(unknown))}; there is: {', '.join(known)}")
        return list(self.splits) or [split for split in known if split != "train"]

    def part(self, piece: str) -> Part:
        predictions, rejected, seconds = self.predict(self.loaded.of_split([piece]), self.ranking)
        rows = rows_of(predictions, read_calibrator(self.calibration)[0])
        table = [{"run": run_name(self.run[1], self.metrics.key), "split": piece, **row} for row in rows]
        measured = {SECONDS: seconds, QUERIES: float(len(rows))}
        return Part(table_of(self.name, table), len(rows) + len(rejected), len(rows), rejected, measured=measured)


def existence_of(predictions: Sequence[Prediction], calibrator: Calibrator | None) -> list[float | None]:
    """Return the existence of each prediction; None without a calibrator."""
    if not calibrator or not predictions:
        return [None] * len(predictions)
    return list(calibrator.existence(np.array([one.evidence for one in predictions])).tolist())


def rows_of(predictions: Sequence[Prediction], calibrator: Calibrator | None) -> list[Row]:
    """Return the rows of the table `predictions`, without run and split."""
    return [
        {
            "qid": one.qid,
            "windows": [dict(zip(("start", "end", "score"), it, strict=True)) for it in one.windows.tolist()],
            "saliency": one.saliency.tolist(),
            "existence": existence,
        }
        for one, existence in zip(predictions, existence_of(predictions, calibrator), strict=True)
    ]


def runs_to_evaluate(dataset: str, choice: RunChoice) -> list[Artifact]:
    """Return the chosen run, or else all runs without predictions of these splits, or else the newest run.

    The newest run is last. Predictions of an older stage version, or with an older calibration, do not count.
    """
    if choice.run is not None:
        return [chosen_run(dataset, choice.run)]
    store = Store()
    found, predicted = store.manifests(dataset, METRICS), set[str]()
    if not found:
        raise store.missing(dataset, METRICS)
    calibrated = {it.key for it in store.find(dataset, Calibration.name) if it.stage_version == Calibration.version}
    for made in store.find(dataset, Predictions.name):
        parents = {parent.key for parent in made.parents}
        same_splits = made.parameters.get("splits", []) == list(choice.splits)
        if made.stage_version == Predictions.version and parents & calibrated and same_splits:
            predicted |= parents
    runs, why = [it for it in found if it.key not in predicted], "which had no predictions"
    if not runs:
        runs = found[-1:]
        why = "the newest run, as all runs have predictions (--param choice.run=RUN evaluates another one)"
    logger().info("evaluating %s, %s", ", ".join(map(name_of, runs)), why)
    return [store.reference(manifest) for manifest in runs]


def predict_model(metrics: Artifact, sources: Sources, ranking: Ranking | None, splits: tuple[str, ...]) -> Artifact:
    """Calibrate a run's existence and predict the splits with the run; `ranking` defaults to the run's setting."""
    if not is_planned():
        require_checkpoints(metrics)  # the evaluation needs the model even if the predictions exist
    calibration = run(Calibration(metrics, sources))
    if not is_planned():
        logger().info("%s", read_calibrator(calibration)[1])
    return run(Predictions(metrics, sources, calibration, ranking or settings_of(work_of(metrics)).ranking, splits))


def sources_of_run(metrics: Artifact, annotations: Artifact, negatives: Artifact | None = None) -> Sources:
    """Return the artifacts that the run was trained on, with these annotations.

    `negatives` are for a run that was trained without negatives, to measure whether its saliency ranks them (SHINE).
    """
    parents = work_of(metrics).parents
    by_stage = {parent.stage: parent for parent in parents}
    videos, in_video = tuple(it for it in parents if it.stage == "video_features"), by_stage.get("in_video_negatives")
    others = by_stage.get("negatives", negatives), in_video, by_stage.get("visual_dynamic_queries")
    return Sources(annotations, by_stage["text_features"], videos, *others)
