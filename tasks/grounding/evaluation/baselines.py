"""The baselines that every evaluation compares a run with, which know less than the run.

| subset | what is predicted for each query of a split |
| --- | --- |
| constant window | the window that suits the training queries best, the same for every query |
| constant window by verb | the same for each main verb of a query |
| another query | what the model predicts for a query of another video |

The constant window is the one with the highest mean IoU over the training queries, of a grid of windows in shares of
the video's duration and in seconds. A verb's window is the best over its queries and some of all others', so that a
verb that is rare or unknown gets the window of all queries.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.tasks.grounding.metrics import Floats, align, overlaps
from penumbra.tasks.grounding.runs import CONSTANT

BY_VERB, OTHER_QUERY = "constant window by verb", "another query"
STEPS = 40  # of the grid
PRIOR = 5.0  # weight of the mean over all queries in the choice for a verb, in queries
BLOCK = 1024  # queries compared with the grid at once
Row = Mapping[str, Any]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class ConstantWindow:
    """A window for all queries and one for each verb, in shares of the duration (`relative`) or seconds."""

    relative: bool
    window: Floats
    by_verb: Mapping[str, Floats]
    mean_iou: float

    def of(self, duration: float, verb: str | None = None) -> tuple[float, float]:
        """Return start and end in seconds for a video."""
        window = self.window if verb is None else self.by_verb.get(verb, self.window)
        start, end = np.minimum(window * (duration if self.relative else 1.0), duration).tolist()
        return start, end


def fit(queries: Sequence[Row], verbs: Mapping[str, str], end: float | None) -> ConstantWindow | None:
    """Return the best windows for training queries, rows of `annotations`; None if no query has a window.

    `verbs` holds the main verb by qid; true windows are cut at `end` seconds (see `Ranking.truth_ends`).
    """
    known = {row["qid"]: row for row in queries if row["windows"]}
    windows = align({qid: [[0.0, 0.0, 0.0]] for qid in known}, {qid: row["windows"] for qid, row in known.items()})
    windows = windows.until(end)
    if not windows.qids:
        return None
    verb_of = np.array([verbs.get(qid, "") for qid in windows.qids])
    durations = np.array([known[qid]["duration"] for qid in windows.qids])
    starts, ends = np.triu_indices(STEPS + 1, 1)
    grid = np.stack([starts, ends], axis=1) / STEPS  # all windows [G, 2] that begin and end at multiples of 1 / STEPS
    longest = float(np.nanquantile(windows.truth[..., 1], 0.95))
    candidates = [_best(windows.truth, durations, verb_of, *it) for it in ((True, grid), (False, grid * longest))]
    return max(candidates, key=lambda candidate: candidate.mean_iou)


def _best(truth: Floats, durations: Floats, verb_of: np.ndarray, relative: bool, grid: Floats) -> ConstantWindow:
    """Return the windows of the grid [G, 2] with the highest mean IoU."""
    names = np.unique(verb_of)
    sums = np.zeros((len(names), len(grid)))
    for start in range(0, len(truth), BLOCK):
        block = slice(start, start + BLOCK)
        ends = durations[block, None, None]
        iou = overlaps(np.minimum(grid * ends if relative else grid, ends), truth[block])[0]
        has_verb = names[:, None] == verb_of[block]
        sums += has_verb.astype(np.float64) @ np.nan_to_num(iou).max(axis=2)
    mean = sums.sum(axis=0) / len(truth)
    chosen = (sums + PRIOR * mean).argmax(axis=1)
    by_verb = {str(name): grid[place] for name, place in zip(names, chosen, strict=True) if name}
    return ConstantWindow(relative, grid[mean.argmax()], by_verb, float(mean.max()))


def main_verbs(tags: pa.Table) -> Iterator[tuple[str, str]]:
    """Yield the qid and the lemma of the main verb of each query that has one: its root, or else its first verb."""
    for qid, tokens in zip(tags["qid"].to_pylist(), tags["tokens"].to_pylist(), strict=True):
        verbs = [token for token in tokens if token["primitive"] == "verb"]
        root = [token for token in verbs if token["dep"] == "ROOT"]
        if verbs:
            yield qid, (root or verbs)[0]["lemma"]


@lru_cache(maxsize=2)
def fitted(
    annotations: Artifact, tags: Artifact | None, end: float | None
) -> tuple[ConstantWindow | None, dict[str, str]]:
    """Return a data set's constant windows, fitted once in a process, and the main verb of each query with tags."""
    store = Store()
    verbs = dict(pair for part in (store.parts(tags) if tags else ()) for pair in main_verbs(part))
    return fit([row for row in store.rows(annotations) if row["split"] == "train"], verbs, end), verbs


def guesses(
    queries: Sequence[Row], constant: ConstantWindow | None, verbs: Mapping[str, str]
) -> Iterator[tuple[str, Rows]]:
    """Yield the name of each constant window, and its rows of `predictions` for rows of `annotations`."""
    for name, verb_of in ((CONSTANT, {}), (BY_VERB, verbs)) if constant else ():
        if constant and (verbs or name == CONSTANT):
            windows = [constant.of(row["duration"], verb_of.get(row["qid"])) for row in queries]
            spans = [[{"start": start, "end": end, "score": 1.0}] for start, end in windows]
            rows = [{"qid": row["qid"], "windows": it, "saliency": []} for row, it in zip(queries, spans, strict=True)]
            yield name, rows
