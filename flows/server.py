"""Prefect's server in a process of its own, with a lock on its door.

Whoever may call it may run commands as the user (a deployment's `job_variables.command`) and read Secret blocks in
clear, and that it listens on this machine alone keeps out neither other users nor the pages in the user's own browser.
So each server asks for a credential, lets pages of its own addresses call it and no others, answers to its own names
only (a page whose name was rebound to 127.0.0.1 comes under another), and ends with the process that started it.
"""

import atexit
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.processes import ending_with_us, environment

LOOPBACK = "127.0.0.1"
PORT = 4200
START_SECONDS = 180  # on a busy machine
STOP_SECONDS = 20


class ServeError(PenumbraError):
    """The server, the worker or a deployment did not start."""


def environment_line(port: int = PORT) -> str:
    """What tells another shell the address and the credential of `penumbra serve`."""
    return f'eval "$(penumbra serve --env{"" if port == PORT else f" --port {port}"})"'


def new_credential() -> str:
    """A user and a password that nobody guesses."""
    return f"penumbra:{secrets.token_urlsafe(24)}"


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, on a free port for 0; raises `ServeError` where another process does."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ServeError(f"{host}:{port} can't be listened on ({error.strerror}): choose another --port") from None


def start_server(
    listener: socket.socket,
    urls: Sequence[str],
    credential: str,
    environment: Mapping[str, str],
    folder: str | None = None,
) -> subprocess.Popen[bytes]:
    """Start a server, for which one then has to `wait_for`, in a process group that Ctrl-C reaches only through us.

    Args:
        listener: the socket, which is the server's own from now on
        urls: where browsers find it, without a path
        credential: what it asks for, as user:password
        environment: of the process, Prefect's settings among it
        folder: that it starts in

    """
    doors = {
        "PREFECT_SERVER_API_AUTH_STRING": credential,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(urls),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    with listener:
        return subprocess.Popen(
            ending_with_us("penumbra.flows.server", str(listener.fileno()), *host_names(urls)),
            env={**environment, **doors},
            cwd=folder,
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def wait_for(host: str, port: int) -> None:
    """Wait until a server answers on a socket that listens; raises `ServeError` where it ends before, or never does."""
    connection = HTTPConnection(host, port, timeout=START_SECONDS)
    try:
        connection.request("GET", "/api/health")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        raise ServeError(f"the Prefect server did not start ({error!r}): see its lines above") from None
    finally:
        connection.close()
    if status != 200:
        raise ServeError(f"the Prefect server at {host}:{port} is not well (status {status}): see its lines above")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the process group to end, twice for `STOP_SECONDS`, then make it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue


@contextmanager
def some_server() -> Iterator[None]:
    """Where Prefect's settings name no server, one of our own until this process ends; Prefect's own has no lock."""
    from prefect.context import refresh_global_settings_context
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, PREFECT_UI_URL, temporary_settings

    if PREFECT_API_URL.value():
        yield
        return
    url, credential = _temporary_server()
    ours = {PREFECT_API_URL: f"{url}/api", PREFECT_API_AUTH_STRING: credential, PREFECT_UI_URL: ""}  # it has no pages
    # Prefect's other threads, and the processes that it starts, know nothing of temporary settings: they would start a
    # server without a lock.
    try:
        with environment({setting.name: value for setting, value in ours.items()}), temporary_settings(ours):
            refresh_global_settings_context()
            yield
    finally:
        refresh_global_settings_context()


def begin() -> None:
    """Start the server of a run already, beside the imports that take as long, unless settings may name another.

    Where Prefect has been imported, its settings can be asked, and `some_server` does.
    """
    if "prefect" not in sys.modules and not _may_be_named():
        _begun()


def _may_be_named() -> bool:
    """Whether the environment, or else a file that Prefect reads settings from, may name a server."""
    if "PREFECT_API_URL" in os.environ:
        return bool(os.environ["PREFECT_API_URL"])
    home = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
    profiles = Path(os.environ.get("PREFECT_PROFILES_PATH", home / "profiles.toml"))
    marks = {
        profiles: "prefect_api_url",
        Path(".env"): "prefect_api_url",
        Path("prefect.toml"): "",
        Path("pyproject.toml"): "[tool.prefect",
    }
    return any(path.is_file() and mark in path.read_text(errors="replace").lower() for path, mark in marks.items())


@cache
def _begun() -> tuple[int, str]:
    """Start a server for this process: its port and its credential."""
    listener = listen(LOOPBACK, 0)
    port, credential = listener.getsockname()[1], new_credential()
    environment = {
        "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
        **os.environ,
        **_own_settings(),
        "PREFECT_SERVER_UI_ENABLED": "false",
        "PREFECT__SERVER_EPHEMERAL": "1",  # no scheduler
        # Automations are of no use to a run, and many to a database that `penumbra serve` once shared: it was locked.
        "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    }
    process = start_server(listener, [f"http://{LOOPBACK}:{port}"], credential, environment)
    atexit.register(_leave, process)
    return port, credential


def _own_settings() -> dict[str, str]:
    """Prefect's settings of this process; before Prefect is imported they are those that the server itself reads."""
    if "prefect" not in sys.modules:
        return {}
    from prefect.settings import get_current_settings

    return get_current_settings().to_environment_variables(exclude_unset=True)


def _leave(process: subprocess.Popen[bytes]) -> None:
    """Ask the server of a run to end; it takes seconds, for which nobody waits, and is made to where it does not."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)  # at which one that still imports says nothing


@cache
def _temporary_server() -> tuple[str, str]:
    """The server of this process, which answers: its address and its credential."""
    port, credential = _begun()
    wait_for(LOOPBACK, port)
    return f"http://{LOOPBACK}:{port}", credential


def host_names(urls: Sequence[str]) -> list[str]:
    """The names of addresses as a browser's Host header has them, without the port."""
    names = (urlsplit(url).hostname or "" for url in urls)
    return list(dict.fromkeys(f"[{name}]" if ":" in name else name for name in names))


def _keep_back_retried() -> None:
    """No traceback for an event that met a locked database and is tried again: Prefect keeps back those of requests."""
    from prefect.server.api.server import _SQLiteLockedOperationalErrorFilter

    logging.getLogger("prefect.server.utilities.messaging.memory").addFilter(_SQLiteLockedOperationalErrorFilter())


def _list_artifacts_by_key() -> None:
    """Reports first: the UI asks for artifacts in the order of their ids, which chance draws, and has no other."""
    from prefect.server.schemas.sorting import ArtifactCollectionSort, ArtifactSort

    for kind in (ArtifactSort, ArtifactCollectionSort):
        listed = {**{one: one.as_sql_sort() for one in kind}, kind.ID_DESC: kind.KEY_ASC.as_sql_sort()}
        kind.as_sql_sort = lambda own, listed=listed: listed[own]  # type: ignore[method-assign]


def main(descriptor: str, *names: str) -> None:
    """Serve Prefect's own application on a socket that listens, under these names; the rest is in its settings."""
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    settings = get_current_settings().server
    served = create_app()
    if settings.ui.enabled and settings.api.auth_string:
        from penumbra.flows.browse_routes import browse_routes

        served.router.routes[:0] = browse_routes(settings.api.auth_string.get_secret_value())
    # Around the application, not in it: what the server asks itself, it asks under a name that is nobody's.
    app = TrustedHostMiddleware(served, allowed_hosts=names, www_redirect=False)
    _keep_back_retried()
    _list_artifacts_by_key()
    config = uvicorn.Config(
        app,
        log_level=settings.logging_level.lower(),
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
    )
    with suppress(KeyboardInterrupt):  # which uvicorn raises once it has ended in good order
        uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(descriptor))])


if __name__ == "__main__":
    main(*sys.argv[1:])
