"""Decode videos in processes that may crash, hang or need too much memory without ending the run.

torch's `DataLoader` is not suitable: a crash or time-out of one worker ends the whole iteration, and it can't start
workers inside workers of Dask. A decoding process (`COMMAND`) has no network where the system can forbid it, and
imports neither torch nor Prefect, so that it starts quickly.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from penumbra.artifacts.markdown import counted
from penumbra.artifacts.processes import confine, cores, end_with_parent
from penumbra.tasks.features.errors import FeatureError, VideoError
from penumbra.tasks.features.files import VideoFolder
from penumbra.tasks.features.frames import FilmStrip, Picture, Resizing, VideoSummary, clip_frames, resize

COMMAND = (sys.executable, "-P", "-m", "penumbra.tasks.features.decoders")  # a descriptor and MAX_MEMORY follow
PASSED = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR")  # variables of a decoder
MAX_SECONDS_PER_FRAME = 60.0  # a decoder that yields no frame for this time is killed
MAX_MEMORY = 4 << 30  # bytes of address space of a decoder
MAX_MESSAGE = 1 << 30  # bytes
AHEAD = 128  # highest number of waiting results, which limits the memory if one video takes long

T = TypeVar("T")

# -- in the decoding process ------------------------------------------------------------------------------------------


def main() -> None:
    """Decode videos until the other end of the connection is closed."""
    descriptor, memory = map(int, sys.argv[1:])
    confine(memory)  # works only while the process has a single thread
    end_with_parent()
    connection = Connection(descriptor)
    try:
        while True:
            _send_frames(json.loads(connection.recv_bytes()), connection)
    except (EOFError, OSError, KeyboardInterrupt):
        os._exit(1)


def _send_frames(job: dict[str, Any], connection: Connection) -> None:
    """Send JSON and bytes for each frame, then `summary` and `thumbnails`; or `reason` and `value` of a failure."""

    def send(**message: Any) -> None:
        connection.send_bytes(json.dumps(message).encode())

    path, summary, strip = Path(job["path"]), VideoSummary(), FilmStrip(job["thumbnails"])
    resizing = Resizing(**job["resizing"]) if job["resizing"] else None
    try:
        for index, picture in enumerate(clip_frames(path, job["clip_length"], summary)):
            strip.add(index, picture)
            frame = resize(picture, resizing) if resizing else picture
            send(shape=frame.shape)
            connection.send_bytes(frame.tobytes())
        send(summary=asdict(summary), thumbnails=[index for index, _ in strip.thumbnails])
        for _, jpeg in strip.thumbnails:
            connection.send_bytes(jpeg)
    except VideoError as error:
        send(reason=error.reason, value=error.value)
    except BrokenPipeError:
        raise
    except MemoryError:
        send(reason="decoder needs too much memory", value=path.name)
    except Exception as error:
        send(reason="decoder failed", value=f"{type(error).__name__}: {error}")


# -- in the process of the run ----------------------------------------------------------------------------------------


class Decoder:
    """A process that decodes one video after another in clips of `clip_length` seconds; it restarts after a crash."""

    def __init__(self, clip_length: float, resizing: Resizing | None = None) -> None:
        self.settings = {"clip_length": clip_length, "resizing": resizing and asdict(resizing)}
        self.stopped = False
        self.thumbnails: list[tuple[int, bytes]] = []  # of the last video: index of the frame, JPEG
        self.process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def frames(self, path: Path, summary: VideoSummary, thumbnails: int = 0) -> Iterator[Picture]:
        """Yield the frame of each clip, then set `summary` and `thumbnails`; raise `VideoError` if decoding fails."""
        job, done = {"path": str(path.absolute()), "thumbnails": thumbnails, **self.settings}, False
        try:
            self._start().send_bytes(json.dumps(job).encode())
            while "shape" in (message := json.loads(self._receive())):
                yield np.frombuffer(self._receive(), np.uint8).reshape(message["shape"])
            if "summary" in message:
                vars(summary).update(vars(VideoSummary(**message["summary"])))
                self.thumbnails = [(index, self._receive()) for index in message["thumbnails"]]
                done = True
                return
            reason, value, done = message["reason"], message["value"], True
        except (EOFError, OSError, KeyError, TypeError, ValueError) as error:
            if self.stopped:
                raise RuntimeError("the decoder was stopped") from None
            late = f"decoder gave no frame for {MAX_SECONDS_PER_FRAME:g} s"
            reason, value = late if isinstance(error, TimeoutError) else self._crash(), path.name
        finally:
            if not done:
                self.close()
        raise VideoError(reason, value)

    def _start(self) -> Connection:
        if self._connection is None:
            passed = {name: os.environ[name] for name in PASSED if name in os.environ}  # no keys
            ours, theirs = socket.socketpair()
            with theirs:
                self._connection = Connection(ours.detach())
                self.process = subprocess.Popen(
                    (*COMMAND, str(theirs.fileno()), str(MAX_MEMORY)),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env=passed | {"OPENBLAS_NUM_THREADS": "1"},  # only a process of one thread can be confined
                )
        return self._connection

    def _receive(self) -> bytes:
        if self.stopped or self._connection is None:
            raise EOFError
        if not self._connection.poll(MAX_SECONDS_PER_FRAME):
            raise TimeoutError
        return self._connection.recv_bytes(MAX_MESSAGE)

    def _crash(self) -> str:
        try:
            code = self.process.wait(1) if self.process else 0
        except subprocess.TimeoutExpired:
            code = 0
        return f"decoder crashed ({signal.Signals(-code).name})" if code < 0 else f"decoder ended with {code}"

    def stop(self) -> None:
        """Kill the process; `frames` raises `RuntimeError` in the thread that uses it."""
        process, self.stopped = self.process, True
        if process is not None:
            process.kill()

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        if self._connection is not None:
            self._connection.close()
        self.process = self._connection = None


def each_decoded(
    work: Callable[[Path, Decoder], T], paths: Iterable[Path], threads: ThreadPoolExecutor, decoders: Sequence[Decoder]
) -> Generator[T, None, None]:
    """Yield the result of `work` for each video, in order; at most `AHEAD` results wait.

    Each thread calls `work` with a decoder that no other thread uses. If the generator is closed early, no further
    video is started, and `Decoder.frames` raises `RuntimeError` for started videos.
    """
    free, waiting = SimpleQueue[Decoder](), deque[Future[T]]()
    for decoder in decoders:
        free.put(decoder)

    def with_decoder(path: Path) -> T:
        decoder = free.get()
        try:
            return work(path, decoder)
        finally:
            free.put(decoder)

    try:
        for path in paths:
            waiting.append(threads.submit(with_decoder, path))
            if len(waiting) == AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for decoder in decoders:
            decoder.stop()
        threads.shutdown()
        for decoder in decoders:
            decoder.close()


def durations_of_files(folder: Path, vids: Sequence[str]) -> Mapping[str, float]:
    """Decode each video to return its duration in seconds; raise `FeatureError` if a file is missing or damaged."""
    if not folder.is_dir():
        raise FeatureError(
            f"no duration is given, and there is no folder {folder} of videos to measure it: fill a column `duration` "
            "(seconds or mm:ss), or name the folder with --videos"
        )
    folder_files = VideoFolder(folder)
    files = {vid: path for vid in vids if (path := folder_files.find(vid))}
    missing = sorted({*vids} - files.keys())
    if missing:
        raise FeatureError(
            f"{folder} holds no file of video {missing[0]!r}, and its rows have no duration: add the file, or a column "
            f"by --duration ({counted(len(missing), 'file')} missing)"
        )

    def duration(path: Path, decoder: Decoder) -> float:
        summary = VideoSummary()
        try:
            for _ in decoder.frames(path, summary):
                pass
        except VideoError as error:
            reason = f"{error.reason} ({error.value})"
            raise FeatureError(f"{path} has no duration: {reason}: repair it, or remove its rows") from None
        return summary.duration

    decoders = [Decoder(60.0) for _ in range(cores())]
    durations = each_decoded(duration, files.values(), ThreadPoolExecutor(len(decoders)), decoders)
    return dict(zip(files, durations, strict=True))


if __name__ == "__main__":
    main()
