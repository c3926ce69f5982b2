"""Stages that are started in other processes."""

import os
import time
from dataclasses import dataclass
from typing import Any

import pytest
from prefect import flow

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.stage import Parameters, Stage, planning, run, stages_ahead

pytestmark = pytest.mark.long


class Tried(Parameters):
    """What the toy stage does."""

    number: int = 0
    fails: bool = False


@dataclass(frozen=True)
class Toy(Stage):
    """A row that says in which process it was made."""

    name = "rejected"
    version = 1
    pieces = (0,)

    tried: Tried

    @property
    def dataset(self) -> str:
        return "toy"

    def part(self, piece: Any) -> Part:
        time.sleep(0.5)
        if self.tried.fails:
            raise ValueError(f"toy {self.tried.number} is broken")
        row = {"qid": "", "stage": "", "reason": "", "value": str(os.getpid())}
        return Part(table_of("rejected", [row]), 1, 1)


@flow
def several(processes: int) -> list[Artifact]:
    toys = [Toy(Tried(number=number)) for number in range(3)]
    with stages_ahead(processes) as ahead:
        waits = [ahead(toy) for toy in toys]
        broken = ahead(Toy(Tried(fails=True)))
        for wait in waits:
            wait()
        with pytest.raises(ValueError, match="toy 0 is broken"):
            broken()
        return [run(toy) for toy in toys]


def test_stages_are_made_in_other_processes(store: Store, prefect_server: None) -> None:
    makers = {store.table(artifact)["value"][0].as_py() for artifact in several(2)}
    assert len(makers) == 2
    assert str(os.getpid()) not in makers


def test_nothing_is_started_with_one_process_or_in_a_plan(store: Store) -> None:
    with stages_ahead(1) as ahead:
        ahead(Toy(Tried(fails=True)))()
    with planning(), stages_ahead(2) as ahead:
        ahead(Toy(Tried(fails=True)))()
