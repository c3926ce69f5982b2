"""Which files of a folder count: links lead to none that lies elsewhere."""

import os
from pathlib import Path

import pytest

from penumbra.tasks.features.files import VideoFolder

pytestmark = pytest.mark.slow


def test_links_are_followed_within_the_folder_of_all_data_and_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, others = tmp_path / "data" / "mine" / "videos", tmp_path / "data" / "theirs"
    folder.mkdir(parents=True)
    others.mkdir()
    secret = tmp_path / "secret"
    for path in (folder / "own.mp4", others / "b.mp4", secret):
        path.write_bytes(b"film")
    for name, target in {
        "same": "own.mp4",
        "theirs": "../../theirs/b.mp4",
        "absolute": str(secret),
        "relative": "../../../secret",
        "twice": "absolute.mp4",
        "circle": "circle.mp4",
        "nowhere": "missing.mp4",
    }.items():
        os.symlink(target, folder / f"{name}.mp4")
    monkeypatch.setenv("PENUMBRA_DATA", str(tmp_path / "data"))
    found = VideoFolder(folder)
    assert {vid for vid in ("own", "same", "theirs") if found.find(vid)} == {"own", "same", "theirs"}
    assert found.outside == {"absolute", "relative", "twice", "circle", "nowhere"}
    assert not any(found.find(vid) for vid in found.outside)
    monkeypatch.setenv("PENUMBRA_DATA", str(tmp_path / "elsewhere"))
    assert VideoFolder(folder).outside == found.outside | {"theirs"}


def test_a_folder_that_is_a_link_itself_is_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "a.mp4").write_bytes(b"film")
    os.symlink(tmp_path / "disk", tmp_path / "videos")
    assert VideoFolder(tmp_path / "videos").find("a") == tmp_path / "videos" / "a.mp4"
