"""What a run is held against in every evaluation: guesses that know less than it does.

| subset | what is predicted for each query of a split |
| --- | --- |
| constant window | the window that suits the training queries best, for every query alike |
| constant window by verb | the same by the query's main verb |
| another query | what the model says of the same video under a query of another one: what it knows without the text |
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.tasks.grounding.metrics import Floats, Split, align, all_metrics, overlaps
from penumbra.tasks.negatives.providers.draws import row_seed

STEPS = 40  # of the grid
PRIOR = 5.0  # queries' worth of the mean over all queries, in the choice for a verb
BLOCK = 1024  # queries held against the grid at once
TRAINING = "train"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class ConstantWindow:
    """One window for all, and one a verb: [2] shares of the duration (`relative`) or seconds, with their mean IoU."""

    relative: bool
    window: Floats
    by_verb: Mapping[str, Floats]
    mean_iou: float

    def of(self, duration: float, verb: str | None = None) -> tuple[float, float]:
        """Start and end in seconds for a video; for a verb that no training query has, as without."""
        window = self.window if verb is None else self.by_verb.get(verb, self.window)
        start, end = np.minimum(window * (duration if self.relative else 1.0), duration).tolist()
        return start, end


def fit(queries: Sequence[Row], verbs: Mapping[str, str], end: float | None) -> ConstantWindow | None:
    """The best windows for training queries, rows of `annotations`, and the verb of each qid; None without any window.

    `end`: see `Ranking.truth_ends`.
    """
    known = {row["qid"]: row for row in queries if row["windows"]}
    windows = align({qid: [[0.0, 0.0, 0.0]] for qid in known}, {qid: row["windows"] for qid, row in known.items()})
    windows = windows.until(end)
    if not windows.qids:
        return None
    names = sorted({verbs.get(qid, "") for qid in windows.qids})
    numbers = np.array([names.index(verbs.get(qid, "")) for qid in windows.qids])
    durations = np.array([known[qid]["duration"] for qid in windows.qids])
    longest = float(np.nanquantile(windows.truth[..., 1], 0.95))
    found = [
        _best(windows.truth, durations, numbers, names, relative, _grid() * (1.0 if relative else longest))
        for relative in (True, False)
    ]
    return max(found, key=lambda one: one.mean_iou)


def _grid() -> Floats:
    """All windows [G, 2] that begin and end at multiples of 1 / STEPS."""
    starts, ends = np.triu_indices(STEPS + 1, 1)
    return np.stack([starts, ends], axis=1) / STEPS


def _best(
    truth: Floats, durations: Floats, verbs: np.ndarray, names: Sequence[str], relative: bool, grid: Floats
) -> ConstantWindow:
    sums = np.zeros((len(names), len(grid)))
    for start in range(0, len(truth), BLOCK):
        some = slice(start, start + BLOCK)
        ends = durations[some, None, None]
        iou = overlaps(np.minimum(grid * ends if relative else grid, ends), truth[some])[0]
        of_verb = np.arange(len(names))[:, None] == verbs[some]
        sums += of_verb.astype(np.float64) @ np.nan_to_num(iou).max(axis=2)
    mean = sums.sum(axis=0) / len(truth)
    chosen = (sums + PRIOR * mean).argmax(axis=1)
    by_verb = {name: grid[at] for name, at in zip(names, chosen, strict=True) if name}
    return ConstantWindow(relative, grid[mean.argmax()], by_verb, float(mean.max()))


def main_verbs(tags: pa.Table) -> Iterator[tuple[str, str]]:
    """Yield the qid and the main verb's lemma of each query that has one: its root, or else its first verb."""
    for qid, tokens in zip(tags["qid"].to_pylist(), tags["tokens"].to_pylist(), strict=True):
        verbs = [token for token in tokens if token["primitive"] == "verb"]
        root = [token for token in verbs if token["dep"] == "ROOT"]
        if verbs:
            yield qid, (root or verbs)[0]["lemma"]


@dataclass(frozen=True)
class Fitted:
    """The constant windows of a data set, and the main verb of each query where its tags are there."""

    constant: ConstantWindow | None
    verbs: Mapping[str, str]


@lru_cache(maxsize=2)
def fitted(annotations: Artifact, tags: Artifact | None, end: float | None) -> Fitted:
    """The constant windows for these queries, fitted once a process: a study judges its runs by the same."""
    store = Store()
    verbs = dict(pair for part in (store.parts(tags) if tags else ()) for pair in main_verbs(part))
    rows = (row for part in store.parts(annotations) for row in part.to_pylist())
    return Fitted(fit([row for row in rows if row["split"] == TRAINING], verbs, end), verbs)


CONSTANT, BY_VERB, OTHER_QUERY = "constant window", "constant window by verb", "another query"
BASELINES = (CONSTANT, BY_VERB, OTHER_QUERY)
ASKED = 1_000  # queries of a split whose video is asked with another: prediction costs, and half a point is near enough
SEED = 0


def guesses(queries: Sequence[Row], fit: Fitted) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The constant windows for rows of `annotations`, as rows of `predictions`, by the name of the baseline."""
    constant = fit.constant
    if constant is None:
        return
    yield CONSTANT, [_guess(row, constant.of(row["duration"])) for row in queries]
    if fit.verbs:
        yield BY_VERB, [_guess(row, constant.of(row["duration"], fit.verbs.get(row["qid"]))) for row in queries]


def _guess(row: Row, window: tuple[float, float]) -> dict[str, Any]:
    start, end = window
    return {"qid": row["qid"], "windows": [{"start": start, "end": end, "score": 1.0}], "saliency": []}


def with_other_queries(queries: Sequence[Row], most: int = ASKED) -> list[dict[str, Any]]:
    """At most so many rows of `annotations` of a split, each with the query of another video of the split.

    Which rows, and whose query, is told by the qids and is the same for every run. There are none where all queries
    are of one video.
    """
    if len({row["vid"] for row in queries}) < 2:
        return []
    order = sorted(queries, key=lambda row: row_seed(SEED, row["qid"]))
    draws = np.random.default_rng(SEED)
    found = []
    for row in order[:most]:
        other = row
        while other["vid"] == row["vid"]:
            other = order[int(draws.integers(len(order)))]
        found.append({**row, "query": other["query"]})
    return found


def whole_figures(split: Split) -> Iterator[tuple[str, float]]:
    """Yield the figures over a whole split, and the number of its queries: without those that need saliency."""
    if not split.windows.qids:
        return
    for metric in all_metrics().values():
        if metric.by_type:
            yield from metric.figures(split)(slice(None)).items()
    yield "queries", float(len(split.windows.qids))
