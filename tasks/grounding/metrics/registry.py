"""All metrics that a run is judged by; evaluation, comparison and tables walk them in this order.

One more is a file beside this one, its import here and its line in `SHIPPED`; one of another package is an entry point
of that package, so that every process finds it:

    [project.entry-points."penumbra.metrics"]
    late-start = "my_package.metrics:LATE_START"

A script may call `register` instead; processes that it did not start don't know of it.
"""

from functools import cache
from importlib.metadata import entry_points

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.grounding.metrics.highlights import HIGHLIGHTS
from penumbra.tasks.grounding.metrics.metric import Metric, Split
from penumbra.tasks.grounding.metrics.retrieval import RETRIEVAL
from penumbra.tasks.grounding.metrics.windows import Floats

GROUP = "penumbra.metrics"
SHIPPED: dict[str, Metric] = {"retrieval": RETRIEVAL, "highlights": HIGHLIGHTS}


class MetricError(PenumbraError):
    """A metric can't be registered."""


@cache
def all_metrics() -> dict[str, Metric]:
    """The metrics by name, those of other packages too; they are imported only now."""
    found = dict(SHIPPED)
    for point in entry_points(group=GROUP):
        _add(found, point.name, point.load())
    return found


def register(name: str, metric: Metric) -> None:
    """Add a metric in this process; raises `MetricError` where one of this name is there, or where it is none."""
    _add(all_metrics(), name, metric)


def _add(found: dict[str, Metric], name: str, metric: Metric) -> None:
    if not isinstance(metric, Metric):
        raise MetricError(f"metric {name!r} is a {type(metric).__name__}, no Metric")
    if name in found:
        raise MetricError(f"there are two metrics {name!r}: call one of them otherwise")
    found[name] = metric


def shown() -> tuple[str, ...]:
    """The names of the figures that tables for people have as columns."""
    return tuple(name for metric in all_metrics().values() for name in metric.shown)


def versions() -> dict[str, int]:
    """Each metric's version: what determines which figures an evaluation holds."""
    return {name: metric.version for name, metric in all_metrics().items()}


def scores_by_query(split: Split) -> dict[str, Floats]:
    """The scores [N] of each query, in percent where the figures are, by figure: their mean is the figure."""
    found: dict[str, Floats] = {}
    for metric in all_metrics().values():
        found |= metric.by_query(split) if metric.by_query else {}
    return found
