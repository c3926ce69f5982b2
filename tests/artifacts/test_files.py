"""Files below a root appear whole or not at all."""

import errno
from pathlib import Path

import pytest

from penumbra.artifacts.errors import ArtifactError
from penumbra.artifacts.files import Files


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
        with pytest.raises(ArtifactError, match=r"can't be written: .*PENUMBRA_ARTIFACTS names another folder"):
            Files(str(root)).write("a/b", b"new")
