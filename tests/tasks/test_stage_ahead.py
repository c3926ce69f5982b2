"""Stages that are started in other processes."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prefect import flow

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.stage import Parameters, Stage, planning, run, stages_ahead

pytestmark = pytest.mark.long

DEADLINE = 120


class Tried(Parameters):
    """What the toy stage does."""

    number: int = 0
    fails: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Toy(Stage):
    """A row that says in which process it was made, and with how many threads."""

    name = "rejected"
    version = 1
    pieces = (0,)

    tried: Tried

    @property
    def dataset(self) -> str:
        return "toy"

    def part(self, piece: Any) -> Part:
        import torch

        Path(os.environ["TOYS"], f"{os.getpid()}").touch()
        time.sleep(self.tried.seconds)
        if self.tried.fails:
            raise ValueError(f"toy {self.tried.number} is broken")
        row = {"qid": "", "stage": "", "reason": str(torch.get_num_threads()), "value": str(os.getpid())}
        return Part(table_of("rejected", [row]), 1, 1)


@flow
def several(processes: int) -> tuple[list[Artifact], str]:
    toys = [Toy(Tried(number=number, seconds=0.5)) for number in range(3)]
    with stages_ahead(processes) as ahead:
        waits = [ahead(toy) for toy in toys]
        broken = ahead(Toy(Tried(fails=True)))
        for wait in waits:
            wait()
        try:
            broken()
            said = ""
        except ValueError as error:
            said = str(error)
        return [run(toy) for toy in toys], said


def test_stages_are_made_in_other_processes(
    store: Store, prefect_server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOYS", str(tmp_path))
    found, said = several(2)
    rows = [store.table(artifact).to_pylist()[0] for artifact in found]
    assert str(os.getpid()) not in {row["value"] for row in rows}
    assert len({row["value"] for row in rows}) == 2
    assert {row["reason"] for row in rows} == {"1"} or (os.cpu_count() or 1) > 3, "each has its share of the cores"
    assert said == "toy 0 is broken"


def test_nothing_is_started_with_one_process_or_in_a_plan(store: Store, tmp_path: Path) -> None:
    with stages_ahead(1) as ahead:
        ahead(Toy(Tried(fails=True)))()
    with planning(), stages_ahead(2) as ahead:
        ahead(Toy(Tried(fails=True)))()
