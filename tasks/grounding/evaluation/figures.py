"""Stage `evaluation`: every figure of a run, by split and by type of novel composition, and those of two baselines.

| subset | what is predicted for each query of a split |
| --- | --- |
| constant window | the window with the highest mean IoU over the training queries, the same for every query |
| another query | what the model predicts for a query of another video |
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.markdown import markdown_table
from penumbra.artifacts.schemas import SCHEMAS, table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.devices import device_of
from penumbra.tasks.grounding.batches.inputs import Sources
from penumbra.tasks.grounding.evaluation.predictions import OTHER_VIDEO, RunStage
from penumbra.tasks.grounding.evaluation.rejection import (
    OF_ALL,
    OF_KINDS,
    SENTENCES,
    calibrator_of_predictions,
    rejection_figures,
    rejection_scores,
    rows_by_split,
    text_figures,
)
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.metrics import Split, align, all_metrics, means, overlaps
from penumbra.tasks.grounding.runs import ALL, CONSTANT
from penumbra.tasks.grounding.training.stage import name_of, split_rows
from penumbra.tasks.stage import is_planned, logger, run

STAGE = "evaluation"
OTHER_QUERY = "another query"
COUNTS = ("queries", SENTENCES)  # figures that are numbers of queries and of false sentences
STEPS = 40  # of the grid of constant windows
BLOCK = 1024  # queries compared with the grid at once
Rows = list[dict[str, Any]]
Row = Mapping[str, Any]
Figure = tuple[str, str, float]  # subset, metric, value
Lines = tuple[Sequence[str], list[tuple[str, ...]]]  # a table: header and lines


@dataclass(frozen=True)
class Evaluation(RunStage):
    """Every figure of a run."""

    name = STAGE
    version = 5
    pieces = (0,)

    predictions: Artifact
    existence: Artifact

    def parameters(self) -> dict[str, Any]:
        return {"metrics": {name: metric.version for name, metric in all_metrics().items()}}

    determines = parameters  # another metric makes another evaluation

    def part(self, piece: int) -> Part:
        store = Store()
        by_split, asked = (rows_by_split(store.rows(artifact)) for artifact in (self.predictions, self.existence))
        end = store.manifest(self.predictions).parameters["ranking"].get("truth_ends")
        annotations = {row["qid"]: row for row in self.loaded.rows}
        constant = constant_window_of(self.sources.annotations, end)
        calibrator = calibrator_of_predictions(self.predictions)
        figures: list[tuple[str, str, str, float]] = []
        for split, rows in by_split.items():
            judged, false = judged_split(rows, annotations, end), asked.get(split, [])
            found = list(figures_of_split(judged))
            if constant:
                windows = [[constant(annotations[row["qid"]]["duration"])] for row in rows]
                same = [{**row, "saliency": [], "windows": it} for row, it in zip(rows, windows, strict=True)]
                found += figures_of_split(judged_split(same, annotations, end), CONSTANT)
            others = [{**row, "saliency": []} for row in false if row["kind"] == OTHER_VIDEO]
            found += figures_of_split(judged_split(others, annotations, end), OTHER_QUERY)
            if calibrator and false:
                scores = rejection_scores(judged, false, calibrator.threshold)
                found += [*rejection_figures(scores), *text_figures(false, annotations)]
            figures += [(split, *figure) for figure in found]
        figures += [("train", "held out", metric, value) for metric, value in self.own_figures().items()]
        name, queries = name_of(store.manifest(self.metrics)), sum(map(len, by_split.values()))
        table = [dict(zip(SCHEMAS[STAGE].names, (name, *figure), strict=True)) for figure in figures]
        return Part(table_of(STAGE, table), queries, queries)

    def own_figures(self) -> dict[str, float]:
        """Return `System.figures` on held-out queries with negatives, or else on training queries."""
        (model, settings), loaded, device = self.run, self.loaded, device_of()
        train, validation = split_rows(loaded, settings)
        known = loaded.negatives.keys() | (loaded.in_video or {}).keys()
        examples = loaded.examples_of([row for row in validation if row["qid"] in known] or train, STAGE)
        if not len(examples) or not (self.sources.negatives or self.sources.in_video_negatives):
            return {}
        system = system_of(settings)
        return system.figures(model.to(device), system.data(examples, device))


def evaluate(metrics: Artifact, predictions: Artifact, existence: Artifact, sources: Sources) -> Artifact:
    """Evaluate a run's predictions, and what it says of false sentences."""
    evaluation = run(Evaluation(metrics, sources, predictions, existence))
    if not is_planned():
        rows = Store().table(evaluation).to_pylist()
        tables = "\n\n".join(markdown_table(header, lines, cell=str) for header, lines in tables_of(rows))
        logger().info("%s:\n%s", rows[0]["run"] if rows else "no query to evaluate", tables)
    return evaluation


@lru_cache(maxsize=2)
def constant_window_of(annotations: Artifact, end: float | None) -> "Callable[[float], dict[str, float]] | None":
    """Return the constant window of a data set, which is fitted once in a process."""
    return constant_window([row for row in Store().rows(annotations) if row["split"] == "train"], end)


def constant_window(queries: Sequence[Row], end: float | None) -> "Callable[[float], dict[str, float]] | None":
    """Return the best window for training queries, rows of `annotations`, as a function of a video's duration.

    It has the highest mean IoU of a grid of windows in shares of the duration and in seconds. True windows are cut at
    `end` seconds (see `Ranking.truth_ends`). None if no query has a window.
    """
    known = {row["qid"]: row for row in queries if row["windows"]}
    windows = align({qid: [[0.0, 0.0, 0.0]] for qid in known}, {qid: row["windows"] for qid, row in known.items()})
    windows = windows.until(end)
    if not windows.qids:
        return None
    durations = np.array([known[qid]["duration"] for qid in windows.qids])
    grid = np.stack(np.triu_indices(STEPS + 1, 1), axis=1) / STEPS  # [G, 2], start before end
    longest = float(np.nanquantile(windows.truth[..., 1], 0.95))
    best = 0.0, True, grid[0]
    for relative, candidates in ((True, grid), (False, grid * longest)):
        sums = np.zeros(len(grid))
        for start in range(0, len(durations), BLOCK):
            block = slice(start, start + BLOCK)
            ends = durations[block, None, None]
            iou = overlaps(np.minimum(candidates * ends if relative else candidates, ends), windows.truth[block])[0]
            sums += np.nan_to_num(iou).max(axis=2).sum(axis=0)
        best = max(best, (float(sums.max()), relative, candidates[sums.argmax()]), key=lambda it: it[0])
    _, relative, window = best

    def of(duration: float) -> dict[str, float]:
        start, stop = np.minimum(window * (duration if relative else 1.0), duration).tolist()
        return {"start": start, "end": stop, "score": 1.0}

    return of


def figures_of_split(split: Split, baseline: str = "") -> Iterator[Figure]:
    """Yield the figures of a split, over all its queries and over those of each composition type.

    A baseline has one subset, which is its name, and only figures by type, which need no saliency.
    """
    qids = split.windows.qids
    if not qids:
        return  # a hidden test split, whose windows only the evaluation server has
    types = defaultdict[str, list[int]](list)
    for number, qid in enumerate(() if baseline else qids):
        for kind in {label["type"] for label in split.annotations[qid]["novel"]}:
            types[kind].append(number)
    scores = [metric.scores(split) for metric in all_metrics().values() if metric.by_type]
    for subset, numbers in ((baseline or ALL, range(len(qids))), *sorted(types.items())):
        for of_metric in scores:
            yield from ((subset, name, value) for name, value in means(of_metric, np.array(numbers)).items())
        yield subset, "queries", float(len(numbers))
    for metric in all_metrics().values():
        if not (metric.by_type or baseline):
            yield from ((ALL, name, value) for name, value in means(metric.scores(split)).items())


def judged_split(predictions: Iterable[Row], annotations: Mapping[str, Row], end: float | None) -> Split:
    """Return the split that metrics are computed of: predictions of queries whose true windows are known.

    True windows are cut at `end` seconds; see `Ranking.truth_ends`.
    """
    judged = {row["qid"]: row for row in predictions if annotations[row["qid"]]["windows"]}
    predicted = {qid: [[w["start"], w["end"], w["score"]] for w in row["windows"]] for qid, row in judged.items()}
    truth = {qid: annotations[qid]["windows"] for qid in judged}
    return Split(align(predicted, truth).until(end), judged, annotations)


def judged_splits(predictions: Artifact) -> Iterator[tuple[str, Split]]:
    """Yield each split of predictions, with the queries in the order of their ids."""
    store = Store()
    manifest = store.manifest(predictions)
    [annotated] = [parent for parent in manifest.parents if parent.stage == "annotations"]
    annotations = {row["qid"]: row for row in store.rows(annotated)}
    for name, rows in rows_by_split(sorted(store.rows(predictions), key=itemgetter("qid"))).items():
        yield name, judged_split(rows, annotations, manifest.parameters["ranking"].get("truth_ends"))


def tables_of(rows: Rows) -> Iterator[Lines]:
    """Yield the tables for people of rows of `evaluation`: results, false sentences, and the family's own figures."""
    values = {(row["split"], row["subset"], row["metric"]): row["value"] for row in rows}
    known = {metric for _, _, metric in values}
    shown = [name for metric in all_metrics().values() for name in metric.shown if name in known]
    results, kinds = ([it[:2] for it in values if it[2] == counted] for counted in COUNTS)
    yield _table(values, "subset", ("queries", *shown), results)
    if kinds:
        splits = dict.fromkeys(split for split, _ in kinds)
        yield _table(values, "false sentences", OF_KINDS, kinds)
        yield _table(values, "false sentences", OF_ALL, [(split, ALL) for split in splits])
    for title, unit, word, digits in (
        ("saliency inside the moment", "% in order", "ordering", 1),
        ("probability of clips inside and outside the moment", "mean", "probability", 3),
    ):
        lines = list[tuple[str, ...]]()
        lines += [(it["split"], it["metric"], f"{it['value']:.{digits}f}") for it in rows if word in it["metric"]]
        if lines:
            yield ("split", title, unit), lines


def _table(
    values: Mapping[tuple[str, str, str], float], subset: str, columns: Sequence[str], places: Sequence[tuple[str, str]]
) -> Lines:
    """Return a table of figures, with a line for each of `places`, which are split and subset."""
    lines = list[tuple[str, ...]]()
    for place in places:
        known = ((values.get((*place, name)), 0 if name in COUNTS else 2) for name in columns)
        lines.append((*place, *("–" if value is None else f"{value:,.{digits}f}" for value, digits in known)))
    return ("split", subset, *columns), lines
