"""Processes that decode: every frame arrives, memory is bounded, a crash or hang rejects one video, none is left."""

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from penumbra.tasks.features import decoders
from penumbra.tasks.features.decoders import DecoderMessage, DecoderPool, Video
from tests.films import film, number_of

pytestmark = pytest.mark.slow

MISBEHAVING = """
import os, signal, time
from penumbra.tasks.features import decoder
decode = decoder.clip_frames
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
decoder.clip_frames = clip_frames
decoder.main()
"""


CALLING = """
import json, socket, sys
from pathlib import Path
from penumbra.tasks.features import decoder
def clip_frames(path, *others):
    socket.create_connection(("127.0.0.1", int(path.stem)), 5).close()
    yield from ()
decoder.clip_frames = clip_frames
decoder.main()
"""
PROBE = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x50000000))"
NO_NAMESPACES = sys.platform != "linux" or subprocess.run([sys.executable, "-c", PROBE], check=False).returncode != 0


@pytest.fixture
def videos(tmp_path: Path) -> list[Video]:
    return [Video(f"v{i}", film(tmp_path / f"v{i}.mp4", 10 + i)) for i in range(8)]


def ends_of(pool: DecoderPool, videos: list[Video]) -> dict[str, DecoderMessage]:
    return {message.video.vid: message for message in pool.decode(videos) if message.picture is None}


def test_the_frames_of_every_video_arrive_in_order(videos: list[Video]) -> None:
    numbers: dict[str, list[int]] = {video.vid: [] for video in videos}
    ends: Counter[str] = Counter()
    for message in DecoderPool(3, 0.1).decode(videos):
        if message.picture is not None:
            numbers[message.video.vid].append(number_of(message.picture))
        else:
            assert message.summary is not None
            ends[message.video.vid] += 1
            assert message.summary.clips == len(numbers[message.video.vid])
    assert numbers == {f"v{i}": list(range(10 + i)) for i in range(8)}
    assert set(ends.values()) == {1}


def test_a_bounded_number_of_frames_waits(videos: list[Video]) -> None:
    pool = DecoderPool(2, 0.1, ahead=5)
    most = 0
    for _ in pool.decode(videos):
        time.sleep(0.002)
        most = max(most, pool._messages.qsize())
    assert 1 <= most <= 5


def test_a_crash_or_hang_rejects_one_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "COMMAND", (sys.executable, "-c", MISBEHAVING))
    names = ["a", "hangs", "b", "crashes", "exits", "c", "fails", "d"]
    several = [Video(name, film(tmp_path / f"{name}.mp4", 20)) for name in names]
    ends = ends_of(DecoderPool(1, 0.5, seconds=2), several)
    assert ends.keys() == set(names)
    assert ends["hangs"].reason == "decoder gave no frame for 2 s"
    assert ends["exits"].reason == "decoder ended with 3"
    assert ends["crashes"].reason == "decoder crashed (SIGSEGV)"
    assert (ends["fails"].reason, ends["fails"].value) == ("decoder failed", "RuntimeError: of no known kind")
    assert all(ends[name].summary for name in "abcd")


def test_no_process_outlives_its_pool(videos: list[Video]) -> None:
    workers = DecoderPool(2, 0.1)
    messages = workers.decode(videos)
    next(messages)
    processes = [worker.process.pid for worker in workers._decoders if worker.process]
    assert processes
    messages.close()
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_decoder_that_needs_too_much_memory_is_rejected_and_the_rest_goes_on(tmp_path: Path) -> None:
    large = film(tmp_path / "large.mkv", 1, size=(4320, 7680), codec="mjpeg")
    several = [Video("large", large), Video("small", film(tmp_path / "small.mp4"))]
    for memory, reason in ((1 << 30, ""), (320 << 20, "decoder needs too much memory")):
        ends = ends_of(DecoderPool(1, 0.5, memory=memory), several)
        assert ends["large"].reason == reason
        assert ends["small"].summary is not None


@pytest.mark.skipif(NO_NAMESPACES, reason="this system gives users no namespaces")
def test_a_decoder_reaches_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "COMMAND", (sys.executable, "-c", CALLING))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        path = tmp_path / f"{server.getsockname()[1]}.mp4"
        [end] = DecoderPool(1, 0.5).decode([Video("a", path)])
        assert (end.reason, end.value) == ("decoder failed", "OSError: [Errno 101] Network is unreachable")
        with pytest.raises(BlockingIOError):
            server.accept()
