"""`penumbra serve`: a Prefect server, its work pools, a worker each and all deployments, ended together.

All of them start in an empty folder: nothing that lies where the user stands (a `models/`, a `tasks.py`, a
`prefect.yaml`, a `.env`) is taken for ours. They have a PREFECT_HOME of their own: profiles and database of the user's
are neither read nor written.
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

from penumbra.artifacts.locations import VARIABLES, server_folder
from penumbra.artifacts.processes import ending_with_us
from penumbra.flows.server import (
    LOOPBACK,
    ServeError,
    environment_line,
    listen,
    new_credential,
    start_server,
    stop,
    wait_for,
)

WORKERS = {"penumbra": (), "penumbra-gpu": ("--limit", "1")}  # by work pool, and what limits each
ALL_ADDRESSES = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104 (and where this machine finds them)


def credential_for(host: str) -> str:
    """PENUMBRA_AUTH, or on this machine alone a new one a start; raises as `given_credential` does."""
    return given_credential(host) or new_credential()


def given_credential(host: str) -> str:
    """PENUMBRA_AUTH, '' where none is set and none needed; raises `ServeError` where the user must set it."""
    own = os.environ.get("PENUMBRA_AUTH", "")
    if own and not all(own.partition(":")):
        raise ServeError("PENUMBRA_AUTH is no user:password")
    if not own and not _is_loopback(host):
        raise ServeError(f"--host {host} opens the server to other machines: set PENUMBRA_AUTH=user:password first")
    return own


def addresses(host: str, port: int) -> list[str]:
    """Where browsers find what listens there: PENUMBRA_URL first, if it is set, and this machine's own."""
    near = _near(host, port)
    return list(dict.fromkeys((os.environ.get("PENUMBRA_URL", near).rstrip("/"), near, f"http://localhost:{port}")))


def _near(host: str, port: int) -> str:
    here = ALL_ADDRESSES.get(host, host)
    return f"http://[{here}]:{port}" if ":" in here else f"http://{here}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def told_environment(port: int) -> str:
    """What another shell evaluates to reach the server on this port; raises `ServeError` where there is none."""
    try:
        return _told(port).read_text()
    except FileNotFoundError:
        raise ServeError(f"no `penumbra serve` runs on port {port}: start it, or say its --port") from None


def _told(port: int) -> Path:
    return server_folder(port) / "environment"


def _tell(port: int, variables: Mapping[str, str]) -> None:
    """Write for other shells of the user's, and for nobody else, how to reach the server."""
    file = _told(port)
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.writelines(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def _environment(home: Path) -> dict[str, str]:
    """That of all processes: a Prefect of their own, and folders that don't depend on where they start."""
    places = {name: place for name in VARIABLES if (place := os.environ.get(name)) and "://" not in place}
    return {
        **{name: value for name, value in os.environ.items() if name not in ("PENUMBRA_AUTH", "PREFECT_PROFILE")},
        **{name: str(Path(place).expanduser().absolute()) for name, place in places.items()},
        "PREFECT_HOME": str(home),
        "PREFECT_PROFILES_PATH": str(home / "profiles.toml"),
        "PREFECT_CLI_PROMPT": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",  # and no line about it
    }


def interrupt(*_: object) -> None:
    """A handler of signals: SIGTERM ends a command as Ctrl-C does, and what it began is put in order."""
    raise KeyboardInterrupt


def serve(host: str, port: int) -> None:
    """Run until Ctrl-C or SIGTERM; raises `ServeError` where something can't start."""
    credential = credential_for(host)
    listener = listen(host, port)
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell started us with SIGINT ignored
        signal.signal(number, interrupt)
    server_folder(port).mkdir(parents=True, exist_ok=True, mode=0o700)
    urls = addresses(host, port)
    url = urls[0]
    client = {"PREFECT_API_URL": f"{_near(host, port)}/api", "PREFECT_API_AUTH_STRING": credential}
    environment = {**_environment(server_folder(port)), **client, "PREFECT_UI_URL": url}
    running: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="penumbra-serve-") as folder:
        try:
            ui = {"PREFECT_SERVER_UI_API_URL": f"{url}/api"}  # the page asks this address; without it, 127.0.0.1:4200
            running.append(start_server(listener, urls, credential, {**environment, **ui}, folder))
            wait_for(ALL_ADDRESSES.get(host, host), port)
            _work(environment, folder, running)
            _tell(port, client)
            print(
                f"\nPenumbra is served: {url}\n  it asks for:      {credential}\n"
                f"  to look at data:  {url}/browse\n"
                f"  reports, rows:    {url}/artifacts\n"
                f"  in another shell: {environment_line(port)}\n"
                "                    prefect deployment run build-negatives/scenes --watch\nCtrl-C ends it.",
                flush=True,
            )
            while all(process.poll() is None for process in running):
                time.sleep(0.5)
            raise ServeError("the server or a worker ended by itself: see its lines above")
        except KeyboardInterrupt:
            print("\nEnding workers and server …", flush=True)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C must not leave half of it running
                signal.signal(number, signal.SIG_IGN)
            _told(port).unlink(missing_ok=True)
            for process in reversed(running):
                stop(process)


def _work(environment: Mapping[str, str], folder: str, running: list[subprocess.Popen[bytes]]) -> None:
    """Apply the deployments and start the workers, which are put into `running` one by one."""
    options: dict[str, Any] = {"env": environment, "cwd": folder, "stdin": subprocess.DEVNULL}
    if subprocess.run(ending_with_us("penumbra.flows.deploy"), check=False, **options).returncode:
        raise ServeError("the deployments of prefect.yaml could not be applied: see the lines above")
    for pool, limits in WORKERS.items():
        worker = ending_with_us("prefect", "worker", "start", "--pool", pool, "--type", "process", *limits)
        running.append(subprocess.Popen(worker, start_new_session=True, **options))
