"""Stage `metrics`: a training run; its rows are the losses of every epoch and the figures of every evaluation.

The checkpoints lie in the run's folder (`PENUMBRA_RUNS`), named after the artifact's key: the same training is never
done twice, and a killed one goes on after its last epoch.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor, nn

from penumbra.artifacts.digests import file_digest
from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.locations import PROJECT
from penumbra.artifacts.manifest import Artifact, Manifest, Part, Work
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.models.checkpoints import CheckpointError, load_weights, read_official
from penumbra.tasks.devices import device_name, device_of
from penumbra.tasks.grounding.batches.inputs import Loaded, Sources, load
from penumbra.tasks.grounding.configs import NAMED_ARTIFACTS
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.runs import last_epoch, run_folder
from penumbra.tasks.grounding.training.checkpoints import RunError, read_best
from penumbra.tasks.grounding.training.logs import Watcher, scalar_logs, together
from penumbra.tasks.grounding.training.loop import Job, held_out_videos
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.grounding.training.processes import run_job
from penumbra.tasks.stage import Stage, logger, run, side_effect_task

STAGE = "metrics"
SECONDS = "seconds"  # of all epochs, whichever run trained them: a time belongs in no table
SHIPPED = {"scenes-grounder": PROJECT / "models" / "scenes_grounder"}  # weights that come with the project
USUAL_VALIDATION = "val"


def run_name(settings: Settings, key: str) -> str:
    """What a run is called in tables: its model and the first digits of its key."""
    return f"{settings.model.label}-{key[:6]}"


def split_rows(loaded: Loaded, settings: Settings) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows to train on and rows to choose the best epoch by."""
    train, splits = loaded.of_split(["train"]), loaded.splits()
    wanted = settings.training.validation or ((USUAL_VALIDATION,) if USUAL_VALIDATION in splits else ())
    unknown = set(wanted) - set(splits)
    if unknown:
        raise PenumbraError(f"no split {sorted(unknown)}; there is: {', '.join(splits)}")
    if wanted:
        return train, loaded.of_split(wanted)
    usable = [row for row in train if row["vid"] in loaded.videos.index]
    chosen = held_out_videos([row["vid"] for row in usable], settings.training.held_out, settings.training.seed)
    return [row for row in train if row["vid"] not in chosen], [row for row in train if row["vid"] in chosen]


@dataclass(frozen=True)
class Prepared:
    """A training that is ready to begin, and what of its queries can't be used."""

    job: Job
    rejected: list[dict[str, Any]]
    notes: Counter[str]

    @property
    def kept(self) -> int:
        """Queries to train on and to choose by."""
        return len(self.job.train) + len(self.job.validation)


def prepare(sources: Sources, settings: Settings, folder: Path) -> Prepared:
    """Read what a training needs; queries that can't be trained on are rejected with their reason."""
    loaded = load(sources, settings.inputs)
    train_rows, validation_rows = split_rows(loaded, settings)
    train, validation = (loaded.prepare(rows, STAGE) for rows in (train_rows, validation_rows))
    if not len(train):
        reasons = Counter(row["reason"] for row in train.rejected).most_common(1)
        raise PenumbraError(f"no training query is left; most: {reasons[0][0] if reasons else 'there was none'}")
    truth = {str(row["qid"]): row["windows"] for row in validation_rows}
    weights = None
    if settings.training.start_from:
        weights = read_weights(settings.training.start_from)
    job = Job(settings, train, validation, truth, loaded.videos, loaded.texts, folder, weights)
    return Prepared(job, [*train.rejected, *validation.rejected], train.notes + validation.notes)


def make_part(sources: Sources, settings: Settings, folder: Path, run: str) -> Part:
    """Train, and return the metrics."""
    prepared, dataset = prepare(sources, settings, folder), sources.annotations.dataset
    epoch = last_epoch(folder)
    resumed = f", resuming at epoch {epoch + 1}" if epoch else ""
    logger().info("%s: on %s%s", run, device_name(device_of(settings.training.device)), resumed)
    with scalar_logs(settings, folder, dataset, run) as log, Watcher(dataset, run) as watcher:
        told = list(run_job(prepared.job, together(watcher, log)))
    rows = [{"run": run, **row} for row in told if row["name"] != SECONDS]
    measured = {SECONDS: sum(row["value"] for row in told if row["name"] == SECONDS)}
    rejected, kept = prepared.rejected, prepared.kept
    return Part(table_of(STAGE, rows), kept + len(rejected), kept, rejected, prepared.notes, measured=measured)


def weights_path(source: str) -> Path:
    """The file or folder that `training.start_from` names."""
    return SHIPPED.get(source) or Path(source).expanduser()


def read_weights(source: str) -> dict[str, Tensor]:
    """Weights of an official checkpoint file, of a run's folder, or those that come with the project, by their name.

    Raises `RunError` where it is none of these.
    """
    path = weights_path(source)
    try:
        if path.is_dir():
            found = read_best(path)
            if found is None:
                raise RunError(f"{path} holds no checkpoint")
            return dict(found.part("model."))
        return dict(read_official(path)[0])
    except CheckpointError as error:
        raise RunError(str(error)) from None


def settings_of(metrics: Manifest | Work) -> Settings:
    """The settings of a run, by the manifest of its `metrics`; raises `RunError` where this version can't take them."""
    try:
        return Settings.model_validate(metrics.parameters.get("settings"))
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        raise RunError(
            f"run {metrics.key} of {metrics.dataset} has settings that can't be used ({place}: {fault['msg']}): "
            "name another, or take it away and train again"
        ) from None


def name_of(metrics: Manifest) -> str:
    """What a run is called, by the manifest of its `metrics`."""
    return run_name(settings_of(metrics), metrics.key)


def chosen_run(dataset: str | None, run: str | None) -> Artifact:
    """The `metrics` artifact of a run by its key, first digits or name, of one data set or of any; None: the newest.

    Raises `ArtifactError` naming those that match, or the newest, where none or several match.
    """
    store = Store()
    if run is None and dataset is not None:
        try:
            return store.newest(dataset, "metrics")
        except ArtifactError as error:
            raise ArtifactError(f"{error}; penumbra run train-grounding {dataset} makes one") from None
    return store.with_key(dataset, "metrics", run or "", called)


def called(metrics: Manifest) -> str:
    """What a run is called, by the manifest of its `metrics`; its key where this version can't read its settings."""
    try:
        return name_of(metrics)
    except RunError:  # of a version with other settings
        return metrics.key


def load_run(metrics: Artifact) -> tuple[nn.Module, Settings]:
    """The best model of a run, ready to predict, and the run's settings."""
    settings = settings_of(Store().manifest(metrics))
    folder = run_folder(metrics)
    found = read_best(folder)
    if found is None:
        raise _lost(metrics)
    weights = found.part("model.")
    system = system_of(settings)
    model = system.build(*system.widths(weights))
    try:
        load_weights(model, weights)
    except CheckpointError as error:
        raise RunError(f"{folder}: {error}") from None
    return model.eval(), settings


def require_checkpoints(metrics: Artifact) -> None:
    """Raise `RunError` where a run's checkpoints are not there."""
    if not any((run_folder(metrics) / f"{name}.json").is_file() for name in ("best", "last")):
        raise _lost(metrics)


def _lost(metrics: Artifact) -> RunError:
    return RunError(
        f"the checkpoints of {metrics.path} are not in {run_folder(metrics)}: take the artifact away and train again"
    )


@dataclass(frozen=True)
class TrainingRun(Stage):
    """A training: the losses of every epoch, and the figures of every evaluation."""

    name = STAGE
    version = 2
    pieces = (0,)

    sources: Sources
    settings: Settings

    @property
    def label(self) -> str:
        """Names the model."""
        return f"{self.name}: {self.settings.model.label}"

    @property
    def parents(self) -> tuple[Artifact, ...]:
        """All that it reads."""
        return self.sources.parents

    def parameters(self) -> dict[str, Any]:
        """Every setting, but for the names of the artifacts, which are its parents."""
        return {"settings": self.settings.model_dump(mode="json", exclude={"inputs": NAMED_ARTIFACTS})}

    def determines(self) -> dict[str, Any]:
        """Those that determine what is learned."""
        return {"settings": self.settings.determines()}

    def inputs(self) -> dict[str, str]:
        """The digest of the weights that it starts from."""
        start = weights_path(self.settings.training.start_from or "")
        return {"start_from": file_digest(start)} if self.settings.training.start_from and start.exists() else {}

    def part(self, piece: int) -> Part:
        """Train."""
        key = self.artifact.key
        return make_part(self.sources, self.settings, run_folder(self.artifact), run_name(self.settings, key))


def training_run(sources: Sources, settings: Settings) -> TrainingRun:
    """The training of a model on what of these it reads."""
    return TrainingRun(sources.read_by(settings.model), settings)


def train_model(sources: Sources, settings: Settings) -> Artifact:
    """Train a model, or find it trained; a host that is not the first takes its share, and waits for the artifact."""
    stage = training_run(sources, settings)
    if settings.training.node_rank:
        _take_part(stage)
    return run(stage)


@side_effect_task("share of a training")
def _take_part(stage: TrainingRun) -> None:
    if not Store().has(stage.artifact):
        run_job(prepare(stage.sources, stage.settings, run_folder(stage.artifact)).job)
