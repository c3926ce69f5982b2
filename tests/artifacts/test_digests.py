"""Digests cover all bytes of a file and are remembered until the file changes."""

import os
from pathlib import Path

import pytest

from penumbra.artifacts import files as digests
from penumbra.artifacts.files import digests_of, file_digest


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A memory of this test alone."""
    place = tmp_path / "cache" / "digests.sqlite"
    monkeypatch.setattr(digests, "digests_file", lambda: place)
    return place


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are really read."""
    places = list[str]()
    reading = digests._read
    monkeypatch.setattr(digests, "_read", lambda place: (places.append(place), reading(place))[1])
    return places


def old(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (1e9, 1e9))
    return path


def test_a_digest_depends_on_contents_and_names(tmp_path: Path) -> None:
    digests = set()
    for name, text in (("a", "1"), ("a", "2"), ("b", "1")):
        folder = tmp_path / f"{name}{text}"
        folder.mkdir()
        (folder / name).write_text(text)
        digests.add(file_digest(folder))
    assert len(digests) == 3
    assert file_digest(tmp_path / "a1" / "a") == file_digest(tmp_path / "b1" / "b")


def test_unchanged_files_are_read_once(tmp_path: Path, read: list[str]) -> None:
    files = [old(tmp_path / f"{n}.mp4", f"video {n}") for n in range(3)]
    first = digests_of(files)
    assert sorted(read) == sorted(map(str, files))
    assert digests_of(files) == first
    assert len(read) == 3
    old(files[1], "other 1")
    os.utime(files[1], (1e9 + 1, 1e9 + 1))
    changed = digests_of(files)
    assert read[3:] == [str(files[1])]
    assert [a == b for a, b in zip(first, changed, strict=True)] == [True, False, True]
