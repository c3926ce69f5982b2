"""List and remove runs: their inputs, metrics, checkpoints and sizes.

This module imports neither torch nor Prefect, so that a list appears in a fraction of a second.
"""

import hashlib
import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from penumbra.artifacts.catalogue import check_unneeded, check_unpinned, path_of
from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.locations import PROJECT, runs_folder
from penumbra.artifacts.manifest import Artifact, Manifest
from penumbra.artifacts.store import ArtifactError, Store

ALL = "all"  # the subset of metrics over every query of a split
CONSTANT = "constant window"  # the subset of the baseline that predicts the same window for all queries
JUDGED_BY = "mIoU"  # the metric that selects the constant window
WITH_REJECTION = "R1@0.5 with rejection"
SHOWN = ("R1@0.5", "R1@0.7", "mIoU", WITH_REJECTION)
METRICS, EVALUATION = "metrics", "evaluation"  # stages of a run
FIGURES = ["run", "split", "subset", "metric", "value"]
COLUMNS = ["run", "dataset", "key", "model", "negatives", "finished", "seconds", "size"]
SHIPPED = {"scenes-grounder": PROJECT / "models" / "scenes_grounder"}  # weights that come with the project
SETTINGS = "settings.json"  # the settings of a run, written before its first epoch
BELOW = "▾"  # in tables: no better than the constant window


class RunError(PenumbraError):
    """Error for a training that can't start or continue, or whose files are missing or damaged."""


# -- folders of checkpoints --------------------------------------------------------------------------------------------


def run_folder(metrics: Artifact) -> Path:
    """Return the folder of a run's checkpoints: `PENUMBRA_RUNS`/DATASET/KEY."""
    return runs_folder() / metrics.dataset / metrics.key


def weights_path(source: str) -> Path:
    """Return the file or folder that `training.start_from` names."""
    return SHIPPED.get(source) or Path(source).expanduser()


def last_epoch(folder: Path) -> int:
    return int(_read_json(folder / "last.json").get("epoch", 0))


def best_checkpoint(folder: Path) -> dict[str, str]:
    """Return name and SHA-256 of the weights that predictions use: of the best epoch, or else of the last epoch."""
    name = (_read_json(folder / "best.json") or _read_json(folder / "last.json")).get("tensors", "")
    try:
        with (folder / name).open("rb") as file:
            return {name: hashlib.file_digest(file, "sha256").hexdigest()}
    except OSError:
        return {}


def checkpoint_fault(metrics: Manifest) -> str:
    """Return what is wrong with the best checkpoint of a run, or ''; older runs have no digest to compare with."""
    made, folder = metrics.parts[0].files if metrics.parts else {}, run_folder(Store().reference(metrics))
    if not made or best_checkpoint(folder) == made:
        return ""
    return f"the weights in {folder} are not those that run {metrics.key} ended with ({next(iter(made))})"


def _read_json(file: Path) -> dict[str, Any]:
    """Return the content of a file; empty if the file is missing, or incomplete after a kill."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return {}


# -- runs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A training run.

    A run without `finished` has no `metrics` yet: it is running, or was killed after `epoch` of `epochs`. `settings`
    are those of its manifest, `artifacts` its metrics and everything predicted with it, `negatives` PROVIDERS/KEY or
    '', `figures` its metrics over all queries by split in percent (none if `damaged`), and `size` the bytes of its
    checkpoints and artifacts. `below` are the splits in which it is no better than the constant window.
    """

    metrics: Artifact
    run: str
    settings: dict[str, Any]
    artifacts: tuple[Artifact, ...]
    figures: dict[str, dict[str, float]]
    negatives: str = ""
    finished: datetime | None = None
    seconds: float | None = None
    epoch: int | None = None
    epochs: int | None = None
    damaged: bool = False
    below: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        """The model, as in `qd_detr+shine`."""
        return self.run.rpartition("-")[0]

    @property
    def folder(self) -> Path:
        return run_folder(self.metrics)

    @property
    def evaluation(self) -> Artifact | None:
        return next((it for it in reversed(self.artifacts) if it.stage == EVALUATION), None)

    @cached_property
    def size(self) -> int:
        return sum(self.files().values())

    def row(self) -> dict[str, Any]:
        """Return the values of `COLUMNS`, and each metric under the name `SPLIT METRIC`."""
        own = {"dataset": self.metrics.dataset, "key": self.metrics.key}
        figures = {f"{split} {name}": it for split, row in self.figures.items() for name, it in row.items()}
        return {name: own.get(name) or getattr(self, name) for name in COLUMNS} | figures

    def files(self) -> dict[str, int]:
        """Return the size of each of its files in bytes."""
        files = Store().files
        sizes = {f"{it.path}/{name}": n for it in self.artifacts for name, n in files.below(path_of(it)).items()}
        return sizes | {str(path): path.stat().st_size for path in sorted(self.folder.rglob("*")) if path.is_file()}


def all_runs(dataset: str | None = None) -> Iterator[Run]:
    """Yield the runs of one data set or of all: finished runs, oldest first, then the others."""
    store = Store()
    fills = {manifest.key: manifest.parameters for manifest in store.find(dataset, "fills")}
    providers = dict[str, str]()  # providers, or sources of whole sentences, by the key of negatives
    for manifest in store.find(dataset, "negatives"):
        names = [fills.get(it.key, {}).get("provider", "") for it in manifest.parents if it.stage == "fills"]
        names.append(manifest.parameters.get("source", ""))
        providers[manifest.key] = "+".join(dict.fromkeys(filter(None, names)))
    finished, later = store.find(dataset, METRICS), defaultdict[str, list[Artifact]](list)  # later: by run key
    for stage in ("calibration", "predictions", "existence", EVALUATION):
        for manifest in store.find(dataset, stage):
            for parent in manifest.parents:
                if parent.stage == METRICS:
                    later[parent.key].append(store.reference(manifest))
    for manifest in finished:
        yield _finished(manifest, later[manifest.key], providers)
    known = {manifest.key for manifest in finished}
    for path in sorted(runs_folder().glob(f"{dataset or '*'}/*/{SETTINGS}")):
        if path.parent.name not in known:
            yield _unfinished(path.parent)


def _finished(manifest: Manifest, later: list[Artifact], providers: dict[str, str]) -> Run:
    store, metrics, settings = Store(), Store().reference(manifest), manifest.parameters.get("settings", {})
    read = [it for it in manifest.parents if it.stage in ("negatives", "in_video_negatives")]
    negatives = ", ".join(f"{providers.get(it.key) or it.stage}/{it.key[:6]}" for it in read)
    named, rows, damaged = list[dict[str, Any]](), list[dict[str, Any]](), False
    try:
        named += store.table(metrics, ["run"]).slice(0, 1).to_pylist()  # none if a run kept the weights of start_from
        if later and later[-1].stage == EVALUATION:  # the newest
            rows += store.table(later[-1], FIGURES).to_pylist()
    except ArtifactError:
        damaged = True
    name = next((row["run"] for row in (*named, *rows)), _name(settings, metrics))
    figures, below, artifacts = over_all(rows), below_constant(rows), (metrics, *later)
    times = manifest.ended, manifest.seconds
    return Run(metrics, name, settings, artifacts, figures, negatives, *times, damaged=damaged, below=below)


def _unfinished(folder: Path) -> Run:
    settings = dict(_read_json(folder / SETTINGS).get("settings", {}))
    metrics = Artifact(root=Store().root, dataset=folder.parent.name, stage=METRICS, key=folder.name)
    artifacts = (metrics,) if Store().files.below(path_of(metrics)) else ()  # damaged, or incomplete
    epochs = settings.get("training", {}).get("epochs")
    return Run(metrics, _name(settings, metrics), settings, artifacts, {}, epoch=last_epoch(folder), epochs=epochs)


def _name(settings: dict[str, Any], metrics: Artifact) -> str:
    """Return the name of a run without a table."""
    return f"{settings.get('model', {}).get('name', 'run')}-{metrics.key[:6]}"


def over_all(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the metrics over all queries of each split, from rows of `evaluation`."""
    figures = defaultdict[str, dict[str, float]](dict)
    for row in rows:
        if row["subset"] == ALL:
            figures[row["split"]][row["metric"]] = row["value"]
    return dict(figures)


def below_constant(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the splits of rows of `evaluation` in which the constant window has at least the run's mean IoU."""
    of = {(row["split"], row["subset"]): row["value"] for row in rows if row["metric"] == JUDGED_BY}
    constant = {split: value for (split, subset), value in of.items() if subset == CONSTANT}
    return tuple(split for split, value in constant.items() if (split, ALL) in of and of[split, ALL] <= value)


def below_in_words(run: str, splits: Iterable[str]) -> str:
    """Return a sentence with the splits in which a run is no better than a constant window; '' if there are none."""
    named, higher = ", ".join(splits), "is no higher than that of one constant window for all queries"
    return f"{run}: {JUDGED_BY} on {named} {higher}" if named else ""


def found_run(name: str, dataset: str | None = None) -> Run:
    """Return the run of this name, model, key, or key's first digits; raise `ArtifactError` unless one matches."""
    runs, store = list(all_runs(dataset)), Store()
    pinned = [pin.artifact.key for pin in store.pins(dataset, METRICS) if pin.name == name.rpartition("@")[2]]
    name = pinned[0] if len(pinned) == 1 else name
    digits = name.rpartition("-")[2]
    matching = [run for run in runs if digits and run.metrics.key.startswith(digits)]
    matching = matching or [run for run in runs if run.model == name]
    if len(matching) == 1:
        return matching[0]
    names = {run.metrics.key: run.run for run in runs}
    store.with_key(dataset, METRICS, name, lambda manifest: names[manifest.key])
    raise ArtifactError(f"several runs match {name!r}: {', '.join(run.run for run in matching)}")


def remove(run: Run, dry_run: bool = False) -> None:
    """Remove a run and all predictions made with it; raise `ArtifactError` if it is pinned, in use, or a parent."""
    store = Store()

    def refuse(holder: str) -> None:
        raise ArtifactError(f"{run.run} is being trained by {holder}: stop that process first")

    with store.lease(run.metrics, refuse):
        check_unpinned(store.pins(), run.artifacts)
        check_unneeded(store, run.artifacts)
        if dry_run:
            return
        for artifact in reversed(run.artifacts):
            store.remove(artifact)
        if run.folder.exists():
            shutil.rmtree(run.folder)
