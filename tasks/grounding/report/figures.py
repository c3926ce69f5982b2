"""SHINE's Figures 6 and 7: saliency along time under a query and its negatives, and predicted beside true windows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penumbra.artifacts.charts import COLOURS, Bar, Drawing, Line, Panel, Spans, bars, panels, spans
from penumbra.tasks.grounding.families.base import SALIENCY_SPAN
from penumbra.tasks.grounding.metrics.ordering import NAMES
from penumbra.tasks.grounding.report.examples import Example

SHOWN = 3  # windows of the run
BESIDE = COLOURS[3]
Row = Mapping[str, Any]


def saliency_figure(
    title: str, example: Example, runs: Sequence[tuple[str, Mapping[str, np.ndarray], float]]
) -> Drawing:
    """Figure 6 of a query: a panel for each run (its name, saliency [clips] by text, seconds of a clip).

    The true windows are shaded.
    """
    row = example.row
    several = [
        Panel(
            name,
            [_line(text, example, saliency, clip_length) for text in NAMES if text in saliency],
            0,
            row["duration"],
            "s",
            row["windows"],
            least=SALIENCY_SPAN,
        )
        for name, saliency, clip_length in runs
        if saliency
    ]
    return panels(title, several, columns=len(several), height=230, legend=True)


def _line(name: str, example: Example, saliency: Mapping[str, np.ndarray], clip_length: float) -> Line:
    points = [((clip + 0.5) * clip_length, float(value)) for clip, value in enumerate(saliency[name])]
    return Line(f"{name}: {example.texts[name]}", points, NAMES.index(name))


def windows_figure(title: str, truth: Row, runs: Sequence[tuple[str, Row]]) -> Drawing:
    """Figure 7 of a query: the true windows, the best of the run, and the first of those beside it (name, row)."""
    rows = [Spans("true", truth["windows"])]
    for number, (name, found) in enumerate(runs):
        shown = found["windows"][: 1 if number else SHOWN]
        for place, window in enumerate(shown, 1):
            label = f"{name if len(runs) > 1 else 'predicted'}{f', {place}' if len(shown) > 1 else ''}"
            span = [(window["start"], window["end"])]
            rows.append(Spans(label, span, f"{window['score']:.2f}", BESIDE if number else COLOURS[0]))
    return spans(title, rows, truth["duration"])


def ordering_chart(rows: Sequence[Row], run: str) -> Drawing | None:
    """How often saliency inside the moment (MMN: its score) is in SHINE's order, from rows of `evaluation`."""
    found = [
        Bar(row["metric"].removeprefix("ordering ").replace("ordering", "all of it"), row["value"] / 100)
        for row in rows
        if row["metric"].startswith("ordering")
    ]
    title = f"{run}: share of queries under which the moment is rated in this order"
    return bars(title, found, 1.0, (0, 0.25, 0.5, 0.75, 1)) if found else None
