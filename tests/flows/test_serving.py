"""`penumbra serve` on real processes: server, pool, worker, deployments, a run, the pages in a browser, Ctrl-C."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penumbra.artifacts.store import Store
from penumbra.flows.serving import _environment

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCHEDULED = {"build-negatives", "extract-features", "full-pipeline"}
WITHOUT_GPU = {"build-negatives", "import-negatives"}
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip


@dataclass
class Served:
    process: subprocess.Popen[str]
    url: str
    root: Path
    log: Path

    def api(self, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}/api/{path}", json.dumps(body or {}).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def prefect(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PREFECT_API_URL": f"{self.url}/api"}
        command = [sys.executable, "-m", "prefect", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    port, log = free_port(), folder / "log"
    environment = {**os.environ, "PENUMBRA_ARTIFACTS": str(folder / "artifacts"), "PREFECT_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "penumbra.flows.commands", "serve", "--port", str(port)]
    with log.open("w") as stream:
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + 240  # some 70 deployments, each up to a second on a busy machine
        while "Penumbra is served" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        yield Served(process, f"http://127.0.0.1:{port}", folder / "artifacts", log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def test_folders_do_not_depend_on_where_a_process_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENUMBRA_ARTIFACTS", "mine")
    monkeypatch.setenv("PENUMBRA_DATA", "s3://bucket/data")
    monkeypatch.delenv("PENUMBRA_RUNS", raising=False)
    environment = _environment("http://127.0.0.1:1/api")
    assert environment["PENUMBRA_ARTIFACTS"] == str(tmp_path / "mine")
    assert environment["PENUMBRA_DATA"] == "s3://bucket/data"
    assert "PENUMBRA_RUNS" not in environment


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
    schema = deployments["build-negatives", "scenes"]["parameter_openapi_schema"]
    properties = schema["definitions"]["Filling"]["properties"]
    assert "corpus" in properties["providers"]["description"], "the form in the UI explains itself"


def test_the_scheduler_plans_the_next_runs(served: Served) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if served.api("flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}):
            return
        time.sleep(1)
    pytest.fail("no run was scheduled: " + served.log.read_text()[-3000:])


def test_a_deployment_runs_to_parquet(served: Served) -> None:
    done = served.prefect(
        "deployment", "run", "build-negatives/scenes", "--watch", "--param", 'filling={"candidates": 2}'
    )
    assert done.returncode == 0, done.stdout + done.stderr + served.log.read_text()[-3000:]
    store = Store(str(served.root))
    negatives = store.newest("scenes", "negatives")
    assert store.verify(negatives) == []
    assert store.manifest(negatives).rows > 2000


@pytest.mark.skipif(not CHROMIUM, reason="needs a Chromium to look at the Prefect UI")
@pytest.mark.parametrize(
    ("key", "texts"),
    [
        ("scenes-build-negatives-report", ["scenes: hard negatives", "have all three levels", "Figures by level", "▢"]),
        ("scenes-negatives-stage", ["query and level: rejected", "seconds", "scenes/negatives/"]),
        ("scenes-negatives-rows", ["First 50 of", "similarity", "S0001_train_0"]),
    ],
)
def test_the_pages_show_in_a_browser(served: Served, key: str, texts: list[str], tmp_path: Path) -> None:
    found = served.api("artifacts/filter", {"artifacts": {"key": {"any_": [key]}}})
    address = f"{served.url}/artifacts/artifact/{found[0]['id']}"
    command = [
        str(CHROMIUM),
        *QUIET,
        f"--user-data-dir={tmp_path}",
        "--virtual-time-budget=20000",
        "--dump-dom",
        address,
    ]
    page = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout
    shown = re.sub(r"<[^>]+>", " ", page)
    for text in texts:
        assert text in shown, shown[-2000:]


def test_a_taken_port_is_one_line(served: Served) -> None:
    port = served.url.rsplit(":", 1)[1]
    command = [sys.executable, "-m", "penumbra.flows.commands", "serve", "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "choose another --port" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_interrupted_it_ends_cleanly_with_all_it_started(served: Served) -> None:
    """Last in this file: it stops what the others use."""
    children = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    mine = [line.split()[0] for line in children.splitlines() if line.split()[1:2] == [str(served.process.pid)]]
    assert len(mine) == 3
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(60) == 0
    assert not [pid for pid in mine if Path(f"/proc/{pid}").exists()]
    said = served.log.read_text()
    assert "Ending workers and server" in said
    assert "penumbra:" not in said
    assert "flows/serving.py" not in said, "a traceback of ours"
