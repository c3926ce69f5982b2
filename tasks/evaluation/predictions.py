"""Stage `predictions`: what a trained model says of every query of the splits asked for."""

from collections.abc import Callable
from functools import partial
from typing import Any

from prefect import task

from artifacts.manifest import Artifact, Part, Work
from artifacts.schemas import table_of
from tasks.evaluation.windows import EvaluationError
from tasks.stage import run_stage
from tasks.training.device_data import DeviceData
from tasks.training.features import FeatureError
from tasks.training.inputs import Loaded, Sources, load
from tasks.training.job import device_of
from tasks.training.memory import keep_memory
from tasks.training.prediction import predict
from tasks.training.settings import Ranking, Settings
from tasks.training.stage import load_run, run_name

STAGE = "predictions"
VERSION = 1


def predict_split(loaded: Loaded, model: Any, settings: Settings, ranking: Ranking, split: str, run: str) -> Part:
    """Predictions of one split; queries without features are rejected with their reason."""
    prepared = loaded.prepare(loaded.of_split([split]), STAGE)
    device = device_of(settings.training.device)
    rows: list[dict[str, Any]] = []
    if len(prepared.examples):
        data = DeviceData(prepared.examples, loaded.videos, loaded.texts, device)
        check_widths(model, data)
        bf16 = settings.training.precision == "bf16"
        for found in predict(model.to(device), data, ranking, bf16=bf16):
            windows = [dict(zip(("start", "end", "score"), window, strict=True)) for window in found.windows.tolist()]
            rows.append(
                {"run": run, "split": split, "qid": found.qid, "windows": windows, "saliency": found.saliency.tolist()}
            )
    return Part(table_of(STAGE, rows), len(rows) + len(prepared.rejected), len(rows), prepared.rejected)


def check_widths(model: Any, data: DeviceData) -> None:
    """Raise `FeatureError` where the features are of another width than those that the model was trained on."""
    found, wanted = (data.video_dim, data.text_dim), (model.settings.video_dim, model.settings.text_dim)
    if found != wanted:
        raise FeatureError(
            f"the model was trained on video and text features of {wanted[0] - 2} and {wanted[1]} channels, these have "
            f"{found[0] - 2} and {found[1]}: name the encoders with inputs.video_encoders and inputs.text_encoder"
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


@task(name=STAGE)
def predict_model(metrics: Artifact, sources: Sources, ranking: Ranking | None, splits: tuple[str, ...]) -> Artifact:
    """Predict the splits, a part each."""
    keep_memory()
    model, settings = load_run(metrics)
    chosen = ranking or settings.ranking

    def parts() -> list[Callable[[], Part]]:
        loaded, run = load(sources, settings.inputs), run_name(settings, metrics.key)
        return [
            partial(predict_split, loaded, model, settings, chosen, split, run)
            for split in judged_splits(loaded, splits)
        ]

    return run_stage(work(metrics, sources, chosen, splits), parts)
