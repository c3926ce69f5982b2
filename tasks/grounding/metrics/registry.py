"""All metrics that a run is judged by; evaluation, comparison and tables walk them in this order.

A new one is a file beside this one, its import here and its line in `METRICS`; from outside the package, `register`.
"""

from penumbra.tasks.grounding.metrics.highlights import HIGHLIGHTS
from penumbra.tasks.grounding.metrics.metric import Metric, Split
from penumbra.tasks.grounding.metrics.retrieval import RETRIEVAL
from penumbra.tasks.grounding.metrics.windows import Floats

METRICS: dict[str, Metric] = {
    "retrieval": RETRIEVAL,
    "highlights": HIGHLIGHTS,
}


def register(name: str, metric: Metric) -> None:
    """Add a metric; raises `ValueError` where one of this name is there."""
    if name in METRICS:
        raise ValueError(f"there is a metric {name!r} already")
    METRICS[name] = metric


def shown() -> tuple[str, ...]:
    """The names of the figures that tables for people have as columns."""
    return tuple(name for metric in METRICS.values() for name in metric.shown)


def versions() -> dict[str, int]:
    """Each metric's version: what determines which figures an evaluation holds."""
    return {name: metric.version for name, metric in METRICS.items()}


def scores_by_query(split: Split) -> dict[str, Floats]:
    """The scores [N] of each query, in percent where the figures are, by figure: their mean is the figure."""
    found: dict[str, Floats] = {}
    for metric in METRICS.values():
        found |= metric.by_query(split) if metric.by_query else {}
    return found
