"""Prefect's server in a process of its own, which answers only to callers who have its credential.

Whoever may call a Prefect server may run commands as the user, also other users and pages in the user's browser. So
each server asks for a credential, accepts calls only from pages of its own addresses (CORS) and under its own names
(against DNS rebinding), and ends with the process that started it.
"""

import atexit
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import cache
from http.client import HTTPConnection, HTTPException

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.processes import ending_with_us, environment

LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")  # the names under which servers answer
PORT = 4200
START_SECONDS = 180  # on a busy machine
STOP_SECONDS = 20


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
    """Start a server in a process group of its own, with `settings` as its environment, and close the socket here.

    `wait_for` returns when it answers. The credential, user:password, is in no command line.
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
    """End process groups side by side: ask them twice, each time for `STOP_SECONDS`, then kill them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        running = [process for process in processes if process.poll() is None]
        for process in running:
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            for process in running:
                process.wait(STOP_SECONDS)


@contextmanager
def some_server() -> Iterator[None]:
    """Use the server that Prefect's settings name, or one of this process; Prefect's own would have no credential."""
    from prefect.context import refresh_global_settings_context
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, PREFECT_UI_URL, temporary_settings

    if PREFECT_API_URL.value():
        yield
        return
    port, credential = _temporary_server()
    wait_for(port)
    url = f"http://{LOOPBACK}:{port}/api"
    settings = {PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: credential, PREFECT_UI_URL: ""}  # it serves no pages
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
    # No traceback of an event or a worker that met a locked database and is tried again, as Prefect does for requests.
    for name in ("prefect.server.utilities.messaging.memory", "prefect.server.api.workers"):
        logging.getLogger(name).addFilter(_SQLiteLockedOperationalErrorFilter())
    config = uvicorn.Config(guarded, log_level=get_current_settings().server.logging_level.lower())
    with suppress(KeyboardInterrupt):  # which uvicorn raises after it has ended in good order
        uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(descriptor))])
    os._exit(0)  # all is written and closed; Python's own clearing up would take seconds


if __name__ == "__main__":
    main(*sys.argv[1:])
