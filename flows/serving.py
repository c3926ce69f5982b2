"""`penumbra serve`: a Prefect server, its work pools, a worker each and all deployments, ended together."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from urllib.error import URLError

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.settings import PROJECT

POOLS = {"penumbra": (), "penumbra-gpu": ("--limit", "1")}  # and what their workers are started with
SILENT_RUNS = PROJECT / "flows" / "silent-runs.yaml"
START_SECONDS = 120
STOP_SECONDS = 20


class ServeError(PenumbraError):
    """The server, the worker or a deployment did not start."""


def _prefect(*arguments: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `prefect …` in a process group of its own, so that Ctrl-C reaches it only through us."""
    command = [sys.executable, "-m", "prefect", *arguments]
    return subprocess.Popen(command, env=dict(environment), cwd=PROJECT, start_new_session=True)


def _is_there(*arguments: str, environment: Mapping[str, str]) -> bool:
    command = [sys.executable, "-m", "prefect", *arguments]
    return not subprocess.run(command, env=dict(environment), cwd=PROJECT, capture_output=True, check=False).returncode


def _run(*arguments: str, environment: Mapping[str, str]) -> None:
    code = _prefect(*arguments, environment=environment).wait()
    if code:
        raise ServeError(f"`prefect {' '.join(arguments)}` ended with {code}: see its lines above")


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


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def serve(host: str, port: int) -> None:
    """Run until Ctrl-C or SIGTERM; raises `ServeError` where something can't start."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ServeError(f"{host}:{port} can't be listened on ({error.strerror}): choose another --port") from None
    api = f"http://{host}:{port}/api"
    environment = {
        **os.environ,
        "PREFECT_API_URL": api,
        "PREFECT_SERVER_UI_API_URL": api,  # the page asks this address; without it, another port shows nothing
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell started us with SIGINT ignored
        signal.signal(number, _interrupt)
    running: list[subprocess.Popen[bytes]] = []
    try:
        running.append(_prefect("server", "start", "--host", host, "--port", str(port), environment=environment))
        _wait_for(api, running[0])
        for pool in POOLS:
            if not _is_there("work-pool", "inspect", pool, environment=environment):  # else it keeps what the UI set
                _run("work-pool", "create", pool, "--type", "process", environment=environment)
        _run("--no-prompt", "deploy", "--all", environment=environment)
        if not _is_there("automation", "inspect", SILENT_RUNS.stem, environment=environment):
            _run("automation", "create", "--from-file", str(SILENT_RUNS), environment=environment)
        for pool, options in POOLS.items():
            start = ("worker", "start", "--pool", pool, "--type", "process", *options)
            running.append(_prefect(*start, environment=environment))
        print(f"\nPenumbra is served: http://{host}:{port}\n  PREFECT_API_URL={api} "
              "prefect deployment run build-negatives/scenes --watch\nCtrl-C ends it.", flush=True)  # fmt: skip
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
