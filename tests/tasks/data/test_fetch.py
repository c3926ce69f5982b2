"""Fetching: correct files are written, others never; a failure has a remedy."""

import hashlib
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from penumbra.tasks.data import fetch as fetch_module
from penumbra.tasks.data.dataset import DatasetError
from penumbra.tasks.data.fetch import COMMIT, FILES, fetch

ONE, TWO = b'{"a": 1}', b'{"b": 2}'


class Repository:
    """A web server with files by path; `requested` lists the paths of its requests."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requested: list[str] = []
        self.cut = False  # break off in the middle of a file
        self.answering = threading.Event()
        self.answering.set()
        repository = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                repository.requested.append(self.path)
                repository.answering.wait(10)
                data = repository.files.get(self.path)
                self.send_response(404 if data is None else 200)
                self.send_header("Content-Length", str(len(data or b"")))
                self.end_headers()
                with suppress(BrokenPipeError):  # the client has given up waiting
                    self.wfile.write((data or b"")[: 3 if repository.cut else None])

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def put(self, name: str, data: bytes) -> None:
        self.files[f"/{COMMIT}/There/{name}"] = data


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder; `own` is a data set of two files."""
    monkeypatch.setenv("PENUMBRA_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    digests = {name: hashlib.sha256(text).hexdigest() for name, text in (("one.json", ONE), ("two.json", TWO))}
    monkeypatch.setattr(fetch_module, "FILES", {"own": ("There", digests)})
    return tmp_path / "data" / "own"


@pytest.fixture
def repository() -> Iterator[Repository]:
    repository = Repository()
    repository.put("one.json", ONE)
    repository.put("two.json", TWO)
    yield repository
    repository.answering.set()
    repository.server.shutdown()
    repository.server.server_close()


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_correct_files_are_written_and_later_only_what_differs(data: Path, repository: Repository) -> None:
    lines = list(fetch("own", repository.url))
    assert written(data) == {"one.json": ONE, "two.json": TWO}
    assert lines == [f"{data}/one.json fetched, 8 bytes", f"{data}/two.json fetched, 8 bytes"]
    repository.requested.clear()
    (data / "two.json").write_bytes(b"damaged")
    lines = list(fetch("own", repository.url))
    assert lines == [f"{data}/one.json is there", f"{data}/two.json fetched, 8 bytes"]
    assert repository.requested == [f"/{COMMIT}/There/two.json"]
    assert written(data) == {"one.json": ONE, "two.json": TWO}


def test_a_wrong_file_is_refused_and_replaces_none(data: Path, repository: Repository) -> None:
    data.mkdir(parents=True)
    (data / "one.json").write_bytes(b"the user's own")
    repository.put("one.json", b"something else")
    wrong = rf"{repository.url}/{COMMIT}/There/one.json .*SHA-256 differs.*nothing was written"
    with pytest.raises(DatasetError, match=wrong):
        list(fetch("own", repository.url))
    assert written(data) == {"one.json": b"the user's own"}


@pytest.mark.parametrize("fault", ["no server", "missing file", "no answer", "connection breaks off"])
def test_a_failed_download_has_a_remedy_and_writes_nothing(
    data: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(fetch_module, "TIMEOUT", 0.2)
    source = repository.url
    if fault == "no server":
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            source = f"http://127.0.0.1:{closed.getsockname()[1]}"
    elif fault == "missing file":
        repository.files.clear()
    elif fault == "no answer":
        repository.answering.clear()
    else:
        repository.cut = True
    with pytest.raises(DatasetError) as caught:
        list(fetch("own", source))
    message = str(caught.value)
    assert all(part in message for part in (source, str(data), f"PENUMBRA_DATA={data.parent}"))
    assert "\n" not in message
    assert not data.exists()


def test_an_unknown_data_set_names_the_known_ones(data: Path) -> None:
    with pytest.raises(DatasetError, match="'qvhighlights'; there is: own"):
        list(fetch("qvhighlights"))


def test_the_known_digests_are_those_of_the_published_files(shared: Path) -> None:
    assert set(FILES) == {"charades-cg", "activitynet-cg"}
    for dataset, (_, digests) in FILES.items():
        for name, digest in digests.items():
            data = (shared / "data" / dataset / name).read_bytes()
            assert hashlib.sha256(data).hexdigest() == digest, f"{dataset}/{name}"
