"""Which frame represents a clip, for every kind of video file."""

import math
from pathlib import Path

import av
import numpy as np
import pytest

from penumbra.tasks.features.errors import VideoError
from penumbra.tasks.features.frames import VideoSummary, clip_frames
from tests.films import film, number_of, turn

pytestmark = pytest.mark.slow
PLAYLISTS = {
    "ffconcat": "ffconcat version 1.0\nfile neighbour.mp4\n",
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nneighbour.ts\n#EXT-X-ENDLIST\n",
    "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet>'
    '<Representation id="1"><BaseURL>neighbour.mp4</BaseURL></Representation></AdaptationSet></Period></MPD>',
}


def sampled(path: Path, clip_length: float) -> tuple[list[int], VideoSummary]:
    summary = VideoSummary()
    return [number_of(picture) for picture in clip_frames(path, clip_length, summary)], summary


@pytest.mark.parametrize(
    ("clip_length", "numbers"),
    [
        (1.0, [5, 15]),  # the frames shown at 0.5 and 1.5 s
        (0.5, [2, 7, 12, 17]),
        (0.1, list(range(20))),
        (0.75, [3, 11, 18]),  # the last clip, 1.5 to 2.25 s, has its middle at 1.875
        (1.5, [7, 19]),  # the video ends at 2 s, before the middle of the last clip: its last frame
        (60.0, [19]),
    ],
)
def test_the_frame_at_the_middle_represents_a_clip(tmp_path: Path, clip_length: float, numbers: list[int]) -> None:
    found, summary = sampled(film(tmp_path / "a.mp4"), clip_length)
    assert found == numbers
    assert summary == VideoSummary(duration=2.0, clips=len(numbers), frames=20)


@pytest.mark.parametrize("clip_length", [0.1, 1 / 3, 0.7, 2])
@pytest.mark.parametrize("frames", [1, 29, 30])
def test_clips_cover_the_duration(tmp_path: Path, clip_length: float, frames: int) -> None:
    found, summary = sampled(film(tmp_path / "a.mp4", frames, rate=29), clip_length)
    assert len(found) == summary.clips == math.ceil(round(summary.duration / clip_length, 9))
    assert summary.duration == pytest.approx(frames / 29)


def test_variable_frame_rate(tmp_path: Path) -> None:
    """Ten frames in the first second, then one that is shown for three seconds."""
    times = [*range(0, 1000, 100), 1000, 4000]
    found, summary = sampled(film(tmp_path / "a.mkv", times=times), 1.0)
    assert found[:4] == [5, 10, 10, 10]
    assert summary.duration == pytest.approx(4.1, abs=0.101)


def test_rotation_is_that_of_a_player(tmp_path: Path) -> None:
    """A white left half, turned by the matrix of a phone (90° clockwise), is at the top."""
    path, picture = tmp_path / "a.mp4", np.zeros((48, 64, 3), np.uint8)
    picture[:, :32] = 255
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=10)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        out.mux([*stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")), *stream.encode()])
    summary = VideoSummary()
    turned = next(clip_frames(turn(path), 1.0, summary))
    assert turned.shape == (64, 48, 3)
    assert summary.rotated
    assert turned[:30].mean() > 240
    assert turned[34:].mean() < 15


def test_only_videos_are_opened_and_a_playlist_opens_no_other_file(tmp_path: Path) -> None:
    """The content decides what a file is, whatever its suffix."""
    picture = film(tmp_path / "picture.mp4", 1, codec="mjpeg", container="image2")
    for suffix in ("mp4", "ts"):
        film(tmp_path / f"neighbour.{suffix}")
    lists = [tmp_path / f"{kind}.{suffix}" for kind in PLAYLISTS for suffix in ("mp4", "mkv", "ts")]
    for path in lists:
        path.write_text(PLAYLISTS[path.stem])
    for path in (picture, *lists):
        with pytest.raises(VideoError, match="can't be opened as a video"):
            list(clip_frames(path, 1.0, VideoSummary()))


def test_damage_in_the_middle_is_counted_and_the_rest_is_used(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", 40)
    data = bytearray(path.read_bytes())
    start = data.index(b"mdat")
    middle = start + (data.index(b"moov") - start) // 2
    data[middle : middle + 60] = bytes(60)
    path.write_bytes(data)
    found, summary = sampled(path, 1.0)
    assert summary.duration == pytest.approx(4.0, abs=0.11)
    assert len(found) in (4, 5)
    assert found[0] == 5
