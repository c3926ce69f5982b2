"""`penumbra serve`: a Prefect server, a worker for each of its work pools, and all deployments, ended together.

All processes start in an empty folder, so that no file of the user's folder (a `tasks.py`, a `prefect.yaml`, a `.env`)
is read as ours. They have a PREFECT_HOME of their own: the user's profiles and database are neither read nor written.
"""

import ipaddress
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.locations import VARIABLES, server_folder
from penumbra.artifacts.processes import ending_with_us
from penumbra.flows.server import LOOPBACK, environment_line, listen, new_credential, start_server, stop, wait_for

WORKERS = {"penumbra": (), "penumbra-gpu": ("--limit", "1")}  # options of the worker of each work pool
ALL_ADDRESSES = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104 (and how this machine reaches them)
MESSAGE = """
Penumbra is served: {url}
  it asks for:      {credential}
  to look at data:  {url}/browse
  reports, rows:    {url}/artifacts
  in another shell: {line}
                    prefect deployment run build-negatives/scenes --watch
Ctrl-C ends it."""


def given_credential(host: str) -> str:
    """Return PENUMBRA_AUTH, '' if it is not set; raise `PenumbraError` if other machines reach the host without it."""
    credential = os.environ.get("PENUMBRA_AUTH", "")
    if credential and not all(credential.partition(":")):
        raise PenumbraError("PENUMBRA_AUTH is no user:password")
    if not credential and not _is_loopback(host):
        raise PenumbraError(f"--host {host} opens the server to other machines: set PENUMBRA_AUTH=user:password first")
    return credential


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a server as browsers know them: PENUMBRA_URL first, then those of this machine."""
    near = _near(host, port)
    return list(dict.fromkeys((os.environ.get("PENUMBRA_URL", near).rstrip("/"), near, f"http://localhost:{port}")))


def _near(host: str, port: int) -> str:
    name = ALL_ADDRESSES.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def environment_of(port: int) -> str:
    """Return shell lines with address and credential of the running server; raise `PenumbraError` if none runs."""
    try:
        return _environment_file(port).read_text()
    except FileNotFoundError:
        raise PenumbraError(f"no `penumbra serve` runs on port {port}: start it, or say its --port") from None


def _environment_file(port: int) -> Path:
    return server_folder(port) / "environment"


def _write_environment(port: int, variables: Mapping[str, str]) -> None:
    """Write the address and the credential for other shells, in a file that only this user can read."""
    file = _environment_file(port)
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.writelines(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def process_environment(home: Path) -> dict[str, str]:
    """Return the environment of all processes: a PREFECT_HOME of ours, and absolute paths of the user's folders."""
    folders = {name: folder for name in VARIABLES if (folder := os.environ.get(name)) and "://" not in folder}
    return {
        **{name: value for name, value in os.environ.items() if name not in ("PENUMBRA_AUTH", "PREFECT_PROFILE")},
        **{name: str(Path(folder).expanduser().absolute()) for name, folder in folders.items()},
        "PREFECT_HOME": str(home),
        "PREFECT_PROFILES_PATH": str(home / "profiles.toml"),
        "PREFECT_CLI_PROMPT": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }


def interrupt(*_: object) -> None:
    """Raise `KeyboardInterrupt`: a handler with which SIGTERM ends a command as Ctrl-C does."""
    raise KeyboardInterrupt


def serve(host: str, port: int) -> None:
    """Serve until Ctrl-C or SIGTERM; raise `PenumbraError` if a process can't start, or ends by itself."""
    credential = given_credential(host) or new_credential()
    listener = listen(host, port)
    for number in (signal.SIGINT, signal.SIGTERM):  # also if a shell started us with SIGINT ignored
        signal.signal(number, interrupt)
    server_folder(port).mkdir(parents=True, exist_ok=True, mode=0o700)
    urls = addresses(host, port)
    client = {"PREFECT_API_URL": f"{_near(host, port)}/api", "PREFECT_API_AUTH_STRING": credential}
    environment = {**process_environment(server_folder(port)), **client, "PREFECT_UI_URL": urls[0]}
    ui = {"PREFECT_SERVER_UI_API_URL": f"{urls[0]}/api"}  # the page calls this address; the default is 127.0.0.1:4200
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="penumbra-serve-") as folder:
        try:
            processes.append(start_server(listener, urls, credential, {**environment, **ui}, folder))
            wait_for(ALL_ADDRESSES.get(host, host), port)
            _deploy_and_work(environment, folder, processes)
            _write_environment(port, client)
            print(MESSAGE.format(url=urls[0], credential=credential, line=environment_line(port)), flush=True)
            while all(process.poll() is None for process in processes):
                time.sleep(0.5)
            raise PenumbraError("the server or a worker ended by itself: see its lines above")
        except KeyboardInterrupt:
            print("\nEnding workers and server …", flush=True)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C must not leave half of it running
                signal.signal(number, signal.SIG_IGN)
            _environment_file(port).unlink(missing_ok=True)
            for process in reversed(processes):
                stop(process)


def _deploy_and_work(environment: Mapping[str, str], folder: str, processes: list[subprocess.Popen[bytes]]) -> None:
    """Apply the deployments, then start the workers and add them to `processes`."""
    options: dict[str, Any] = {"env": environment, "cwd": folder, "stdin": subprocess.DEVNULL}
    if subprocess.run(ending_with_us("penumbra.flows.deploy"), check=False, **options).returncode:
        raise PenumbraError("the deployments of prefect.yaml could not be applied: see the lines above")
    for pool, limits in WORKERS.items():
        command = ending_with_us("prefect", "worker", "start", "--pool", pool, "--type", "process", *limits)
        processes.append(subprocess.Popen(command, start_new_session=True, **options))
