"""Dask and Ray: the same bytes as one process, hosts that share only a bucket, and killed processes."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL

from penumbra.artifacts.store import Store
from penumbra.tasks.engines import Engine
from tests.cluster import PATIENCE, Host, bucket, free_port, wait_until
from tests.corner import cut_out
from tests.rows import first_videos
from tests.tasks.test_engines import PARTS, Toys, made

pytest.importorskip("prefect_dask", reason="needs the extra dask")
pytest.importorskip("prefect_ray", reason="needs the extra ray")

VIDEOS = {"train": 60, "test_trivial": 10, "novel_composition": 10, "novel_word": 10}
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # on a busy machine
NewHost = Callable[..., Host]


@pytest.fixture
def new_host(prefect_server: None, tmp_path: Path) -> Iterator[NewHost]:
    """Makes hosts by name; what runs on them ends with the test."""
    hosts: list[Host] = []
    toys = tmp_path / "toys"
    toys.mkdir()

    def new(name: str, **variables: str) -> Host:
        server = {"PREFECT_API_URL": str(PREFECT_API_URL.value()), "TOYS": str(toys), "HF_HUB_OFFLINE": "1"}
        hosts.append(Host(tmp_path / name, **server, **variables))
        return hosts[-1]

    yield new
    for host in hosts:
        host.end()


def dask_at(port: int) -> dict[str, str]:
    return {"PENUMBRA_ENGINE": "dask", "PENUMBRA_ENGINE_ADDRESS": f"tcp://127.0.0.1:{port}"}


def test_hosts_that_share_only_a_bucket_and_a_port(shared: Path, new_host: NewHost, tmp_path: Path) -> None:
    """They give the same bytes as one process that makes one part after the other."""
    corner = first_videos(tmp_path / "corner", shared / "data" / "charades-cg", **VIDEOS)
    alone = new_host("alone", PENUMBRA_ENGINE="here", PENUMBRA_ARTIFACTS=str(tmp_path / "alone-artifacts"))
    expected = alone.run("queries", str(corner))
    assert len([place for place in expected if place.startswith("masks/")]) > 2
    port = free_port()
    with bucket() as variables:
        flow = new_host("flow", **dask_at(port), **variables)
        worker = new_host("worker", **{name: it for name, it in variables.items() if name.startswith("AWS_")})
        new_host("scheduler").scheduler(port)
        worker.worker(port)
        assert flow.run("queries", str(corner)) == expected
        assert not list(worker.folder.rglob("*.parquet"))


def test_features_are_made_by_the_gpus(new_host: NewHost, tmp_path: Path) -> None:
    """A resource of Dask is a name: these hosts need no GPU."""
    folder, port = str(cut_out(tmp_path / "films", train=9)), free_port()
    alone = new_host("alone", PENUMBRA_ENGINE="here", PENUMBRA_ARTIFACTS=str(tmp_path / "alone-artifacts"))
    expected = alone.run("features", folder)
    assert len([name for name in expected if name.startswith("video_features/part")]) == 5
    flow = new_host("flow", **dask_at(port), PENUMBRA_ARTIFACTS=str(tmp_path / "artifacts"))
    new_host("scheduler").scheduler(port)
    workers = {name: new_host(name) for name in ("with", "without")}
    workers["with"].worker(port, "--resources", "GPU=1")
    workers["without"].worker(port)
    wait_until(lambda: all("Registered to" in (host.folder / "errors").read_text() for host in workers.values()))
    assert flow.run("features", folder) == expected
    made = {name for name, host in workers.items() if ": on cpu" in (host.folder / "errors").read_text()}
    assert made == {"with"}
    assert ": on cpu" not in (flow.folder / "errors").read_text(), "the run's own host loads no encoder"


def makers(folder: Path, piece: int) -> list[int]:
    path = folder / "toys" / f"piece {piece}"
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def finished(folder: Path) -> list[int]:
    paths = (folder / "artifacts").rglob("part-*.parquet")
    return [int(path.stem.split("-")[1]) for path in paths if path.parent.name != "_rejected"]


@pytest.fixture
def digests(prefect_server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the toys' parts are, made by one process."""
    (tmp_path / "alone-toys").mkdir()
    monkeypatch.setenv("TOYS", str(tmp_path / "alone-toys"))
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", str(tmp_path / "alone"))
    return Store().manifest(made(Engine.here, Toys())).digests


def running(host: Host, folder: Path) -> "subprocess.Popen[str]":
    """A run whose first part is there."""
    run = host.start("tests.cluster", "toys", "1")
    wait_until(lambda: finished(folder))
    return run


def result(run: "subprocess.Popen[str]") -> dict[str, str]:
    return json.loads(run.communicate(timeout=PATIENCE)[0].splitlines()[-1])


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_a_killed_worker_s_parts_are_made(
    engine: str, digests: dict[str, str], new_host: NewHost, tmp_path: Path
) -> None:
    host = new_host("host", PENUMBRA_ENGINE=engine, PENUMBRA_ARTIFACTS=str(tmp_path / "artifacts"))
    run = running(host, tmp_path)
    os.kill(makers(tmp_path, finished(tmp_path)[0])[0], signal.SIGKILL)
    there = finished(tmp_path)
    assert result(run) == digests
    assert all(len(makers(tmp_path, piece)) == 1 for piece in there), "no finished part is made twice"


def test_after_a_killed_scheduler_the_next_run_continues(
    digests: dict[str, str], new_host: NewHost, tmp_path: Path
) -> None:
    cluster, port = new_host("cluster"), free_port()
    scheduler = cluster.scheduler(port)
    cluster.worker(port)
    flow = new_host("flow", **dask_at(port), PENUMBRA_ARTIFACTS=str(tmp_path / "artifacts"))
    run = running(flow, tmp_path)
    os.killpg(scheduler.pid, signal.SIGKILL)
    assert "the same command resumes with the parts that are left" in result(run)["error"]
    there = finished(tmp_path)
    assert len(there) < PARTS
    cluster.scheduler(port)
    cluster.worker(port)
    assert flow.run("toys", "1") == digests
    assert all(len(makers(tmp_path, piece)) == 1 for piece in there)


@pytest.mark.parametrize("engine", ["processes", "dask", "ray"])
def test_the_next_run_continues_if_the_flow_s_process_was_killed(
    engine: str, digests: dict[str, str], new_host: NewHost, tmp_path: Path
) -> None:
    host = new_host("host", PENUMBRA_ENGINE=engine, PENUMBRA_ARTIFACTS=str(tmp_path / "artifacts"))
    run = running(host, tmp_path)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    time.sleep(10)  # its workers end
    there = finished(tmp_path)
    assert host.run("toys", "1") == digests
    assert all(len(makers(tmp_path, piece)) == 1 for piece in there)
