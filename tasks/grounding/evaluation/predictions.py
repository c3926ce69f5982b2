"""Stage `predictions`: what a trained model says of every query of the splits asked for."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from penumbra.artifacts.manifest import Artifact, Manifest, Part
from penumbra.artifacts.prefect_ui import Rows
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.devices import device_of
from penumbra.tasks.grounding.batches.examples import FeatureError
from penumbra.tasks.grounding.batches.inputs import Loaded, Sources, load
from penumbra.tasks.grounding.configs import Ranking
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.base import System
from penumbra.tasks.grounding.metrics import EvaluationError
from penumbra.tasks.grounding.training.loop import keep_memory
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.grounding.training.stage import load_run, require_checkpoints, run_name, settings_of
from penumbra.tasks.stage import Stage, is_planned, run, work_of

STAGE = "predictions"
SHOWN = 3  # windows of a query, in the Prefect UI
SECONDS, QUERIES = "seconds of prediction", "queries predicted"  # measured, and kept in the manifest


def predict_split(loaded: Loaded, model: Any, system: System[Any], split: str, run: str) -> Part:
    """Predictions of one split; queries without features are rejected with their reason."""
    return predict_rows(loaded, loaded.of_split([split]), model, system, split, run)


def predict_rows(
    loaded: Loaded, queries: Sequence[dict[str, Any]], model: Any, system: System[Any], split: str, run: str
) -> Part:
    """Predictions of some rows of `annotations`, whatever text they have; it needs features."""
    prepared = loaded.prepare(queries, STAGE)
    device = device_of("auto")
    rows: list[dict[str, Any]] = []
    seconds = 0.0
    if len(prepared):
        check_widths(loaded, system.widths(model.state_dict()))
        data = system.data(prepared, loaded.videos, loaded.texts, device)
        model.to(device)
        started = time.perf_counter()
        predictions = system.predict(model, data)
        seconds = time.perf_counter() - started
        for found in predictions:
            windows = [dict(zip(("start", "end", "score"), window, strict=True)) for window in found.windows.tolist()]
            rows.append(
                {"run": run, "split": split, "qid": found.qid, "windows": windows, "saliency": found.saliency.tolist()}
            )
    measured = {SECONDS: seconds, QUERIES: float(len(rows))}
    taken = len(rows) + len(prepared.rejected)
    return Part(table_of(STAGE, rows), taken, len(rows), list(prepared.rejected), measured=measured)


def check_widths(loaded: Loaded, wanted: tuple[int, int]) -> None:
    """Raise `FeatureError` where the features are of another width than those that the model was trained on."""
    found = loaded.videos.channels, loaded.texts.channels
    if found != wanted:
        raise FeatureError(
            f"the model was trained on video and text features of {wanted[0]} and {wanted[1]} channels, these have "
            f"{found[0]} and {found[1]}: name the encoders with inputs.video_features and inputs.text_features"
        )


def judged_splits(loaded: Loaded, wanted: tuple[str, ...]) -> list[str]:
    """The splits asked for, or all but the training split; raises `EvaluationError` naming one that is not there."""
    there = loaded.splits()
    unknown = set(wanted) - set(there)
    if unknown:
        raise EvaluationError(f"no split {', '.join(sorted(unknown))}; there is: {', '.join(there)}")
    return list(wanted) or [split for split in there if split != "train"]


def truth_end(predictions: Manifest) -> float | None:
    """Where true windows are cut that these predictions are judged by, in seconds; see `Ranking.truth_ends`."""
    return Ranking.model_validate(predictions.parameters["ranking"]).truth_ends


def _told(window: Mapping[str, float]) -> str:
    return f"{window['start']:.1f} to {window['end']:.1f} (score {window['score']:.2f})"


@dataclass(frozen=True)
class Predictions(Stage):
    """What a run says of every query of some splits, a part each; all but the training split where none is named."""

    name = STAGE
    version = 1
    by_workers = False  # a GPU holds one model, and each worker would load all features anew for seconds of work

    metrics: Artifact
    sources: Sources
    ranking: Ranking
    splits: tuple[str, ...]

    @property
    def parents(self) -> tuple[Artifact, ...]:
        """The run, the queries and the features."""
        return (self.metrics, *self.sources.parents)

    def parameters(self) -> dict[str, Any]:
        """How windows are made, and the splits that were named."""
        return {"ranking": self.ranking.model_dump(mode="json"), "splits": list(self.splits)}

    def determines(self) -> dict[str, Any]:
        """The same, without what has its default or changes no window."""
        ranking = self.ranking.model_dump(mode="json", exclude={"batch_size"}, exclude_defaults=True)
        return {"ranking": ranking, "splits": list(self.splits)}

    def shown(self, rows: Rows) -> Rows:
        """Each sentence, when it is true, and when the run says that it is, best first."""
        wanted, asked = {row["qid"] for row in rows}, dict[str, dict[str, Any]]()
        for part in Store().parts(self.sources.annotations, ["qid", "query", "windows"]):
            asked |= {row["qid"]: row for row in part.to_pylist() if row["qid"] in wanted}
            if asked.keys() == wanted:
                break
        return [
            {
                "sentence": asked[row["qid"]]["query"],
                "truth, s": [list(window) for window in asked[row["qid"]]["windows"]] or "hidden",
                "prediction, s": "; ".join(map(_told, row["windows"][:SHOWN])),
                "split": row["split"],
                "qid": row["qid"],
            }
            for row in rows
        ]

    @cached_property
    def pieces(self) -> Sequence[str]:
        """The splits."""
        return judged_splits(self.loaded, self.splits)

    @cached_property
    def run(self) -> tuple[nn.Module, Settings]:
        """The best model of the run, and its settings."""
        keep_memory()
        return load_run(self.metrics)

    @cached_property
    def loaded(self) -> Loaded:
        """Queries and features."""
        return load(self.sources, self.run[1].inputs)

    def part(self, piece: str) -> Part:
        """Predict a split."""
        model, settings = self.run
        system = system_of(settings.model_copy(update={"ranking": self.ranking}))
        return predict_split(self.loaded, model, system, piece, run_name(settings, self.metrics.key))


def predict_model(metrics: Artifact, sources: Sources, ranking: Ranking | None, splits: tuple[str, ...]) -> Artifact:
    """Predict the splits; windows are made as the run says unless `ranking` says otherwise."""
    if not is_planned():
        require_checkpoints(metrics)  # also where the predictions are there: the figures need the model
    chosen = ranking or settings_of(work_of(metrics)).ranking
    return run(Predictions(metrics, sources, chosen, splits))


def sources_of_run(
    metrics: Artifact, annotations: Artifact, negatives: Artifact | None = None, tags: Artifact | None = None
) -> Sources:
    """What the run was trained on, with the annotations given.

    `negatives` are those by which a run is judged that was trained on none: is saliency in their order? `tags` tell
    the verbs of queries, for the constant window by verb.
    """
    parents = work_of(metrics).parents
    of = {parent.stage: parent for parent in parents}
    return Sources(
        annotations,
        of["text_features"],
        tuple(it for it in parents if it.stage == "video_features"),
        of.get("negatives", negatives),
        of.get("in_video_negatives"),
        of.get("visual_dynamic_queries"),
        tags=tags,
    )


def newest_negatives(dataset: str) -> Artifact | None:
    """The negatives of a data set that were built last, if there are any."""
    return Store().newest_if_any(dataset, "negatives")
