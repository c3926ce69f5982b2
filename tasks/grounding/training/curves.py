"""Curves of a training, from the rows of its `metrics` table: losses, and the figures of the validation queries."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penumbra.artifacts.charts import Line, Panel, panels
from penumbra.artifacts.document import Section
from penumbra.artifacts.drawing import Drawing

TRAIN, VALIDATION, CHOSEN_BY = "train", "validation", "chosen_by"
FIRST, LAST, UNPLOTTED = ("total",), ("gradient_norm", "learning_rate"), ("seconds",)
SHOWN = ("R1@0.3", "R1@0.5", "R1@0.7", "mIoU", "mAP")
MOST_POINTS = 200  # of a line: more can't be seen
Curves = dict[tuple[str, str], list[tuple[float, float]]]


def curves_of(rows: Iterable[Mapping[str, Any]]) -> Curves:
    """The points (epoch, value) of each figure by split and name."""
    found: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        found[row["split"], row["name"]].append((row["epoch"], row["value"]))
    return dict(found)


def best_epoch(curves: Curves) -> int | None:
    """The epoch that was kept: the first of the highest figure that epochs are chosen by."""
    points = curves.get((VALIDATION, CHOSEN_BY))
    return int(max(points, key=lambda point: point[1])[0]) if points else None


def _line(label: str, points: Sequence[tuple[float, float]], style: int = 0) -> Line:
    every = -(-len(points) // MOST_POINTS)
    return Line(label, [*points[:-1:every], *points[-1:]], style)


def loss_chart(curves: Curves) -> Drawing | None:
    """The total and each term, a panel each: their sizes differ too much for one."""
    names = {name for split, name in curves if split == TRAIN} - {*UNPLOTTED}
    terms = sorted(names - {*FIRST, *LAST})
    ordered = [name for name in (*FIRST, *terms, *LAST) if name in names]
    if not ordered:
        return None
    several = [_panel(name, [_line(name, curves[TRAIN, name])], curves) for name in ordered]
    return panels("Losses by epoch, mean over its steps", several, columns=3, height=140)


def validation_chart(curves: Curves) -> Drawing | None:
    """Recall, mIoU and mAP in percent by epoch, and what the best epoch, which is marked, is chosen by."""
    shown = [(name, curves[VALIDATION, name]) for name in SHOWN if (VALIDATION, name) in curves]
    if not shown:
        return None
    lines = [_line(name, points, style) for style, (name, points) in enumerate(shown)]
    several = [_panel("%, validation queries", lines, curves)]
    chosen = [_line("what the best epoch is chosen by", curves[VALIDATION, CHOSEN_BY], len(lines))]
    several.append(_panel(chosen[0].label, chosen, curves))
    return panels("Validation by epoch, the best one marked", several, columns=2, height=230, legend=True)


def _panel(title: str, lines: Sequence[Line], curves: Curves) -> Panel:
    epochs = [epoch for line in lines for epoch, _ in line.points]
    best = best_epoch(curves)
    return Panel(title, lines, min(epochs), max(epochs), "epoch", marked=[] if best is None else [best])


def curves_section(rows: Iterable[Mapping[str, Any]]) -> Section:
    """Both charts."""
    curves = curves_of(rows)
    drawings = [chart for chart in (validation_chart(curves), loss_chart(curves)) if chart]
    return Section("Training", [] if drawings else ["No epoch was trained."], drawings=drawings)
