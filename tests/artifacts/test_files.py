"""Files below a root appear whole or not at all; their digests are remembered until they change."""

import errno
import os
from pathlib import Path

import pytest

from penumbra.artifacts import files as files_module
from penumbra.artifacts.errors import ArtifactError
from penumbra.artifacts.files import Files, digests_of, draft_of, file_digest


@pytest.fixture(params=["a folder", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return Files(str(tmp_path) if request.param == "a folder" else f"memory://{tmp_path.name}/root")


def test_write_read_find_and_remove(files: Files) -> None:
    for path, content in (("a/x.json", b"1"), ("b/y.json", b"2"), ("b/c/z.json", b"3"), ("a/x.json", b"4")):
        files.write(path, content)
    assert files.read("a/x.json") == b"4"
    assert files.matching("*/*.json") == ["a/x.json", "b/y.json"]
    assert files.matching("b/*/*") == ["b/c/z.json"]
    files.remove("b")
    assert [files.exists(path) for path in ("a", "a/x.json", "b", "b/c/z.json")] == [True, True, False, False]
    with pytest.raises(FileNotFoundError):
        files.read("b/y.json")
    with pytest.raises(FileNotFoundError):
        files.remove("b/y.json")


def test_a_failed_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(str(tmp_path))
    files.write("a", b"old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(ArtifactError, match=f"{tmp_path} can't be written: .*No space left on device"):
        files.write("a", b"new")
    assert files.read("a") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"], "no draft is left behind"


def test_an_unwritable_root_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for root in (tmp_path / "file", tmp_path / ("x" * 300)):
        with pytest.raises(ArtifactError, match=r"can't be written: .*set PENUMBRA_ARTIFACTS to another folder"):
            Files(str(root)).write("a/b", b"new")


def test_a_link_that_waits_where_a_draft_could_be_is_not_followed(tmp_path: Path) -> None:
    for name in (f".out.csv.{os.getpid()}", ".out.csv"):
        (tmp_path / name).symlink_to(tmp_path / "victim")
    with draft_of(tmp_path / "out.csv") as draft:
        draft.write_text("new")
    assert ((tmp_path / "out.csv").read_text(), (tmp_path / "victim").exists()) == ("new", False)


def old(path: Path, text: str) -> Path:
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


def test_unchanged_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "digests_file", lambda: tmp_path / "cache" / "digests.sqlite")
    videos = [old(tmp_path / f"{n}.mp4", f"video {n}") for n in range(3)]
    first = digests_of(videos)
    old(videos[1], "other 1")
    os.utime(videos[1], (1e9 + 1, 1e9 + 1))
    changed = digests_of(videos)
    assert [a == b for a, b in zip(first, changed, strict=True)] == [True, False, True]

    def read_again(*_: object) -> None:
        raise AssertionError("it has not changed")

    monkeypatch.setattr("hashlib.file_digest", read_again)
    assert digests_of(videos) == changed
