"""`penumbra serve`: a Prefect server, a worker for each of its work pools, and all deployments, ended together.

All processes start in an empty folder, so that no file of the user's folder (a `tasks.py`, a `prefect.yaml`, a `.env`)
is read as ours. They have a PREFECT_HOME of their own: the user's profiles and database are neither read nor written.
"""

import os
import shlex
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.locations import VARIABLES, server_folder
from penumbra.artifacts.processes import ending_with_us
from penumbra.flows.server import addresses, environment_line, listen, new_credential, start_server, stop, wait_for

WORKERS = {"penumbra": (), "penumbra-gpu": ("--limit", "1")}  # options of the worker of each work pool
MESSAGE = """
Penumbra is served: {url}
  it asks for:      {credential}
  reports, rows:    {url}/artifacts
  in another shell: {line}
                    prefect deployment run build-negatives/scenes --watch
Ctrl-C ends it."""


def given_credential() -> str:
    """Return PENUMBRA_AUTH, '' if it is not set; raise `PenumbraError` if it is not user:password."""
    credential = os.environ.get("PENUMBRA_AUTH", "")
    if credential and not all(credential.partition(":")):
        raise PenumbraError("PENUMBRA_AUTH is no user:password")
    return credential


def environment_of(port: int) -> str:
    """Return shell lines with address and credential of the running server; raise `PenumbraError` if none runs."""
    try:
        return (server_folder(port) / "environment").read_text()
    except FileNotFoundError:
        raise PenumbraError(f"no `penumbra serve` runs on port {port}: start it, or give its --port") from None


def process_environment(home: Path) -> dict[str, str]:
    """Return the environment of all processes: a PREFECT_HOME of ours, and absolute paths of the user's folders."""
    usual = {name: value for name, value in os.environ.items() if name not in ("PENUMBRA_AUTH", "PREFECT_PROFILE")}
    for name in VARIABLES:
        if usual.get(name) and "://" not in usual[name]:
            usual[name] = str(Path(usual[name]).expanduser().absolute())
    return {
        **usual,
        "PREFECT_HOME": str(home),
        "PREFECT_PROFILES_PATH": str(home / "profiles.toml"),
        "PREFECT_CLI_PROMPT": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }


def interrupt(*_: object) -> None:
    """Raise `KeyboardInterrupt`: a handler with which SIGTERM ends a command as Ctrl-C does."""
    raise KeyboardInterrupt


def serve(port: int, deployed: str = "") -> None:
    """Serve deployments (of a data set, `--all`, '': of existing ones) until Ctrl-C; raise `PenumbraError`."""
    credential = given_credential() or new_credential()
    listener = listen(port)
    for number in (signal.SIGINT, signal.SIGTERM):  # also if a shell started us with SIGINT ignored
        signal.signal(number, interrupt)
    home, url = server_folder(port), addresses(port)[0]
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    client = {"PREFECT_API_URL": f"{url}/api", "PREFECT_API_AUTH_STRING": credential}
    environment = {**process_environment(home), **client, "PREFECT_UI_URL": url}
    ui = {"PREFECT_SERVER_UI_API_URL": f"{url}/api"}  # the page calls this address; the default is 127.0.0.1:4200
    for_other_shells = home / "environment"
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="penumbra-serve-") as folder:
        options: dict[str, Any] = {"env": environment, "cwd": folder, "stdin": subprocess.DEVNULL}
        try:
            processes.append(start_server(listener, credential, {**environment, **ui}, folder))
            wait_for(port)
            if subprocess.run(ending_with_us("penumbra.flows.deploy", deployed), check=False, **options).returncode:
                raise PenumbraError("the deployments could not be applied: see the lines above")
            for pool, limits in WORKERS.items():
                command = ending_with_us("prefect", "worker", "start", "--pool", pool, "--type", "process", *limits)
                processes.append(subprocess.Popen(command, start_new_session=True, **options))
            for_other_shells.unlink(missing_ok=True)
            for_other_shells.touch(mode=0o600, exist_ok=False)  # only this user may read it
            for_other_shells.write_text("".join(f"export {name}={shlex.quote(it)}\n" for name, it in client.items()))
            print(MESSAGE.format(url=url, credential=credential, line=environment_line(port)), flush=True)
            while all(process.poll() is None for process in processes):
                time.sleep(0.5)
            raise PenumbraError("the server or a worker ended by itself: see its lines above")
        except KeyboardInterrupt:
            print("\nEnding workers and server …", flush=True)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C must not leave half of it running
                signal.signal(number, signal.SIG_IGN)
            for_other_shells.unlink(missing_ok=True)
            stop(*processes[1:])  # the workers, which report to the server
            stop(*processes[:1])
