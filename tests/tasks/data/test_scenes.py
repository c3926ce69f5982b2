"""The shipped data set `scenes`: complete, undamaged, and consistent with its annotations."""

import hashlib
import json
from pathlib import Path

import av
import pytest

from penumbra.tasks.data.dataset import SHIPPED, Dataset, videos_of


def test_every_file_has_its_digest() -> None:
    expected = dict(line.split("  ")[::-1] for line in (SHIPPED / "SHA256SUMS").read_text().splitlines())
    files = [*SHIPPED.glob("*.json"), *SHIPPED.glob("videos/*")]
    assert {str(file.relative_to(SHIPPED)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files} == expected


def test_every_annotated_video_is_shipped_in_one_split_and_as_long_as_annotated() -> None:
    videos: dict[str, float] = {}
    for path in SHIPPED.glob("*.json"):
        for vid, video in json.loads(path.read_text()).items():
            assert vid not in videos
            assert len(video["sentences"]) == len(video["timestamps"]) > 0
            assert all(0 <= start < end <= video["duration"] for start, end in video["timestamps"])
            videos[vid] = video["duration"]
    assert {path.stem for path in (SHIPPED / "videos").glob("*.mp4")} == set(videos)
    for vid, duration in list(videos.items())[::80]:
        with av.open(str(SHIPPED / "videos" / f"{vid}.mp4")) as container:
            assert sum(1 for _ in container.decode(container.streams.video[0])) == round(10 * duration)


@pytest.mark.parametrize(("own", "shipped"), [("", True), ("train.json", False), ("videos/S0001.mp4", False)])
def test_a_users_folder_takes_precedence(datasets: Path, own: str, shipped: bool) -> None:
    if own:
        (datasets / "scenes" / own).parent.mkdir(parents=True)
        (datasets / "scenes" / own).touch()
    assert (videos_of("scenes") == SHIPPED / "videos") is shipped
    assert videos_of("mine") == datasets / "mine" / "videos"
    assert (Dataset(name="scenes").location() == SHIPPED) is (own != "train.json")
