"""The report of a run, after training and after evaluation: a page in the Prefect UI, and one HTML file.

The file is `report.html` in the run's folder of checkpoints.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from penumbra.artifacts.charts import Drawing, Line, Panel, panels
from penumbra.artifacts.document import Document, Section, Table
from penumbra.artifacts.manifest import Artifact, flat
from penumbra.artifacts.markdown import plain
from penumbra.artifacts.prefect_ui import publish_report
from penumbra.artifacts.store import Store
from penumbra.tasks.devices import device_of
from penumbra.tasks.features.simulated import remark_on
from penumbra.tasks.grounding.batches.examples import LEVELS, clip_range
from penumbra.tasks.grounding.batches.inputs import Loaded, Sources, load
from penumbra.tasks.grounding.evaluation.figures import judged_splits, own_tables, results
from penumbra.tasks.grounding.evaluation.rejection import asked_by_split, recall_against_rejection
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.base import SALIENCY_SPAN
from penumbra.tasks.grounding.metrics import NAMES, compared_scores
from penumbra.tasks.grounding.runs import ALL, below_constant, below_in_words, run_folder
from penumbra.tasks.grounding.training.curves import best_epoch, curves_of, curves_section, figures_in_words, headline
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.grounding.training.stage import load_run, name_of, split_rows
from penumbra.tasks.stage import logger, side_effect_task

FILE = "report.html"
CANDIDATES = 200  # held-out queries that are considered for SHINE's Figure 6
RESULTS = (
    "Figures are in per cent; a composition type counts the queries that have a novel one of it. A constant window is "
    "the best one of the training split, for all queries alike or by their verb; “another query” is what the run "
    "predicts if it is given a query of another video. A run that grounds lies well above all three."
)
FALSE = (
    "Each query's video was also asked sentences that are false of it. AUROC: how often a true sentence has more "
    "existence than a false one (50 is chance), beside that of a classifier that sees the text alone. Rejected: below "
    "the threshold that was chosen on validation. Group score: pairs of near real sentences and their videos in which "
    "every comparison is right. With rejection, half of the sentences are false, the kinds in equal parts; a true one "
    "that is rejected is a miss, and a false one that is accepted is an error."
)
FIGURE_6 = "Saliency under a query and its negatives (SHINE, Figure 6)"
Example = tuple[Mapping[str, Any], dict[str, str]]  # a row of `annotations`; the query and its negatives by name
Saliency = Mapping[str, np.ndarray]  # [clips] by the name of a text


@dataclass(frozen=True)
class EvaluatedRun:
    """A run with what it read, its predictions, and their figures."""

    metrics: Artifact
    sources: Sources
    predictions: Artifact
    evaluation: Artifact


@side_effect_task("report")
def report_training(metrics: Artifact) -> str:
    """Publish a run's curves and settings, and write the file unless an evaluation wrote it; return its outcome."""
    document = training_document(metrics)
    _publish(document, metrics, "train-grounding", keep=True)
    return f"{document.title}: {document.headline or 'there were no validation queries'}"


@side_effect_task("report")
def report_evaluation(run: EvaluatedRun, flow: str = "evaluate-grounding", outcomes: Sequence[str | None] = ()) -> str:
    """Publish everything about an evaluated run, with the outcomes of earlier stages; return its outcome."""
    document = evaluation_document(run)
    earlier = "".join(f"- {plain(outcome)}\n" for outcome in outcomes if outcome)
    _publish(document, run.metrics, flow, f"\n\n## Earlier stages\n\n{earlier}" if earlier else "")
    return f"{document.title}: {document.headline}"


def _publish(document: Document, metrics: Artifact, flow: str, more: str = "", keep: bool = False) -> None:
    """Publish a document with `more` Markdown, and write the file; `keep` leaves an existing file as it is."""
    file = run_folder(metrics) / FILE
    publish_report(metrics.dataset, flow, document.markdown() + more)
    if not (keep and file.is_file()):
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{FILE}.{os.getpid()}")
        draft.write_text(document.html(), encoding="utf-8")
        os.replace(draft, file)
    logger().info("report: %s", file)


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
    settings = [(name, json.dumps(value)) for name, value in flat(manifest.parameters["settings"])]
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


def evaluation_document(run: EvaluatedRun) -> Document:
    """Return the report of an evaluated run: results, SHINE's Figure 6, and the report of its training."""
    trained, figures = training_document(run.metrics), Store().table(run.evaluation).to_pylist()
    by_split: dict[str, dict[str, float]] = {}
    for row in figures:
        if row["subset"] == ALL:
            by_split.setdefault(row["split"], {})[row["metric"]] = row["value"]
    splits = [f"{words} on {split}" for split, row in by_split.items() if (words := figures_in_words(row))]
    tables = [Table(*results(figures)), *(Table(*own) for own in own_tables(figures))]
    sections = [
        Section("Results", [RESULTS, FALSE], tables, rejection_drawings(run)),
        saliency_section(run),
        *trained.sections,
    ]
    below = below_in_words("warning", below_constant(figures))
    return Document(trained.title, trained.lead, sections, "; ".join(filter(None, [*splits, below])))


def rejection_drawings(run: EvaluatedRun) -> list[Drawing]:
    """Return a picture of recall against rejection, a panel for each split; none if nothing false was asked."""
    (asked, _), several = asked_by_split(run.predictions), list[Panel]()
    for split, judged in judged_splits(run.predictions).items():
        sentences = asked.get(split, [])
        hits = dict(zip(judged.windows.qids, compared_scores(judged)["R1@0.5"].tolist(), strict=True))
        lines = []
        for style, kind in enumerate(sorted({row["kind"] for row in sentences})):
            of = [row for row in sentences if row["kind"] == kind and row["qid"] in hits]
            true = np.array([judged.predictions[row["qid"]]["existence"] for row in of])
            found, false = np.array([hits[row["qid"]] for row in of]), np.array([row["existence"] for row in of])
            lines += [Line(kind, recall_against_rejection(found, true, false), style)] if of else []
        several += [Panel(f"{split}: R1@0.5, %", lines, 0, 100, "% of false sentences rejected")] if lines else []
    title = "Recall against rejection: a true sentence that is rejected is a miss"
    return [panels(title, several, columns=2, height=230, legend=True)] if several else []


# -- SHINE's Figure 6: saliency of a query and its negatives -----------------------------------------------------------


def saliency_section(run: EvaluatedRun) -> Section:
    """Return Figure 6 for the query whose texts the run orders best, for the middle one and for the worst."""
    model, settings = load_run(run.metrics)
    loaded = load(run.sources, settings.inputs)
    kind, examples = ordering_examples(loaded, settings)
    if not examples:
        return Section(FIGURE_6, ["No query that was held out or trained on has hard negatives."])
    saliency, seconds = predict_saliency(examples, loaded, model, settings), loaded.videos.clip_length
    falls = [smallest_fall(*pair, seconds) for pair in zip(examples, saliency, strict=True)]
    order = sorted(np.flatnonzero(np.isfinite(falls)).tolist(), key=lambda number: -falls[number])
    if not order:
        return Section(FIGURE_6, ["The run predicts no saliency."])
    chosen = {order[-1]: "worst", order[len(order) // 2]: "middle", order[0]: "best"}
    drawings = []
    for number in sorted(chosen, key=order.index):
        row = examples[number][0]
        ordered = f"{chosen[number]} ordered, smallest fall {falls[number] + 0.0:+.3g}"
        title = f"{ordered}: “{row['query']}” ({row['qid']})"
        drawings.append(saliency_figure(title, examples[number], saliency[number], seconds))
    note = (
        f"Of {len(examples):,} {kind} queries with three negatives, by the smallest of the four falls of mean "
        "saliency inside the moment, from the query to a random text: above 0 the order is right. The moment is shaded."
    )
    return Section(FIGURE_6, [note], drawings=drawings)


def ordering_examples(loaded: Loaded, settings: Settings) -> tuple[str, list[Example]]:
    """Return "held-out" or, if there are none, "training" queries with all hard negatives.

    The random text is the next query of another video.
    """
    train, validation = (
        [row for row in rows if len(loaded.negatives.get(row["qid"], {})) == LEVELS and row["windows"]]
        for rows in split_rows(loaded, settings)
    )
    several = validation or train
    several = several[:: max(1, len(several) // CANDIDATES)][:CANDIDATES]
    examples = list[Example]()
    for number, row in enumerate(several):
        others = (other for other in several[number + 1 :] + several[:number] if other["vid"] != row["vid"])
        other, levels = next(others, None), loaded.negatives[row["qid"]]
        texts = {NAMES[0]: row["query"], **{NAMES[level]: levels[level] for level in range(1, LEVELS + 1)}}
        examples.append((row, texts | ({NAMES[-1]: other["query"]} if other else {})))
    return "held-out" if validation else "training", examples


def predict_saliency(
    examples: Sequence[Example], loaded: Loaded, model: nn.Module, settings: Settings
) -> list[Saliency]:
    """Return the saliency of each example's video with each of its texts; empty for models that predict none."""
    rows = [
        {**row, "qid": f"{number} {name}", "query": text}
        for number, (row, texts) in enumerate(examples)
        for name, text in texts.items()
    ]
    saliency: list[dict[str, np.ndarray]] = [{} for _ in examples]
    prepared, device, system = loaded.examples_of(rows, "report"), device_of(), system_of(settings)
    if len(prepared):
        data = system.data(prepared, device)
        for prediction in system.predict(model.to(device), data):
            number, _, name = prediction.qid.partition(" ")
            if len(prediction.saliency):
                saliency[int(number)][name] = prediction.saliency
    return list(saliency)


def smallest_fall(example: Example, saliency: Saliency, clip_length: float) -> float:
    """Return the smallest fall of mean saliency inside the moment from a text to the next; NaN if a text is missing."""
    row, texts = example
    if any(name not in saliency for name in texts):
        return float("nan")
    clips = len(saliency[NAMES[0]])
    inside = np.zeros(clips, bool)
    for start, end in row["windows"]:
        first, last = clip_range(start, end, clips, clip_length)
        inside[first : last + 1] = True
    means = [float(saliency[name][inside].mean()) for name in NAMES if name in saliency]
    return float(np.min(-np.diff(means))) if len(means) > 1 else float("nan")


def saliency_figure(title: str, example: Example, saliency: Saliency, clip_length: float) -> Drawing:
    """Return Figure 6 of a query: a line for each text, with the moment shaded."""
    row, texts = example
    lines = [
        Line(
            f"{name}: {texts[name]}",
            [((clip + 0.5) * clip_length, float(value)) for clip, value in enumerate(saliency[name])],
            style,
        )
        for style, name in enumerate(NAMES)
        if name in saliency
    ]
    panel = Panel("", lines, 0, row["duration"], "s", row["windows"], least=SALIENCY_SPAN)
    return panels(title, [panel], columns=1, height=230, legend=True)
