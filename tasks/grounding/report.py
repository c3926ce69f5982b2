"""The report of a run, after training and after evaluation: a page in the Prefect UI, and one HTML file beside it.

The file is `report.html` in the run's folder of checkpoints.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penumbra.artifacts.charts import COLOURS, Bar, Drawing, Line, Panel, Spans, bars, panels, spans
from penumbra.artifacts.document import Document, Section, Table
from penumbra.artifacts.manifest import Artifact, Manifest
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
from penumbra.tasks.grounding.training.logs import FLOW as TRAINING
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.grounding.training.stage import load_run, name_of, run_name, split_rows
from penumbra.tasks.stage import logger, side_effect_task

STAGE = "report"
CANDIDATES = 200  # held-out queries that are looked at for Figure 6
PLACES = (("best", 0.0), ("middle", 0.5), ("worst", 1.0))
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Example:
    """A query of the `annotations` table with the texts that its video is seen under, by their name."""

    row: Row
    texts: dict[str, str]


class RunOnData:
    """A run's model with the features that it was trained on, and all queries of the data set."""

    def __init__(self, metrics: Artifact, sources: Sources) -> None:
        self.model, self.settings = load_run(metrics)
        self.name = run_name(self.settings, metrics.key)
        self.loaded = load(sources, self.settings.inputs)
        self.system = system_of(self.settings)

    def saliency(self, examples: Sequence[Example]) -> list[dict[str, np.ndarray]]:
        """Saliency [clips] of each example's video under each of its texts that has features; none for some models."""
        rows = [
            {**example.row, "qid": f"{number} {name}", "query": text}
            for number, example in enumerate(examples)
            for name, text in example.texts.items()
        ]
        found: list[dict[str, np.ndarray]] = [{} for _ in examples]
        prepared = self.loaded.prepare(rows, STAGE)
        if not len(prepared):
            return found
        device = device_of("auto")
        data = self.system.data(prepared, self.loaded.videos, self.loaded.texts, device)
        for prediction in self.system.predict(self.model.to(device), data):
            number, _, name = prediction.qid.partition(" ")
            if len(prediction.saliency):
                found[int(number)][name] = prediction.saliency
        return found

    @property
    def clip_length(self) -> float:
        """Seconds of a clip."""
        return self.loaded.videos.clip_length


def ordering_candidates(loaded: Loaded, settings: Settings) -> tuple[str, list[Example]]:
    """Queries with all hard negatives that were "held-out" of training, or "training" ones where none were.

    The random text is the query of the next one of them that has another video.
    """
    train, validation = split_rows(loaded, settings)
    held_out = _with_negatives(validation, loaded)
    several = held_out or _with_negatives(train, loaded)
    several = several[:: max(1, len(several) // CANDIDATES)][:CANDIDATES]
    found = []
    for number, row in enumerate(several):
        others = (other for other in several[number + 1 :] + several[:number] if other["vid"] != row["vid"])
        other = next(others, None)
        levels = loaded.negatives[row["qid"]]
        texts = {NAMES[0]: row["query"], **{NAMES[level]: levels[level] for level in range(1, LEVELS + 1)}}
        found.append(Example(row, texts | ({NAMES[-1]: other["query"]} if other else {})))
    return "held-out" if held_out else "training", found


def _with_negatives(rows: Sequence[dict[str, Any]], loaded: Loaded) -> list[dict[str, Any]]:
    return [row for row in rows if len(loaded.negatives.get(row["qid"], {})) == LEVELS and row["windows"]]


def steepness(example: Example, saliency: Mapping[str, np.ndarray], clip_length: float) -> float:
    """The smallest of the falls of mean saliency inside the moment from each text to the next; NaN without any.

    It is above 0 where the order is right as a whole.
    """
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
    """The place (best, middle, worst) and the number of those with the highest, the middle and the lowest value.

    NaN is left out, and so is who was named before; equals come in their order.
    """
    numbers = [number for number, value in enumerate(values) if np.isfinite(value)]
    order = sorted(numbers, key=lambda number: -values[number])
    seen = set[int]()
    for name, share in PLACES:
        if order:
            number = order[round(share * (len(order) - 1))]
            if number not in seen:
                seen.add(number)
                yield name, number


def overlap_examples(
    predictions: Mapping[str, Row], annotations: Mapping[str, Row], end: float | None
) -> Iterator[tuple[str, str, str, float]]:
    """(split, place, qid, IoU of the first window) for each split of the rows of `predictions`, by qid.

    `end`: see `Ranking.truth_ends`.
    """
    for split in dict.fromkeys(row["split"] for row in predictions.values()):
        judged = [row for row in predictions.values() if row["split"] == split and annotations[row["qid"]]["windows"]]
        windows = aligned(judged, annotations, end)
        if not windows.qids:
            continue
        overlaps = score_queries(windows).iou.tolist()
        for place, number in pick(overlaps):
            yield split, place, windows.qids[number], overlaps[number]


SHOWN = 3  # windows of the run
BESIDE = COLOURS[3]


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


EVALUATION = "evaluate-grounding"
FILE = "report.html"
RESULTS = (
    "Figures are in per cent; a composition type counts the queries that have a novel one of it. A constant window is "
    "the best one of the training split, for all queries alike or by their verb; “another query” is what the run "
    "predicts where it is asked a query of another video. A run that grounds lies well above all three."
)


@dataclass(frozen=True)
class Judged:
    """A run that was judged: its metrics, what it read, its predictions, and their figures."""

    metrics: Artifact
    sources: Sources
    predictions: Artifact
    evaluation: Artifact

    @property
    def name(self) -> str:
        """What the run is called."""
        return name_of(Store().manifest(self.metrics))


def training_document(metrics: Artifact) -> Document:
    """What is known of a run when it has been trained."""
    manifest, rows = Store().manifest(metrics), Store().table(metrics).to_pylist()
    lead = f"Trained on {metrics.dataset} in {manifest.seconds:,.0f} s, {_epochs(rows)}. {_left_out(manifest)}"
    lead = " ".join([lead, *remark_on(manifest.parents)])
    title = f"{name_of(manifest)} on {metrics.dataset}"
    sections = [curves_section(rows), *settings_sections(metrics, manifest)]
    return Document(title, lead, sections, headline(curves_of(rows)))


def _epochs(rows: Sequence[dict[str, Any]]) -> str:
    best = best_epoch(curves_of(rows))
    kept = "the last one is kept" if best is None else f"the best one is {best}"
    return f"{max((row['epoch'] for row in rows), default=0)} epochs, of which {kept}"


def _left_out(manifest: Manifest) -> str:
    refused = [f"{count:,} with {reason!r}" for reason, count in manifest.rejected.items()]
    return f"Queries that were left out: {', '.join(refused) or 'none'}."


def _flat(values: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, str]]:
    """Every setting by its whole name, `model.losses.shine`, and its value."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{group}{name}.")
        else:
            yield f"{group}{name}", json.dumps(value)


def settings_sections(metrics: Artifact, manifest: Manifest) -> list[Section]:
    """Every setting, what the run was made from, and with which software."""
    settings = list(_flat(manifest.parameters["settings"]))
    parents = [(f"{parent.dataset}/{parent.stage}", parent.key) for parent in manifest.parents]
    where = [("metrics", metrics.path), ("checkpoints", str(run_folder(metrics)))]
    made = [
        Table(("artifact", "key"), [(f"{metrics.dataset}/{metrics.stage}", metrics.key), *parents], "Made from"),
        Table(("what", "where"), where, "Where it lies"),
        Table(("package", "version"), list(manifest.software.items()), "Software"),
    ]
    return [
        Section("Settings", tables=[Table(("setting", "value"), settings)], folded=True),
        Section("Origin", tables=made, folded=True),
    ]


def evaluation_document(judged: Judged, beside: Sequence[Judged]) -> Document:
    """Everything of a run: its figures, its figures of the paper, its curves and settings, others' beside them."""
    trained = training_document(judged.metrics)
    own = RunOnData(judged.metrics, judged.sources)
    runs = [own, *(RunOnData(other.metrics, other.sources) for other in beside)]
    sections = [
        results_section(judged, beside),
        order_section([judged, *beside]),
        saliency_section(runs),
        windows_section(runs, [judged, *beside]),
        *trained.sections,
    ]
    shown = f" Beside it: {', '.join(run.name for run in runs[1:])}." if beside else ""
    there = [section for section in sections if section.text or section.tables or section.drawings]
    return Document(trained.title, trained.lead + shown, there, judged_headline(judged))


def judged_headline(judged: Judged) -> str:
    """The figures of each split as a whole, in a line."""
    rows = [row for row in Store().table(judged.evaluation).to_pylist() if row["subset"] == ALL]
    splits = {row["split"]: {it["metric"]: it["value"] for it in rows if it["split"] == row["split"]} for row in rows}
    told = [f"{figures} on {split}" for split, found in splits.items() if (figures := figures_in_words(found))]
    return "; ".join(told)


def results_section(judged: Judged, beside: Sequence[Judged]) -> Section:
    """The table of figures of each run by split and composition type, and whether their differences are chance's."""
    text, tables = [RESULTS], []
    for run in (judged, *beside):
        header, lines = results(Store().table(run.evaluation).to_pylist())
        tables.append(Table(header, lines, run.name))
    for other in beside:
        try:
            found = compare(judged.metrics.dataset, other.metrics.key, judged.metrics.key)
        except EvaluationError as error:
            text.append(f"{other.name} can't be compared query by query: {error}.")
            continue
        lines = [
            (split, metric, f"{by.mean:+.2f}", f"{by.low:+.2f} to {by.high:+.2f}", by.p_text)
            for split, metric, by in found
        ]
        caption = f"{judged.name} minus {other.name}, paired bootstrap over videos"
        tables.append(Table(("split", "metric", "difference", "95 % interval", "p"), lines, caption))
    return Section("Results", text, tables)


def order_section(several: Sequence[Judged]) -> Section:
    """How often saliency falls from the positive to the random text, for each run that can be asked."""
    text, charts = [], []
    for run in several:
        rows = Store().table(run.evaluation).to_pylist()
        if chart := ordering_chart(rows, run.name):
            charts.append(chart)
        elif any("probability" in row["metric"] for row in rows):
            text.append(f"{run.name} has none: BM-DETR is judged by its clips' probabilities, beside one negative.")
        else:
            text.append(f"{run.name} has none: there are no hard negatives of queries that it can be judged by.")
    return Section("Order of saliency", text, drawings=charts)


def saliency_section(runs: Sequence[RunOnData]) -> Section:
    """Figure 6 of SHINE, of the best, the middle and the worst ordered query of the first run."""
    title = "Saliency under a query and its negatives (SHINE, Figure 6)"
    own = runs[0]
    kind, candidates = ordering_candidates(own.loaded, own.settings)
    if not candidates:
        return Section(title, ["There are no hard negatives of queries that were held out or trained on."])
    saliency = own.saliency(candidates)
    if not any(saliency):
        return Section(title, [f"{own.name} predicts no saliency."])
    falls = [steepness(*pair, own.clip_length) for pair in zip(candidates, saliency, strict=True)]
    chosen = list(pick(falls))
    examples = [candidates[number] for _, number in chosen]
    shown = [(run.name, run.saliency(examples), run.clip_length) for run in reversed(runs)]  # before, after
    drawings = [
        saliency_figure(
            f"{_ordered(place, falls[number])}: “{example.row['query']}” ({example.row['qid']})",
            example,
            [(name, found[index], clip_length) for name, found, clip_length in shown],
        )
        for index, ((place, number), example) in enumerate(zip(chosen, examples, strict=True))
    ]
    told = (
        f"Of {len(candidates):,} {kind} queries with three negatives, by the smallest of the four falls of "
        "mean saliency inside the moment, from the query to a random text: above 0 the order is right. The moment is "
        "shaded."
    )
    return Section(title, [told], drawings=drawings)


def _ordered(place: str, fall: float) -> str:
    return f"{place} ordered, smallest fall {fall + 0.0:+.3g}"


def windows_section(runs: Sequence[RunOnData], judged: Sequence[Judged]) -> Section:
    """Figure 7 of SHINE, in each split of the best, the middle and the worst first window of the first run."""
    annotations = {row["qid"]: row for row in runs[0].loaded.rows}
    predictions = [_predictions(run.predictions) for run in judged]
    end = truth_end(Store().manifest(judged[0].predictions))
    drawings: list[Drawing] = []
    for split, place, qid, overlap in overlap_examples(predictions[0], annotations, end):
        row = annotations[qid]
        there = [(run.name, found[qid]) for run, found in zip(runs, predictions, strict=True) if qid in found]
        drawings.append(windows_figure(f"{split}, {place}, IoU {overlap:.2f}: “{row['query']}” ({qid})", row, there))
    told = "In each split the queries with the highest, the middle and the lowest IoU of the first window."
    return Section("Predicted and true windows (SHINE, Figure 7)", [told] if drawings else [], drawings=drawings)


def _predictions(artifact: Artifact) -> dict[str, dict[str, Any]]:
    """Rows of `predictions` without their saliency, by qid."""
    parts: Iterator[Any] = Store().parts(artifact, ["split", "qid", "windows"])
    return {row["qid"]: row for part in parts for row in part.to_pylist()}


def write_html(document: Document, metrics: Artifact) -> Path:
    """Put the report beside the run's checkpoints, whole or not at all."""
    file = run_folder(metrics) / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{FILE}.{os.getpid()}")
    draft.write_text(document.html(), encoding="utf-8")
    os.replace(draft, file)
    return file


@side_effect_task("report")
def report_training(metrics: Artifact) -> str:
    """Show a run's curves and settings, in the UI and in a file that an evaluation's replaces; returns its outcome."""
    document, file = training_document(metrics), run_folder(metrics) / FILE
    publish_report(metrics.dataset, TRAINING, document.markdown())
    if not file.is_file():  # what an evaluation wrote holds more
        write_html(document, metrics)
    logger().info("report: %s", file)
    return f"{document.title}: {document.headline or 'nothing was there to validate by'}"


@side_effect_task("report")
def report_evaluation(
    judged: Judged, beside: list[Judged], flow: str = EVALUATION, before: Sequence[str | None] = ()
) -> str:
    """Show everything of a run that was judged, with others beside it, and how what came before it in its flow ended.

    Returns its outcome.
    """
    document = evaluation_document(judged, beside)
    way = "".join(f"- {plain(outcome)}\n" for outcome in before if outcome)
    publish_report(judged.metrics.dataset, flow, document.markdown() + (f"\n\n## The way here\n\n{way}" if way else ""))
    file = write_html(document, judged.metrics)
    logger().info("report: %s", file)
    return f"{document.title}: {document.headline}"
