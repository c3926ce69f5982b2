"""A stage that was given something and leaves nothing fails, whichever stage rejected it."""

from dataclasses import dataclass
from typing import Any

import pytest
from prefect import flow

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.stage import Stage, run


@dataclass(frozen=True)
class Fills(Stage):
    """A stage that may be empty; it rejects two of its queries."""

    name = "masks"
    version = 1
    may_be_empty = True
    dataset = "toy"
    pieces = (0,)

    taken: int

    def parameters(self) -> dict[str, Any]:
        return {"taken": self.taken}

    def determines(self) -> dict[str, Any]:
        return self.parameters()

    def part(self, piece: Any) -> Part:
        rejected = [rejection(str(number), "masks", "no word", "") for number in range(self.taken)]
        return Part(table_of("masks", []), self.taken, 0, rejected)


@dataclass(frozen=True)
class Chosen(Stage):
    """A stage that chooses from fills, of which there are none."""

    name = "rejected"
    version = 1

    fills: Artifact

    def part(self, piece: Any) -> Part:
        return Part(table_of("rejected", []), 0, 0)


@flow
def made(taken: int) -> Artifact:
    return run(Chosen(run(Fills(taken))))


def test_a_stage_without_rows_names_what_rejected_them(store: Store, prefect_server: None) -> None:
    for _ in range(2):  # the second run finds both artifacts made
        reason = r"rejected: nothing is left of 2 queries; most often \(2 ×\): no word; .*/masks/"
        with pytest.raises(PenumbraError, match=reason):
            made(2)
    assert store.manifest(made(0)).rows == 0, "a stage that was given nothing may leave nothing"
