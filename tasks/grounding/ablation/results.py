"""What the runs of a grid gave, and the table that shows it in the papers' form."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from penumbra.artifacts.document import markdown_table, plain
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.tasks.features.simulated import remark_on
from penumbra.tasks.grounding.ablation.grids import Grid
from penumbra.tasks.grounding.evaluation.baselines import CONSTANT
from penumbra.tasks.grounding.evaluation.compare import scores_by_split
from penumbra.tasks.grounding.evaluation.predictions import QUERIES, SECONDS
from penumbra.tasks.grounding.evaluation.runs import ALL
from penumbra.tasks.grounding.metrics.comparison import over_seeds, paired_bootstrap, seeds_differ
from penumbra.tasks.grounding.metrics.windows import Floats
from penumbra.tasks.grounding.training.run import SECONDS as TRAINED
from penumbra.tasks.grounding.training.run import load_run

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
    for run in runs:
        for split, scored in scores_by_split(run.predictions).items():
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
