"""The Prefect server of a run, and the server of `penumbra serve`.

Anyone who can call a Prefect server can run commands as its user: also other users of the machine, and pages in a
browser. Therefore each server requires a credential, accepts calls only from pages of its own addresses (CORS) and for
its own host names (against DNS rebinding), and ends with the process that started it.
"""

import atexit
import logging
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import cache
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.locations import VARIABLES, server_folder
from penumbra.artifacts.processes import ending_with_us, environment

LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")  # the names under which servers answer
PORT = 4200
START_SECONDS = 180  # on a busy machine
STOP_SECONDS = 20
WORKERS = {"penumbra": (), "penumbra-gpu": ("--limit", "1")}  # options of the worker of each work pool
MESSAGE = """
Penumbra runs at:   {url}
  credential:       {credential}
  reports, rows:    {url}/artifacts
  in another shell: {line}
                    prefect deployment run build-negatives/{dataset} --watch
Ctrl-C ends it."""


def environment_line(port: int = PORT) -> str:
    """Return the line that gives another shell the address and the credential of `penumbra serve`."""
    return f'eval "$(penumbra serve --env{"" if port == PORT else f" --port {port}"})"'


def new_credential() -> str:
    return f"penumbra:{secrets.token_urlsafe(24)}"


def listen(port: int) -> socket.socket:
    """Return a socket on this machine only, for port 0 on a free one; raise `PenumbraError` if the port is taken."""
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        raise PenumbraError(f"port {port} can't be listened on ({error.strerror}): choose another --port") from None


def addresses(port: int) -> list[str]:
    return [f"http://{host}:{port}" for host in HOSTS]


def start_server(
    listener: socket.socket, credential: str, settings: Mapping[str, str], folder: str | None = None
) -> subprocess.Popen[bytes]:
    """Start a server in a process group of its own, with `settings` as its environment, and close our socket.

    `wait_for` returns when the server answers. No command line contains the credential, user:password.
    """
    guards = {
        "PREFECT_SERVER_API_AUTH_STRING": credential,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(addresses(listener.getsockname()[1])),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    with listener:
        return subprocess.Popen(
            ending_with_us("penumbra.flows.server", str(listener.fileno())),
            env={**settings, **guards},
            cwd=folder,
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def wait_for(port: int) -> None:
    """Wait until the server answers; raise `PenumbraError` if it ends before that."""
    with closing(HTTPConnection(LOOPBACK, port, timeout=START_SECONDS)) as connection:
        try:
            connection.request("GET", "/api/health")
            status = connection.getresponse().status
        except (OSError, HTTPException) as error:
            raise PenumbraError(f"the Prefect server did not start ({error!r}): see its lines above") from None
    if status != 200:
        raise PenumbraError(f"the Prefect server at port {port} is not healthy (status {status}): see its lines above")


def stop(*processes: subprocess.Popen[bytes]) -> None:
    """End process groups together: send two signals, wait `STOP_SECONDS` after each, then kill them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        running = [process for process in processes if process.poll() is None]
        for process in running:
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            for process in running:
                process.wait(STOP_SECONDS)


@contextmanager
def some_server() -> Iterator[None]:
    """Use the server of Prefect's settings, or start one with a credential: Prefect's own would have none."""
    from prefect.context import refresh_global_settings_context
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, PREFECT_UI_URL, temporary_settings

    if PREFECT_API_URL.value():
        yield
        return
    port, credential = _temporary_server()
    wait_for(port)
    url = f"http://{LOOPBACK}:{port}/api"
    settings = {PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: credential, PREFECT_UI_URL: ""}  # it has no pages
    # Prefect's other threads, and the processes that it starts, don't see temporary settings: they would start a
    # server without a credential. They do see the environment.
    try:
        with environment({setting.name: value for setting, value in settings.items()}), temporary_settings(settings):
            refresh_global_settings_context()
            yield
    finally:
        refresh_global_settings_context()


def start_early() -> None:
    """Start the server of `some_server` while the flow is imported, which takes as long."""
    from prefect.settings import PREFECT_API_URL

    if not PREFECT_API_URL.value():
        _temporary_server()


@cache
def _temporary_server() -> tuple[int, str]:
    """Start the server of this process; return its port and its credential."""
    from prefect.settings import get_current_settings

    listener, credential = listen(0), new_credential()
    port = listener.getsockname()[1]
    settings = {
        "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
        **os.environ,
        **get_current_settings().to_environment_variables(exclude_unset=True),
        "PREFECT_SERVER_UI_ENABLED": "false",
        "PREFECT__SERVER_EPHEMERAL": "1",  # no scheduler
        # Automations are of no use to a run, and lock the database if `penumbra serve` has used it before.
        "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    }
    process = start_server(listener, credential, settings)
    # Ask the server to end without waiting for it; `ending_with_us` kills it if it does not.
    atexit.register(lambda: None if process.poll() is not None else os.killpg(process.pid, signal.SIGTERM))
    return port, credential


def given_credential() -> str:
    """Return PENUMBRA_AUTH, '' if it is not set; raise `PenumbraError` if it is not user:password."""
    credential = os.environ.get("PENUMBRA_AUTH", "")
    if credential and not all(credential.partition(":")):
        raise PenumbraError("PENUMBRA_AUTH is not user:password")
    return credential


def environment_of(port: int) -> str:
    """Return shell lines with address and credential of the running server; raise `PenumbraError` if none runs."""
    try:
        return (server_folder(port) / "environment").read_text()
    except FileNotFoundError:
        raise PenumbraError(f"no `penumbra serve` runs on port {port}: start it, or give its --port") from None


def process_environment(home: Path) -> dict[str, str]:
    """Return the environment of all processes: our own PREFECT_HOME, and absolute paths of the user's folders.

    The user's own profiles and database of Prefect are neither read nor written.
    """
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
    """Raise `KeyboardInterrupt`; as a handler of SIGTERM, it ends a command as Ctrl-C does."""
    raise KeyboardInterrupt


def serve(port: int, deployed: str = "") -> None:
    """Serve deployments until Ctrl-C; raise `PenumbraError` if the server or a worker fails.

    `deployed` is `chosen` of `penumbra.flows.deploy.main`. The server and a worker for each work pool start in an empty
    folder, so that they read no file of the user's folder (a `tasks.py`, a `prefect.yaml`, a `.env`), and end together.
    """
    credential = given_credential() or new_credential()
    listener = listen(port)
    for number in (signal.SIGINT, signal.SIGTERM):  # also if a shell started us with SIGINT ignored
        signal.signal(number, interrupt)
    home, url = server_folder(port), addresses(port)[0]
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    client = {"PREFECT_API_URL": f"{url}/api", "PREFECT_API_AUTH_STRING": credential}
    variables = {**process_environment(home), **client, "PREFECT_UI_URL": url}
    ui = {"PREFECT_SERVER_UI_API_URL": f"{url}/api"}  # the page calls this address; the default is 127.0.0.1:4200
    for_other_shells = home / "environment"
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="penumbra-serve-") as folder:
        options: dict[str, Any] = {"env": variables, "cwd": folder, "stdin": subprocess.DEVNULL}
        try:
            processes.append(start_server(listener, credential, {**variables, **ui}, folder))
            wait_for(port)
            if subprocess.run(ending_with_us("penumbra.flows.deploy", deployed), check=False, **options).returncode:
                raise PenumbraError("the deployments could not be applied: see the lines above")
            for pool, limits in WORKERS.items():
                command = ending_with_us("prefect", "worker", "start", "--pool", pool, "--type", "process", *limits)
                processes.append(subprocess.Popen(command, start_new_session=True, **options))
            for_other_shells.unlink(missing_ok=True)
            for_other_shells.touch(mode=0o600, exist_ok=False)  # only this user may read it
            for_other_shells.write_text("".join(f"export {name}={shlex.quote(it)}\n" for name, it in client.items()))
            dataset = "scenes" if deployed in ("", "--all") else deployed
            line = environment_line(port)
            print(MESSAGE.format(url=url, credential=credential, line=line, dataset=dataset), flush=True)
            while all(process.poll() is None for process in processes):
                time.sleep(0.5)
            raise PenumbraError("the server or a worker ended by itself: see its lines above")
        except KeyboardInterrupt:
            print("\nEnding workers and server …", flush=True)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C must not leave processes running
                signal.signal(number, signal.SIG_IGN)
            for_other_shells.unlink(missing_ok=True)
            stop(*processes[1:])  # the workers, which report to the server
            stop(*processes[:1])


def main(descriptor: str) -> None:
    """Serve Prefect's application on a listening socket, under the names of this machine only."""
    import uvicorn
    from fastapi import Request, Response
    from prefect.server.api.server import _SQLiteLockedOperationalErrorFilter, create_app
    from prefect.settings import get_current_settings
    from starlette.middleware.base import RequestResponseEndpoint
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    app = create_app()

    @app.middleware("http")
    async def close_descriptions(request: Request, answer: RequestResponseEndpoint) -> Response:
        """Close the pages that describe the API: Prefect asks for the credential only below /api."""
        is_description = request.scope["path"].startswith(("/docs", "/redoc", "/openapi.json"))
        return Response("Not Found", 404) if is_description else await answer(request)

    # Around the application, not inside: the server's own requests to itself have another host name.
    guarded = TrustedHostMiddleware(app, allowed_hosts=HOSTS, www_redirect=False)
    # Log no traceback if an event or a worker meets a locked database and is tried again; Prefect does so for requests.
    for name in ("utilities.messaging.memory", "utilities.worker_channel", "api.workers"):
        logging.getLogger(f"prefect.server.{name}").addFilter(_SQLiteLockedOperationalErrorFilter())
    config = uvicorn.Config(guarded, log_level=get_current_settings().server.logging_level.lower())
    with suppress(KeyboardInterrupt):  # which uvicorn raises after a clean shutdown
        uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(descriptor))])
    os._exit(0)  # everything is written and closed; Python's cleanup would take seconds


if __name__ == "__main__":
    main(*sys.argv[1:])
