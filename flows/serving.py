"""`penumbra serve`: a Prefect server, its work pools, a worker each and all deployments, ended together.

All of them start in an empty folder: nothing that lies where the user stands (a `models/`, a `tasks.py`, a
`prefect.yaml`, a `.env`) is taken for ours.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.settings import DEPLOYMENTS, PROJECT, VARIABLES

POOLS = {"penumbra": (), "penumbra-gpu": ("--limit", "1")}  # and what their workers are started with
SILENT_RUNS = PROJECT / "flows" / "silent-runs.yaml"
START_SECONDS = 120
STOP_SECONDS = 20


class ServeError(PenumbraError):
    """The server, the worker or a deployment did not start."""


class _Prefect:
    """`prefect …` with one environment, in one folder."""

    def __init__(self, environment: Mapping[str, str], folder: str) -> None:
        self.options: dict[str, Any] = {"env": dict(environment), "cwd": folder}

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start it in a process group of its own, so that Ctrl-C reaches it only through us."""
        return subprocess.Popen(_command(arguments), start_new_session=True, **self.options)

    def run(self, *arguments: str) -> None:
        """Wait for its end; raises `ServeError` where it fails."""
        code = self.start(*arguments).wait()
        if code:
            raise ServeError(f"`prefect {' '.join(arguments)}` ended with {code}: see its lines above")

    def knows(self, *arguments: str) -> bool:
        """Whether the server has what is asked for."""
        return not subprocess.run(_command(arguments), capture_output=True, check=False, **self.options).returncode


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "prefect", *arguments]


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise ServeError(f"the Prefect server ended with {server.returncode}: see its lines above")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310 (our own address)
                return
        except (URLError, TimeoutError, ConnectionError):
            time.sleep(0.5)
    raise ServeError(f"the Prefect server did not answer at {url} within {START_SECONDS} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the process group to end, then make it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue


def _environment(api: str) -> dict[str, str]:
    """That of the processes: the server's address, and folders that don't depend on where they start."""
    places = {name: place for name in VARIABLES if (place := os.environ.get(name)) and "://" not in place}
    return {
        **os.environ,
        **{name: str(Path(place).expanduser().absolute()) for name, place in places.items()},
        "PREFECT_API_URL": api,
        "PREFECT_SERVER_UI_API_URL": api,  # the page asks this address; without it, another port shows nothing
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def serve(host: str, port: int) -> None:
    """Run until Ctrl-C or SIGTERM; raises `ServeError` where something can't start."""
    check_port(host, port)
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell started us with SIGINT ignored
        signal.signal(number, _interrupt)
    running: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="penumbra-serve-") as folder:
        try:
            _start_all(host, port, folder, running)
            while all(process.poll() is None for process in running):
                time.sleep(0.5)
            raise ServeError("the server or a worker ended by itself: see its lines above")
        except KeyboardInterrupt:
            print("\nEnding workers and server …", flush=True)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C must not leave half of it running
                signal.signal(number, signal.SIG_IGN)
            for process in reversed(running):
                _stop(process)


def check_port(host: str, port: int) -> None:
    """Raise `ServeError` where another process listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ServeError(f"{host}:{port} can't be listened on ({error.strerror}): choose another --port") from None


def _start_all(host: str, port: int, folder: str, running: list[subprocess.Popen[bytes]]) -> None:
    """Start server and workers, which are put into `running` one by one, and apply what they need."""
    api = f"http://{host}:{port}/api"
    prefect = _Prefect(_environment(api), folder)
    running.append(prefect.start("server", "start", "--host", host, "--port", str(port)))
    _wait_for(api, running[0])
    for pool in POOLS:
        if not prefect.knows("work-pool", "inspect", pool):  # else it keeps what the UI set
            prefect.run("work-pool", "create", pool, "--type", "process")
    prefect.run("--no-prompt", "deploy", "--all", "--prefect-file", str(DEPLOYMENTS))
    if not prefect.knows("automation", "inspect", SILENT_RUNS.stem):
        prefect.run("automation", "create", "--from-file", str(SILENT_RUNS))
    for pool, options in POOLS.items():
        running.append(prefect.start("worker", "start", "--pool", pool, "--type", "process", *options))
    print(f"\nPenumbra is served: http://{host}:{port}\n  PREFECT_API_URL={api} "
          "prefect deployment run build-negatives/scenes --watch\nCtrl-C ends it.", flush=True)  # fmt: skip
