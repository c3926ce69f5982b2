"""Grids of trainings as data (`grids.yaml`), and what each of their rows asks of the flows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.features.clip import Clip
from penumbra.tasks.features.extraction import FeaturesParameters
from penumbra.tasks.features.imports import Imports
from penumbra.tasks.features.simulated import Simulation
from penumbra.tasks.features.text import Texts
from penumbra.tasks.features.video import Videos
from penumbra.tasks.grounding.training.settings import Settings, layered, preset_named, presets, told
from penumbra.tasks.negatives.filling import Filling
from penumbra.tasks.negatives.in_video_negatives import Pairing
from penumbra.tasks.negatives.parameters import NegativesParameters
from penumbra.tasks.negatives.quality.judging import Judging
from penumbra.tasks.negatives.selection import Choosing
from penumbra.tasks.negatives.whole.sourcing import Sourcing
from penumbra.tasks.stage import Parameters, merge
from penumbra.tasks.text.embeddings import Encoding
from penumbra.tasks.text.masks import Masking
from penumbra.tasks.text.tags import Tagging

FILE = Path(__file__).with_name("grids.yaml")
NEGATIVES: dict[str, type[Parameters]] = {
    "sourcing": Sourcing,
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
        return NegativesParameters(**self.of(NEGATIVES), judging=Judging(judge=False))

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
    grid, base = grid_of(name), told(said)
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
