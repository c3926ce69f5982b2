"""What a metric is, and what it is computed from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penumbra.tasks.grounding.metrics.windows import Flags, Floats, Windows

Chosen = Flags | slice  # which of a split's N queries
Figures = Callable[[Chosen], dict[str, float]]


@dataclass(frozen=True)
class Split:
    """The N queries of a split whose true windows are known.

    `predictions` and `annotations` are these tables' rows by qid. They may hold more queries than `windows`, which
    leaves out those whose true windows begin after `Ranking.truth_ends`; every array [N] follows `windows.qids`.
    """

    windows: Windows
    predictions: Mapping[str, Mapping[str, Any]]
    annotations: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Metric:
    """One or several figures of a split.

    `figures` looks at a split once and gives a function from some of its queries to their figures by name (none where
    the data have nothing to judge). `by_query` gives scores [N] by name, whose mean is the figure: they are what
    `penumbra compare` and ablations resample. `shown` are the names that tables for people have as columns. A metric
    that is not `by_type` is only given a whole split. A change to what is computed raises `version`.
    """

    figures: Callable[[Split], Figures]
    by_query: Callable[[Split], dict[str, Floats]] | None = None
    shown: tuple[str, ...] = ()
    by_type: bool = True
    version: int = 1


def mean_of(name: str, scores: Callable[[Split], Floats], shown: bool = False, version: int = 1) -> Metric:
    """A metric that is the mean over queries of a score [N], by split and composition type, in comparisons as well."""

    def figures(split: Split) -> Figures:
        values = scores(split)
        return lambda chosen: {name: float(values[chosen].mean())}

    return Metric(figures, lambda split: {name: scores(split)}, (name,) if shown else (), version=version)
