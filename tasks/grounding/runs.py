"""All trainings, as people list them: what each was trained on, its figures, its room, and taking it away.

Neither torch nor Prefect is loaded: a list is there in a fraction of a second. A run's name is read in its tables.
"""

import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from penumbra.artifacts.catalogue import check_unneeded, path_of
from penumbra.artifacts.errors import PenumbraError, what_there_is
from penumbra.artifacts.leases import lease
from penumbra.artifacts.locations import runs_folder
from penumbra.artifacts.manifest import Artifact, Manifest
from penumbra.artifacts.store import ArtifactError, Store, lease_of

ALL = "all"  # the subset of figures over every query of a split
SHOWN = ("R1@0.5", "R1@0.7", "mIoU")
STAGES = ("metrics", "predictions", "evaluation")  # a run's own artifacts, each made from those before
RESULTS = ["run", "split", "subset", "metric", "value"]
COLUMNS = ["run", "dataset", "key", "model", "negatives", "finished", "seconds", "size"]
FALLING = ("seconds", "size")  # and figures: the largest first
SORTED_BY = (*COLUMNS, *SHOWN)  # or a figure of one split, "test mIoU"


@dataclass(frozen=True)
class Run:
    """A training. One without `finished` has no `metrics`: it goes on, or was killed, after `epoch` of `epochs`.

    `settings` are as they were written then; `negatives` are PROVIDERS/KEY, '' where there are none; `figures` are
    those over all queries by split, in percent, none where they are `damaged`; `size` is in bytes, of the checkpoints
    and of the run's artifacts.
    """

    metrics: Artifact
    run: str
    model: str
    negatives: str = ""
    finished: datetime | None = None
    seconds: float | None = None
    epoch: int | None = None
    epochs: int | None = None
    size: int = 0
    damaged: bool = False
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    artifacts: tuple[Artifact, ...] = ()

    @property
    def dataset(self) -> str:
        """What it was trained on."""
        return self.metrics.dataset

    @property
    def folder(self) -> Path:
        """Where its checkpoints lie."""
        return run_folder(self.metrics)

    @property
    def evaluation(self) -> Artifact | None:
        """Its newest evaluation."""
        return next((it for it in reversed(self.artifacts) if it.stage == STAGES[2]), None)

    def about(self) -> dict[str, Any]:
        """What is known of it, but for its figures."""
        return {
            "run": self.run,
            "dataset": self.dataset,
            "key": self.metrics.key,
            "model": self.model,
            "negatives": self.negatives,
            "finished": self.finished,
            "seconds": self.seconds,
            "size": self.size,
        }

    def row(self) -> dict[str, Any]:
        """The same and each figure, as `SPLIT METRIC`."""
        flat = {f"{split} {name}": value for split, found in self.figures.items() for name, value in found.items()}
        return self.about() | flat

    def described(self) -> dict[str, Any]:
        """The same for JSON: figures by split, and how far a run is that is not finished."""
        ended = {"finished": self.finished and self.finished.isoformat(timespec="seconds")}
        return (
            self.about()
            | ended
            | {"epoch": self.epoch, "epochs": self.epochs, "damaged": self.damaged, "figures": self.figures}
        )

    def lines(self) -> list[tuple[str, ...]]:
        """The figures that tables show: a line a split, at least one."""
        told = [(split, *(_percent(found.get(name)) for name in SHOWN)) for split, found in self.figures.items()]
        return told or [("damaged" if self.damaged else "–", *("–" for _ in SHOWN))]

    def files(self) -> dict[str, int]:
        """Each file that it holds, and its bytes."""
        store = Store()
        found = {f"{it.path}/{name}": size for it in self.artifacts for name, size in _below(store, it).items()}
        return found | {str(path): path.stat().st_size for path in sorted(self.folder.rglob("*")) if path.is_file()}


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _below(store: Store, artifact: Artifact) -> dict[str, int]:
    return store.files.below(path_of(artifact))


def _name(settings: dict[str, Any], metrics: Artifact) -> str:
    """What a run is called that no table names."""
    return f"{settings.get('model', {}).get('name', 'run')}-{metrics.key[:6]}"


class Runs:
    """The trainings of the store, of one data set or of all; each manifest and each folder is looked at once."""

    def __init__(self, dataset: str | None = None) -> None:
        self.store, self.dataset = Store(), dataset
        self.own = defaultdict[str, list[Manifest]](list)  # predictions and evaluations by the run's key, oldest first
        for stage in STAGES[1:]:
            for manifest in self.store.find(dataset, stage):
                for parent in manifest.parents:
                    if parent.stage == STAGES[0]:
                        self.own[parent.key].append(manifest)

    @cached_property
    def providers(self) -> dict[str, str]:
        """Who filled the negatives, by their key: providers, or where whole sentences are from."""
        fills = {manifest.key: manifest.parameters for manifest in self.store.find(self.dataset, "fills")}
        found = dict[str, str]()
        for manifest in self.store.find(self.dataset, "negatives"):
            said = [fills.get(it.key, {}).get("provider", "") for it in manifest.parents if it.stage == "fills"]
            said.append(manifest.parameters.get("source", ""))
            found[manifest.key] = "+".join(dict.fromkeys(filter(None, said)))
        return found

    def __iter__(self) -> Iterator[Run]:
        """Yield the finished ones, oldest first, and then those that are not."""
        whole = self.store.find(self.dataset, STAGES[0])
        yield from map(self._finished, whole)
        known = {manifest.key for manifest in whole}
        for folder in run_folders(self.dataset):
            if folder.name not in known:
                yield self._unfinished(folder)

    def _finished(self, manifest: Manifest) -> Run:
        metrics = self.store.reference(manifest)
        own = (metrics, *map(self.store.reference, self.own[manifest.key]))  # the newest evaluation is the last one
        evaluation = own[-1] if own[-1].stage == STAGES[2] else None
        named, judged = self._read(metrics, ["run"]), self._read(evaluation, RESULTS) if evaluation else []
        figures = defaultdict[str, dict[str, float]](dict)
        for row in judged or ():
            if row["subset"] == ALL:
                figures[row["split"]][row["metric"]] = row["value"]
        settings = manifest.parameters.get("settings", {})
        rows = judged or named or []  # none of one that took others' weights as they are
        name = rows[0]["run"] if rows else _name(settings, metrics)
        return Run(
            metrics,
            name,
            name.rpartition("-")[0],
            self._negatives(manifest),
            manifest.ended,
            manifest.seconds,
            size=self._size(own, run_folder(metrics)),
            damaged=None in (named, judged),
            figures=dict(figures),
            settings=settings,
            artifacts=own,
        )

    def _read(self, artifact: Artifact, columns: list[str]) -> list[dict[str, Any]] | None:
        """An artifact's rows; None where it is damaged, which `verify` tells more of."""
        try:
            return list(self.store.table(artifact, columns).to_pylist())
        except ArtifactError:
            return None

    def _negatives(self, manifest: Manifest) -> str:
        found = [it for it in manifest.parents if it.stage in ("negatives", "in_video_negatives")]
        names = (self.providers.get(it.key) or it.stage for it in found)
        return ", ".join(f"{name}/{it.key[:6]}" for name, it in zip(names, found, strict=True))

    def _unfinished(self, folder: Path) -> Run:
        state = settings_in(folder)
        metrics = Artifact(root=self.store.root, dataset=folder.parent.name, stage=STAGES[0], key=folder.name)
        own = tuple(it for it in (metrics,) if _below(self.store, it))  # what a kill left, or one that is damaged
        name = _name(state, metrics)
        return Run(
            metrics,
            name,
            name.rpartition("-")[0],
            epoch=last_epoch(folder),
            epochs=state.get("training", {}).get("epochs"),
            size=self._size(own, folder),
            settings=state,
            artifacts=own,
        )

    def _size(self, artifacts: Iterable[Artifact], folder: Path) -> int:
        checkpoints = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return checkpoints + sum(map(self.store.size, artifacts))


def trained_runs(dataset: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield a row a finished training, oldest first: what is known of it, and `SPLIT METRIC` each.

    Figures are those of its newest evaluation; a run that was not evaluated has none.
    """
    return (run.row() for run in Runs(dataset) if run.finished)


def listed(dataset: str | None, model: str | None, by: str | None) -> list[Run]:
    """The runs on a data set and of a model (`qd_detr`, with and without SHINE, or `qd_detr+shine`), sorted.

    Names rise, figures and sizes fall; what lacks the figure is last. Raises `ArtifactError` where no data set or
    model is called so, `PenumbraError` where nothing can be sorted by this.
    """
    found = list(Runs(dataset))
    if dataset and not found:
        raise Store().missing(dataset, STAGES[0])
    models = sorted({name for run in found for name in (run.model, run.model.partition("+")[0])})
    if model and model not in models:
        raise ArtifactError(f"no run of model {model!r}: {what_there_is(model, models)}")
    chosen = [run for run in found if model in (None, run.model, run.model.partition("+")[0])]
    return chosen if by is None else _sorted(chosen, by)


def _sorted(runs: list[Run], by: str) -> list[Run]:
    """By one of `SORTED_BY`; a figure that names no split is of each run's first one."""
    rows = [_keys(run) for run in runs]
    known = [*SORTED_BY, *dict.fromkeys(name for row in rows for name in row if name not in SORTED_BY)]
    if by not in known:
        shown = [name for name in known if name.rpartition(" ")[2] in SORTED_BY]
        raise PenumbraError(f"nothing to sort runs by is called {by!r}: {what_there_is(by, shown)}")
    having = [(row[by], number) for number, row in enumerate(rows) if row.get(by) is not None]
    having.sort(key=lambda pair: pair[0], reverse=by in FALLING or by not in COLUMNS)
    order = [number for _, number in having]
    return [runs[number] for number in (*order, *(n for n in range(len(runs)) if n not in set(order)))]


def _keys(run: Run) -> dict[str, Any]:
    return next(iter(run.figures.values()), {}) | run.row()


def found_run(run: str, dataset: str | None = None) -> Run:
    """The training of this name or key, or its first digits; raises `ArtifactError` telling those that there are."""
    found = list(Runs(dataset))
    digits = run.rpartition("-")[2]
    matching = [it for it in found if digits and it.metrics.key.startswith(digits)]
    if len(matching) == 1:
        return matching[0]
    names = {it.metrics.key: it.run for it in found}
    Store().with_key(dataset, STAGES[0], run, lambda manifest: names[manifest.key])
    raise ArtifactError(f"{len(matching)} runs match {run!r}, say more of it: {', '.join(it.run for it in matching)}")


def remove(run: Run, dry_run: bool = False) -> None:
    """Take a training away: its checkpoints, its metrics, its predictions and its evaluations.

    Raises `ArtifactError`, and takes nothing, where it is being trained, or something else was made from these.
    """
    store = Store()

    def refuse(holder: str) -> None:
        raise ArtifactError(f"{run.run} is being trained by {holder}: end that first")

    with lease(store.files, lease_of(run.metrics), refuse):
        check_unneeded(store, run.artifacts)
        if dry_run:
            return
        for artifact in reversed(run.artifacts):
            store.remove(artifact)
        if run.folder.exists():
            shutil.rmtree(run.folder)


SETTINGS = "settings.json"  # what the run was asked to do, written before its first epoch


def run_folder(metrics: Artifact) -> Path:
    """Where a run's checkpoints lie."""
    return runs_folder() / metrics.dataset / metrics.key


def run_folders(dataset: str | None = None) -> Iterator[Path]:
    """The folders of all runs, finished or not, of one data set or of all."""
    return (path.parent for path in sorted(runs_folder().glob(f"{dataset or '*'}/*/{SETTINGS}")))


def settings_in(folder: Path) -> dict[str, Any]:
    """What a run was asked to do, by group; empty where a kill left the file unfinished."""
    return dict(_read(folder / SETTINGS).get("settings", {}))


def last_epoch(folder: Path) -> int:
    """How many epochs of a run are kept."""
    return int(_read(folder / "last.json").get("epoch", 0))


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return {}
