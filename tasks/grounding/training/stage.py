"""Stage `metrics`: a training run; its rows are the losses of every epoch and the metrics of every evaluation.

The checkpoints are in the run's folder below `PENUMBRA_RUNS`, which is named after the artifact's key. The same
training is therefore never done twice, and a killed training continues after its last epoch.
"""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError
from torch import nn

from penumbra.artifacts.catalogue import example_dataset
from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.files import file_digest
from penumbra.artifacts.manifest import Artifact, Manifest, Part, Work
from penumbra.artifacts.markdown import counted
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.models.checkpoints import CheckpointError, load_weights
from penumbra.tasks.devices import device_of
from penumbra.tasks.grounding.batches.examples import Examples, Loaded
from penumbra.tasks.grounding.batches.inputs import Sources, load
from penumbra.tasks.grounding.configs import NAMED_ARTIFACTS
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.runs import (
    RunError,
    best_checkpoint,
    checkpoint_fault,
    last_epoch,
    run_folder,
    weights_path,
)
from penumbra.tasks.grounding.training.checkpoints import read_weights
from penumbra.tasks.grounding.training.logs import progress_shown
from penumbra.tasks.grounding.training.loop import train
from penumbra.tasks.grounding.training.presets import Settings, preset_named
from penumbra.tasks.progress import logger
from penumbra.tasks.stage import Stage, run, side_effect_task, work_of

STAGE = "metrics"
SECONDS = "seconds"  # of all epochs; in the manifest, because the table must not depend on the speed
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class TrainingRun(Stage):
    """A training: the losses of every epoch, and the metrics of every evaluation."""

    name = STAGE
    version = 2
    pieces = (0,)

    sources: Sources
    settings: Settings

    @property
    def label(self) -> str:
        return f"{self.name}: {self.settings.model.label}"

    @property
    def parents(self) -> tuple[Artifact, ...]:
        return self.sources.parents

    def parameters(self) -> dict[str, Any]:
        """Return all settings except the names of artifacts, which are the parents.

        The settings that `as_published` changes are listed, so that a later version can change more of them.
        """
        values, model = self.settings.model_dump(mode="json", exclude={"inputs": NAMED_ARTIFACTS}), self.settings.model
        values["model"]["ablation"] = {**model.published_changes, **values["model"]["ablation"]}
        return {"settings": values}

    def key_parameters(self) -> dict[str, Any]:
        """See `Settings.key_parameters`; in earlier versions the negatives of a batch could be of the same video."""
        others = {"batch_negatives": "other videos"} if self.settings.model.reads_batch_negatives else {}
        return {"settings": self.settings.key_parameters(), **others}

    def inputs(self) -> dict[str, str]:
        """Return the digest of the weights that the training starts from."""
        start = weights_path(self.settings.training.start_from or "")
        return {"start_from": file_digest(start)} if self.settings.training.start_from and start.exists() else {}

    def part(self, piece: int) -> Part:
        folder, name = run_folder(self.artifact), run_name(self.settings, self.artifact.key)
        (training, validation), epoch = load_examples(self.sources, self.settings), last_epoch(folder)
        resumed = f", resuming at epoch {epoch + 1}" if epoch else ""
        trains, chooses = counted(len(training), "query"), f"{len(validation):,} to choose the best epoch by"
        logger().info("%s: on %s; %s to train on, %s%s", name, device_of(), trains, chooses, resumed)
        for note, times in training.notes.most_common():
            logger().info("%s: %s × %s", name, f"{times:,}", note)
        with progress_shown(self.settings, folder, self.sources.annotations.dataset, name) as observe:
            history = train(self.settings, training, validation, folder, observe)
        rows = [{"run": name, **row} for row in history if row["name"] != SECONDS]
        measured = {SECONDS: sum(row["value"] for row in history if row["name"] == SECONDS)}
        rejected, kept = [*training.rejected, *validation.rejected], len(training) + len(validation)
        notes = training.notes + validation.notes
        files = best_checkpoint(folder)
        return Part(table_of(STAGE, rows), kept + len(rejected), kept, rejected, notes, measured=measured, files=files)


def settings_for_clips(sources: Sources, settings: Settings, preset: str | None) -> Settings:
    """Return the settings with the preset's `longest_video` converted to the clip length of the features.

    A preset counts `longest_video` in clips of its own clip length. A value that differs from the preset's is kept.
    """
    stated = preset_named(preset)
    longest, seconds = stated.get("inputs", {}).get("longest_video"), stated.get("needs", {}).get("clip_length")
    own = work_of(sources.video_features[0]).parameters.get("clip_length")
    if not longest or not own or seconds in (own, "any") or settings.inputs.longest_video != longest:
        return settings
    clips = max(1, round(longest * seconds / own))
    logger().info("%s cuts videos at %d clips of %g s, here %d clips of %g s", preset, longest, seconds, clips, own)
    return settings.model_copy(update={"inputs": settings.inputs.model_copy(update={"longest_video": clips})})


def train_model(sources: Sources, settings: Settings) -> Artifact:
    """Train a model unless its artifact exists.

    If `accelerate launch` or `torchrun` started several processes, the first process makes the artifact; the others
    train on their share of each batch and wait for the artifact.
    """
    stage = TrainingRun(sources.read_by(settings.model), settings)
    if int(os.environ.get("RANK", "0")):
        _take_share(stage)
    return run(stage)


@side_effect_task("share of a training")
def _take_share(stage: TrainingRun) -> None:
    if not Store().has(stage.artifact):
        train(stage.settings, *load_examples(stage.sources, stage.settings), run_folder(stage.artifact))


def load_examples(sources: Sources, settings: Settings) -> tuple[Examples, Examples]:
    """Return the training and validation queries; queries that can't be used are rejected with their reasons."""
    loaded = load(sources, settings.inputs)
    _check_negatives(loaded, sources)
    training, validation = (loaded.examples_of(rows, STAGE) for rows in split_rows(loaded, settings))
    if not len(training):
        reasons = Counter(row["reason"] for row in training.rejected).most_common(1)
        why = f"{reasons[0][1]:,} were left out for {reasons[0][0]!r}" if reasons else "the split train is empty"
        raise PenumbraError(f"no query can be trained on: {why}")
    return training, validation


def _check_negatives(loaded: Loaded, sources: Sources) -> None:
    """Warn of negatives without text features; raise `RunError` if most have none (features older than negatives)."""
    texts = [text for of_query in loaded.negatives.values() for text in of_query.values()]
    missing = sum(text not in loaded.texts.index for text in texts)
    if missing and sources.negatives:
        encoder = Store().manifest(sources.text_features).parameters.get("encoder")
        remedy = f"penumbra run extract-features {sources.annotations.dataset}"
        remedy += f" --param clip.encoder={encoder}" if encoder else ""
        what = f"{missing:,} of {counted(len(texts), 'negative')} in {sources.negatives.path} have no text features"
        if 2 * missing > len(texts):
            raise RunError(f"{what}: {remedy}")
        logger().warning("%s: %s", what, remedy)


def split_rows(loaded: Loaded, settings: Settings) -> tuple[Rows, Rows]:
    """Return the rows to train on, and the rows that select the best epoch."""
    rows, splits, config = loaded.of_split(["train"]), loaded.splits(), settings.training
    named, share = (config.validation, 0.0) if isinstance(config.validation, tuple) else ((), config.validation)
    wanted = named or (("val",) if "val" in splits else ())
    unknown = set(wanted) - set(splits)
    if unknown:
        raise PenumbraError(f"no split {sorted(unknown)}; there is: {', '.join(splits)}")
    if wanted:
        return rows, loaded.of_split(wanted)
    chosen = held_out_videos((row["vid"] for row in rows if row["vid"] in loaded.videos.index), share, config.seed)
    return [row for row in rows if row["vid"] not in chosen], [row for row in rows if row["vid"] in chosen]


def held_out_videos(videos: Iterable[str], share: float, seed: int) -> set[str]:
    """Return random videos to validate on; whole videos are held out, so that training sees no validation video."""
    distinct = sorted(set(videos))
    least = 1 if share and len(distinct) > 1 else 0
    count = max(least, min(len(distinct) - 1, round(share * len(distinct))))
    chosen = np.random.default_rng(seed).permutation(len(distinct))[:count]
    return {distinct[i] for i in chosen}


# -- finished runs -----------------------------------------------------------------------------------------------------


def run_name(settings: Settings, key: str) -> str:
    """Return the name of a run in tables: its model and the first digits of its key."""
    return f"{settings.model.label}-{key[:6]}"


def settings_of(metrics: Manifest | Work) -> Settings:
    """Return the settings in the manifest of a run; raise `RunError` if this version can't use them."""
    try:
        return Settings.model_validate(metrics.parameters["settings"])
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        raise RunError(
            f"run {metrics.key} of {metrics.dataset} has settings that this version can't use ({place}: "
            f"{fault['msg']}): choose another run, or remove it and train again"
        ) from None


def name_of(metrics: Manifest) -> str:
    """Return the name of a run, by the manifest of its `metrics`; its key if this version can't use its settings."""
    try:
        return run_name(settings_of(metrics), metrics.key)
    except RunError:
        return metrics.key


def chosen_run(dataset: str | None, name: str | None) -> Artifact:
    """Return the `metrics` of a run by its key, first digits, name or model, or of the newest run of a data set.

    Raise `ArtifactError` unless exactly one run matches; the message names the matches, or the newest runs.
    """
    store = Store()
    if name is None and dataset is not None:
        return store.newest(dataset, STAGE)
    return store.with_key(dataset, STAGE, name or "", name_of)


def newest_runs(dataset: str | None, number: int) -> list[str]:
    """Return the names of the newest runs, the newest last; raise `ArtifactError` if there are fewer than `number`."""
    found = Store().find(dataset, STAGE)[-number:]
    if len(found) < number:
        there = counted(len(found), "run") + (f" on {dataset}" if dataset else "")
        command = "train-grounding {} --param training.seed=1" if found else "full-pipeline {}"
        raise ArtifactError(
            f"{number} needed, {there} found: penumbra run {command.format(dataset or example_dataset())}"
        )
    return list(map(name_of, found))


def load_run(metrics: Artifact) -> tuple[nn.Module, Settings]:
    """Return a run's best model and settings; raise `RunError` if its weights are missing or were changed."""
    manifest = Store().manifest(metrics)
    settings, folder = settings_of(manifest), require_checkpoints(metrics)
    if fault := checkpoint_fault(manifest):
        raise RunError(f"{fault}: restore the files, or remove the run and train again")
    weights, system = read_weights(str(folder)), system_of(settings)
    try:
        model = system.build(*system.widths(weights))
        load_weights(model, weights)
    except CheckpointError as error:
        raise RunError(f"{folder}: {error}") from None
    return model.eval(), settings


def require_checkpoints(metrics: Artifact) -> Path:
    """Return the folder of a run's checkpoints; raise `RunError` if it has none."""
    folder = run_folder(metrics)
    if not any((folder / f"{name}.json").is_file() for name in ("best", "last")):
        raise RunError(f"the checkpoints of {metrics.path} are not in {folder}: remove the artifact and train again")
    return folder
