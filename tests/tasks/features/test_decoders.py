"""Which frame represents a clip, for every kind of video file; a crash or hang of a decoder rejects one video."""

import math
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path

import av
import numpy as np
import pytest

from penumbra.tasks.features import decoders
from penumbra.tasks.features.decoders import Decoder, Picture, VideoSummary, clip_frames, each_decoded
from penumbra.tasks.features.errors import VideoError
from penumbra.tasks.features.files import VideoFolder
from tests.films import cut, film, number_of, turn

pytestmark = pytest.mark.slow
PLAYLISTS = {
    "ffconcat": "ffconcat version 1.0\nfile neighbour.mp4\n",
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nneighbour.ts\n#EXT-X-ENDLIST\n",
    "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet>'
    '<Representation id="1"><BaseURL>neighbour.mp4</BaseURL></Representation></AdaptationSet></Period></MPD>',
}

MISBEHAVING = """
import os, signal, time
from penumbra.tasks.features import decoders
decode = decoders.clip_frames
def clip_frames(path, *others):
    for number, picture in enumerate(decode(path, *others)):
        yield picture
        if "hangs" in path.name and number == 1:
            time.sleep(600)
        if "exits" in path.name:
            os._exit(3)
        if "crashes" in path.name:
            os.kill(os.getpid(), signal.SIGSEGV)
        if "fails" in path.name:
            raise RuntimeError("of no known kind")
decoders.clip_frames = clip_frames
decoders.main()
"""


CALLING = """
import json, socket, sys
from pathlib import Path
from penumbra.tasks.features import decoders
def clip_frames(path, *others):
    socket.create_connection(("127.0.0.1", int(path.stem)), 5).close()
    yield from ()
decoders.clip_frames = clip_frames
decoders.main()
"""
PROBE = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x50000000))"
NO_NAMESPACES = sys.platform != "linux" or subprocess.run([sys.executable, "-c", PROBE], check=False).returncode != 0


def decoded(path: Path, decoder: Decoder) -> tuple[list[Picture], VideoSummary, str]:
    """Return the frames of a video, its summary, and the reason why it can't be used."""
    frames, summary = list[Picture](), VideoSummary()
    try:
        frames.extend(decoder.frames(path, summary))
    except VideoError as error:
        return frames, summary, f"{error.reason}: {error.value}"
    return frames, summary, ""


def test_threads_get_the_frames_of_every_video_in_order(tmp_path: Path) -> None:
    films = [film(tmp_path / f"v{i}.mp4", 10 + i) for i in range(8)]
    decoders, processes = [Decoder(0.1) for _ in range(3)], set[int]()
    for number, (frames, summary, reason) in enumerate(each_decoded(decoded, films, ThreadPoolExecutor(3), decoders)):
        assert [number_of(frame) for frame in frames] == list(range(10 + number))
        assert (summary.clips, reason) == (10 + number, "")
        processes |= {decoder.process.pid for decoder in decoders if decoder.process}
    assert number == 7
    assert processes
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_decoder_knows_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    with closing(Decoder(0.5)) as decoder:
        assert decoded(film(tmp_path / "a.mp4", 5), decoder)[2] == ""
        assert b"sk-canary" not in Path(f"/proc/{decoder.process.pid}/environ").read_bytes()


def test_stopping_waits_for_no_video_and_gives_it_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "COMMAND", (sys.executable, "-c", MISBEHAVING))
    films, begun, stopped = [film(tmp_path / name, 20) for name in ("a.mp4", "hangs.mp4", "b.mp4")], [], []

    def work(path: Path, decoder: Decoder) -> None:
        begun.append(path)
        with pytest.raises(RuntimeError, match="stopped") if path == films[1] else nullcontext():
            decoded(path, decoder)
        stopped.append(path)

    results = each_decoded(work, films, ThreadPoolExecutor(1), [Decoder(0.5)])
    next(results)
    time.sleep(2)
    results.close()
    assert begun == stopped == films[:2]


def test_a_crash_or_hang_rejects_one_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "COMMAND", (sys.executable, "-c", MISBEHAVING))
    bad = {"hangs": "decoder gave no frame for 2 s: hangs.mp4", "crashes": "decoder crashed (SIGSEGV): crashes.mp4"}
    bad |= {"exits": "decoder ended with 3: exits.mp4", "fails": "decoder failed: RuntimeError: of no known kind"}
    monkeypatch.setattr(decoders, "MAX_SECONDS_PER_FRAME", 2)
    with closing(Decoder(0.5)) as decoder:
        for name, reason in bad.items():
            assert decoded(film(tmp_path / f"{name}.mp4", 20), decoder)[2] == reason
            assert decoded(film(tmp_path / "good.mp4", 20), decoder)[2] == "", f"after one that {name}"


def test_a_decoder_that_needs_too_much_memory_is_rejected_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = film(tmp_path / "large.mkv", 1, size=(4320, 7680), codec="mjpeg"), film(tmp_path / "small.mp4")
    for memory, reason in ((1 << 30, ""), (320 << 20, "decoder needs too much memory: large.mkv")):
        monkeypatch.setattr(decoders, "MAX_MEMORY", memory)
        with closing(Decoder(0.5)) as decoder:
            assert decoded(large, decoder)[2] == reason
            assert decoded(small, decoder)[1].clips == 4


@pytest.mark.skipif(NO_NAMESPACES, reason="this system gives users no namespaces")
def test_a_decoder_reaches_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "COMMAND", (sys.executable, "-c", CALLING))
    with socket.create_server(("127.0.0.1", 0)) as server, closing(Decoder(0.5)) as decoder:
        server.settimeout(0)
        reason = decoded(tmp_path / f"{server.getsockname()[1]}.mp4", decoder)[2]
        assert reason == "decoder failed: OSError: [Errno 101] Network is unreachable"
        with pytest.raises(BlockingIOError):
            server.accept()


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


def test_a_truncated_file_is_damaged_or_rejected(tmp_path: Path) -> None:
    """With the index at the end nothing can be read; with the index first, what was before the cut."""
    with pytest.raises(VideoError, match="can't be opened"):
        sampled(cut(film(tmp_path / "a.mp4", 40), 0.6), 1.0)
    found, summary = sampled(cut(film(tmp_path / "b.mp4", 40, options={"movflags": "faststart"}), 0.6), 1.0)
    assert 0 < summary.duration < 3.9
    assert summary.damaged
    assert found[0] == 5


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


def test_links_are_followed_only_within_the_folder_of_all_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, others = tmp_path / "data" / "mine" / "videos", tmp_path / "data" / "theirs"
    folder.mkdir(parents=True)
    others.mkdir()
    secret = tmp_path / "secret"
    for path in (folder / "own.mp4", others / "b.mp4", secret):
        path.write_bytes(b"film")
    inside = {"same": "own.mp4", "theirs": "../../theirs/b.mp4"}
    outside = {"absolute": str(secret), "relative": "../../../secret", "twice": "absolute.mp4"}
    outside |= {"circle": "circle.mp4", "nowhere": "missing.mp4"}
    for name, target in (inside | outside).items():
        os.symlink(target, folder / f"{name}.mp4")
    monkeypatch.setenv("PENUMBRA_DATA", str(tmp_path / "data"))
    files = VideoFolder(folder)
    assert all(files.find(vid) for vid in ("own", *inside))
    assert files.outside == outside.keys()
    assert not any(files.find(vid) for vid in files.outside)
    monkeypatch.setenv("PENUMBRA_DATA", str(tmp_path / "elsewhere"))
    assert VideoFolder(folder).outside == files.outside | {"theirs"}
