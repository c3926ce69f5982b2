"""Stage `predictions`: what a trained model predicts for every query of some splits."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.grounding.batches.inputs import Sources
from penumbra.tasks.grounding.configs import Choice, Ranking
from penumbra.tasks.grounding.evaluation.existence import Calibration, Calibrator, RunStage, read_calibrator
from penumbra.tasks.grounding.families.base import Prediction
from penumbra.tasks.grounding.metrics import EvaluationError
from penumbra.tasks.grounding.runs import METRICS
from penumbra.tasks.grounding.training.stage import chosen_run, name_of, require_checkpoints, run_name, settings_of
from penumbra.tasks.stage import is_planned, logger, run, work_of

STAGE = "predictions"
SECONDS, QUERIES = "seconds of prediction", "queries predicted"  # measured, and kept in the manifest


@dataclass(frozen=True)
class Predictions(RunStage):
    """The predictions of a run for every query of some splits, a part each; default: all but the training split."""

    name = STAGE
    version = 2
    by_workers = False  # a GPU holds one model, and each worker would load all features again for seconds of work

    calibration: Artifact
    ranking: Ranking
    splits: tuple[str, ...]

    @property
    def parents(self) -> tuple[Artifact, ...]:
        return (self.metrics, self.calibration, *self.sources.parents)

    def parameters(self) -> dict[str, Any]:
        return {"ranking": self.ranking.model_dump(mode="json"), "splits": list(self.splits)}

    def determines(self) -> dict[str, Any]:
        """Return the parameters without defaults and without those that change no window."""
        ranking = self.ranking.model_dump(mode="json", exclude_defaults=True)
        return {"ranking": ranking, "splits": list(self.splits)}

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
        return Part(table_of(STAGE, table), len(rows) + len(rejected), len(rows), rejected, measured=measured)


def rows_of(predictions: Sequence[Prediction], calibrator: Calibrator | None) -> list[dict[str, Any]]:
    """Return rows of the table `predictions`; existence is null without a calibrator."""
    existence = calibrator.of(predictions) if calibrator else [None] * len(predictions)
    return [
        {
            "qid": one.qid,
            "windows": [dict(zip(("start", "end", "score"), it, strict=True)) for it in one.windows.tolist()],
            "saliency": one.saliency.tolist(),
            "existence": exists,
        }
        for one, exists in zip(predictions, existence, strict=True)
    ]


def runs_to_evaluate(dataset: str, choice: Choice) -> list[Artifact]:
    """Return the run that is chosen, or else all without predictions of these splits, or else the newest.

    The newest is last. Predictions of an older version, or with a calibration of one, do not count.
    """
    if choice.run is not None:
        return [chosen_run(dataset, choice.run)]
    store = Store()
    found = store.manifests(dataset, METRICS)
    if not found:
        raise store.missing(dataset, METRICS)
    splits = list(choice.splits)
    calibrated = {it.key for it in store.find(dataset, Calibration.name) if it.stage_version == Calibration.version}
    today = [it for it in store.find(dataset, STAGE) if it.stage_version == Predictions.version]
    today = [it for it in today if calibrated & {parent.key for parent in it.parents}]
    made = [it for it in today if it.parameters.get("splits", []) == splits]
    predicted = {parent.key for manifest in made for parent in manifest.parents}
    runs = [manifest for manifest in found if manifest.key not in predicted]
    if runs:
        logger().info("evaluated: %s, without predictions so far", ", ".join(map(name_of, runs)))
        return [store.reference(manifest) for manifest in runs]
    name = name_of(found[-1])
    logger().info("evaluated: %s, the newest run; each run has predictions (--param choice.run=%s)", name, name)
    return [store.reference(found[-1])]


def predict_model(metrics: Artifact, sources: Sources, ranking: Ranking | None, splits: tuple[str, ...]) -> Artifact:
    """Predict the splits with a run, whose existence is calibrated first; `ranking` defaults to that of the run."""
    if not is_planned():
        require_checkpoints(metrics)  # also if the predictions exist: the figures need the model
    calibration = run(Calibration(metrics, sources))
    if not is_planned():
        logger().info("%s", read_calibrator(calibration)[1])
    return run(Predictions(metrics, sources, calibration, ranking or settings_of(work_of(metrics)).ranking, splits))


def sources_of_run(metrics: Artifact, annotations: Artifact, negatives: Artifact | None = None) -> Sources:
    """Return what the run was trained on, with the annotations given.

    `negatives` are for a run that was trained on none: is its saliency in their order?
    """
    parents = work_of(metrics).parents
    by_stage = {parent.stage: parent for parent in parents}
    return Sources(
        annotations,
        by_stage["text_features"],
        tuple(parent for parent in parents if parent.stage == "video_features"),
        by_stage.get("negatives", negatives),
        by_stage.get("in_video_negatives"),
        by_stage.get("visual_dynamic_queries"),
    )
