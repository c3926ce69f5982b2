"""Stage `ablation`: the figures of every run of a grid; its table lies beside them and is a page in the UI."""

from dataclasses import dataclass
from typing import Any

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.prefect_ui import publish_report
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.grounding.ablation.results import Results
from penumbra.tasks.stage import Stage, run

STAGE = "ablation"
TABLE = "_table.md"


class RowsFailedError(PenumbraError):
    """Some rows have no result, or not with every seed; the others are in `artifact`."""

    artifact: Artifact


@dataclass(frozen=True)
class Ablation(Stage):
    """The figures of every run of a grid, and of the constant window; what failed is rejected with its reason."""

    name = STAGE
    version = 2
    unit = "run"
    pieces = (0,)

    of: str
    results: Results

    @property
    def dataset(self) -> str:
        """The data set, also where every run failed."""
        return self.of

    @property
    def parents(self) -> tuple[Artifact, ...]:
        """The evaluations."""
        return tuple(run.evaluation for run in self.results.runs)

    def parameters(self) -> dict[str, Any]:
        """The grid, which row and seed each evaluation is of, and what failed."""
        return {
            "grid": self.results.grid.name,
            "rows": [[run.row, run.seed] for run in self.results.runs],
            "failed": self.results.failures,
        }

    def determines(self) -> dict[str, Any]:
        """All of them."""
        return self.parameters()

    def part(self, piece: int) -> Part:
        """All figures are one part."""
        results = self.results
        rejected = [rejection(label, STAGE, reason, results.grid.name) for label, reason in results.failures.items()]
        kept = len(results.runs)
        return Part(table_of(STAGE, results.figures), kept + len(rejected), kept, rejected)


def tabulate(dataset: str, results: Results) -> Artifact:
    """Keep the figures and the table, and show the table."""
    artifact = run(Ablation(dataset, results))
    page = f"# {dataset}: {results.grid.title}\n\n{results.table()}\n"
    Store().write_file(artifact, TABLE, page.encode())
    publish_report(dataset, f"{STAGE}-{results.grid.name}", page)
    return artifact


def table_text(artifact: Artifact) -> str:
    """The table of an `ablation` artifact, as markdown."""
    return (Store().read_file(artifact, TABLE) or b"").decode()
