"""Stage `evaluation`: every figure of a run, by split and by type of novel composition.

Retrieval (R@1 and R@5, mIoU, mAP), highlights where the data have them, and how often saliency inside the moment is in
SHINE's order over queries that were held out of training. Beside them is what knows less than the model does
(`baselines`), so that nobody takes a prior for grounding.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.markdown import markdown_table
from penumbra.artifacts.schemas import SCHEMAS, table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.devices import device_of
from penumbra.tasks.grounding.batches.inputs import Loaded, Sources, load
from penumbra.tasks.grounding.configs import Ranking
from penumbra.tasks.grounding.evaluation.baselines import (
    OTHER_QUERY,
    Fitted,
    fitted,
    guesses,
    whole_figures,
    with_other_queries,
)
from penumbra.tasks.grounding.evaluation.predictions import predict_rows
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.metrics import Split, Windows, align, all_metrics, shown, versions
from penumbra.tasks.grounding.runs import ALL
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.grounding.training.stage import load_run, name_of, split_rows
from penumbra.tasks.stage import Stage, is_planned, logger, run

STAGE = "evaluation"
Rows = list[dict[str, Any]]


def figures_of_split(
    predictions: Rows, annotations: dict[str, dict[str, Any]], end: float | None
) -> Iterator[tuple[str, str, float]]:
    """(subset, metric, value) of one split, over all its queries and over those of each composition type.

    `end`: see `Ranking.truth_ends`.
    """
    split = judged_split(predictions, annotations, end)
    qids = split.windows.qids
    if not qids:
        return  # a hidden test split: its windows are with the evaluation server
    types: defaultdict[str, list[int]] = defaultdict(list)
    for number, qid in enumerate(qids):
        for kind in {label["type"] for label in annotations[qid]["novel"]}:
            types[kind].append(number)
    by_type = [metric.figures(split) for metric in all_metrics().values() if metric.by_type]
    for subset, numbers in ((ALL, range(len(qids))), *sorted(types.items())):
        mask = np.zeros(len(qids), bool)
        mask[list(numbers)] = True
        yield from ((subset, name, value) for figures in by_type for name, value in figures(mask).items())
        yield subset, "queries", float(mask.sum())
    for metric in all_metrics().values():
        if not metric.by_type:
            yield from ((ALL, name, value) for name, value in metric.figures(split)(slice(None)).items())


def judged_split(
    predictions: Iterable[Mapping[str, Any]], annotations: Mapping[str, Mapping[str, Any]], end: float | None
) -> Split:
    """What metrics are computed from: predictions of queries whose windows are known, these cut at `end` seconds."""
    judged = {row["qid"]: row for row in predictions if annotations[row["qid"]]["windows"]}
    return Split(aligned(list(judged.values()), annotations, end), judged, annotations)


def aligned(
    judged: Sequence[Mapping[str, Any]], annotations: Mapping[str, Mapping[str, Any]], end: float | None
) -> Windows:
    """Rows of `predictions` side by side with the true windows of their queries, cut at `end` seconds."""
    return align(
        {row["qid"]: [[w["start"], w["end"], w["score"]] for w in row["windows"]] for row in judged},
        {row["qid"]: annotations[row["qid"]]["windows"] for row in judged},
    ).until(end)


class Trained(NamedTuple):
    """The best model of a run, its settings, and what it is called."""

    model: nn.Module
    settings: Settings
    name: str


def own_figures(run: Trained, loaded: Loaded) -> dict[str, float]:
    """The model family's own figures on queries that were held out of training, or on those trained on if none were.

    For the DETR models that is SHINE's order, for BM-DETR its clips' probabilities, both over queries with negatives.
    """
    train, validation = split_rows(loaded, run.settings)
    known = loaded.negatives.keys() | (loaded.in_video or {}).keys()
    with_negatives = [row for row in validation if row["qid"] in known]
    prepared = loaded.prepare(with_negatives or train, STAGE)
    if not len(prepared):
        return {}
    device, system = device_of("auto"), system_of(run.settings)
    return system.figures(run.model.to(device), system.data(prepared, loaded.videos, loaded.texts, device))


def baseline_figures(
    run: Trained, loaded: Loaded, split: str, judged: Sequence[Mapping[str, Any]], fit: Fitted
) -> Iterator[tuple[str, str, float]]:
    """(subset, metric, value) of what the run is held against, over the queries `judged` of a split."""
    end = run.settings.ranking.truth_ends
    annotations = {row["qid"]: row for row in judged}
    asked = with_other_queries(judged)
    other = predict_rows(loaded, asked, run.model, system_of(run.settings), split, run.name).rows.to_pylist()
    for subset, predictions in (*guesses(judged, fit), (OTHER_QUERY, other)):
        figures = whole_figures(judged_split(predictions, annotations, end))
        yield from ((subset, name, value) for name, value in figures)


def make_part(metrics: Artifact, predictions: Artifact, sources: Sources) -> Part:
    """All figures of a run."""
    store = Store()
    model, settings = load_run(metrics)
    ranking = Ranking.model_validate(store.manifest(predictions).parameters["ranking"])
    run = Trained(model, settings.model_copy(update={"ranking": ranking}), name_of(store.manifest(metrics)))
    loaded = load(sources, settings.inputs)
    annotations = {row["qid"]: row for row in loaded.rows}
    fit = fitted(sources.annotations, sources.tags, ranking.truth_ends)
    by_split: defaultdict[str, Rows] = defaultdict(list)
    for part in store.parts(predictions):
        for row in part.to_pylist():
            by_split[row["split"]].append(row)
    found: list[tuple[str, str, str, float]] = []
    for split, rows in by_split.items():
        judged = [annotations[row["qid"]] for row in rows if annotations[row["qid"]]["windows"]]
        found += [(split, *figure) for figure in figures_of_split(rows, annotations, ranking.truth_ends)]
        found += [(split, *figure) for figure in baseline_figures(run, loaded, split, judged, fit)]
    if sources.negatives or sources.in_video_negatives:
        found += [("train", "held out", name, value) for name, value in own_figures(run, loaded).items()]
    table = [dict(zip(SCHEMAS[STAGE].names, (run.name, *figure), strict=True)) for figure in found]
    queries = sum(len(rows) for rows in by_split.values())
    return Part(table_of(STAGE, table), queries, queries)


def results(rows: Rows) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The header and the lines of the table that people look at, one for each split and composition type."""
    values = {(row["split"], row["subset"], row["metric"]): row["value"] for row in rows}
    columns = [name for name in shown() if any(metric == name for _, _, metric in values)]
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
    """The same in markdown for a terminal, with SHINE's order where there is one."""
    orders = [(row["metric"], f"{row['value']:.1f}") for row in rows if row["metric"].startswith("ordering")]
    likely = [(row["metric"], f"{row['value']:.3f}") for row in rows if "probability" in row["metric"]]
    tables = [markdown_table(*results(rows), cell=str)]
    if orders:
        tables.append(markdown_table(("saliency inside the moment", "% in order"), orders, cell=str))
    if likely:
        tables.append(markdown_table(("clips' probability, in and out of the moment", "mean"), likely, cell=str))
    return "\n\n".join(tables)


@dataclass(frozen=True)
class Evaluation(Stage):
    """Every figure of a run."""

    name = STAGE
    version = 2
    pieces = (0,)

    metrics: Artifact
    predictions: Artifact
    sources: Sources

    @property
    def parents(self) -> tuple[Artifact, ...]:
        """The run, its predictions, and what they are held against."""
        tags = (self.sources.tags,) if self.sources.tags else ()
        return (self.metrics, self.predictions, *self.sources.parents, *tags)

    def parameters(self) -> dict[str, Any]:
        """Which metrics there are, by version."""
        return {"metrics": versions()}

    def determines(self) -> dict[str, Any]:
        """The same: another metric is another evaluation."""
        return self.parameters()

    def part(self, piece: int) -> Part:
        """All figures are one part."""
        return make_part(self.metrics, self.predictions, self.sources)


def evaluate(metrics: Artifact, predictions: Artifact, sources: Sources) -> Artifact:
    """Judge a run's predictions."""
    evaluation = run(Evaluation(metrics, predictions, sources))
    if not is_planned():
        rows = Store().table(evaluation).to_pylist()
        logger().info("%s:\n%s", rows[0]["run"] if rows else "no query to judge", results_table(rows))
    return evaluation
