"""Charts of a training, from the rows of its `metrics` table: losses, and metrics of the validation queries."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penumbra.artifacts.charts import Drawing, Line, Panel, panels
from penumbra.artifacts.document import Section

TRAIN, VALIDATION, CHOSEN_BY = "train", "validation", "chosen_by"
FIRST, LAST, NOT_DRAWN = ("total",), ("gradient_norm", "learning_rate"), {"seconds"}
METRICS = ("R1@0.3", "R1@0.5", "R1@0.7", "mIoU", "mAP")
HEADLINE = ("R1@0.5", "R1@0.7", "mIoU")
MOST_POINTS = 200  # of a line
Curves = dict[tuple[str, str], list[tuple[float, float]]]


def curves_of(rows: Iterable[Mapping[str, Any]]) -> Curves:
    curves: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        curves[row["split"], row["name"]].append((row["epoch"], row["value"]))
    return dict(curves)


def best_epoch(curves: Curves) -> int | None:
    """Return the best epoch: the first with the highest value of what epochs are chosen by."""
    points = curves.get((VALIDATION, CHOSEN_BY))
    return int(max(points, key=lambda point: point[1])[0]) if points else None


def figures_in_words(metrics: Mapping[str, float]) -> str:
    """Return the metrics that fit in a line: recall and mIoU, or the others that are known."""
    names = [name for name in HEADLINE if name in metrics] or [name for name in METRICS if name in metrics]
    return ", ".join(f"{name} {metrics[name]:.2f}" for name in names)


def headline(curves: Curves) -> str:
    """Return the validation metrics of the best epoch; empty without validation queries."""
    best = best_epoch(curves)
    several = ((name, dict(points)) for (split, name), points in curves.items() if split == VALIDATION)
    metrics = {name: values[best] for name, values in several if best in values}
    return f"{figures_in_words(metrics)} on the validation queries, epoch {best}" if metrics else ""


def curves_section(rows: Iterable[Mapping[str, Any]]) -> Section:
    """Return the section of a report that shows the curves.

    The metrics have a panel, what the best epoch is chosen by another, and so have the total loss and each term, whose
    scales differ too much for one panel.
    """
    curves, drawings = curves_of(rows), list[Drawing]()
    judged = [name for name in METRICS if (VALIDATION, name) in curves]
    if judged:
        lines = [_line(name, curves[VALIDATION, name], style) for style, name in enumerate(judged)]
        chosen = [_line("what the best epoch is chosen by", curves[VALIDATION, CHOSEN_BY], len(lines))]
        several = [_panel("%, validation queries", lines, curves), _panel(chosen[0].label, chosen, curves)]
        title = "Validation by epoch, the best one marked"
        drawings.append(panels(title, several, columns=2, height=230, legend=True))
    names = {name for split, name in curves if split == TRAIN} - NOT_DRAWN
    ordered = [name for name in (*FIRST, *sorted(names - {*FIRST, *LAST}), *LAST) if name in names]
    if ordered:
        several = [_panel(name, [_line(name, curves[TRAIN, name])], curves) for name in ordered]
        drawings.append(panels("Losses by epoch, mean over steps, each before its weight", several, 3, 140))
    return Section("Training", [] if drawings else ["No epoch was trained."], drawings=drawings)


def _line(label: str, points: Sequence[tuple[float, float]], style: int = 0) -> Line:
    every = -(-len(points) // MOST_POINTS)
    return Line(label, [*points[:-1:every], *points[-1:]], style)


def _panel(title: str, lines: Sequence[Line], curves: Curves) -> Panel:
    epochs = [epoch for line in lines for epoch, _ in line.points]
    best = best_epoch(curves)
    return Panel(title, lines, min(epochs), max(epochs), "epoch", marked=[] if best is None else [best])
