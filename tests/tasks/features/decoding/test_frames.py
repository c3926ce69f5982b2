"""Which frame stands for a clip, on every kind of file that people have."""

import math
from pathlib import Path

import numpy as np
import pytest

from penumbra.tasks.features.frames import VideoError, VideoSummary, clip_frames
from tests.films import cut, film, lie_about_duration, number_of, sound, turn

pytestmark = pytest.mark.slow


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
def test_the_frame_at_a_clip_s_middle_stands_for_it(tmp_path: Path, clip_length: float, numbers: list[int]) -> None:
    found, summary = sampled(film(tmp_path / "a.mp4"), clip_length)
    assert found == numbers
    assert summary == VideoSummary(duration=2.0, clips=len(numbers), frames=20)


@pytest.mark.parametrize("clip_length", [0.1, 0.3, 0.5, 1 / 3, 0.7, 1, 2])
@pytest.mark.parametrize("frames", [1, 7, 29, 30])
def test_clips_cover_the_duration(tmp_path: Path, clip_length: float, frames: int) -> None:
    found, summary = sampled(film(tmp_path / "a.mp4", frames, rate=29), clip_length)
    assert len(found) == summary.clips == math.ceil(round(summary.duration / clip_length, 9))
    assert summary.duration == pytest.approx(frames / 29)


def test_timestamps_count_and_not_frame_numbers(tmp_path: Path) -> None:
    """Ten frames in the first second, then one that is shown for three."""
    times = [*range(0, 1000, 100), 1000, 4000]
    found, summary = sampled(film(tmp_path / "a.mkv", times=times), 1.0)
    assert found[:4] == [5, 10, 10, 10]
    assert summary.duration == pytest.approx(4.1, abs=0.101)


def test_a_quarter_turn_is_undone(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", size=(48, 64))
    upright = next(clip_frames(path, 1.0, VideoSummary()))
    summary = VideoSummary()
    turned = next(clip_frames(turn(path), 1.0, summary))
    assert upright.shape == (48, 64, 3)
    assert turned.shape == (64, 48, 3)
    assert summary.rotated or next(iter(clip_frames(path, 60, summary))).shape == (64, 48, 3)


def test_rotation_is_that_of_a_player(tmp_path: Path) -> None:
    """A white left half, turned by the matrix of a phone (90° clockwise), is at the top."""
    import av

    path = tmp_path / "a.mp4"
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:, :32] = 255
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=10)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode())
    turned = next(clip_frames(turn(path), 1.0, VideoSummary()))
    assert turned[:30].mean() > 240
    assert turned[34:].mean() < 15


def test_the_header_s_duration_does_not_count(tmp_path: Path) -> None:
    found, summary = sampled(lie_about_duration(film(tmp_path / "a.mp4")), 1.0)
    assert (found, summary.duration) == ([5, 15], 2.0)


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 48), (47, 63), (4320, 7680)])
def test_odd_sizes(tmp_path: Path, size: tuple[int, int]) -> None:
    path = film(tmp_path / "a.mkv", 1, size=size, codec="mjpeg" if max(size) > 4000 else "ffv1")
    assert next(clip_frames(path, 1.0, VideoSummary())).shape == (*size, 3)


def test_without_the_hardware_decoder_software_decodes_and_says_so(tmp_path: Path) -> None:
    import torch

    summary = VideoSummary()
    found = [number_of(picture) for picture in clip_frames(film(tmp_path / "a.mp4"), 1.0, summary, "cuda")]
    assert found == [5, 15]
    assert summary.software is not torch.cuda.is_available()


def test_a_ribbon_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VideoError, match="times as long as it is wide"):
        list(clip_frames(film(tmp_path / "a.mkv", 1, size=(2, 400), codec="ffv1"), 1.0, VideoSummary()))


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "avi", "mov", "ts"])
def test_containers(tmp_path: Path, suffix: str) -> None:
    codec = "mpeg4" if suffix == "avi" else "libx264"
    found, summary = sampled(film(tmp_path / f"a.{suffix}", codec=codec), 1.0)
    assert found == [5, 15]
    assert summary.duration == pytest.approx(2.0, abs=0.002)


def test_what_is_no_video_says_so(tmp_path: Path) -> None:
    empty, text, playlist = (tmp_path / name for name in ("empty.mp4", "text.mp4", "list.mp4"))
    empty.write_bytes(b"")
    text.write_text("this is no video\n" * 100)
    playlist.write_text("#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n")
    for path in (empty, text, playlist):
        with pytest.raises(VideoError, match="can't be opened as a video"):
            list(clip_frames(path, 1.0, VideoSummary()))
    with pytest.raises(VideoError, match="no video stream"):
        list(clip_frames(sound(tmp_path / "sound.mp4"), 1.0, VideoSummary()))


PLAYLISTS = {
    "ffconcat": "ffconcat version 1.0\nfile neighbour.mp4\n",
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nneighbour.ts\n#EXT-X-ENDLIST\n",
    "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet>'
    '<Representation id="1"><BaseURL>neighbour.mp4</BaseURL></Representation></AdaptationSet></Period></MPD>',
}


@pytest.mark.parametrize("kind", PLAYLISTS)
def test_no_file_opens_its_neighbour(tmp_path: Path, kind: str) -> None:
    """What a file is its content tells: neither the suffix of a video nor a playlist's makes one of it."""
    for suffix in ("mp4", "ts"):
        film(tmp_path / f"neighbour.{suffix}")
    for suffix in ("mp4", "mkv", "ts"):
        path = tmp_path / f"list.{suffix}"
        path.write_text(PLAYLISTS[kind])
        with pytest.raises(VideoError, match="can't be opened as a video"):
            list(clip_frames(path, 1.0, VideoSummary()))


def test_a_picture_is_no_video(tmp_path: Path) -> None:
    path = film(tmp_path / "picture.mp4", 1, codec="mjpeg", container="image2")
    with pytest.raises(VideoError, match="can't be opened as a video"):
        list(clip_frames(path, 1.0, VideoSummary()))


def test_a_video_by_another_name_is_one(tmp_path: Path) -> None:
    film(tmp_path / "a.mkv").rename(tmp_path / "a.mp4")
    assert sampled(tmp_path / "a.mp4", 1.0)[0] == [5, 15]


def test_a_truncated_file_is_damaged_or_can_t_be_opened(tmp_path: Path) -> None:
    """With the index at the end nothing is left; with the index first, what was before the cut."""
    for options, opens in (({}, False), ({"movflags": "faststart"}, True)):
        path = cut(film(tmp_path / "a.mp4", 40, options=options), 0.6)
        if not opens:
            with pytest.raises(VideoError, match="can't be opened"):
                sampled(path, 1.0)
            continue
        found, summary = sampled(path, 1.0)
        assert 0 < summary.duration < 3.9
        assert summary.damaged
        assert found[0] == 5


def test_damage_in_the_middle_is_counted_and_the_rest_used(tmp_path: Path) -> None:
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
