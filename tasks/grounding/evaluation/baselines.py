"""What a run is held against in every evaluation: guesses that know less than it does.

| subset | what is predicted for each query of a split |
| --- | --- |
| constant window | the window that suits the training queries best, for every query alike |
| constant window by verb | the same by the query's main verb |
| another query | what the model says of the same video under a query of another one: what it knows without the text |
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penumbra.tasks.grounding.evaluation.constant import Fitted
from penumbra.tasks.grounding.metrics.metric import Split
from penumbra.tasks.grounding.metrics.registry import all_metrics
from penumbra.tasks.negatives.providers.draws import row_seed

CONSTANT, BY_VERB, OTHER_QUERY = "constant window", "constant window by verb", "another query"
BASELINES = (CONSTANT, BY_VERB, OTHER_QUERY)
ASKED = 1_000  # queries of a split whose video is asked with another: prediction costs, and half a point is near enough
SEED = 0
Row = Mapping[str, Any]


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
