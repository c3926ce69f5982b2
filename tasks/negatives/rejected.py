"""Stage `rejected`: everything that the stages of a run refused, in one table."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from penumbra.artifacts.manifest import Artifact, Part, Work
from penumbra.artifacts.store import Store
from penumbra.tasks.stage import run_stage
from prefect import task

STAGE = "rejected"
VERSION = 1


def _part(rows: pa.Table) -> Part:
    return Part(rows, len(rows), len(rows))


def work(stages: Sequence[Artifact]) -> Work:
    """Key material: the stages."""
    return Work(stages[0].dataset, STAGE, VERSION, parents=tuple(stages), unit="refusal")


@task(name=STAGE)
def gather_rejected(stages: list[Artifact]) -> Artifact:
    """Bring the refusals of all stages together."""

    def parts() -> Iterator[Callable[[], Part]]:
        store = Store()
        return (partial(_part, rows) for artifact in stages for rows in store.rejected(artifact))

    return run_stage(work(stages), parts)
