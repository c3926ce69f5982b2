"""The report of a run, after training and after evaluation: a page in the Prefect UI, and one HTML file.

The file is `report.html` in the run's folder of checkpoints.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from penumbra.artifacts.charts import COLOURS, Bar, Drawing, Line, Panel, Spans, bars, panels, spans
from penumbra.artifacts.document import Document, Section, Table
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.markdown import plain
from penumbra.artifacts.prefect_ui import publish_report
from penumbra.artifacts.store import Store
from penumbra.tasks.devices import device_of
from penumbra.tasks.features.simulated import remark_on
from penumbra.tasks.grounding.batches.examples import LEVELS, clip_range
from penumbra.tasks.grounding.batches.inputs import Loaded, Sources, load
from penumbra.tasks.grounding.evaluation.compare import compare
from penumbra.tasks.grounding.evaluation.figures import aligned, results
from penumbra.tasks.grounding.evaluation.predictions import truth_end
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.base import SALIENCY_SPAN
from penumbra.tasks.grounding.metrics import NAMES, EvaluationError, score_queries
from penumbra.tasks.grounding.runs import ALL, run_folder
from penumbra.tasks.grounding.training.curves import best_epoch, curves_of, curves_section, figures_in_words, headline
from penumbra.tasks.grounding.training.presets import Settings, flat_settings
from penumbra.tasks.grounding.training.stage import load_run, name_of, split_rows
from penumbra.tasks.stage import logger, side_effect_task

FILE = "report.html"
CANDIDATES = 200  # held-out queries that are considered for SHINE's Figure 6
SHOWN = 3  # windows of the run in Figure 7
PLACES = (("best", 0.0), ("middle", 0.5), ("worst", 1.0))
RESULTS = (
    "Figures are in per cent; a composition type counts the queries that have a novel one of it. A constant window is "
    "the best one of the training split, for all queries alike or by their verb; “another query” is what the run "
    "predicts if it is given a query of another video. A run that grounds lies well above all three."
)
Row = Mapping[str, Any]
Saliency = Mapping[str, np.ndarray]  # [clips] by the name of a text


@dataclass(frozen=True)
class Example:
    """A row of `annotations`, and the texts that its video is predicted with, by name."""

    row: Row
    texts: dict[str, str]


@dataclass(frozen=True)
class Judged:
    """An evaluated run: its metrics, what it read, its predictions, and their figures."""

    metrics: Artifact
    sources: Sources
    predictions: Artifact
    evaluation: Artifact

    @property
    def name(self) -> str:
        """The run's name."""
        return name_of(Store().manifest(self.metrics))

    @property
    def figures(self) -> list[dict[str, Any]]:
        """The rows of the evaluation."""
        return list(Store().table(self.evaluation).to_pylist())

    @cached_property
    def run(self) -> tuple[nn.Module, Settings]:
        """The run's best model and its settings."""
        return load_run(self.metrics)

    @cached_property
    def loaded(self) -> Loaded:
        """All queries of the data set, with the features that the run was trained on."""
        return load(self.sources, self.run[1].inputs)

    def saliency(self, examples: Sequence[Example]) -> list[Saliency]:
        """Return the saliency of each example's video with each of its texts; empty for some models."""
        rows = [
            {**example.row, "qid": f"{number} {name}", "query": text}
            for number, example in enumerate(examples)
            for name, text in example.texts.items()
        ]
        by_text: list[dict[str, np.ndarray]] = [{} for _ in examples]
        prepared, device = self.loaded.prepare(rows, "report"), device_of("auto")
        if len(prepared):
            model, settings = self.run
            system = system_of(settings)
            data = system.data(prepared, self.loaded.videos, self.loaded.texts, device)
            for prediction in system.predict(model.to(device), data):
                number, _, name = prediction.qid.partition(" ")
                if len(prediction.saliency):
                    by_text[int(number)][name] = prediction.saliency
        return list(by_text)


@side_effect_task("report")
def report_training(metrics: Artifact) -> str:
    """Publish a run's curves and settings, and write the file unless an evaluation wrote it; return its outcome."""
    document, file = training_document(metrics), run_folder(metrics) / FILE
    publish_report(metrics.dataset, "train-grounding", document.markdown())
    if not file.is_file():
        _write(document, file)
    logger().info("report: %s", file)
    return f"{document.title}: {document.headline or 'there were no validation queries'}"


@side_effect_task("report")
def report_evaluation(
    judged: Judged, beside: list[Judged], flow: str = "evaluate-grounding", before: Sequence[str | None] = ()
) -> str:
    """Publish everything about an evaluated run, with others beside it and the outcomes of the stages `before` it.

    Return its outcome.
    """
    document, file = evaluation_document(judged, beside), run_folder(judged.metrics) / FILE
    outcomes = "".join(f"- {plain(outcome)}\n" for outcome in before if outcome)
    earlier = f"\n\n## The way here\n\n{outcomes}" if outcomes else ""
    publish_report(judged.metrics.dataset, flow, document.markdown() + earlier)
    _write(document, file)
    logger().info("report: %s", file)
    return f"{document.title}: {document.headline}"


def _write(document: Document, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{FILE}.{os.getpid()}")
    draft.write_text(document.html(), encoding="utf-8")
    os.replace(draft, file)


def training_document(metrics: Artifact) -> Document:
    """Return the report of a trained run."""
    manifest, rows = Store().manifest(metrics), Store().table(metrics).to_pylist()
    best = best_epoch(curves_of(rows))
    kept = "the last one is kept" if best is None else f"the best one is {best}"
    refused = ", ".join(f"{count:,} with {reason!r}" for reason, count in manifest.rejected.items()) or "none"
    lead = [
        f"Trained on {metrics.dataset} in {manifest.seconds:,.0f} s, "
        f"{max((row['epoch'] for row in rows), default=0)} epochs, of which {kept}. "
        f"Queries that were left out: {refused}.",
        *remark_on(manifest.parents),
    ]
    settings = [(name, json.dumps(value)) for name, value in flat_settings(manifest.parameters["settings"])]
    made_from = [(f"{it.dataset}/{it.stage}", it.key) for it in (metrics, *manifest.parents)]
    where = [("metrics", metrics.path), ("checkpoints", str(run_folder(metrics)))]
    origin = [
        Table(("artifact", "key"), made_from, "Made from"),
        Table(("files", "path"), where, "Where they are"),
        Table(("package", "version"), list(manifest.software.items()), "Software"),
    ]
    sections = [
        curves_section(rows),
        Section("Settings", tables=[Table(("setting", "value"), settings)], folded=True),
        Section("Origin", tables=origin, folded=True),
    ]
    return Document(f"{name_of(manifest)} on {metrics.dataset}", " ".join(lead), sections, headline(curves_of(rows)))


def evaluation_document(judged: Judged, beside: Sequence[Judged]) -> Document:
    """Return the report of an evaluated run: results, SHINE's Figures 6 and 7, and the report of its training."""
    runs, trained = [judged, *beside], training_document(judged.metrics)
    charts = {run.name: ordering_chart(run.figures, run.name) for run in runs}
    lack = "has none: it predicts no saliency with hard negatives, or no query has any."
    missing = [f"{name} {lack}" for name, chart in charts.items() if not chart]
    sections = [
        _results_section(judged, beside),
        Section("Order of saliency", missing, drawings=[chart for chart in charts.values() if chart]),
        saliency_section(runs),
        _windows_section(runs),
        *trained.sections,
    ]
    others = f" Beside it: {', '.join(run.name for run in beside)}." if beside else ""
    by_split: dict[str, dict[str, float]] = {}
    for row in judged.figures:
        if row["subset"] == ALL:
            by_split.setdefault(row["split"], {})[row["metric"]] = row["value"]
    splits = [f"{words} on {split}" for split, row in by_split.items() if (words := figures_in_words(row))]
    filled = [section for section in sections if section.text or section.tables or section.drawings]
    return Document(trained.title, trained.lead + others, filled, "; ".join(splits))


def _results_section(judged: Judged, beside: Sequence[Judged]) -> Section:
    """Return the tables of figures of each run, and the differences between the runs with their intervals."""
    text, tables = [RESULTS], [Table(*results(run.figures), run.name) for run in (judged, *beside)]
    for other in beside:
        try:
            differences = compare(judged.metrics.dataset, other.metrics.key, judged.metrics.key)
        except EvaluationError as error:
            text.append(f"{other.name} can't be compared query by query: {error}.")
            continue
        lines = [
            (split, metric, f"{by.mean:+.2f}", f"{by.low:+.2f} to {by.high:+.2f}", by.p_text)
            for split, metric, by in differences
        ]
        caption = f"{judged.name} minus {other.name}, paired bootstrap over videos"
        tables.append(Table(("split", "metric", "difference", "95 % interval", "p"), lines, caption))
    return Section("Results", text, tables)


def ordering_chart(figures: Sequence[Row], run: str) -> Drawing | None:
    """Return how often saliency inside the moment (of MMN, its score) is in SHINE's order."""
    orders = [row for row in figures if row["metric"].startswith("ordering")]
    label = "ordering "
    rows = [Bar(it["metric"].removeprefix(label).replace("ordering", "all of it"), it["value"] / 100) for it in orders]
    title = f"{run}: share of queries for which the moment is rated in this order"
    return bars(title, rows, 1.0, (0, 0.25, 0.5, 0.75, 1)) if rows else None


# -- SHINE's Figure 6: saliency of a query and its negatives -----------------------------------------------------------


def saliency_section(runs: Sequence[Judged]) -> Section:
    """Return Figure 6 for the query that the first run orders best, the middle one and the worst."""
    title, own = "Saliency under a query and its negatives (SHINE, Figure 6)", runs[0]
    kind, candidates = ordering_candidates(own.loaded, own.run[1])
    if not candidates:
        return Section(title, ["No query that was held out or trained on has hard negatives."])
    saliency = own.saliency(candidates)
    if not any(saliency):
        return Section(title, [f"{own.name} predicts no saliency."])
    clip_length = own.loaded.videos.clip_length
    falls = [steepness(*pair, clip_length) for pair in zip(candidates, saliency, strict=True)]
    chosen = list(pick(falls))
    examples = [candidates[number] for _, number in chosen]
    shown = [(run.name, run.saliency(examples), run.loaded.videos.clip_length) for run in reversed(runs)]
    drawings = []
    for index, ((place, number), example) in enumerate(zip(chosen, examples, strict=True)):
        ordered = f"{place} ordered, smallest fall {falls[number] + 0.0:+.3g}"
        panels = [(name, by_example[index], seconds) for name, by_example, seconds in shown]
        drawings.append(saliency_figure(f"{ordered}: “{example.row['query']}” ({example.row['qid']})", example, panels))
    note = (
        f"Of {len(candidates):,} {kind} queries with three negatives, by the smallest of the four falls of mean "
        "saliency inside the moment, from the query to a random text: above 0 the order is right. The moment is shaded."
    )
    return Section(title, [note], drawings=drawings)


def ordering_candidates(loaded: Loaded, settings: Settings) -> tuple[str, list[Example]]:
    """Return "held-out" or, if there are none, "training" queries with all hard negatives.

    The random text is the next query of another video.
    """
    train, validation = (
        [row for row in rows if len(loaded.negatives.get(row["qid"], {})) == LEVELS and row["windows"]]
        for rows in split_rows(loaded, settings)
    )
    several = validation or train
    several = several[:: max(1, len(several) // CANDIDATES)][:CANDIDATES]
    examples = []
    for number, row in enumerate(several):
        others = (other for other in several[number + 1 :] + several[:number] if other["vid"] != row["vid"])
        other, levels = next(others, None), loaded.negatives[row["qid"]]
        texts = {NAMES[0]: row["query"], **{NAMES[level]: levels[level] for level in range(1, LEVELS + 1)}}
        examples.append(Example(row, texts | ({NAMES[-1]: other["query"]} if other else {})))
    return "held-out" if validation else "training", examples


def steepness(example: Example, saliency: Saliency, clip_length: float) -> float:
    """Return the smallest fall of mean saliency inside the moment from a text to the next; NaN if a text is missing."""
    if any(name not in saliency for name in example.texts):
        return float("nan")
    clips = len(saliency[NAMES[0]])
    inside = np.zeros(clips, bool)
    for start, end in example.row["windows"]:
        first, last = clip_range(start, end, clips, clip_length)
        inside[first : last + 1] = True
    means = [float(saliency[name][inside].mean()) for name in NAMES if name in saliency]
    return float(np.min(-np.diff(means))) if len(means) > 1 else float("nan")


def pick(values: Sequence[float]) -> Iterator[tuple[str, int]]:
    """Yield the place and the number of the best, middle and worst value, each number once; NaN is left out."""
    order = sorted((n for n, value in enumerate(values) if np.isfinite(value)), key=lambda number: -values[number])
    seen = set[int]()
    for name, share in PLACES if order else ():
        number = order[round(share * (len(order) - 1))]
        if number not in seen:
            seen.add(number)
            yield name, number


def saliency_figure(title: str, example: Example, runs: Sequence[tuple[str, Saliency, float]]) -> Drawing:
    """Return Figure 6 of a query: a panel for each run (name, saliency by text, seconds of a clip)."""

    def lines(saliency: Saliency, seconds: float) -> Iterator[Line]:
        for style, name in enumerate(NAMES):
            if name in saliency:
                points = [((clip + 0.5) * seconds, float(value)) for clip, value in enumerate(saliency[name])]
                yield Line(f"{name}: {example.texts[name]}", points, style)

    row = example.row
    several = [
        Panel(name, list(lines(saliency, s)), 0, row["duration"], "s", row["windows"], least=SALIENCY_SPAN)
        for name, saliency, s in runs
        if saliency
    ]
    return panels(title, several, columns=len(several), height=230, legend=True)


# -- SHINE's Figure 7: predicted and true windows ----------------------------------------------------------------------


def _windows_section(runs: Sequence[Judged]) -> Section:
    """Return Figure 7 for the best, the middle and the worst query of each split by the first run."""
    annotations = {row["qid"]: row for row in runs[0].loaded.rows}
    columns = ["split", "qid", "windows"]
    predictions = [
        {row["qid"]: row for part in Store().parts(run.predictions, columns) for row in part.to_pylist()}
        for run in runs
    ]
    end = truth_end(Store().manifest(runs[0].predictions))
    drawings = []
    for split, place, qid, overlap in overlap_examples(predictions[0], annotations, end):
        row = annotations[qid]
        shown = [(run.name, rows[qid]) for run, rows in zip(runs, predictions, strict=True) if qid in rows]
        drawings.append(windows_figure(f"{split}, {place}, IoU {overlap:.2f}: “{row['query']}” ({qid})", row, shown))
    note = "The queries of each split with the highest, the middle and the lowest IoU of the first window."
    return Section("Predicted and true windows (SHINE, Figure 7)", [note] if drawings else [], drawings=drawings)


def overlap_examples(
    predictions: Mapping[str, Row], annotations: Mapping[str, Row], end: float | None
) -> Iterator[tuple[str, str, str, float]]:
    """Yield split, place, qid and IoU of the first window, of rows of `predictions`; see `Ranking.truth_ends`."""
    for split in dict.fromkeys(row["split"] for row in predictions.values()):
        judged = [row for row in predictions.values() if row["split"] == split and annotations[row["qid"]]["windows"]]
        windows = aligned(judged, annotations, end)
        iou = score_queries(windows).iou.tolist() if windows.qids else []
        for place, number in pick(iou):
            yield split, place, windows.qids[number], iou[number]


def windows_figure(title: str, truth: Row, runs: Sequence[tuple[str, Row]]) -> Drawing:
    """Return Figure 7 of a query: the true windows, the best of the first run, and the first of each other run."""
    rows = [Spans("true", truth["windows"])]
    for number, (name, prediction) in enumerate(runs):
        shown = prediction["windows"][: 1 if number else SHOWN]
        for place, window in enumerate(shown, 1):
            label = f"{name if len(runs) > 1 else 'predicted'}{f', {place}' if len(shown) > 1 else ''}"
            span = [(window["start"], window["end"])]
            rows.append(Spans(label, span, f"{window['score']:.2f}", COLOURS[3 if number else 0]))
    return spans(title, rows, truth["duration"])
