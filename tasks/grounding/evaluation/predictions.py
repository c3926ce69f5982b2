"""Stage `predictions`: what a trained model says of every query of the splits asked for."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from penumbra.artifacts.manifest import Artifact, Manifest, Part, Work
from penumbra.artifacts.schemas import table_of
from penumbra.tasks.grounding.batches.features import FeatureError
from penumbra.tasks.grounding.batches.inputs import Loaded, Sources, load
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.base import System
from penumbra.tasks.grounding.metrics.windows import EvaluationError
from penumbra.tasks.grounding.settings import Ranking
from penumbra.tasks.grounding.training.job import device_of
from penumbra.tasks.grounding.training.memory import keep_memory
from penumbra.tasks.grounding.training.run import load_run, run_name
from penumbra.tasks.stage import run_stage
from prefect import task

STAGE = "predictions"
VERSION = 1
SECONDS, QUERIES = "seconds of prediction", "queries predicted"  # measured, and kept in the manifest


def predict_split(loaded: Loaded, model: Any, system: System[Any], split: str, run: str) -> Part:
    """Predictions of one split; queries without features are rejected with their reason."""
    prepared = loaded.prepare(loaded.of_split([split]), STAGE)
    device = device_of(system.settings.training.device)
    rows: list[dict[str, Any]] = []
    seconds = 0.0
    if len(prepared.examples):
        check_widths(loaded, system.widths(model.state_dict()))
        data = system.data(prepared.examples, loaded.videos, loaded.texts, device)
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
    return Part(table_of(STAGE, rows), taken, len(rows), prepared.rejected, measured=measured)


def check_widths(loaded: Loaded, wanted: tuple[int, int]) -> None:
    """Raise `FeatureError` where the features are of another width than those that the model was trained on."""
    found = loaded.videos.channels, loaded.texts.channels
    if found != wanted:
        raise FeatureError(
            f"the model was trained on video and text features of {wanted[0]} and {wanted[1]} channels, these have "
            f"{found[0]} and {found[1]}: name the encoders with inputs.video_encoders and inputs.text_encoder"
        )


def judged_splits(loaded: Loaded, wanted: tuple[str, ...]) -> list[str]:
    """The splits asked for, or all but the training split; raises `EvaluationError` naming one that is not there."""
    there = loaded.splits()
    unknown = set(wanted) - set(there)
    if unknown:
        raise EvaluationError(f"no split {', '.join(sorted(unknown))}; there is: {', '.join(there)}")
    return list(wanted) or [split for split in there if split != "train"]


def work(metrics: Artifact, sources: Sources, ranking: Ranking, splits: tuple[str, ...]) -> Work:
    """Key material: the run, the queries and features, and how windows are made."""
    return Work(
        dataset=metrics.dataset,
        stage=STAGE,
        version=VERSION,
        parameters={"ranking": ranking.model_dump(), "splits": list(splits)},
        parents=(metrics, *sources.parents),
    )


def truth_end(predictions: Manifest) -> float | None:
    """Where true windows are cut that these predictions are judged by, in seconds; see `Ranking.truth_ends`."""
    return Ranking.model_validate(predictions.parameters["ranking"]).truth_ends


@task(name=STAGE)
def predict_model(metrics: Artifact, sources: Sources, ranking: Ranking | None, splits: tuple[str, ...]) -> Artifact:
    """Predict the splits, a part each."""
    keep_memory()
    model, settings = load_run(metrics)
    chosen = ranking or settings.ranking

    def parts() -> list[Callable[[], Part]]:
        loaded, run = load(sources, settings.inputs), run_name(settings, metrics.key)
        system = system_of(settings.model_copy(update={"ranking": chosen}))
        return [partial(predict_split, loaded, model, system, split, run) for split in judged_splits(loaded, splits)]

    return run_stage(work(metrics, sources, chosen, splits), parts)
