"""Decode videos in processes that may crash, hang or need too much memory without ending the run.

Clip i covers [i·L, (i + 1)·L) seconds from the first frame and is represented by the frame shown at its middle, or by
the last frame of the video. Only the timestamps of decoded frames count: the header may be wrong.

A `DataLoader` of torch does not fit: the crash or time-out of one of its workers ends the whole iteration, and it can't
start workers inside those of Dask. A process that decodes (`COMMAND`) has no network where the system allows that, and
imports neither torch nor Prefect, so that it starts quickly.
"""

import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import ceil
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import av
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from penumbra.artifacts.markdown import counted
from penumbra.artifacts.processes import confine, cores, end_with_parent
from penumbra.tasks.features.errors import FeatureError, VideoError
from penumbra.tasks.features.files import VideoFolder

Picture = npt.NDArray[np.uint8]  # (rows, columns, 3): red, green and blue

MAX_SECONDS = 24 * 3600  # a later timestamp is damage and would ask for very many clips
MAX_PIXELS = 100_000_000  # of a frame
MAX_ASPECT_RATIO = 50
CONTAINERS = ("mov", "matroska", "avi", "mpegts", "mpeg", "mpegvideo", "asf", "flv", "ogg")  # FFmpeg's names
FAULTS = (av.error.FFmpegError, OSError, ValueError)  # of a damaged file
DEFAULT_RATE = 25  # frames a second of a video that has neither timestamps nor a rate
ROWS, COLUMNS = 120, 160  # pixels of a thumbnail
BACKGROUND = 24  # grey level around a thumbnail of another aspect ratio
COMMAND = (sys.executable, "-P", "-m", "penumbra.tasks.features.decoders")  # a descriptor and MAX_MEMORY follow
PASSED = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR")  # variables of a decoder
MAX_SECONDS_PER_FRAME = 60.0  # a decoder that gives no frame for so long is ended
MAX_MEMORY = 4 << 30  # bytes of address space of a decoder
MAX_MESSAGE = 1 << 30  # bytes
AHEAD = 128  # results that wait to be taken: bounds the memory where one video takes long

T = TypeVar("T")

# -- the frame of each clip -------------------------------------------------------------------------------------------


@dataclass
class VideoSummary:
    """The results of decoding a video: duration in seconds, clips, frames, and packets that can't be decoded."""

    duration: float = 0.0
    clips: int = 0
    frames: int = 0
    damaged: int = 0
    rotated: bool = False


def clip_frames(path: Path, clip_length: float, summary: VideoSummary) -> Iterator[Picture]:
    """Yield the frame of each clip of `clip_length` seconds in order; `summary` is complete at the end.

    Raises `VideoError` if nothing can be decoded or frames have an impossible size, and `MemoryError`.
    """
    length = Fraction(clip_length).limit_denominator(1_000_000)  # 0.1 is exactly a tenth
    frame, end, picture = None, Fraction(0), None
    for following, start, following_end in _timed(_decode(path, summary), summary):
        while frame is not None and start > (summary.clips + Fraction(1, 2)) * length:
            picture = _picture(frame, summary) if picture is None else picture
            summary.clips += 1
            yield picture
        frame, end, picture = following, following_end, None
    if frame is None:
        raise VideoError("no frame can be decoded", path.name)
    summary.duration = float(end)
    picture = _picture(frame, summary) if picture is None else picture
    while summary.clips < max(1, ceil(end / length)):
        summary.clips += 1
        yield picture


def _timed(frames: Iterator[tuple[Any, Any]], summary: VideoSummary) -> Iterator[tuple[Any, Fraction, Fraction]]:
    """Yield each frame, the second at which it is first shown, and that at which the next frame replaces it.

    A frame without a timestamp, or with an earlier one, follows the previous frame.
    """
    origin, last, interval = None, None, Fraction(0)
    last_start = end = Fraction(0)
    for frame, rate in frames:
        base, start = frame.time_base, end
        if frame.pts is not None and base:
            origin = frame.pts * base - start if origin is None else origin
            stamped = frame.pts * base - origin
            start = stamped if last is None or stamped > last_start else start
        if last is not None:
            interval = start - last_start
            yield last, last_start, start
        if start > MAX_SECONDS:
            raise VideoError("a frame is shown later than a day after the first", f"{float(start):.0f} s")
        usual = 1 / Fraction(rate) if rate else Fraction(1, DEFAULT_RATE)
        duration = frame.duration * base if frame.duration and base else interval or usual
        last, last_start, end = frame, start, start + duration
        summary.frames += 1
    if last is not None:
        yield last, last_start, end


def _decode(path: Path, summary: VideoSummary) -> Iterator[tuple[Any, Any]]:
    """Yield each frame and the file's frame rate; packets that can't be decoded are counted and skipped."""
    # A playlist would make FFmpeg open other files, so only formats that are stored in a single file are allowed.
    options = {"protocol_whitelist": "file", "format_whitelist": ",".join(CONTAINERS)}
    try:
        container = av.open(f"file:{path}", options=options)
    except MemoryError:  # FFmpeg's own is one of its faults, too
        raise
    except FAULTS as error:
        unknown = f"no {', '.join(CONTAINERS)}, or a damaged one"
        value = unknown if isinstance(error, av.error.ArgumentError) else _message(error)
        raise VideoError("file can't be opened as a video", value) from None
    with container:
        streams = [s for s in container.streams.video if not s.disposition & av.stream.Disposition.attached_pic]
        if not streams:
            raise VideoError("file has no video stream", f"{len(container.streams)} other streams")
        stream = streams[0]
        if stream.codec_context is None:
            raise VideoError("no decoder for the video's codec", path.name)
        stream.codec_context.thread_count = 1  # several files are decoded at the same time
        for packet in _packets(container, stream, summary):
            try:
                frames = stream.codec_context.decode(packet)
            except av.error.EOFError:
                return
            except MemoryError:
                raise
            except FAULTS:
                summary.damaged += 1
                continue
            for frame in frames:
                short, long = sorted((frame.width, frame.height))
                if short < 1 or short * long > MAX_PIXELS:
                    raise VideoError("picture is too large", f"{frame.width} x {frame.height}")
                if long > MAX_ASPECT_RATIO * short:
                    reason = f"picture is more than {MAX_ASPECT_RATIO} times as long as it is wide"
                    raise VideoError(reason, f"{frame.width} x {frame.height}")
                yield frame, stream.average_rate or stream.guessed_rate


def _packets(container: Any, stream: Any, summary: VideoSummary) -> Iterator[Any]:
    """Yield the packets of a stream and finally None; a truncated file counts as damaged and ends there."""
    try:
        for packet in container.demux(stream):
            if packet.size:
                summary.damaged += bool(packet.is_corrupt)
                yield packet
    except FAULTS:
        summary.damaged += 1
    yield None


def _picture(frame: Any, summary: VideoSummary) -> Picture:
    """Convert a frame to RGB, rotated as its metadata says."""
    try:
        picture = frame.to_ndarray(format="rgb24")
    except MemoryError:
        raise
    except FAULTS as error:
        raise VideoError("pictures can't be converted to colours", _message(error)) from None
    turns = round(frame.rotation / 90) % 4
    summary.rotated = summary.rotated or turns != 0
    return np.ascontiguousarray(np.rot90(picture, turns)) if turns else picture


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"


# -- resizing and thumbnails ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resizing:
    """CLIP's preprocessing: resize to `size`, then crop at the centre; `resample` is Pillow's number of the filter."""

    size: tuple[int, ...]  # the shorter side, or rows and columns
    crop: tuple[int, int] | None  # rows and columns
    resample: int


def resize(picture: Picture, resizing: Resizing) -> Picture:
    """Resize and crop a picture exactly as `CLIPImageProcessor` does; where it is too small, the border is black."""
    if len(resizing.size) == 2:
        rows, columns = resizing.size
    else:
        [edge], (short, long) = resizing.size, sorted(picture.shape[:2])
        longer = int(edge * long / short)
        rows, columns = (edge, longer) if picture.shape[0] <= picture.shape[1] else (longer, edge)
    image = Image.fromarray(picture).resize((columns, rows), Image.Resampling(resizing.resample))
    if resizing.crop:
        height, width = resizing.crop
        left, top = int((columns - width) / 2), int((rows - height) / 2)
        image = image.crop((left, top, left + width, top + height))
    return np.asarray(image)


class FilmStrip:
    """Thumbnails of evenly spaced frames of a video whose length is known only at its end: `count` to 2·`count`.

    A thumbnail is a small JPEG of ROWS × COLUMNS pixels with the whole picture at its centre.
    """

    def __init__(self, count: int) -> None:
        self.count, self.step, self.thumbnails = count, 1, list[tuple[int, bytes]]()  # index of the frame, JPEG

    def add(self, index: int, picture: Picture) -> None:
        """Keep the thumbnail of a frame if it is one of the evenly spaced ones."""
        if not self.count or index % self.step:
            return
        stream, image = io.BytesIO(), Image.fromarray(picture)
        small = ImageOps.pad(image, (COLUMNS, ROWS), Image.Resampling.BILINEAR, (BACKGROUND,) * 3)
        small.save(stream, "JPEG", quality=85)
        self.thumbnails.append((index, stream.getvalue()))
        if len(self.thumbnails) > 2 * self.count:
            self.thumbnails, self.step = self.thumbnails[::2], 2 * self.step


# -- in the process ---------------------------------------------------------------------------------------------------


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


# -- in the run -------------------------------------------------------------------------------------------------------


class Decoder:
    """A process that decodes one video after another in clips of `clip_length` seconds; it restarts after a crash."""

    def __init__(self, clip_length: float, resizing: Resizing | None = None) -> None:
        self.settings = {"clip_length": clip_length, "resizing": resizing and asdict(resizing)}
        self.stopped = False
        self.thumbnails: list[tuple[int, bytes]] = []  # of the last video: index of the frame, JPEG
        self.process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def frames(self, path: Path, summary: VideoSummary, thumbnails: int = 0) -> Iterator[Picture]:
        """Yield the frame of each clip, and fill in summary and thumbnails; raise `VideoError` if that fails."""
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
    """Yield what `work` returns for each video, in order; at most `AHEAD` results wait until they are taken.

    The threads call `work` with a decoder that no other thread uses. If the generator is closed early, no further video
    is begun, and `Decoder.frames` raises `RuntimeError` for those that have begun.
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
    """Return the seconds of each video, found by decoding it; raise `FeatureError` if a file is missing or damaged."""
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
