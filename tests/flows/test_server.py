"""Who can call our Prefect servers: no other user, no page of another origin, no rebound name; and how they end."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect.blocks.system import Secret
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from penumbra.artifacts.errors import PenumbraError
from penumbra.flows.local_run import check_server
from penumbra.flows.server import given_credential, listen, new_credential, start_server, stop, wait_for
from tests.terminal import python

pytestmark = pytest.mark.slow

EVIL = "http://evil.example"
SECRET = "sk-canary-in-a-block"
SECRETS = ("block_documents/filter", {"include_secrets": True})
DOORS = [("deployments/filter", {}), ("flows/", {"name": "theirs"}), SECRETS]
RUN = """
import os, time
from prefect import flow
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL
from penumbra.flows.server import some_server, start_early

@flow
def waits():
    print("server", PREFECT_API_URL.value(), PREFECT_API_AUTH_STRING.value(), flush=True)
    time.sleep(600)

start_early()
with some_server():
    waits()
"""
SIDE_BY_SIDE = """
import threading
import psutil
from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.context import get_settings_context
from prefect.task_runners import ProcessPoolTaskRunner
from penumbra.flows.server import some_server

@task(cache_policy=NO_CACHE)
def asked_of():
    get_run_logger().info("in a process of its own")  # goes to a server, as do the events of its states
    return get_settings_context().settings.api.url

@flow
def several():
    with ProcessPoolTaskRunner(1) as runner:
        return runner.submit(asked_of, {}).result()

if __name__ == "__main__":
    with some_server():
        ours, threads = get_settings_context().settings.api.url, []
        theirs = several()
        thread = threading.Thread(target=lambda: threads.append(get_settings_context().settings.api.url))
        thread.start()
        thread.join()
        started = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    print("server", theirs == ours, threads == [ours], len([it for it in started if "server" in it]))
    print("left", bool(get_settings_context().settings.api.url))
"""


class Guarded:
    """A server with a Secret block in it."""

    def __init__(self, port: int, credential: str) -> None:
        self.port, self.credential, self.url = port, credential, f"http://127.0.0.1:{port}"

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        address = path.removeprefix("..") if path.startswith("../") else f"/api/{path}"
        connection.request(method, address, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()

    def authorization(self, credential: str | None = None) -> str:
        return "Basic " + base64.b64encode((credential or self.credential).encode()).decode()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    home = tmp_path_factory.mktemp("prefect")
    listener, credential = listen(0), new_credential()
    server = Guarded(listener.getsockname()[1], credential)
    process = start_server(listener, credential, {**os.environ, "PREFECT_HOME": str(home)})
    try:
        wait_for(server.port)
        with temporary_settings({PREFECT_API_URL: f"{server.url}/api", PREFECT_API_AUTH_STRING: credential}):
            Secret(value=SECRET).save("key")
        assert SECRET in server.ask("POST", *SECRETS, Authorization=server.authorization())[2]
        yield server
    finally:
        stop(process)


@pytest.mark.parametrize(("path", "body"), DOORS)
@pytest.mark.parametrize("credential", [None, "penumbra:guessed", "penumbra:"])
def test_another_user_gets_nothing(guarded: Guarded, path: str, body: dict[str, Any], credential: str | None) -> None:
    headers = {"Authorization": guarded.authorization(credential)} if credential else {}
    status, _, text = guarded.ask("POST", path, body, **headers)
    assert status == 401
    assert SECRET not in text


@pytest.mark.parametrize("path", ["docs", "docs/", "docs/oauth2-redirect", "redoc", "openapi.json"])
def test_the_descriptions_of_the_api_are_closed(guarded: Guarded, path: str) -> None:
    assert guarded.ask("GET", f"../{path}", Authorization=guarded.authorization())[0] == 404
    assert guarded.ask("GET", "openapi.json")[0] == 401


def test_the_credential_is_in_no_command_line(guarded: Guarded) -> None:
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert any("penumbra.flows.server" in line for line in lines)
    assert not [line for line in lines if guarded.credential in line or guarded.credential.split(":")[1] in line]


@pytest.mark.parametrize("origin", [EVIL, "null", "http://127.0.0.1:1"])
def test_a_page_of_another_origin_gets_nothing(guarded: Guarded, origin: str) -> None:
    for path, body in DOORS:
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        asked["Access-Control-Request-Headers"] = "authorization,content-type"
        status, headers, _ = guarded.ask("OPTIONS", path, **asked)
        assert (status, "access-control-allow-origin" in headers) == (400, False)
        status, headers, _ = guarded.ask("POST", path, body, Origin=origin, Content_Type="text/plain")
        assert (status, "access-control-allow-origin" in headers) == (401, False)
    status, headers, _ = guarded.ask("OPTIONS", "flows/", **{**asked, "Origin": guarded.url})
    assert (status, headers["access-control-allow-origin"]) == (200, guarded.url)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:4200", "127.0.0.1.evil.example", ""])
def test_a_rebound_name_gets_nothing_even_with_the_credential(guarded: Guarded, host: str) -> None:
    for path, body in DOORS:
        status, _, text = guarded.ask("POST", path, body, Host=host, Authorization=guarded.authorization())
        assert (status, text) == (400, "Invalid host header")


@pytest.mark.parametrize("path", ["events/out", "logs/out", "events/in"])
def test_a_web_socket_of_another_origin_gets_nothing(guarded: Guarded, path: str) -> None:
    address = f"ws://127.0.0.1:{guarded.port}/api/{path}"
    for token in ({}, {"token": "penumbra:guessed"}):
        with connect(address, origin=Origin(EVIL), subprotocols=[Subprotocol("prefect")]) as channel:
            channel.send(json.dumps({"type": "auth", **token}))
            with pytest.raises(ConnectionClosed):
                channel.recv(20)
    with pytest.raises(InvalidStatus, match="403"), connect(address, origin=Origin(EVIL)):
        pass
    with (
        socket.create_connection(("127.0.0.1", guarded.port)) as rebound,
        pytest.raises(InvalidStatus, match="400"),
        connect(address.replace("127.0.0.1", "evil.example"), sock=rebound),
    ):
        pass


def test_a_run_s_server_is_locked_and_ends_when_the_run_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path / "prefect")}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, address, credential = next(line for line in process.stdout if line.startswith("server")).split()
        server = Guarded(int(address.split(":")[2].split("/")[0]), credential)
        started = psutil.Process(process.pid).children(recursive=True)
        assert any("penumbra.flows.server" in child.cmdline() for child in started)
        assert server.ask("POST", *SECRETS)[0] == 401
        known = {"Authorization": server.authorization()}
        assert server.ask("POST", *SECRETS, **known)[0] == 200
        assert server.ask("POST", *SECRETS, **known, Host="evil.example")[0] == 400
        assert not [child for child in started if credential in " ".join(child.cmdline())]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    _, left = psutil.wait_procs(started, timeout=60)
    assert left == []
    with pytest.raises(ConnectionRefusedError):
        server.ask("GET", "health")


@pytest.mark.long
def test_what_a_run_starts_asks_the_run_s_server_and_starts_none_without_a_lock(tmp_path: Path) -> None:
    (tmp_path / "several.py").write_text(SIDE_BY_SIDE)
    home = {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_LOGGING_LEVEL": "INFO"}
    ended = python(tmp_path / "several.py", **home)
    assert ended.stdout.splitlines()[-2:] == ["server True True 1", "left False"]
    assert "temporary server" not in ended.stdout + ended.stderr


def test_a_run_without_the_credential_and_a_taken_port_are_reported(guarded: Guarded) -> None:
    settings = {PREFECT_API_URL: f"{guarded.url}/api", PREFECT_API_AUTH_STRING: ""}
    with temporary_settings(settings), pytest.raises(PenumbraError, match="credential: set PREFECT_API_AUTH_STRING"):
        check_server()
    with pytest.raises(PenumbraError, match="choose another --port"):
        listen(guarded.port)


def test_a_server_that_ends_while_it_starts_is_reported_at_once(tmp_path: Path) -> None:
    listener, broken = listen(0), {**os.environ, "PREFECT_SERVER_DATABASE_CONNECTION_URL": "nonsense://"}
    host, port = listener.getsockname()
    assert host == "127.0.0.1", "it listens on this machine only"
    process = start_server(listener, "a:b", broken, str(tmp_path))
    with pytest.raises(PenumbraError, match="did not start"):
        wait_for(port)
    assert process.wait(30)


def test_each_start_has_a_new_credential_or_that_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENUMBRA_AUTH", raising=False)
    assert given_credential() == ""
    first, second = new_credential(), new_credential()
    assert first != second
    assert len(first) > 30
    monkeypatch.setenv("PENUMBRA_AUTH", "me:geheim")
    assert given_credential() == "me:geheim"
    monkeypatch.setenv("PENUMBRA_AUTH", "me:")
    with pytest.raises(PenumbraError, match="is not user:password"):
        given_credential()


def test_a_server_that_is_not_healthy_has_not_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
        server = threading.Thread(target=lambda: listener.accept()[0].sendall(answer))
        server.start()
        with pytest.raises(PenumbraError, match=r"is not healthy \(status 503\)"):
            wait_for(listener.getsockname()[1])
        server.join()
