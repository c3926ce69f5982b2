"""Stage `evaluation`: the figures of a run and of two baselines, by split and composition type; comparison of runs.

| subset of a baseline | windows that it predicts for each query of a split |
| --- | --- |
| constant window | the window with the highest mean IoU over the training queries, the same for every query |
| another query | the windows that the model predicts for a query of another video |
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.markdown import counted, markdown_table
from penumbra.artifacts.schemas import SCHEMAS, table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.data.resampling import INTERVAL, Resamples
from penumbra.tasks.data.rows import FEWEST_VIDEOS
from penumbra.tasks.devices import device_of
from penumbra.tasks.grounding.batches.inputs import Sources, newest_made_of
from penumbra.tasks.grounding.evaluation import rejection
from penumbra.tasks.grounding.evaluation.calibration import OTHER_VIDEO
from penumbra.tasks.grounding.evaluation.run_stage import Rows, RunStage
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.metrics import (
    EvaluationError,
    Split,
    align,
    all_metrics,
    compared_scores,
    means,
    overlaps,
)
from penumbra.tasks.grounding.runs import ALL, CONSTANT
from penumbra.tasks.grounding.training.stage import chosen_run, name_of, split_rows
from penumbra.tasks.progress import logger
from penumbra.tasks.stage import is_planned, run

if TYPE_CHECKING:
    import pandas as pd

STAGE = "evaluation"
OTHER_QUERY = "another query"
COUNTS = ("queries", rejection.SENTENCES)  # figures that are numbers of queries and of false sentences
STEPS = 40  # steps of the grid of constant windows
BLOCK = 1024  # queries compared with the grid at once
RESAMPLES = 10_000
Row = Mapping[str, Any]
Figure = tuple[str, str, float]  # subset, metric, value
Lines = tuple[Sequence[str], list[tuple[str, ...]]]  # a table: header and lines


@dataclass(frozen=True)
class Evaluation(RunStage):
    """All figures of a run and of the baselines."""

    name = STAGE
    version = 5
    pieces = (0,)

    predictions: Artifact
    existence: Artifact

    def parameters(self) -> dict[str, Any]:
        return {"metrics": {name: metric.version for name, metric in all_metrics().items()}}

    key_parameters = parameters  # a new metric changes the key

    def part(self, piece: int) -> Part:
        store, calibrator = Store(), rejection.calibrator_of_predictions(self.predictions)
        asked, predicted = rejection.rows_by_split(store.rows(self.existence)), store.manifest(self.predictions)
        end = predicted.parameters["ranking"].get("truth_ends")
        constant = constant_window_of(self.sources.annotations, end)
        figures: list[tuple[str, str, str, float]] = []
        for name, split in judged_splits(self.predictions):
            false, annotations = asked.get(name, []), split.annotations
            found = list(figures_of_split(split))
            if constant:
                windows = {qid: [constant(annotations[qid]["duration"])] for qid in split.predictions}
                same = [{**row, "saliency": [], "windows": windows[qid]} for qid, row in split.predictions.items()]
                found += figures_of_split(judged_split(same, annotations, end), CONSTANT)
            others = [{**row, "saliency": []} for row in false if row["kind"] == OTHER_VIDEO]
            found += figures_of_split(judged_split(others, annotations, end), OTHER_QUERY)
            if calibrator and false:
                found += rejection.figures_of(rejection.scores_of(split, false, calibrator.threshold))
                found += rejection.text_figures(false, annotations)
            figures += [(name, *figure) for figure in found]
        figures += [("train", "held out", metric, value) for metric, value in self.own_figures().items()]
        columns, of_run = SCHEMAS[STAGE].names, name_of(store.manifest(self.metrics))
        table = [dict(zip(columns, (of_run, *figure), strict=True)) for figure in figures]
        return Part(table_of(STAGE, table), predicted.rows, predicted.rows)

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
    """Evaluate a run's predictions and its existence of false sentences."""
    evaluation = run(Evaluation(metrics, sources, predictions, existence))
    if not is_planned():
        rows = Store().table(evaluation).to_pylist()
        tables = "\n\n".join(markdown_table(header, lines, cell=str) for header, lines in tables_of(rows))
        logger().info("%s:\n%s", rows[0]["run"] if rows else "no query to evaluate", tables)
    return evaluation


@lru_cache(maxsize=2)
def constant_window_of(annotations: Artifact, end: float | None) -> "Callable[[float], dict[str, float]] | None":
    """Return the constant window of a data set; cached in the process."""
    return constant_window([row for row in Store().rows(annotations) if row["split"] == "train"], end)


def constant_window(queries: Sequence[Row], end: float | None) -> "Callable[[float], dict[str, float]] | None":
    """Return the best constant window for training queries, as a function of a video's duration.

    It has the highest mean IoU among grids of windows in shares of the duration and in seconds. True windows are cut
    at `end` seconds (see `Ranking.truth_ends`). Return None if no query has a window.
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

    def window_of(duration: float) -> dict[str, float]:
        start, stop = np.minimum(window * (duration if relative else 1.0), duration).tolist()
        return {"start": start, "end": stop, "score": 1.0}

    return window_of


def figures_of_split(split: Split, baseline: str = "") -> Iterator[Figure]:
    """Yield the figures of a split, over all its queries and over those of each composition type.

    A baseline has one subset, named after it, and only metrics that are `by_type`, because the others need saliency.
    """
    qids = split.windows.qids
    if not qids:
        return  # a hidden test split, whose windows only the evaluation server has
    types = defaultdict[str, list[int]](list)
    for number, qid in enumerate(() if baseline else qids):
        for kind in {it["type"] for it in split.annotations[qid]["novel"]}:
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
    """Return the predictions with known true windows, cut at `end` seconds (`Ranking.truth_ends`), as a split."""
    judged = {row["qid"]: row for row in predictions if annotations[row["qid"]]["windows"]}
    predicted = {qid: [[w["start"], w["end"], w["score"]] for w in row["windows"]] for qid, row in judged.items()}
    truth = {qid: annotations[qid]["windows"] for qid in judged}
    return Split(align(predicted, truth).until(end), judged, annotations)


def judged_splits(predictions: Artifact) -> Iterator[tuple[str, Split]]:
    """Yield each split of predictions, with the queries in the order of the table."""
    store, manifest = Store(), Store().manifest(predictions)
    [annotated] = [parent for parent in manifest.parents if parent.stage == "annotations"]
    annotations = {row["qid"]: row for row in store.rows(annotated)}
    for name, rows in rejection.rows_by_split(store.rows(predictions)).items():
        yield name, judged_split(rows, annotations, manifest.parameters["ranking"].get("truth_ends"))


# -- printed tables ----------------------------------------------------------------------------------------------------


def tables_of(rows: Rows) -> Iterator[Lines]:
    """Yield the printed tables of rows of `evaluation`: results, false sentences, and the family's own figures."""
    values = {(row["split"], row["subset"], row["metric"]): row["value"] for row in rows}
    known = {metric for _, _, metric in values}
    shown = [name for metric in all_metrics().values() for name in metric.shown if name in known]
    results, kinds = ([it[:2] for it in values if it[2] == count] for count in COUNTS)
    over_all = [(split, ALL) for split in dict.fromkeys(split for split, _ in kinds)]
    several = [("subset", ("queries", *shown), results)]
    if kinds:
        several += [("false sentences", rejection.OF_KINDS, kinds), ("false sentences", rejection.OF_ALL, over_all)]
    for subset, columns, places in several:
        lines = list[tuple[str, ...]]()
        for place in places:
            cells = ((values.get((*place, name)), 0 if name in COUNTS else 2) for name in columns)
            lines.append((*place, *("–" if value is None else f"{value:,.{digits}f}" for value, digits in cells)))
        yield ("split", subset, *columns), lines
    for title, unit, word, digits in (
        ("saliency inside the moment", "% in order", "ordering", 1),
        ("probability of clips inside and outside the moment", "mean", "probability", 3),
    ):
        lines = [(it["split"], it["metric"], f"{it['value']:.{digits}f}") for it in rows if word in it["metric"]]
        if lines:
            yield ("split", title, unit), lines


# -- comparison of two runs --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """Second minus first: mean, 95 % interval, and twice the share of resamples on the other side of zero."""

    mean: float
    low: float
    high: float
    p: float
    videos: int

    def cells(self) -> tuple[str, str, str]:
        """Return difference, interval and `p` as text; the resamples can't resolve a `p` below 0.001."""
        if self.videos < FEWEST_VIDEOS:
            return f"{self.mean:+.2f}", "–", "–"
        p = "< 0.001" if self.p < 0.001 else f"{self.p:.3f}"
        return f"{self.mean:+.2f}", f"{self.low:+.2f} … {self.high:+.2f}", p


def too_few(videos: Mapping[str, int]) -> str:
    """Return which splits have too few videos for an interval and `p`, and why; '' if there are none."""
    few = [f"{split} has {counted(count, 'video')}" for split, count in videos.items() if count < FEWEST_VIDEOS]
    why = f"with fewer than {FEWEST_VIDEOS} videos resampling can't tell a difference from chance"
    return f"{', '.join(few)}: {why}" if few else ""


def paired_bootstrap(first: ArrayLike, second: ArrayLike, videos: ArrayLike, seed: int = 0) -> Difference:
    """Resample videos with replacement, each with the scores [N] of both runs on all its queries.

    `videos` [N] is each query's video. The figure of a resample is the mean over the queries of the videos it draws.
    A query whose score is NaN does not count.
    """
    change = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    known = np.isfinite(change)
    change = change[known]
    names, video = np.unique(np.asarray(videos)[known], return_inverse=True)
    columns = np.stack([change, np.ones(len(change))], axis=1)
    _, sums = Resamples(len(names), RESAMPLES, seed).sums(video, columns)
    resampled = sums[:, 0] / sums[:, 1]
    low, high = np.percentile(resampled, INTERVAL)
    tail = min(float((resampled <= 0).mean()), float((resampled >= 0).mean()))
    return Difference(float(change.mean()), float(low), float(high), min(1.0, 2 * tail), len(names))


def predictions_of(metrics: Artifact) -> Artifact:
    """Return the newest predictions of a run; raise `EvaluationError` if it has none."""
    if predictions := newest_made_of(metrics, "predictions"):
        return predictions
    name = name_of(Store().manifest(metrics))
    command = f"penumbra run evaluate-grounding {metrics.dataset} --param choice.run={name}"
    raise EvaluationError(f"run {name} has no predictions: {command}")


def scores_by_split(predictions: Artifact) -> "dict[str, pd.DataFrame]":
    """Return the scores in percent of each split's queries (rows: qid and vid, in the order of their ids) by metric.

    Scores about false sentences are NaN for queries without one. `attrs["asked"]` is the digest of a split's false
    sentences; pandas copies `attrs` to each column.
    """
    import pandas as pd

    frames: dict[str, pd.DataFrame] = {}
    asked, threshold = rejection.asked_by_split(predictions)
    for name, split in judged_splits(predictions):
        false, queries = asked.get(name, []), [(qid, split.annotations[qid]["vid"]) for qid in split.windows.qids]
        if queries:
            of_false = rejection.scores_of(split, false, threshold)
            scores = compared_scores(split) | {rejection.label(*it): values for it, values in of_false.items()}
            index = pd.MultiIndex.from_tuples(queries, names=("qid", "vid"))
            frames[name] = pd.DataFrame(scores, index).sort_index()
            asked_of = sorted({(row["qid"], row["kind"], row["sentence"]) for row in false})
            frames[name].attrs["asked"] = sha256(json.dumps(asked_of).encode()).hexdigest()
    return dict(sorted(frames.items(), key=lambda it: it[1].index[0]))


def compare(dataset: str, first: str, second: str, seed: int = 0) -> list[tuple[str, str, Difference]]:
    """Return (split, metric, second minus first in percent) for every split that both runs predicted.

    Scores about false sentences are compared if these are the same for both runs. Raise `EvaluationError` if the runs
    predicted different queries of a split.
    """
    one, other = (scores_by_split(predictions_of(chosen_run(dataset, run))) for run in (first, second))
    retrieval = {name for metric in all_metrics().values() for name in metric.compared}
    differences: list[tuple[str, str, Difference]] = []
    for split in (split for split in one if split in other):
        old, new = one[split], other[split]
        if not old.index.equals(new.index):
            raise EvaluationError(f"the runs predicted different queries of {split}: {len(old)} and {len(new)}")
        videos, are_asked_alike = old.index.get_level_values("vid"), old.attrs["asked"] == new.attrs["asked"]
        for name in (it for it in map(str, old) if it in new and (it in retrieval or are_asked_alike)):
            differences.append((split, name, paired_bootstrap(old[name], new[name], videos, seed)))
    return differences
