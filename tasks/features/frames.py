"""Decode one frame for each clip of a video file with PyAV, and resize frames with Pillow.

Clip i covers [i·L, (i + 1)·L) seconds from the first frame and is represented by the frame shown at its middle, or by
the last frame of the video. Only the timestamps of decoded frames count: the header may be wrong.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from penumbra.tasks.features.errors import VideoError

Picture = npt.NDArray[np.uint8]  # (rows, columns, 3): red, green and blue

MAX_SECONDS = 24 * 3600  # a later timestamp is damage and would ask for very many clips
MAX_PIXELS = 100_000_000  # of a frame
MAX_ASPECT_RATIO = 50
CONTAINERS = ("mov", "matroska", "avi", "mpegts", "mpeg", "mpegvideo", "asf", "flv", "ogg")  # FFmpeg's names
FAULTS = (av.error.FFmpegError, OSError, ValueError)  # of a damaged file
DEFAULT_RATE = 25  # frames a second of a video that has neither timestamps nor a rate
ROWS, COLUMNS = 120, 160  # pixels of a thumbnail
BACKGROUND = 24  # grey level around a thumbnail of another aspect ratio


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
    """Yield each frame, the time when it is first shown, and the time when the next frame replaces it, in seconds.

    A frame without a timestamp, or with one before the previous frame's, starts when the previous frame ends.
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
    except MemoryError:  # PyAV's MemoryError is an FFmpegError as well
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
    """Yield the packets of a stream, then None; at the end of a truncated file, count a damaged packet."""
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
    """Resize and crop a picture exactly as `CLIPImageProcessor` does, with a black border if it is too small."""
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
    """Between `count` and 2·`count` thumbnails of evenly spaced frames of a video whose length is not known before.

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
