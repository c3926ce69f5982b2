"""The report of a run, after training and after evaluation: a page in the Prefect UI, and one HTML file beside it.

The file is `report.html` in the run's folder of checkpoints.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penumbra.artifacts.charts import Drawing
from penumbra.artifacts.document import Document, Section, Table, plain
from penumbra.artifacts.manifest import Artifact, Manifest
from penumbra.artifacts.prefect_ui import publish_report
from penumbra.artifacts.store import Store
from penumbra.tasks.features.simulated import remark_on
from penumbra.tasks.grounding.batches.inputs import Sources
from penumbra.tasks.grounding.evaluation.compare import compare
from penumbra.tasks.grounding.evaluation.figures import results
from penumbra.tasks.grounding.evaluation.predictions import truth_end
from penumbra.tasks.grounding.evaluation.runs import ALL
from penumbra.tasks.grounding.metrics.windows import EvaluationError
from penumbra.tasks.grounding.report.examples import RunOnData, ordering_candidates, overlap_examples, pick, steepness
from penumbra.tasks.grounding.report.figures import ordering_chart, saliency_figure, windows_figure
from penumbra.tasks.grounding.training.curves import best_epoch, curves_of, curves_section, figures_in_words, headline
from penumbra.tasks.grounding.training.folder import run_folder
from penumbra.tasks.grounding.training.live import FLOW as TRAINING
from penumbra.tasks.grounding.training.run import name_of
from penumbra.tasks.stage import logger, side_effect_task

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
