"""Stage `ablation`: the figures of every run of a grid; its table lies beside them and is a page in the UI."""

from collections.abc import Callable

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.interface import publish_report
from penumbra.artifacts.manifest import Artifact, Part, Work, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.grounding.ablation.results import Results
from penumbra.tasks.stage import run_stage
from prefect import task
from prefect.cache_policies import NO_CACHE

STAGE = "ablation"
VERSION = 1
TABLE = "_table.md"


class RowsFailedError(PenumbraError):
    """Some rows have no result, or not with every seed; the others are in `artifact`."""

    artifact: Artifact


def work(dataset: str, results: Results) -> Work:
    """Key material: the grid, which row and seed each evaluation is of, and what failed."""
    return Work(
        dataset=dataset,
        stage=STAGE,
        version=VERSION,
        parameters={
            "grid": results.grid.name,
            "rows": [[run.row, run.seed] for run in results.runs],
            "failed": results.failures,
        },
        parents=tuple(run.evaluation for run in results.runs),
        unit="run",
    )


def make_part(results: Results) -> Part:
    """All figures; what failed is rejected with its reason."""
    rejected = [rejection(label, STAGE, reason, results.grid.name) for label, reason in results.failures.items()]
    kept = len(results.runs)
    return Part(table_of(STAGE, results.figures), kept + len(rejected), kept, rejected)


@task(name=STAGE, cache_policy=NO_CACHE)
def tabulate(dataset: str, results: Results) -> Artifact:
    """Keep the figures and the table, and show the table."""

    def parts() -> list[Callable[[], Part]]:
        return [lambda: make_part(results)]

    artifact = run_stage(work(dataset, results), parts, 1)
    page = f"# {dataset}: {results.grid.title}\n\n{results.table()}\n"
    Store().keep(artifact, TABLE, page.encode())
    publish_report(dataset, f"{STAGE}-{results.grid.name}", page)
    return artifact


def table_text(artifact: Artifact) -> str:
    """The table of an `ablation` artifact, as markdown."""
    return (Store().kept(artifact, TABLE) or b"").decode()
