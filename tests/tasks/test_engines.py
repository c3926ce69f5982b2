"""Workers make the same bytes as one process; failures are reported."""

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.locations import PROJECT
from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.engines import Engine, chosen_engine, local_worker_count, use_engine, workers
from penumbra.tasks.parameter_group import Parameters
from penumbra.tasks.stage import Stage, planning, run
from tests.cluster import free_port
from tests.terminal import python

PARTS = 6
SCRIPT = """
from penumbra.tasks.engines import Engine
from tests.tasks.test_engines import Toys, made

print("made", made(Engine.processes, Toys()).key)
"""


class Toys(Parameters):
    number: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Toy(Stage):
    """A row and a refused row a part; files beside tell which process made what."""

    name = "rejected"
    version = 1
    unit = "toy"
    by_workers = True

    toys: Toys

    @property
    def dataset(self) -> str:
        return "toy"

    @cached_property
    def pieces(self) -> Sequence[str]:
        return [f"piece {index}" for index in range(PARTS)]

    @cached_property
    def shared(self) -> str:
        note("shared", str(os.getpid()))
        return "shared by all"

    def part(self, piece: Any) -> Part:
        time.sleep(self.toys.seconds)
        note(piece, str(os.getpid()))
        index = int(piece.rpartition(" ")[2])
        row = {"qid": piece, "stage": "toy", "reason": self.shared, "value": str(self.toys.number)}
        refused = [rejection(piece, "toy", f"reason {index % 2}", "")]
        return Part(table_of("rejected", [row]), 2, 1, refused, Counter({"noted": 1}), measured={"seconds": 0.5})


def note(what: str, value: str) -> None:
    with Path(os.environ["TOYS"], what).open("a") as stream:
        stream.write(value + "\n")


def notes(what: str) -> list[str]:
    path = Path(os.environ["TOYS"], what)
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(autouse=True)
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toys").mkdir()
    monkeypatch.setenv("TOYS", str(tmp_path / "toys"))
    monkeypatch.setenv("PREFECT_API_URL", str(PREFECT_API_URL.value() or ""))  # as `penumbra run` leaves it
    monkeypatch.setattr("penumbra.tasks.engines.local_worker_count", lambda: 2)


@flow
def made(engine: Engine | None, toys: Toys) -> Artifact:
    with use_engine(engine):
        return run(Toy(toys))


@pytest.mark.parametrize("engine", [Engine.processes, Engine.dask, pytest.param(Engine.ray, marks=pytest.mark.long)])
def test_workers_make_the_same_bytes(engine: Engine, store: Store, prefect_server: None) -> None:
    pytest.importorskip({Engine.dask: "prefect_dask", Engine.ray: "prefect_ray"}.get(engine, "prefect"))
    here = made(Engine.here, Toys())
    manifest = store.manifest(here)
    assert {*notes("shared")} == {str(os.getpid())}
    store.remove(here)
    there = made(engine, Toys())
    assert there == here
    assert store.verify(there) == []
    again = store.manifest(there)
    assert again.digests == manifest.digests
    assert (again.taken, again.kept, again.rejected) == (manifest.taken, manifest.kept, manifest.rejected)
    assert again.measured == manifest.measured == {"seconds": PARTS * 0.5}
    makers = {notes(f"piece {index}")[-1] for index in range(PARTS)}
    assert len(makers) == 2
    assert str(os.getpid()) not in makers
    assert sorted(notes("shared")) == sorted([str(os.getpid()), *makers]), "once a process, not once a part"


@pytest.mark.long
def test_a_killed_worker_is_reported_and_finished_parts_stay(store: Store, prefect_server: None) -> None:
    def kill() -> None:
        while not any(store.record(artifact, 0) for artifact in store.folders()):
            time.sleep(0.05)
        os.kill(int(notes("piece 0")[0]), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    killed = r"a worker was killed, or had too little memory.*: the same command resumes"
    with pytest.raises(PenumbraError, match=killed):
        made(Engine.processes, Toys(seconds=1.0))
    (artifact,) = store.folders()
    finished = [index for index in range(PARTS) if store.record(artifact, index)]
    assert 0 in finished
    assert len(finished) < PARTS
    made(Engine.processes, Toys(seconds=1.0))
    assert store.verify(artifact) == []
    for index in finished:
        assert len(notes(f"piece {index}")) == 1


@pytest.mark.long
@pytest.mark.skipif(local_worker_count() == 1, reason="one core: no worker would start")
def test_a_script_without_a_guard_is_not_run_by_each_worker(store: Store, prefect_server: None, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    variables = {"PYTHONPATH": str(PROJECT), "PREFECT_API_URL": str(PREFECT_API_URL.value())}
    assert python(tmp_path / "script.py", **variables).stdout.count("made") == 1
    assert [len(notes(f"piece {index}")) for index in range(PARTS)] == [1] * PARTS


def test_a_single_part_and_a_plan_start_no_workers(store: Store, prefect_server: None) -> None:
    artifact = made(Engine.here, Toys())
    (Path(artifact.path) / "part-00004.parquet").unlink()
    made(Engine.processes, Toys())
    assert notes("piece 4") == [str(os.getpid())] * 2
    with planning(), use_engine(Engine.processes):
        run(Toy(Toys(number=1)))
    assert len(store.find()) == 1


def test_the_engine_is_the_parameter_the_variable_or_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penumbra.tasks.engines.local_worker_count", lambda: 4)
    assert chosen_engine(None) is Engine.processes
    monkeypatch.setattr("penumbra.tasks.engines.local_worker_count", lambda: 2)
    assert chosen_engine(None) is Engine.here
    monkeypatch.setenv("PENUMBRA_ENGINE", "here")
    assert chosen_engine(None) is Engine.here
    assert chosen_engine(Engine.processes) is Engine.processes
    with use_engine(None):
        assert workers() is None
    monkeypatch.setenv("PENUMBRA_ENGINE", "proceses")
    with pytest.raises(PenumbraError, match=r"PENUMBRA_ENGINE=proceses: no such engine.*processes"):
        chosen_engine(None)


@pytest.mark.parametrize("engine", [Engine.dask, Engine.ray])
@pytest.mark.parametrize("installed", [False, True])
def test_a_missing_extra_and_cluster_are_one_line(
    engine: Engine, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"{'tcp://' if engine is Engine.dask else ''}127.0.0.1:{free_port()}"
    message = rf"no {engine} cluster answers .*ENGINE_ADDRESS={address}"
    if installed:
        pytest.importorskip(f"prefect_{engine}")
        monkeypatch.setenv("PENUMBRA_ENGINE_ADDRESS", address)
    else:
        monkeypatch.setitem(sys.modules, f"prefect_{engine}", None)
        message = rf"needs .*: pip install 'penumbra\[{engine}\]'"
    monkeypatch.setattr("penumbra.tasks.engines.CONNECT_SECONDS", 2)

    def start() -> None:
        with use_engine(engine):
            assert not installed, "an address that does not answer is reported before the first stage"
            _ = workers().pool  # type: ignore[union-attr]

    with pytest.raises(PenumbraError, match=message) as error:
        start()
    assert "\n" not in str(error.value)
