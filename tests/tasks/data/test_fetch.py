"""Fetching: correct files are written, others never; a failure has a remedy."""

import hashlib
import socket
from pathlib import Path

import pytest

from penumbra.tasks.data import fetch as fetch_module
from penumbra.tasks.data.dataset import DatasetError
from penumbra.tasks.data.fetch import COMMIT, FILES, fetch
from tests.rows import files_in

ONE, TWO = b'{"a": 1}', b'{"b": 2}'


@pytest.fixture
def data(datasets: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the data set `own` of two files, before it is fetched."""
    digests = {name: hashlib.sha256(text).hexdigest() for name, text in (("one.json", ONE), ("two.json", TWO))}
    monkeypatch.setattr(fetch_module, "FILES", {"own": ("There", digests)})
    return datasets / "own"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository" / COMMIT / "There"
    folder.mkdir(parents=True)
    (folder / "one.json").write_bytes(ONE)
    (folder / "two.json").write_bytes(TWO)
    return folder


def url(repository: Path) -> str:
    return repository.parents[1].as_uri()


def test_correct_files_are_written_and_later_only_what_differs(data: Path, repository: Path) -> None:
    list(fetch("own", url(repository)))
    assert files_in(data) == {"one.json": ONE, "two.json": TWO}
    (repository / "one.json").unlink()
    (data / "two.json").write_bytes(b"damaged")
    list(fetch("own", url(repository)))
    assert files_in(data) == {"one.json": ONE, "two.json": TWO}


def test_a_wrong_file_is_refused_and_replaces_none(data: Path, repository: Path) -> None:
    data.mkdir(parents=True)
    (data / "one.json").write_bytes(b"the user's own")
    (repository / "one.json").write_bytes(b"something else")
    with pytest.raises(DatasetError, match=rf"{COMMIT}/There/one.json .*SHA-256 differs.*nothing was written"):
        list(fetch("own", url(repository)))
    assert files_in(data) == {"one.json": b"the user's own"}


@pytest.mark.parametrize("answers", [False, True])
def test_a_failed_download_has_a_remedy_and_writes_nothing(
    data: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(fetch_module, "TIMEOUT", 0.2)
    (repository / "one.json").unlink()
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts a connection and never answers
        source = url(repository) if answers else f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(DatasetError) as caught:
            list(fetch("own", source))
    message = str(caught.value)
    assert all(part in message for part in (source, str(data), f"PENUMBRA_DATA={data.parent}"))
    assert "\n" not in message
    assert not data.exists()


def test_the_known_digests_are_those_of_the_published_files(shared: Path) -> None:
    assert set(FILES) == {"charades-cg", "activitynet-cg"}
    for dataset, (_, digests) in FILES.items():
        for name, digest in digests.items():
            data = (shared / "data" / dataset / name).read_bytes()
            assert hashlib.sha256(data).hexdigest() == digest, f"{dataset}/{name}"
