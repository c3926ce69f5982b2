"""The report of a run after training and after evaluation: a page in the Prefect UI, and an HTML file.

The file is `report.html` in the run's folder of checkpoints.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penumbra.artifacts.charts import Drawing, Line, Panel, panels
from penumbra.artifacts.document import Document, Section, Table
from penumbra.artifacts.files import Files
from penumbra.artifacts.manifest import Artifact, flat
from penumbra.artifacts.markdown import plain
from penumbra.artifacts.prefect_ui import publish_report
from penumbra.artifacts.store import Store
from penumbra.tasks.features.simulated import remark_on
from penumbra.tasks.grounding.evaluation.figures import judged_splits, tables_of
from penumbra.tasks.grounding.evaluation.rejection import asked_by_split, recall_against_rejection
from penumbra.tasks.grounding.metrics import compared_scores
from penumbra.tasks.grounding.runs import below_constant, below_in_words, over_all, run_folder
from penumbra.tasks.grounding.training.logs import best_of, curves_section, figures_in_words, headline
from penumbra.tasks.grounding.training.stage import name_of
from penumbra.tasks.progress import logger
from penumbra.tasks.stage import side_effect_task

FILE = "report.html"
RESULTS = (
    "Figures are in per cent; a composition type has the queries with a novel composition of that type. The constant "
    "window is the best one for the training split; “another query” is what the run predicts if it is given a query of "
    "another video. A run that has learned to ground queries is well above both."
)
FALSE = (
    "The run also searched each query's video for false sentences. AUROC: how often a true sentence has a higher "
    "existence than a false one (50 is chance), next to the AUROC of a classifier that sees the text alone. Rejected: "
    "below the threshold that was chosen on validation. Group score: pairs of near real sentences and their videos in "
    "which all comparisons are right. With rejection, half of the sentences are false, the kinds in equal parts; a "
    "true one that is rejected is a miss, and a false one that is accepted is an error."
)


@dataclass(frozen=True)
class EvaluatedRun:
    """A run, its predictions, and their figures."""

    metrics: Artifact
    predictions: Artifact
    evaluation: Artifact


@side_effect_task("report")
def report_training(metrics: Artifact) -> str:
    """Publish a run's curves and settings, and write the file unless an evaluation wrote it; return a summary."""
    document = training_document(metrics)
    _publish(document, metrics, "train-grounding", keep=True)
    return f"{document.title}: {document.headline or 'there were no validation queries'}"


@side_effect_task("report")
def report_evaluation(run: EvaluatedRun, flow: str = "evaluate-grounding", outcomes: Sequence[str | None] = ()) -> str:
    """Publish the results of an evaluated run, with the outcomes of earlier stages; return a summary."""
    document = evaluation_document(run)
    earlier = "".join(f"- {plain(outcome)}\n" for outcome in outcomes if outcome)
    _publish(document, run.metrics, flow, f"\n\n## Earlier stages\n\n{earlier}" if earlier else "")
    return f"{document.title}: {document.headline}"


def _publish(document: Document, metrics: Artifact, flow: str, more: str = "", keep: bool = False) -> None:
    """Publish a document with `more` Markdown, and write the file; `keep` leaves an existing file as it is."""
    file = run_folder(metrics) / FILE
    publish_report(metrics.dataset, flow, document.markdown() + more)
    if not (keep and file.is_file()):
        Files(str(file.parent)).write(FILE, document.html().encode())
    logger().info("report: %s", file)


def training_document(metrics: Artifact) -> Document:
    """Return the report of a trained run."""
    manifest, rows = Store().manifest(metrics), Store().table(metrics).to_pylist()
    best, epochs = best_of(rows), max((row["epoch"] for row in rows), default=0)
    kept = f"the best one is {best['epoch']}" if best else "the last one is kept"
    refused = ", ".join(f"{count:,} with {reason!r}" for reason, count in manifest.rejected.items()) or "none"
    trained = f"Trained on {metrics.dataset} in {manifest.seconds:,.0f} s, {epochs} epochs, of which {kept}."
    lead = [f"{trained} Queries that were left out: {refused}.", *remark_on(manifest.parents)]
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
    return Document(f"{name_of(manifest)} on {metrics.dataset}", " ".join(lead), sections, headline(rows))


def evaluation_document(run: EvaluatedRun) -> Document:
    """Return the report of an evaluated run: results, and the report of its training."""
    trained, figures = training_document(run.metrics), Store().table(run.evaluation).to_pylist()
    splits = [f"{words} on {split}" for split, row in over_all(figures).items() if (words := figures_in_words(row))]
    tables = [Table(*table) for table in tables_of(figures)]
    sections = [Section("Results", [RESULTS, FALSE], tables, rejection_drawings(run.predictions)), *trained.sections]
    below = below_in_words("warning", below_constant(figures))
    return Document(trained.title, trained.lead, sections, "; ".join(filter(None, [*splits, below])))


def rejection_drawings(predictions: Artifact) -> list[Drawing]:
    """Return a picture of recall against rejection, one panel per split; empty without false sentences."""
    asked, several = asked_by_split(predictions)[0], list[Panel]()
    for name, split in judged_splits(predictions):
        existence = {qid: split.predictions[qid]["existence"] for qid in split.windows.qids}
        hits = dict(zip(existence, compared_scores(split)["R1@0.5"].tolist(), strict=True))
        by_kind = defaultdict[str, list[Any]](list)
        for row in asked.get(name, ()):
            qid, rows = row["qid"], by_kind[row["kind"]]
            rows += [(hits[qid], existence[qid], row["existence"])] if qid in hits else []
        kinds = enumerate(sorted(by_kind.items()))
        lines = [Line(kind, recall_against_rejection(*np.array(it).T), style) for style, (kind, it) in kinds if it]
        several += [Panel(f"{name}: R1@0.5, %", lines, 0, 100, "% of false sentences rejected")] if lines else []
    title = "Recall against rejection: a true sentence that is rejected is a miss"
    return [panels(title, several, columns=2, height=230, legend=True)] if several else []
