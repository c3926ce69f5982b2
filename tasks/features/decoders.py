"""Decode several videos at once in processes that may crash, hang or need too much memory without ending the run.

A `DataLoader` of torch does not fit: the crash or time-out of one of its workers ends the whole iteration, and it can't
start workers inside those of Dask.
"""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from penumbra.artifacts.processes import cores
from penumbra.tasks.features.errors import FeatureError
from penumbra.tasks.features.files import VideoFolder
from penumbra.tasks.features.frames import Picture, Resizing, VideoSummary

COMMAND = (sys.executable, "-P", "-m", "penumbra.tasks.features.decoder")
MAX_SECONDS_PER_FRAME = 60.0  # a decoder that gives no frame for so long is ended
MAX_MEMORY = 4 << 30  # bytes of address space of a decoder
MAX_MESSAGE = 1 << 30  # bytes


@dataclass(frozen=True)
class Video:
    """A video file to decode; about `thumbnails` of its frames are wanted as small JPEGs."""

    vid: str
    path: Path
    thumbnails: int = 0


@dataclass(frozen=True)
class DecoderMessage:
    """The frame of a video's next clip; at the video's end its `summary`, or the `reason` why it can't be used."""

    video: Video
    picture: Picture | None = None
    summary: VideoSummary | None = None
    thumbnails: tuple[tuple[int, bytes], ...] = ()  # index of the frame, JPEG
    reason: str = ""
    value: str = ""


class Decoder:
    """A process that decodes one video after another; it is started again after a crash."""

    def __init__(self, clip_length: float, resizing: Resizing | None, seconds: float, memory: int) -> None:
        self.settings = {"clip_length": clip_length, "resizing": resizing and asdict(resizing)}
        self.seconds, self.memory = seconds, memory
        self.process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def decode(self, video: Video) -> Iterator[DecoderMessage]:
        """Yield the frames of a video and its end."""
        try:
            connection = self._start()
            job = {"path": str(video.path.absolute()), "thumbnails": video.thumbnails, **self.settings}
            connection.send_bytes(json.dumps(job).encode())
            while "shape" in (message := json.loads(self._receive(connection))):
                picture = np.frombuffer(self._receive(connection), np.uint8).reshape(message["shape"])
                yield DecoderMessage(video, picture)
            if "summary" in message:
                thumbnails = tuple((index, self._receive(connection)) for index in message["thumbnails"])
                yield DecoderMessage(video, summary=VideoSummary(**message["summary"]), thumbnails=thumbnails)
            else:
                yield DecoderMessage(video, reason=message["reason"], value=message["value"])
        except TimeoutError:
            self.end()
            yield DecoderMessage(video, reason=f"decoder gave no frame for {self.seconds:g} s", value=video.path.name)
        except (EOFError, OSError, KeyError, TypeError, ValueError):
            code = 0
            with suppress(subprocess.TimeoutExpired):
                code = self.process.wait(1) if self.process else 0
            self.end()
            ended = f"decoder crashed ({signal.Signals(-code).name})" if code < 0 else f"decoder ended with {code}"
            yield DecoderMessage(video, reason=ended, value=video.path.name)

    def _start(self) -> Connection:
        """Start the process if it does not run, and return the connection to it."""
        if self.process is None or self._connection is None:
            ours, theirs = socket.socketpair()
            with theirs:
                self._connection = Connection(ours.detach())
                self.process = subprocess.Popen(
                    (*COMMAND, str(theirs.fileno()), str(self.memory)),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # only a process of one thread can be confined
                )
        return self._connection

    def _receive(self, connection: Connection) -> bytes:
        if not connection.poll(self.seconds):
            raise TimeoutError
        return connection.recv_bytes(MAX_MESSAGE)

    def kill(self) -> None:
        """Kill the process; whoever waits for its answer gets an end-of-file error."""
        process = self.process
        if process is not None:
            process.kill()

    def end(self) -> None:
        """Kill the process and close the connection."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        if self._connection is not None:
            self._connection.close()
        self.process = self._connection = None


class DecoderPool:
    """Decodes videos in several processes. The frames of different videos are interleaved, those of one are in order.

    Args:
        processes: number of processes
        clip_length: seconds of a clip
        resizing: how frames are resized before they are sent; None: not at all
        ahead: number of frames that may wait to be taken, which bounds the memory
        seconds: how long a decoder may take for a frame before it is ended
        memory: bytes of address space that a process may use; 0: any

    """

    def __init__(
        self,
        processes: int,
        clip_length: float,
        resizing: Resizing | None = None,
        ahead: int = 64,
        seconds: float = MAX_SECONDS_PER_FRAME,
        memory: int = MAX_MEMORY,
    ) -> None:
        self._decoders = [Decoder(clip_length, resizing, seconds, memory) for _ in range(processes)]
        self._messages: queue.Queue[DecoderMessage | BaseException | None] = queue.Queue(ahead)
        self._lock, self._threads = threading.Lock(), list[threading.Thread]()
        self._closed = False

    def decode(self, videos: Iterable[Video]) -> Iterator[DecoderMessage]:
        """Yield the frames of all videos, and the end of each."""
        jobs = iter(videos)
        self._threads = [threading.Thread(target=self._work, args=(d, jobs), daemon=True) for d in self._decoders]
        for thread in self._threads:
            thread.start()
        running = len(self._threads)
        try:
            while running:
                message = self._messages.get()
                if isinstance(message, BaseException):
                    raise message
                if message is None:
                    running -= 1
                else:
                    yield message
        finally:
            self.close()

    def close(self) -> None:
        """End all processes."""
        self._closed = True
        for decoder in self._decoders:
            decoder.kill()
        while any(thread.is_alive() for thread in self._threads):
            with suppress(queue.Empty):  # a thread may wait for a free place
                self._messages.get(timeout=0.02)
        for decoder in self._decoders:
            decoder.end()

    def _work(self, decoder: Decoder, jobs: Iterator[Video]) -> None:
        try:
            while not self._closed:
                with self._lock:
                    video = next(jobs, None)
                if video is None:
                    break
                for message in decoder.decode(video):
                    if self._closed:
                        break
                    self._messages.put(message)
        except BaseException as error:  # is raised in the thread that takes the frames
            self._messages.put(error)
        finally:
            self._messages.put(None)


def durations_of_files(folder: Path, vids: Sequence[str]) -> Mapping[str, float]:
    """Return the seconds of each video, found by decoding it; headers may be wrong.

    Raises:
        FeatureError: a video has no file, or its file can't be decoded

    """
    if not folder.is_dir():
        raise FeatureError(f"no folder {folder}: give the one that holds the videos, by --videos")
    files, durations = VideoFolder(folder), dict[str, float]()
    videos = [Video(vid, path) for vid in vids if (path := files.find(vid))]
    missing = sorted({*vids} - {video.vid for video in videos})
    if missing:
        raise FeatureError(
            f"{folder} holds no file of video {missing[0]!r}, and its rows have no duration: add the file, or a column "
            f"by --duration ({len(missing):,} files are missing)"
        )
    for message in DecoderPool(min(cores(), len(vids)), 60.0).decode(videos):
        if message.reason:
            reason = f"{message.reason} ({message.value})"
            raise FeatureError(f"{message.video.path} has no duration: {reason}: repair it, or remove its rows")
        if message.summary:
            durations[message.video.vid] = message.summary.duration
    return durations
