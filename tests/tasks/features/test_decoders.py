"""A crash or hang of a decoder rejects one video, and all others are decoded in order."""

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from penumbra.tasks.features import decoders
from penumbra.tasks.features.decoders import Decoder, each_decoded
from penumbra.tasks.features.errors import VideoError
from penumbra.tasks.features.files import VideoFolder
from penumbra.tasks.features.frames import Picture, VideoSummary
from tests.films import film, number_of

pytestmark = pytest.mark.slow
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
