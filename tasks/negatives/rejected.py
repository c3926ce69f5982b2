"""Stage `rejected`: everything that the stages of a run refused, in one table."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.store import Store
from penumbra.tasks.stage import Stage, run


@dataclass(frozen=True)
class Rejected(Stage):
    """The refusals of several stages, one part after the other."""

    name = "rejected"
    version = 1
    unit = "refusal"
    by_workers = False  # its pieces are the rows themselves

    stages: tuple[Artifact, ...]

    @cached_property
    def pieces(self) -> Sequence[pa.Table]:
        """The refusals of each part."""
        store = Store()
        return [rows for artifact in self.stages for rows in store.rejected(artifact)]

    def part(self, piece: pa.Table) -> Part:
        """Take a part's refusals as they are."""
        return Part(piece, len(piece), len(piece))


def gather_rejected(*stages: Artifact) -> Artifact:
    """Bring the refusals of all stages together."""
    return run(Rejected(stages))
