"""Grids of trainings as data (`grids.yaml`), and what each of their rows asks of the flows."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import Field, ValidationError

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.markdown import markdown_table, plain
from penumbra.artifacts.prefect_ui import publish_report
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.features.clip import Clip
from penumbra.tasks.features.extraction import FeaturesParameters
from penumbra.tasks.features.imports import Imports
from penumbra.tasks.features.simulated import Simulation, remark_on
from penumbra.tasks.features.text import Texts
from penumbra.tasks.features.video import Videos
from penumbra.tasks.grounding.evaluation.baselines import CONSTANT
from penumbra.tasks.grounding.evaluation.compare import over_seeds, paired_bootstrap, scores_by_split, seeds_differ
from penumbra.tasks.grounding.evaluation.predictions import QUERIES, SECONDS
from penumbra.tasks.grounding.metrics import Floats
from penumbra.tasks.grounding.runs import ALL
from penumbra.tasks.grounding.training.presets import Settings, explicitly_set, layered, preset_named, presets
from penumbra.tasks.grounding.training.stage import SECONDS as TRAINED
from penumbra.tasks.grounding.training.stage import load_run
from penumbra.tasks.negatives.filling import Filling
from penumbra.tasks.negatives.in_video_negatives import Pairing
from penumbra.tasks.negatives.parameters import NegativeSource, NegativesParameters, QualityConfig
from penumbra.tasks.negatives.selection import Choosing
from penumbra.tasks.stage import Parameters, Stage, merge, run
from penumbra.tasks.text.embeddings import Encoding
from penumbra.tasks.text.masks import Masking
from penumbra.tasks.text.tags import Tagging

FILE = Path(__file__).with_name("ablation_grids.yaml")
NEGATIVES: dict[str, type[Parameters]] = {
    "sourcing": NegativeSource,
    "tagging": Tagging,
    "masking": Masking,
    "filling": Filling,
    "encoding": Encoding,
    "choosing": Choosing,
    "pairing": Pairing,
}
FEATURES: dict[str, type[Parameters]] = {
    "clip": Clip,
    "texts": Texts,
    "videos": Videos,
    "imports": Imports,
    "simulation": Simulation,
}
TRAINING = tuple(Settings.model_fields)
GROUPS = (*NEGATIVES, *FEATURES, *TRAINING)
PRESET, HARD = "preset", "hard_negatives"  # what a row may say beside groups


class GridError(PenumbraError):
    """There is no such grid or row, or a row asks for what there is not."""


class Row(Parameters):
    """A line of a table: what it is called, what stands in the grid's own columns, and the parameters it changes."""

    label: str
    cells: tuple[str | int | float, ...] = ()
    changes: dict[str, Any] = Field(default_factory=dict)
    on_request: bool = False

    @property
    def providers(self) -> set[str]:
        """Whose negatives they are, where the row says so."""
        filling, sourcing = (self.changes.get(group, {}) for group in ("filling", "sourcing"))
        return {*filling.get("providers", ()), *filter(None, [sourcing.get("source")])}


class Grid(Parameters):
    """A table: its rows, the columns that say what a row is, and whether it shows what a run costs."""

    name: str
    title: str
    columns: tuple[str, ...] = ()
    all: dict[str, Any] = Field(default_factory=dict)
    rows: tuple[Row, ...]
    costs: bool = False


@cache
def grids() -> dict[str, Grid]:
    """All grids by name."""
    found = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {name: Grid.model_validate({"name": name, **grid}) for name, grid in found.items()}


def grid_of(name: str) -> Grid:
    """The grid of this name; raises `GridError` naming an unknown one."""
    if name not in grids():
        raise GridError(f"no grid {name!r}; there is: {', '.join(grids())}")
    return grids()[name]


@dataclass(frozen=True)
class RowPlan:
    """What a row asks of the flows: every group of parameters, and the training's settings that follow."""

    row: Row
    preset: str | None
    groups: dict[str, Parameters]
    settings: Settings

    def of(self, names: Iterable[str]) -> dict[str, Any]:
        """Some of the groups, by name, as a flow takes them."""
        return {name: self.groups[name] for name in names}

    @property
    def negatives(self) -> NegativesParameters:
        """How the row's negatives are built; a grid judges none."""
        return NegativesParameters(**self.of(NEGATIVES), judging=QualityConfig(judge=False))

    @property
    def features(self) -> FeaturesParameters:
        """How the row's features are extracted, with patches where it trains on any."""
        return FeaturesParameters(**self.of(FEATURES)).with_patches(bool(self.settings.model.patches_of))

    @property
    def changes_negatives(self) -> bool:
        """Whether the row itself says how negatives are built."""
        return bool(self.row.changes.keys() & NEGATIVES.keys())

    def says(self, *names: str) -> bool:
        """Whether anything was said for one of these groups, by the row or for all rows."""
        return any(self.groups[name].model_fields_set for name in names)


def plan(
    name: str, labels: Sequence[str], dataset: str, preset: str | None, said: Mapping[str, Parameters | None]
) -> tuple[Grid, list[RowPlan]]:
    """The grid, and what its chosen rows ask of the flows, on top of what was said.

    Raises `GridError` naming an unknown grid or row, or the row whose parameters do not fit.
    """
    grid, base = grid_of(name), explicitly_set(said)
    if base.get("filling", {}).get("dry_run"):
        raise GridError(f"a grid has no price: `penumbra ablation {name} {dataset} --dry-run` lists its rows")
    providers = set(base.get("filling", {}).get("providers", ()))
    return grid, [_plan(grid, row, dataset, preset, base) for row in chosen_rows(grid, labels, providers)]


def chosen_rows(grid: Grid, labels: Sequence[str], providers: set[str]) -> list[Row]:
    """The rows named, or those that run unasked: where providers are said, the rows that change to others don't."""
    unknown = set(labels) - {row.label for row in grid.rows}
    if unknown:
        there = ", ".join(repr(row.label) for row in grid.rows)
        raise GridError(f"{grid.name} has no row {', '.join(map(repr, sorted(unknown)))}; there is: {there}")
    if labels:
        return [row for row in grid.rows if row.label in labels]
    if not providers:
        return [row for row in grid.rows if not row.on_request]
    return [row for row in grid.rows if row.providers <= providers and (row.providers or not row.on_request)]


def _plan(grid: Grid, row: Row, dataset: str, preset: str | None, base: dict[str, Any]) -> RowPlan:
    changes = merge(grid.all, row.changes)
    named, hard = str(changes.pop(PRESET, "")).format(dataset=dataset), changes.pop(HARD, None)
    chosen = named if named in presets() else preset
    unknown = changes.keys() - set(GROUPS)
    if unknown:
        raise GridError(f"{grid.name}, row {row.label!r}: no parameters {', '.join(sorted(unknown))}")
    groups: dict[str, Parameters] = {}
    features = preset_named(chosen).get("features", {})
    for name, group in (NEGATIVES | FEATURES).items():
        with _naming(grid, row, name):
            groups[name] = group.model_validate(
                reduce(merge, (features.get(name, {}), base.get(name, {}), changes.get(name, {})))
            )
    with _naming(grid, row):
        layers = [{name: layer[name] for name in TRAINING if name in layer} for layer in (base, changes)]
        settings = layered(chosen, *layers)
        if hard is not None:
            settings = layered(chosen, *layers, {"model": settings.model.on_hard_negatives(hard)})
    return RowPlan(row, chosen, groups | {name: getattr(settings, name) for name in TRAINING}, settings)


@contextmanager
def _naming(grid: Grid, row: Row, *group: str) -> Iterator[None]:
    """Name the row whose parameters do not fit, and the parameter."""
    try:
        yield
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, (*group, *fault["loc"])))
        raise GridError(f"{grid.name}, row {row.label!r}: {place}: {fault['msg']}") from None


def listing(plans: Sequence[RowPlan]) -> Iterator[tuple[str, str, str, str]]:
    """For each row its label, what it changes, the model, and whose negatives it trains on."""
    owners: dict[str, str] = {}
    for row in plans:
        changes = dict(row.row.changes)
        if changes.pop(PRESET, None) and row.preset:
            changes = {PRESET: row.preset, **changes}
        told = yaml.safe_dump(changes, default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False)
        key = "\n".join(group.model_dump_json() for group in row.of(NEGATIVES).values())
        negatives = ["of the same video"] if row.settings.model.reads_in_video else []
        if row.settings.model.reads_negatives:
            owner = owners.setdefault(key, row.row.label)
            negatives.append("its own" if owner == row.row.label else f"those of {owner!r}")
        yield row.row.label, told.strip() if changes else "", row.settings.model.name, " and ".join(negatives) or "none"


SPLITS = {"test": "Test-Trivial", "composition": "Novel-Composition", "word": "Novel-Word"}  # as the papers call them
METRICS = ("R1@0.5", "R1@0.7", "mIoU")
WHOLE = ""  # the split of figures about a whole run
PARAMETERS, TRAINING_SECONDS, MILLISECONDS = "parameters", "training seconds", "milliseconds a query"
COSTS = {
    PARAMETERS: ("parameters, M", 1e-6, 2),
    TRAINING_SECONDS: ("training, s", 1.0, 1),
    MILLISECONDS: ("inference, ms a query", 1.0, 2),
}
BETTER, WORSE = "↑", "↓"
Rows = list[dict[str, Any]]
Scores = dict[tuple[str, str], "Scored"]  # by split and metric


@dataclass(frozen=True)
class Scored:
    """Queries, each one's video, and their scores [N]."""

    qids: tuple[str, ...]
    videos: tuple[str, ...]
    values: Floats


@dataclass(frozen=True)
class SeededRun:
    """A row trained with one seed."""

    row: str
    seed: int
    metrics: Artifact
    predictions: Artifact
    evaluation: Artifact


def figures_of(run: SeededRun) -> Rows:
    """The rows of the `ablation` table: the run's figures over whole splits, and what it costs."""
    store = Store()
    rows: Rows = store.table(run.evaluation).to_pylist()
    found = [row for row in rows if row["subset"] == ALL or row["split"] == "train"]
    name = found[0]["run"] if found else run.metrics.key
    found += [{"run": name, "split": WHOLE, "metric": metric, "value": value} for metric, value in costs_of(run)]
    return [
        {"row": run.row, "seed": run.seed, **{key: row[key] for key in ("run", "split", "metric", "value")}}
        for row in found
    ]


def constant_of(run: SeededRun) -> Rows:
    """The best constant window's figures over whole splits, as a row of the table of its own."""
    rows: Rows = Store().table(run.evaluation).to_pylist()
    return [
        {"row": CONSTANT, "seed": run.seed, "run": CONSTANT, **{key: row[key] for key in ("split", "metric", "value")}}
        for row in rows
        if row["subset"] == CONSTANT
    ]


def costs_of(run: SeededRun) -> Iterator[tuple[str, float]]:
    """Parameters, seconds of all epochs, and milliseconds to predict a query with its features loaded."""
    store = Store()
    model, _ = load_run(run.metrics)
    yield PARAMETERS, float(sum(parameter.numel() for parameter in model.parameters()))
    yield TRAINING_SECONDS, store.manifest(run.metrics).measured[TRAINED]
    measured = store.manifest(run.predictions).measured
    if measured.get(QUERIES):
        yield MILLISECONDS, 1000 * measured[SECONDS] / measured[QUERIES]


def scores_of(runs: Sequence[SeededRun]) -> Scores:
    """Each query's scores, their mean over the seeds of a row."""
    found: defaultdict[tuple[str, str], list[Scored]] = defaultdict(list)
    for each in runs:
        for split, scored in scores_by_split(each.predictions).items():
            for metric, values in scored.scores.items():
                found[split, metric].append(Scored(scored.qids, scored.videos, values))
    return {
        place: replace(several[0], values=np.mean([scored.values for scored in several], axis=0))
        for place, several in found.items()
        if len({scored.qids for scored in several}) == 1
    }


def marks_of(first: Scores, other: Scores) -> dict[tuple[str, str], str]:
    """Where the paired bootstrap's 95 % interval of other minus first leaves out zero: which of the two is better."""
    found: dict[tuple[str, str], str] = {}
    for (split, metric), after in other.items():
        before = first.get((split, metric))
        if metric not in METRICS or before is None or before.qids != after.qids:
            continue
        difference = paired_bootstrap(before.values, after.values, after.videos)
        if difference.low > 0 or difference.high < 0:
            found[split, metric] = BETTER if difference.low > 0 else WORSE
    return found


@dataclass
class Results:
    """What is known of a grid's rows so far; rows are added in the table's order."""

    grid: Grid
    seeds: int
    runs: list[SeededRun] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    figures: Rows = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    marks: dict[str, dict[tuple[str, str], str]] = field(default_factory=dict)
    _first: Scores = field(default_factory=dict)

    def add(self, label: str, runs: Sequence[SeededRun]) -> None:
        """Take in a row's runs: fewer than there are seeds where some failed."""
        first, self.labels = not self.labels, [*self.labels, label]
        if runs and not self.runs:  # it is the same for all of them
            self.figures += constant_of(runs[0])
        self.runs += runs
        self.figures += [row for run in runs for row in figures_of(run)]
        scores = scores_of(runs)
        if first:
            self._first = scores
        else:
            marks = marks_of(self._first, scores)
            self.marks[label] = {place: mark for place, mark in marks.items() if self._seeds_tell(label, *place)}

    def _seeds_tell(self, label: str, split: str, metric: str) -> bool:
        """Whether seeds, too, tell a row from the first; a single seed tells nothing against it."""
        first, other = (self._values(name, split, metric) for name in (self.labels[0], label))
        return min(len(first), len(other)) < 2 or seeds_differ(first, other)

    @property
    def outcome(self) -> str:
        """How it ended, in a line: rows, trainings, and which row is best by the first metric on the first split."""
        split = next(iter(self._splits()), WHOLE)
        means = {label: np.mean(values) for label in self.labels if (values := self._values(label, split, METRICS[0]))}
        best = max(means, key=lambda label: means[label], default="")
        figure = f"; highest {METRICS[0]} on {split}: {best}, {means[best]:.2f}" if best else ""
        return f"{self.grid.title}: {len(self.labels)} rows, {len(self.runs)} trainings{figure}"

    def _values(self, label: str, split: str, metric: str) -> list[float]:
        wanted = (label, split, metric)
        return [row["value"] for row in self.figures if (row["row"], row["split"], row["metric"]) == wanted]

    def table(self) -> str:
        """Rows by splits and metrics: mean over seeds, half of its 95 % interval, and what differs from the first."""
        header = ["", *self.grid.columns]
        for split in self._splits():
            header += [f"{SPLITS.get(split, split)} {METRICS[0]}", *METRICS[1:]]
        header += [title for title, _, _ in COSTS.values()] if self.grid.costs else []
        cells = {row.label: row.cells for row in self.grid.rows}
        labels = [CONSTANT, *self.labels] if any(row["row"] == CONSTANT for row in self.figures) else self.labels
        lines = [[label, *(cells.get(label) or [""] * len(self.grid.columns)), *self._line(label)] for label in labels]
        return "\n\n".join([markdown_table(header, lines, cell=str), *self._remarks()])

    def _splits(self) -> list[str]:
        found = dict.fromkeys(row["split"] for row in self.figures if row["metric"] == METRICS[0])
        return [split for split in SPLITS if split in found] + [split for split in found if split not in SPLITS]

    def _line(self, label: str) -> Iterator[str]:
        values: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for row in self.figures:
            if row["row"] == label:
                values[row["split"], row["metric"]].append(row["value"])
        for split in self._splits():
            for metric in METRICS:
                mark = self.marks.get(label, {}).get((split, metric), "")
                yield f"{_summed_up(values[split, metric])} {mark}".strip()
        if self.grid.costs:
            for metric, (_, scale, digits) in COSTS.items():
                several = values[WHOLE, metric]
                yield f"{scale * sum(several) / len(several):,.{digits}f}" if several else "–"

    def _remarks(self) -> list[str]:
        found = remark_on(Store().manifest(self.runs[0].metrics).parents) if self.runs else []
        if self.seeds > 1:
            found.append(f"Mean over {self.seeds} seeds ± half of its 95 % interval (Student's t).")
        if len(self.labels) > 1:
            found.append(
                f"{BETTER} {WORSE}: better, worse than {self.labels[0]!r}: a paired bootstrap's 95 % interval over the "
                "videos, scores being means over seeds, leaves out zero, and so does Welch's over the seeds."
            )
        return found + [f"**Failed**: {plain(label)}: {plain(reason)}" for label, reason in self.failures.items()]


def _summed_up(values: Sequence[float]) -> str:
    if not values:
        return "–"
    found = over_seeds(values)
    return f"{found.mean:.2f} ± {found.half_width:.2f}" if found.seeds > 1 else f"{found.mean:.2f}"


STAGE = "ablation"
TABLE = "_table.md"


class RowsFailedError(PenumbraError):
    """Some rows have no result, or not with every seed; the others are in `artifact`."""

    artifact: Artifact


@dataclass(frozen=True)
class Ablation(Stage):
    """The figures of every run of a grid, and of the constant window; what failed is rejected with its reason."""

    name = STAGE
    version = 2
    unit = "run"
    pieces = (0,)

    of: str
    results: Results

    @property
    def dataset(self) -> str:
        """The data set, also where every run failed."""
        return self.of

    @property
    def parents(self) -> tuple[Artifact, ...]:
        """The evaluations."""
        return tuple(run.evaluation for run in self.results.runs)

    def parameters(self) -> dict[str, Any]:
        """The grid, which row and seed each evaluation is of, and what failed."""
        return {
            "grid": self.results.grid.name,
            "rows": [[run.row, run.seed] for run in self.results.runs],
            "failed": self.results.failures,
        }

    def determines(self) -> dict[str, Any]:
        """All of them."""
        return self.parameters()

    def part(self, piece: int) -> Part:
        """All figures are one part."""
        results = self.results
        rejected = [rejection(label, STAGE, reason, results.grid.name) for label, reason in results.failures.items()]
        kept = len(results.runs)
        return Part(table_of(STAGE, results.figures), kept + len(rejected), kept, rejected)


def tabulate(dataset: str, results: Results) -> Artifact:
    """Keep the figures and the table, and show the table."""
    artifact = run(Ablation(dataset, results))
    page = f"# {dataset}: {results.grid.title}\n\n{results.table()}\n"
    Store().write_file(artifact, TABLE, page.encode())
    publish_report(dataset, f"{STAGE}-{results.grid.name}", page)
    return artifact


def table_text(artifact: Artifact) -> str:
    """The table of an `ablation` artifact, as markdown."""
    return (Store().read_file(artifact, TABLE) or b"").decode()
