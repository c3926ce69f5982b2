"""Curves of a training, from the rows of its `metrics` table: losses, and the figures of the validation queries."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penumbra.artifacts.charts import Drawing, Line, Panel, panels
from penumbra.artifacts.document import Section

TRAIN, VALIDATION, CHOSEN_BY = "train", "validation", "chosen_by"
FIRST, LAST, UNPLOTTED = ("total",), ("gradient_norm", "learning_rate"), ("seconds",)
SHOWN = ("R1@0.3", "R1@0.5", "R1@0.7", "mIoU", "mAP")
HEADLINE = ("R1@0.5", "R1@0.7", "mIoU")
TITLES = {  # what a term is, for who has not read the code; a decoder layer's number follows some
    "total": "all losses, weighted",
    "gradient_norm": "gradient norm",
    "learning_rate": "learning rate",
    "span": "windows: L1 distance",
    "giou": "windows: 1 − gIoU",
    "label": "moment or background",
    "class_error": "matched as background, %",
    "align": "moment queries with words",
    "saliency": "saliency, all terms",
    "pair_hinge": "saliency: inside, outside",
    "rank_contrastive": "saliency: rank contrast",
    "negative_pair": "saliency: other video's text",
    "probability": "clips' probability",
    "semantic": "video with text",
    "iou": "moments: overlap",
    "among_sentences": "moment among sentences",
    "among_moments": "sentence among moments",
    "hard_order": "SHINE: order of negatives",
    "hard_overlap": "hard negatives: overlap",
    "coarse_intra": "SHINE coarse: in the video",
    "coarse_inter": "SHINE coarse: between texts",
    "fine_1": "SHINE fine: truth, query",
    "fine_2": "SHINE fine: query, level 1",
    "fine_3": "SHINE fine: levels 1, 2",
    "fine_4": "SHINE fine: levels 2, 3",
    "fine_5": "SHINE fine: level 3, random",
    "visual_context": "VDI: visual context",
    "spatial_dynamics": "VDI: spatial dynamics",
}
LAYER = re.compile(r"(.+)_(\d+)$")
LONGEST_OF_THREE = 28  # characters of a title that has room above a third of the width
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


def figures_in_words(figures: Mapping[str, float]) -> str:
    """The figures that a line has room for: recall and mIoU, or mAP where these are not there."""
    names = [name for name in HEADLINE if name in figures] or [name for name in SHOWN if name in figures]
    return ", ".join(f"{name} {figures[name]:.2f}" for name in names)


def headline(curves: Curves) -> str:
    """The validation figures of the epoch that was kept; empty where nothing was validated."""
    best = best_epoch(curves)
    found = {
        name: dict(points)[best]
        for (split, name), points in curves.items()
        if split == VALIDATION and best in dict(points)
    }
    told = figures_in_words(found)
    return f"{told} on the validation queries, epoch {best}" if told else ""


def title_of(term: str) -> str:
    """What a loss is called where people look; its own name where it has no other."""
    layer = LAYER.match(term)
    if term in TITLES or not layer:
        return TITLES.get(term, term)
    name, number = layer.groups()
    return f"{TITLES.get(name, name)}, layer {int(number) + 1}"


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
    several = [_panel(title_of(name), [_line(name, curves[TRAIN, name])], curves) for name in ordered]
    columns = 3 if all(len(panel.title) <= LONGEST_OF_THREE for panel in several) else 2
    return panels("Losses by epoch, mean over its steps, each before its weight", several, columns, height=140)


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
