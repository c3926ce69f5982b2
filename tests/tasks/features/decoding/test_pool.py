"""Workers that decode ahead: every frame arrives, memory is bounded, what hangs or crashes is ended, none is left."""

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from penumbra.tasks.features import decoders as pool
from penumbra.tasks.features.decoders import Pool, Video
from tests.films import film, number_of

pytestmark = pytest.mark.slow

MISBEHAVING = """
import os, signal, time
from penumbra.tasks.features import decoder as worker
decode = worker.clip_frames
def clip_frames(path, *others):
    for number, picture in enumerate(decode(path, *others)):
        yield picture
        if "hangs" in path.name and number == 1:
            time.sleep(600)
        if "crashes" in path.name:
            os.kill(os.getpid(), signal.SIGSEGV)
        if "fails" in path.name:
            raise RuntimeError("of no known kind")
worker.clip_frames = clip_frames
worker.main()
"""


CALLING = """
import json, socket, sys
from pathlib import Path
from penumbra.tasks.features import decoder as worker
def clip_frames(path, *others):
    socket.create_connection(("127.0.0.1", int(path.stem)), 5).close()
    yield from ()
worker.clip_frames = clip_frames
worker.main()
"""
PROBE = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x50000000))"
NO_NAMESPACES = sys.platform != "linux" or subprocess.run([sys.executable, "-c", PROBE], check=False).returncode != 0


@pytest.fixture
def videos(tmp_path: Path) -> list[Video]:
    return [Video(f"v{i}", film(tmp_path / f"v{i}.mp4", 10 + i)) for i in range(8)]


def test_every_video_s_frames_arrive_in_their_order(videos: list[Video]) -> None:
    numbers: dict[str, list[int]] = {video.vid: [] for video in videos}
    ends: Counter[str] = Counter()
    for message in Pool(3, 0.1, "", 60, 1 << 30).decode(videos):
        if message.picture is not None:
            numbers[message.video.vid].append(number_of(message.picture))
        else:
            assert message.summary is not None
            ends[message.video.vid] += 1
            assert message.summary.clips == len(numbers[message.video.vid])
    assert numbers == {f"v{i}": list(range(10 + i)) for i in range(8)}
    assert set(ends.values()) == {1}


def test_no_more_waits_than_there_is_room_for(videos: list[Video]) -> None:
    size = 48 * 64 * 3
    workers = Pool(2, 0.1, "", 60, 5 * size)
    messages = workers.decode(videos)
    most = 0
    for _ in messages:
        time.sleep(0.002)
        most = max(most, workers.budget.used)
    assert size <= most <= 5 * size
    assert workers.budget.used == workers.budget.waiting == 0


def test_a_frame_larger_than_all_room_is_let_in_alone(videos: list[Video]) -> None:
    assert sum(message.picture is not None for message in Pool(2, 0.1, "", 60, 10).decode(videos)) == sum(range(10, 18))


def test_what_hangs_or_crashes_is_ended_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "COMMAND", (sys.executable, "-c", MISBEHAVING))
    names = ["a", "hangs", "b", "crashes", "c", "fails", "d"]
    several = [Video(name, film(tmp_path / f"{name}.mp4", 20)) for name in names]
    ends = {
        message.video.vid: message
        for message in Pool(1, 0.5, "", 3, 1 << 30).decode(several)
        if message.picture is None
    }
    assert ends.keys() == set(names)
    assert ends["hangs"].reason == "decoder gave no frame for 3 s"
    assert ends["crashes"].reason == "decoder crashed (SIGSEGV)"
    assert (ends["fails"].reason, ends["fails"].value) == ("decoder failed", "RuntimeError: of no known kind")
    assert all(ends[name].summary for name in "abcd")


def test_no_worker_outlives_its_pool(videos: list[Video]) -> None:
    workers = Pool(2, 0.1, "", 60, 1 << 30)
    messages = workers.decode(videos)
    next(messages)
    processes = [worker.process.pid for worker in workers._workers if worker.process]
    assert processes
    messages.close()
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_what_fails_in_the_list_of_videos_is_told(videos: list[Video]) -> None:
    def broken() -> object:
        yield videos[0]
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        list(Pool(2, 0.5, "", 60, 1 << 30).decode(broken()))  # type: ignore[arg-type]


def test_a_decoder_that_asks_for_too_much_memory_is_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    large = film(tmp_path / "large.mkv", 1, size=(4320, 7680), codec="mjpeg")
    several = [Video("large", large), Video("small", film(tmp_path / "small.mp4"))]
    for most, reason in ((1 << 30, ""), (320 << 20, "decoder needs more memory than videos.decoder_mb")):
        ends = {m.video.vid: m for m in Pool(1, 0.5, "", 60, 1 << 30, most=most).decode(several) if m.picture is None}
        assert ends["large"].reason == reason
        assert ends["small"].summary is not None


@pytest.mark.skipif(NO_NAMESPACES, reason="this system gives users no namespaces")
def test_a_decoder_reaches_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "COMMAND", (sys.executable, "-c", CALLING))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        path = tmp_path / f"{server.getsockname()[1]}.mp4"
        [end] = Pool(1, 0.5, "", 60, 1 << 30).decode([Video("a", path)])
        assert (end.reason, end.value) == ("decoder failed", "OSError: [Errno 101] Network is unreachable")
        with pytest.raises(BlockingIOError):
            server.accept()
