"""Ablations: the grids of trainings in `ablation_grids.yaml`, their results, and tables like those of the papers."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import Field, ValidationError

from penumbra.artifacts.catalogue import path_of
from penumbra.artifacts.errors import PenumbraError, what_there_is
from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.markdown import markdown_table, plain
from penumbra.artifacts.prefect_ui import publish_report
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.features.extraction import FeaturesParameters
from penumbra.tasks.features.simulated import remark_on
from penumbra.tasks.grounding.evaluation.predictions import QUERIES, SECONDS
from penumbra.tasks.grounding.evaluation.rejection import OF_KINDS, label
from penumbra.tasks.grounding.report import EvaluatedRun
from penumbra.tasks.grounding.runs import ALL, CONSTANT
from penumbra.tasks.grounding.training.presets import DEFAULT, Settings, explicitly_set, layered, preset_named, presets
from penumbra.tasks.grounding.training.stage import SECONDS as TRAINED
from penumbra.tasks.grounding.training.stage import load_run
from penumbra.tasks.negatives.parameters import NegativesParameters
from penumbra.tasks.parameter_group import Parameters, merge
from penumbra.tasks.stage import Stage, is_planned, run

FILE = Path(__file__).with_name("ablation_grids.yaml")
QUALITY = "judging"  # no row of a grid changes it, and no grid measures quality
NEGATIVES = NegativesParameters.model_fields.keys() - {QUALITY}
FEATURES = FeaturesParameters.model_fields.keys()
TRAINING = tuple(Settings.model_fields)
GROUPS = {*NEGATIVES, *FEATURES, *TRAINING}
STAGE, TABLE = "ablation", "_table.md"
METRICS = ("R1@0.5", "R1@0.7", "mIoU")  # default metrics of a grid
Rows = list[dict[str, Any]]


# -- grids -------------------------------------------------------------------------------------------------------------


class Row(Parameters):
    """A row of a grid: its label, its entries under the grid's own columns, and the parameters that it changes."""

    label: str
    cells: tuple[str | int | float, ...] = ()  # `{filling.openai.model}` stands for that parameter's value
    changes: dict[str, Any] = Field(default_factory=dict)
    on_request: bool = False

    @property
    def providers(self) -> set[str]:
        """The providers or sources of negatives that the row selects."""
        filling, sourcing = (self.changes.get(group, {}) for group in ("filling", "sourcing"))
        return {*filling.get("providers", ()), *filter(None, [sourcing.get("source")])}

    def is_usual(self, providers: set[str]) -> bool:
        """Return whether the row runs if no row is named; `providers` are those that the user selected, if any."""
        return self.providers <= providers if self.providers and providers else not self.on_request


class Grid(Parameters):
    """A table: its rows, the columns that describe a row, its metrics, and whether it shows the costs of a run."""

    name: str
    title: str
    columns: tuple[str, ...] = ()
    all: dict[str, Any] = Field(default_factory=dict)
    rows: tuple[Row, ...]
    costs: bool = False
    metrics: tuple[str, ...] = METRICS  # of whole splits, or of each kind of false sentences
    judged_by: tuple[str, ...] = ()  # providers whose negatives of the other splits are false sentences


@cache
def grids() -> dict[str, Grid]:
    loaded = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {name: Grid.model_validate({"name": name, **grid}) for name, grid in loaded.items()}


@dataclass(frozen=True)
class RowPlan:
    """A row with its preset, the parameters of its negatives and features, and the settings of its training."""

    row: Row
    preset: str | None
    negatives: NegativesParameters
    features: FeaturesParameters
    settings: Settings


def plan(
    name: str, labels: Sequence[str], dataset: str, preset: str | None, groups: Mapping[str, Parameters | None]
) -> tuple[Grid, list[RowPlan]]:
    """Return the grid with its selected rows, and the parameters of each row; `groups` are the base of all rows.

    Without labels, `Row.is_usual` selects the rows. Raise `PenumbraError` for an unknown grid or row, and for a row
    without a preset or with invalid parameters.
    """
    if name not in grids():
        raise PenumbraError(f"no grid {name!r}; {what_there_is(name, list(grids()))}")
    grid, base = grids()[name], explicitly_set(groups)
    if base.get("filling", {}).get("dry_run"):
        raise PenumbraError(
            f"ablations don't take filling.dry_run: `penumbra ablation {name} {dataset} --dry-run` lists the rows"
        )
    if unknown := set(labels) - {row.label for row in grid.rows}:
        known = ", ".join(repr(row.label) for row in grid.rows)
        raise PenumbraError(f"{name} has no row {', '.join(map(repr, sorted(unknown)))}; there is: {known}")
    providers = set(base.get("filling", {}).get("providers", ()))
    rows = (row for row in grid.rows if (row.label in labels if labels else row.is_usual(providers)))
    plans = [_plan(grid, row, dataset, preset, base) for row in rows]
    return grid.model_copy(update={"rows": tuple(it.row for it in plans)}), plans


def _plan(grid: Grid, row: Row, dataset: str, preset: str | None, base: dict[str, Any]) -> RowPlan:
    changes, place = merge(grid.all, row.changes), f"{grid.name}, row {row.label!r}"
    hard = changes.pop("hard_negatives", None)
    if "preset" in changes:
        preset = preset_of_row(place, changes.pop("preset"), changes["model"]["name"], dataset, preset)
    if unknown := changes.keys() - GROUPS:
        raise PenumbraError(f"{place}: no parameters {', '.join(sorted(unknown))}")
    built = reduce(merge, [preset_named(preset).get("features", {}), base, changes])
    try:
        features = FeaturesParameters.model_validate({name: built.get(name, {}) for name in FEATURES})
        chosen = {name: built.get(name, {}) for name in NEGATIVES}
        negatives = NegativesParameters.model_validate(chosen | {QUALITY: {"judge": False}})
        trained = [{name: layer[name] for name in TRAINING if name in layer} for layer in (base, changes)]
        settings = layered(preset, *trained)
        if hard is not None:
            settings = layered(preset, *trained, {"model": settings.model.on_hard_negatives(hard)})
    except ValidationError as error:
        fault = error.errors()[0]
        raise PenumbraError(f"{place}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
    cells = tuple(str(cell).format(filling=negatives.filling) for cell in row.cells)
    return RowPlan(row.model_copy(update={"cells": cells}), preset, negatives, features, settings)


def preset_of_row(place: str, pattern: str, model: str, dataset: str, preset: str | None) -> str:
    """Return the preset of a row, or else a preset of the same model and data set with other losses.

    The data set is that of `preset`, or `dataset` without a preset. Raise `PenumbraError` if none is found: rows with
    another model's settings would not be comparable.
    """
    if preset is not None:
        dataset = preset.partition(f"-{preset_named(preset).get('model', {}).get('name', DEFAULT)}")[0]
    own = pattern.format(dataset=dataset)
    base = own.removesuffix("-shine")
    for candidate in (own, base, f"{base}-shine", dataset):
        if presets().get(candidate, {}).get("model", {}).get("name") == model:
            return candidate
    raise PenumbraError(
        f"{place}: no preset {own!r}, and rows with another model's settings are not comparable: choose rows with "
        "--row, or use the presets of another data set, such as --param preset=charades-cg-qd_detr"
    )


def listing(plans: Sequence[RowPlan]) -> Iterator[tuple[str, str, str]]:
    """Yield the label of each row, what it changes, and the model."""
    for row in plans:
        changes = row.row.changes | ({"preset": row.preset} if "preset" in row.row.changes else {})
        shown = yaml.safe_dump(changes, default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False)
        yield row.row.label, shown.strip() if changes else "", row.settings.model.name


# -- results -----------------------------------------------------------------------------------------------------------

SPLITS = {"test": "Test-Trivial", "composition": "Novel-Composition", "word": "Novel-Word"}  # as the papers call them
WHOLE = ""  # the split of figures about a whole run
COSTS = {  # title, factor, digits
    "parameters": ("parameters, M", 1e-6, 2),
    "training seconds": ("training, s", 1.0, 1),
    "milliseconds a query": ("inference, ms a query", 1.0, 2),
}


def figures_of(name: str, seed: int, run: EvaluatedRun, with_constant: bool) -> Rows:
    """Return rows of the table `ablation`: metrics of the constant window and of whole splits, and costs."""
    store, constant, figures = Store(), Rows(), Rows()
    rows = store.table(run.evaluation).to_pylist()
    about = {"row": name, "seed": seed, "run": rows[0]["run"] if rows else run.metrics.key}
    for row in rows:
        figure = about | {key: row[key] for key in ("split", "metric", "value")}
        if row["metric"] in OF_KINDS:
            figures.append(figure | {"metric": label(row["subset"], row["metric"])})
        elif row["subset"] == ALL or row["split"] == "train":
            figures.append(figure)
        elif row["subset"] == CONSTANT and with_constant:
            constant.append(figure | {"row": CONSTANT, "run": CONSTANT})
    trained, measured = (store.manifest(it).measured for it in (run.metrics, run.predictions))
    weights = float(sum(parameter.numel() for parameter in load_run(run.metrics)[0].parameters()))
    costs = {"parameters": weights, "training seconds": trained[TRAINED]}
    if measured.get(QUERIES):
        costs["milliseconds a query"] = 1000 * measured[SECONDS] / measured[QUERIES]
    whole = [about | {"split": WHOLE, "metric": cost, "value": value} for cost, value in costs.items()]
    return constant + figures + whole


def in_words(metric: str, values: Sequence[float]) -> str:
    """Return the mean over seeds and, with several seeds, half of its 95 % interval (Student's t)."""
    if not values:
        return "–"
    mean, count = float(np.mean(values)), len(values)
    if metric in COSTS:
        _, scale, digits = COSTS[metric]
        return f"{scale * mean:,.{digits}f}"
    if count == 1:
        return f"{mean:.2f}"
    from scipy.stats import t

    half = float(t.ppf(0.975, count - 1) * np.std(values, ddof=1) / count**0.5)
    return f"{mean:.2f} ± {half:.2f}"


@dataclass
class Results:
    """The results of a grid's rows so far, in the table's order; `runs` are by row and seed."""

    grid: Grid
    seeds: int
    runs: dict[tuple[str, int], EvaluatedRun] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    figures: Rows = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    def add(self, label: str, runs: Mapping[int, EvaluatedRun]) -> None:
        """Add the runs of a row by seed, without those that failed; a planned run has no figures yet."""
        self.labels.append(label)
        for seed, one in runs.items():
            if not is_planned():  # the constant window is the same for all rows
                self.figures += figures_of(label, seed, one, with_constant=not self.runs)
            self.runs[label, seed] = one

    def table(self) -> str:
        """Return the table in Markdown: means over seeds ± half of their 95 % intervals."""
        values = defaultdict[tuple[str, str, str], list[float]](list)
        for row in self.figures:
            values[row["row"], row["split"], row["metric"]].append(row["value"])
        known = dict.fromkeys(metric for _, _, metric in values)
        judged = dict.fromkeys(split for _, split, metric in values if metric == self.grid.metrics[0])
        splits = sorted(judged, key=lambda split: [*SPLITS, split].index(split))
        metrics, costs = list[str](), COSTS if self.grid.costs else {}
        for metric in self.grid.metrics:  # of whole splits, or else of each kind of false sentences
            metrics += [it for it in known if it.startswith(f"{metric}, ")] or [metric]
        cells = {row.label: row.cells for row in self.grid.rows}
        constant = [CONSTANT] if any(name == CONSTANT for name, _, _ in values) else []
        tables = []
        for group in ([it] for it in splits) if self.grid.judged_by else [splits]:  # many metrics: a table per split
            titles = [title for split in group for title in (f"{SPLITS.get(split, split)} {metrics[0]}", *metrics[1:])]
            places = [(split, metric) for split in group for metric in metrics] + [(WHOLE, cost) for cost in costs]
            lines = []
            for name in dict.fromkeys([*constant, *self.labels, *self.failures]):
                about = cells.get(name) or [""] * len(self.grid.columns)
                figures = (in_words(metric, values.get((name, split, metric), ())) for split, metric in places)
                lines.append([plain(name), *about, *figures])
            header = ["", *self.grid.columns, *titles, *(title for title, _, _ in costs.values())]
            tables.append(markdown_table(header, lines, cell=str))
        first = next(iter(self.runs.values()), None)
        remarks = remark_on(Store().manifest(first.metrics).parents) if first else []
        if self.seeds > 1:
            remarks.append(f"Mean over {self.seeds} seeds ± half of its 95 % interval (Student's t).")
        remarks += [f"**Failed**: {plain(label)}: {plain(reason)}" for label, reason in self.failures.items()]
        return "\n\n".join([*tables, *remarks])


# -- stage `ablation` --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ablation(Stage):
    """The figures of each run of a grid and of the constant window; failed rows are rejected with their reasons."""

    name = STAGE
    version = 2
    unit = "run"
    pieces = (0,)
    may_be_empty = True  # the flow says which rows failed

    dataset_name: str
    results: Results

    @property
    def dataset(self) -> str:
        """The data set, which is also known if every run failed."""
        return self.dataset_name

    @property
    def parents(self) -> tuple[Artifact, ...]:
        return tuple(one.evaluation for one in self.results.runs.values())

    def parameters(self) -> dict[str, Any]:
        rows = [list(place) for place in self.results.runs]  # label and seed
        return {"grid": self.results.grid.name, "rows": rows, "failed": self.results.failures}

    key_parameters = parameters

    def part(self, piece: int) -> Part:
        results, kept = self.results, len(self.results.runs)
        rejected = [rejection(label, STAGE, reason, results.grid.name) for label, reason in results.failures.items()]
        return Part(table_of(STAGE, results.figures), kept + len(rejected), kept, rejected)


def tabulate(dataset: str, results: Results) -> Artifact:
    """Store the figures and the table, and publish the table; in a plan, only add the stage."""
    artifact = run(Ablation(dataset, results))
    if not is_planned():
        page = f"# {dataset}: {results.grid.title}\n\n{results.table()}\n"
        Store().files.write(path_of(artifact, TABLE), page.encode())
        publish_report(dataset, f"{STAGE}-{results.grid.name}", page)
    return artifact


def table_text(artifact: Artifact) -> str:
    """Return the table of an `ablation` artifact, as markdown."""
    files, path = Store().files, path_of(artifact, TABLE)
    return files.read(path).decode() if files.exists(path) else ""
