"""`penumbra serve` on real processes: server, pool, worker, deployments, a run, the pages in a browser, Ctrl-C."""

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from penumbra.artifacts.store import Store
from penumbra.flows.server import process_environment
from tests.cluster import free_port
from tests.rows import files_in

pytestmark = [pytest.mark.slow, pytest.mark.long]

SCHEDULED = {"build-negatives", "extract-features", "full-pipeline"}
WITHOUT_GPU = {"build-negatives", "import-negatives"}
PENUMBRA = [sys.executable, "-m", "penumbra"]
PROFILES = """
active = "mine"
[profiles.mine]
PREFECT_LOGGING_LEVEL = "INFO"
[profiles.theirs]
PREFECT_API_URL = "http://127.0.0.1:{port}/api"
"""


@dataclass
class Served:
    """A server that was started in a terminal, by a user who has a Prefect of their own."""

    process: subprocess.Popen[bytes]
    port: int
    home: Path
    environment: dict[str, str]
    log: Path
    before: dict[str, bytes]
    exported: dict[str, str] = field(default_factory=dict)  # to other shells

    def api(self, path: str, body: dict[str, Any] | None = None) -> Any:
        name, _, password = self.exported["PREFECT_API_AUTH_STRING"].partition(":")
        url = f"http://127.0.0.1:{self.port}/api/{path}"
        return httpx.post(url, json=body or {}, auth=(name, password), timeout=60).raise_for_status().json()

    def shell(self, command: str) -> subprocess.CompletedProcess[str]:
        """What another shell of the same user's does, after the documented line."""
        line = f'eval "$({shlex.join(PENUMBRA)} serve --env --port {self.port})" && {command}'
        return subprocess.run(
            ["bash", "-c", line], env=self.environment, capture_output=True, text=True, timeout=600, check=False
        )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("home")
    port, log = free_port(), home / "log"
    prefect = home / ".prefect"
    prefect.mkdir()
    (prefect / "profiles.toml").write_text(PROFILES.format(port=port))
    (prefect / "prefect.db").write_bytes(b"the user's own")
    foreign = ("PREFECT_HOME", "PREFECT_API_URL", "XDG_DATA_HOME", "PENUMBRA_AUTH", "PENUMBRA_URL")
    kept = {name: value for name, value in os.environ.items() if name not in foreign}
    environment = {**kept, "PENUMBRA_ARTIFACTS": str(home / "artifacts"), "HOME": str(home)}
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [*PENUMBRA, "serve", "--all", "--port", str(port)], env=environment, stdin=end, stdout=end, stderr=end
    )
    os.close(end)
    threading.Thread(target=_keep, args=(terminal, log), daemon=True).start()
    served = Served(process, port, home, environment, log, files_in(prefect))
    try:
        deadline = time.monotonic() + 600  # on a very busy machine
        while not log.is_file() or "Ctrl-C ends it" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        lines = served.shell("env -0").stdout.split("\0")
        served.exported = dict(line.split("=", 1) for line in lines if line.startswith("PREFECT_API_"))
        yield served
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(90)
        os.close(terminal)


def _keep(terminal: int, log: Path) -> None:
    """Write what a terminal shows to a file until it closes."""
    with log.open("wb", buffering=0) as stream:
        try:
            while shown := os.read(terminal, 4096):
                stream.write(shown)
        except OSError:  # how a terminal says that nobody writes any more
            return


def test_folders_do_not_depend_on_where_a_process_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", "mine")
    monkeypatch.setenv("PENUMBRA_DATA", "s3://bucket/data")
    monkeypatch.delenv("PENUMBRA_RUNS", raising=False)
    environment = process_environment(tmp_path / "server")
    assert environment["PENUMBRA_ARTIFACTS"] == str(tmp_path / "mine")
    assert environment["PENUMBRA_DATA"] == "s3://bucket/data"
    assert "PENUMBRA_RUNS" not in environment
    assert environment["PREFECT_HOME"] == str(tmp_path / "server")


def test_all_deployments_are_there_with_schedule_and_limit(served: Served) -> None:
    flows = {flow["id"]: flow["name"] for flow in served.api("flows/filter")}
    deployments = {(flows[d["flow_id"]], d["name"]): d for d in served.api("deployments/filter")}
    datasets = ("charades-cg", "activitynet-cg", "scenes")
    assert deployments.keys() >= {(flow, name) for flow in SCHEDULED for name in datasets}
    for (flow, _), deployment in deployments.items():
        if flow in SCHEDULED:  # others are started by people, or by another flow
            assert deployment["schedules"][0]["schedule"]["cron"]
        assert deployment["global_concurrency_limit"]["limit"] == 1
        assert deployment["work_pool_name"] == ("penumbra" if flow in WITHOUT_GPU else "penumbra-gpu")


def test_a_deployment_runs_to_parquet(served: Served) -> None:
    done = served.shell(
        f"{sys.executable} -m prefect deployment run build-negatives/scenes --watch "
        """--param 'filling={"candidates": 2}'"""
    )
    assert done.returncode == 0, done.stdout + done.stderr + served.log.read_text()[-3000:]
    unnamed = [run["name"] for run in served.api("task_runs/filter") if re.search(r"-[0-9a-f]{3}$", run["name"])]
    assert unnamed == [], "boxes of the graph"
    store = Store(str(served.home / "artifacts"))
    negatives = store.newest("scenes", "negatives")
    assert store.verify(negatives) == []
    assert store.manifest(negatives).rows > 2000


def test_a_run_that_an_ended_server_left_behind_frees_its_slot(served: Served) -> None:
    deployment = next(it for it in served.api("deployments/filter") if it["name"] == "charades-cg")
    run = served.api(f"deployments/{deployment['id']}/create_flow_run", {"state": {"type": "PENDING"}})
    again = served.shell(f"{sys.executable} -m penumbra.flows.deploy --all")  # as each start does
    assert again.returncode == 0, again.stderr
    [left] = served.api("flow_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    assert left["state"]["type"] == "CRASHED"


def test_interrupted_it_ends_cleanly_with_all_it_started(served: Served) -> None:
    """Last in this file: it stops what the others use."""
    children = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    mine = [line.split()[0] for line in children.splitlines() if line.split()[1:2] == [str(served.process.pid)]]
    assert len(mine) == 3
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(60) == 0
    assert not [pid for pid in mine if Path(f"/proc/{pid}").exists()]
    output = served.log.read_text()
    assert "Ending workers and server" in output
    assert "penumbra: " not in output, "an error of ours"
    assert "Traceback" not in output
    assert files_in(served.home / ".prefect") == served.before, "the user's own Prefect was touched"
    assert "no `penumbra serve` runs on port" in served.shell("true").stderr
