"""Worker processes that decode videos ahead of the encoder: bounded memory, and an end to decoders that hang."""

import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.processes import cores
from penumbra.tasks.features.files import VideoFolder
from penumbra.tasks.features.frames import Picture, VideoSummary

COMMAND = (sys.executable, "-P", "-m", "penumbra.tasks.features.decoder")


@dataclass(frozen=True)
class Video:
    """A video to decode."""

    vid: str
    path: Path


@dataclass(frozen=True)
class DecoderMessage:
    """What a worker tells of a video: the frame of its next clip; at its end `summary`; or `reason` and `value`."""

    video: Video
    picture: Picture | None = None
    summary: VideoSummary | None = None
    reason: str = ""
    value: str = ""


class FrameBudget:
    """So many bytes and so many frames may wait; who has more to bring waits itself."""

    def __init__(self, limit: int, frames: int) -> None:
        self.limit, self.frames, self.used, self.waiting, self.open = limit, frames, 0, 0, True
        self._change = threading.Condition()

    def acquire(self, size: int) -> None:
        """Wait until there is room; a single frame that is larger than all the room is let in alone."""
        with self._change:
            self._change.wait_for(lambda: not self.open or not self.waiting or self._has_room(size))
            self.used += size
            self.waiting += 1

    def _has_room(self, size: int) -> bool:
        return self.used + size <= self.limit and self.waiting < self.frames

    def release(self, size: int) -> None:
        """Make room."""
        with self._change:
            self.used -= size
            self.waiting -= 1
            self._change.notify_all()

    def close(self) -> None:
        """Let all who wait go on."""
        with self._change:
            self.open = False
            self._change.notify_all()


class DecoderEndedError(Exception):
    """A worker process hung or crashed in the middle of a video."""


class Worker:
    """One process; started anew where it was ended.

    It is confined, unless it drives a device: drivers take more address space than any limit leaves.
    """

    def __init__(self, clip_length: float, device: str, seconds: float, most: int) -> None:
        self.job = {"clip_length": str(clip_length), "device": device}
        self.command = COMMAND if device else (*COMMAND, str(most))
        self.seconds = seconds
        self.process: subprocess.Popen[bytes] | None = None
        self._rest = bytearray()

    def decode(self, video: Video) -> Iterator[DecoderMessage]:
        """Yield a video's frames and its end."""
        try:
            self._send({**self.job, "path": str(video.path.absolute())})
            while True:
                message = json.loads(self._line())
                if "rows" not in message:
                    break
                shape = (message["rows"], message["columns"], 3)
                picture = np.empty(shape, np.uint8)
                self._fill(picture.reshape(-1).data)
                yield DecoderMessage(video, picture)
        except DecoderEndedError as error:
            self.end()
            yield DecoderMessage(video, reason=str(error), value=video.path.name)
            return
        summary = VideoSummary(**message["summary"]) if "summary" in message else None
        yield DecoderMessage(video, summary=summary, reason=message.get("reason", ""), value=message.get("value", ""))

    def _send(self, job: dict[str, str]) -> None:
        if self.process is None:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # only a process of one thread can be confined
            )
            self._rest.clear()
        try:
            self.process.stdin.write(json.dumps(job).encode() + b"\n")  # type: ignore[union-attr]
        except BrokenPipeError:
            raise DecoderEndedError(self._death()) from None

    def _wait(self, deadline: float) -> int:
        """The file descriptor of the answers, as soon as there is something to read."""
        descriptor: int = self.process.stdout.fileno()  # type: ignore[union-attr]
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise DecoderEndedError(f"decoder gave no frame for {self.seconds:g} s")
        return descriptor

    def _line(self) -> bytes:
        deadline = time.monotonic() + self.seconds
        while (end := self._rest.find(b"\n")) < 0:
            block = os.read(self._wait(deadline), 1 << 16)
            if not block:
                raise DecoderEndedError(self._death())
            self._rest += block
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line

    def _fill(self, target: memoryview) -> None:
        start = min(len(self._rest), len(target))
        target[:start] = self._rest[:start]
        del self._rest[:start]
        deadline = time.monotonic() + self.seconds
        while start < len(target):
            size = os.readv(self._wait(deadline), [target[start:]])
            if not size:
                raise DecoderEndedError(self._death())
            start += size

    def _death(self) -> str:
        code = self.process.wait() if self.process else 0
        return f"decoder crashed ({signal.Signals(-code).name})" if code < 0 else f"decoder ended with {code}"

    def kill(self) -> None:
        """Kill the process; who waits for its answer is told that it has ended."""
        if self.process is not None:
            self.process.kill()

    def end(self) -> None:
        """Kill the process and let go of its pipes."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()
        self.process = None


class Pool:
    """Decodes videos with several workers. Frames of several videos come mixed, each video's own in order.

    Args:
        workers: processes
        clip_length: seconds
        device: hardware decoder, or ""
        seconds: how long a decoder may take for a frame before it is ended
        memory: bytes of frames that may wait
        ahead: how many frames may wait: what is decoded and not yet encoded is lost when a run is killed
        most: bytes that a worker may take; 0: any

    """

    def __init__(
        self,
        workers: int,
        clip_length: float,
        device: str,
        seconds: float,
        memory: int,
        ahead: int = 256,
        most: int = 0,
    ) -> None:
        self.budget = FrameBudget(memory, ahead)
        self._workers = [Worker(clip_length, device, seconds, most) for _ in range(workers)]
        self._answers: queue.SimpleQueue[DecoderMessage | BaseException | None] = queue.SimpleQueue()
        self._next, self._threads = threading.Lock(), list[threading.Thread]()
        self._closed = False

    def decode(self, videos: Iterable[Video]) -> Iterator[DecoderMessage]:
        """Yield what the workers tell; who takes a frame makes room for the next one."""
        jobs = iter(videos)
        work = [threading.Thread(target=self._work, args=(worker, jobs), daemon=True) for worker in self._workers]
        self._threads += work
        for thread in work:
            thread.start()
        running = len(work)
        try:
            while running:
                message = self._answers.get()
                if isinstance(message, BaseException):
                    raise message
                if message is None:
                    running -= 1
                    continue
                if message.picture is not None:
                    self.budget.release(message.picture.nbytes)
                yield message
        finally:
            self.close()

    def close(self) -> None:
        """End all workers."""
        self._closed = True
        self.budget.close()
        for worker in self._workers:
            worker.kill()
        for thread in self._threads:
            thread.join()
        for worker in self._workers:
            worker.end()

    def _work(self, worker: Worker, jobs: Iterator[Video]) -> None:
        try:
            while not self._closed:
                with self._next:
                    video: Any = next(jobs, None)
                if video is None:
                    break
                for message in worker.decode(video):
                    if message.picture is not None:
                        self.budget.acquire(message.picture.nbytes)
                    self._answers.put(message)
                    if self._closed:
                        break
        except BaseException as error:  # raised in the thread that asked for the frames
            if not self._closed:
                self._answers.put(error)
        finally:
            self._answers.put(None)


STEP = 60.0  # seconds of video between two signs of life
PATIENCE = 60.0  # seconds that a decoder may be without one
WAITING = 1 << 29  # bytes of frames
LARGEST = 1 << 32  # bytes that a decoder may take


class DurationError(PenumbraError):
    """A video that should tell its duration is not there, or can't be decoded."""


def durations_of_files(folder: Path, vids: Sequence[str]) -> Mapping[str, float]:
    """The seconds of each video; raises `DurationError` naming the first one that can't be told."""
    if not folder.is_dir():
        raise DurationError(f"no folder {folder}: give the one that holds the videos, by --videos")
    files = VideoFolder(folder)
    found = {vid: files.find(vid) for vid in vids}
    missing = [vid for vid in vids if found[vid] is None]
    if missing:
        more = f" (nor of {len(missing) - 1:,} more)" if missing[1:] else ""
        raise DurationError(
            f"{folder} holds no file of video {missing[0]!r}{more}, and its rows tell no duration: add the file, or a "
            "column by --duration"
        )
    durations: dict[str, float] = {}
    pool = Pool(min(cores(), len(vids)), STEP, "", PATIENCE, WAITING, most=LARGEST)
    for message in pool.decode(Video(vid, path) for vid, path in found.items() if path):
        if message.reason:
            raise DurationError(
                f"{message.video.path} tells no duration: {message.reason} ({message.value}): mend it, or take its "
                "rows away"
            )
        if message.summary:
            durations[message.video.vid] = message.summary.duration
    return durations
