"""Stage `evaluation`: every figure of a run, by split and by type of novel composition, and those of the baselines."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from torch import nn

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.markdown import markdown_table
from penumbra.artifacts.schemas import SCHEMAS, table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.devices import device_of
from penumbra.tasks.grounding.batches.inputs import Loaded, Sources
from penumbra.tasks.grounding.evaluation.baselines import OTHER_QUERY, fitted, guesses
from penumbra.tasks.grounding.evaluation.existence import OTHER_VIDEO, RunStage
from penumbra.tasks.grounding.evaluation.predictions import ranking_of
from penumbra.tasks.grounding.evaluation.rejection import (
    Scores,
    calibrator_of_predictions,
    rejection_figures,
    rejection_scores,
    rejection_tables,
    text_figures,
)
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.base import System
from penumbra.tasks.grounding.metrics import Split, Windows, align, all_metrics, compared_scores, means
from penumbra.tasks.grounding.runs import ALL
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.grounding.training.stage import name_of, split_rows
from penumbra.tasks.stage import is_planned, logger, run

STAGE = "evaluation"
Rows = list[dict[str, Any]]
Row = Mapping[str, Any]
Figure = tuple[str, str, float]  # subset, metric, value


@dataclass(frozen=True)
class Evaluation(RunStage):
    """Every figure of a run."""

    name = STAGE
    version = 4
    pieces = (0,)

    predictions: Artifact
    existence: Artifact

    @property
    def parents(self) -> tuple[Artifact, ...]:
        tags = (self.sources.tags,) if self.sources.tags else ()
        return (self.metrics, self.predictions, self.existence, *self.sources.parents, *tags)

    def parameters(self) -> dict[str, Any]:
        return {"metrics": {name: metric.version for name, metric in all_metrics().items()}}

    determines = parameters  # another metric makes another evaluation

    def part(self, piece: int) -> Part:
        store, sources = Store(), self.sources
        (model, settings), loaded = self.run, self.loaded
        ranking = ranking_of(store.manifest(self.predictions))
        system = system_of(settings.model_copy(update={"ranking": ranking}))
        name = name_of(store.manifest(self.metrics))
        annotations = {row["qid"]: row for row in loaded.rows}
        constant = fitted(sources.annotations, sources.tags, ranking.truth_ends)
        by_split, asked = (defaultdict[str, Rows](list) for _ in range(2))
        for artifact, of in ((self.predictions, by_split), (self.existence, asked)):
            for row in store.rows(artifact):
                of[row["split"]].append(row)
        calibrator = calibrator_of_predictions(self.predictions)
        figures: list[tuple[str, str, str, float]] = []
        for split, rows in by_split.items():
            known = [annotations[row["qid"]] for row in rows if annotations[row["qid"]]["windows"]]
            replaced = [{**row, "saliency": []} for row in asked[split] if row["kind"] == OTHER_VIDEO]
            for baseline, predicted in (("", rows), *guesses(known, *constant), (OTHER_QUERY, replaced)):
                several = figures_of_split(predicted, annotations, ranking.truth_ends, baseline)
                figures += [(split, *figure) for figure in several]
            if calibrator and asked[split]:
                judged = judged_split(rows, annotations, ranking.truth_ends)
                scores = rejection_scores_of(judged, asked[split], calibrator.threshold)
                found = [*rejection_figures(scores), *text_figures(asked[split], annotations)]
                figures += [(split, *figure) for figure in found]
        if sources.negatives or sources.in_video_negatives:
            own = _own_figures(loaded, model, system, settings)
            figures += [("train", "held out", metric, value) for metric, value in own.items()]
        table = [dict(zip(SCHEMAS[STAGE].names, (name, *figure), strict=True)) for figure in figures]
        queries = sum(map(len, by_split.values()))
        return Part(table_of(STAGE, table), queries, queries)


def evaluate(metrics: Artifact, predictions: Artifact, existence: Artifact, sources: Sources) -> Artifact:
    """Evaluate a run's predictions, and what it says of false sentences."""
    evaluation = run(Evaluation(metrics, sources, predictions, existence))
    if not is_planned():
        rows = Store().table(evaluation).to_pylist()
        logger().info("%s:\n%s", rows[0]["run"] if rows else "no query to evaluate", results_table(rows))
    return evaluation


def figures_of_split(
    predictions: Iterable[Row], annotations: Mapping[str, Row], end: float | None, baseline: str = ""
) -> Iterator[Figure]:
    """Yield the figures of a split, over all its queries and over those of each composition type.

    True windows are cut at `end` seconds; see `Ranking.truth_ends`. A baseline has one subset, which is its name, and
    only figures by type, which need no saliency.
    """
    split = judged_split(predictions, annotations, end)
    qids = split.windows.qids
    if not qids:
        return  # a hidden test split, whose windows only the evaluation server has
    types: defaultdict[str, list[int]] = defaultdict(list)
    for number, qid in enumerate(qids):
        for kind in {label["type"] for label in annotations[qid]["novel"]}:
            types[kind].append(number)
    several = all_metrics().values()
    scores = [metric.scores(split) for metric in several if metric.by_type]
    everything = (baseline or ALL, list(range(len(qids))))
    for subset, numbers in (everything, *(() if baseline else sorted(types.items()))):
        for of_metric in scores:
            yield from ((subset, name, value) for name, value in means(of_metric, np.array(numbers)).items())
        yield subset, "queries", float(len(numbers))
    for metric in several:
        if not (metric.by_type or baseline):
            yield from ((ALL, name, value) for name, value in means(metric.scores(split)).items())


def judged_split(predictions: Iterable[Row], annotations: Mapping[str, Row], end: float | None) -> Split:
    """Return the split that metrics are computed of: predictions of queries whose true windows are known."""
    judged = {row["qid"]: row for row in predictions if annotations[row["qid"]]["windows"]}
    return Split(aligned(judged.values(), annotations, end), judged, annotations)


def judged_splits(predictions: Artifact) -> dict[str, Split]:
    """Return each split of a run's predictions, its queries in the order of their ids."""
    store, by_split = Store(), defaultdict[str, Rows](list)
    manifest = store.manifest(predictions)
    annotations = next(parent for parent in manifest.parents if parent.stage == "annotations")
    truth, end = {row["qid"]: row for row in store.rows(annotations)}, ranking_of(manifest).truth_ends
    for row in store.rows(predictions):
        if truth[row["qid"]]["windows"]:
            by_split[row["split"]].append(row)
    order = itemgetter("qid")
    return {split: judged_split(sorted(rows, key=order), truth, end) for split, rows in by_split.items()}


def rejection_scores_of(judged: Split, asked: Rows, threshold: float) -> Scores:
    """Return the scores of a split's queries by subset and metric: is a true sentence told from the false ones."""
    hits = compared_scores(judged)["R1@0.5"]
    true = {qid: row["existence"] for qid, row in judged.predictions.items()}
    return rejection_scores(judged.windows.qids, hits, true, asked, threshold)


def aligned(judged: Iterable[Row], annotations: Mapping[str, Row], end: float | None) -> Windows:
    """Return rows of `predictions` side by side with the true windows of their queries, cut at `end` seconds."""
    rows = {row["qid"]: [[w["start"], w["end"], w["score"]] for w in row["windows"]] for row in judged}
    return align(rows, {qid: annotations[qid]["windows"] for qid in rows}).until(end)


def _own_figures(loaded: Loaded, model: nn.Module, system: System[Any], settings: Settings) -> dict[str, float]:
    """Return the model family's own figures on held-out queries with negatives, or else on training queries.

    The DETR models and MMN have SHINE's order of saliency, BM-DETR the probabilities of clips.
    """
    train, validation = split_rows(loaded, settings)
    known = loaded.negatives.keys() | (loaded.in_video or {}).keys()
    examples = loaded.examples_of([row for row in validation if row["qid"] in known] or train, STAGE)
    if not len(examples):
        return {}
    device = device_of()
    return system.figures(model.to(device), system.data(examples, device))


def results(rows: Rows) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and lines of the table for people, a line for each split and composition type."""
    values = {(row["split"], row["subset"], row["metric"]): row["value"] for row in rows}
    known = {metric for _, _, metric in values}
    columns = [name for metric in all_metrics().values() for name in metric.shown if name in known]
    lines = [
        (
            split,
            subset,
            f"{values[split, subset, 'queries']:,.0f}",
            *(f"{values[place]:.2f}" if (place := (split, subset, name)) in values else "–" for name in columns),
        )
        for split, subset, metric in values
        if metric == "queries"
    ]
    return ("split", "subset", "queries", *columns), lines


def results_table(rows: Rows) -> str:
    """Return the tables in markdown for a terminal."""
    tables = [results(rows), *own_tables(rows)]
    return "\n\n".join(markdown_table(header, lines, cell=str) for header, lines in tables)


def own_tables(rows: Rows) -> Iterator[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """Yield header and lines of the tables about false sentences, and of each table of the family's own figures."""
    yield from rejection_tables(rows)
    for title, unit, word, digits in (
        ("saliency inside the moment", "% in order", "ordering", 1),
        ("probability of clips inside and outside the moment", "mean", "probability", 3),
    ):
        lines = list[tuple[str, ...]]()
        lines += [(row["metric"], f"{row['value']:.{digits}f}") for row in rows if word in row["metric"]]
        if lines:
            yield (title, unit), lines
