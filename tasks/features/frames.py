"""One frame a clip of a video file, decoded with PyAV.

Time 0 is the first frame's timestamp. Clip i covers [i·L, (i + 1)·L) seconds; the frame that is shown at its middle
stands for it, that is the last one whose timestamp is at most (i + ½)·L. The clips cover the video: there are
ceil(duration / L). Where the video ends before the middle of its last, partial clip, its last frame stands for it.

Only timestamps count, neither frame numbers nor what the header says of rate and duration: the duration is the end of
the last frame that was decoded. A frame is turned as its rotation metadata asks.
"""

import io
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.codec.hwaccel import HWAccel

Picture = npt.NDArray[np.uint8]  # (rows, columns, 3), red, green and blue

LONGEST = 24 * 3600  # seconds; a later timestamp is damage, and would be a million clips
LARGEST = 100_000_000  # pixels of a frame
NARROWEST = 50  # times as long as it is wide
CONTAINERS = ("mov", "matroska", "avi", "mpegts", "mpeg", "mpegvideo", "asf", "flv", "ogg")  # as FFmpeg calls them
GUESSED_RATE = 25  # frames a second of a video that tells neither timestamps nor rate


class VideoError(Exception):
    """A video can't be used; `args` are the reason, as it is counted, and what was found."""

    def __init__(self, reason: str, value: object = "") -> None:
        super().__init__(reason, value)
        self.reason, self.value = reason, value


@dataclass
class VideoSummary:
    """What is known of a video when it has been decoded: seconds, clips, frames, and packets that could not be read.

    `software` says that a hardware decoder was asked for and is not there.
    """

    duration: float = 0.0
    clips: int = 0
    frames: int = 0
    damaged: int = 0
    rotated: bool = False
    software: bool = False


@dataclass
class _Shown:
    """A decoded frame with the seconds at which it is shown and its end."""

    frame: Any
    start: Fraction
    end: Fraction


def clip_frames(path: Path, clip_length: float, summary: VideoSummary, device: str = "") -> Iterator[Picture]:
    """Yield the frame of each clip, in order; `summary` is filled in on the way and is complete at the end.

    Args:
        path: a file that is one of `CONTAINERS`, whatever its suffix
        clip_length: L, in seconds
        summary: an empty one
        device: a hardware decoder such as "cuda", or "" for none; where it can't decode a file, software does

    Raises:
        VideoError: nothing can be decoded, or the pictures are impossible
        MemoryError: this process may not take what it needs

    """
    length = Fraction(clip_length).limit_denominator(1_000_000)  # 0.1 is a tenth
    middle = length / 2
    shown: _Shown | None = None
    picture: Picture | None = None
    for following in _in_order(_decode(path, summary, device), summary):
        while shown is not None and following.start > summary.clips * length + middle:
            picture = _picture(shown.frame, summary) if picture is None else picture
            summary.clips += 1
            yield picture
        shown, picture = following, None
    if shown is None:
        raise VideoError("no frame can be decoded", path.name)
    summary.duration = float(shown.end)
    picture = _picture(shown.frame, summary) if picture is None else picture
    while summary.clips < max(1, ceil(shown.end / length)):
        summary.clips += 1
        yield picture


def _in_order(frames: Iterator[tuple[Any, Any]], summary: VideoSummary) -> Iterator[_Shown]:
    """The frames with their times; one without a timestamp, or with one that goes back, follows the one before."""
    origin, last, interval = None, None, Fraction(0)
    for frame, rate in frames:
        usual = 1 / Fraction(rate) if rate else Fraction(1, GUESSED_RATE)
        base = frame.time_base
        start = last.end if last else Fraction(0)
        if frame.pts is not None and base:
            origin = frame.pts * base - start if origin is None else origin
            stamped = frame.pts * base - origin
            if last is None or stamped > last.start:
                start = stamped
        if last is not None:
            interval = start - last.start
            yield _Shown(last.frame, last.start, start)
        if start > LONGEST:
            raise VideoError("a frame is shown later than a day after the first", f"{float(start):.0f} s")
        lasting = frame.duration * base if frame.duration and base else interval or usual
        last = _Shown(frame, start, start + lasting)
        summary.frames += 1
    if last is not None:
        yield last


def _decode(path: Path, summary: VideoSummary, device: str) -> Iterator[tuple[Any, Any]]:
    """Yield frames, and the rate that the file tells; what is damaged is counted and left out."""
    try:
        container = _open(path, summary, device)
    except MemoryError:
        raise
    except (av.error.FFmpegError, OSError, ValueError) as error:
        none = f"no {', '.join(CONTAINERS)}, or a damaged one"
        found = none if isinstance(error, av.error.ArgumentError) else _text(error)
        raise VideoError("file can't be opened as a video", found) from None
    with container:
        streams = [s for s in container.streams.video if not s.disposition & av.stream.Disposition.attached_pic]
        if not streams:
            raise VideoError("file has no video stream", f"{len(container.streams)} other streams")
        stream = streams[0]
        if stream.codec_context is None:
            raise VideoError("no decoder for the video's codec", path.name)
        stream.codec_context.thread_count = 1  # the files are decoded side by side
        for packet in _packets(container, stream, summary):
            try:
                frames = stream.codec_context.decode(packet)
            except av.error.EOFError:
                return
            except MemoryError:
                raise
            except (av.error.FFmpegError, ValueError):
                summary.damaged += 1
                continue
            for frame in frames:
                _check(frame)
                yield frame, stream.average_rate or stream.guessed_rate


def _packets(container: Any, stream: Any, summary: VideoSummary) -> Iterator[Any]:
    """The stream's packets and at last None; a file that breaks off is damaged, and ends there."""
    try:
        for packet in container.demux(stream):
            if packet.size:
                summary.damaged += bool(packet.is_corrupt)
                yield packet
    except (av.error.FFmpegError, OSError):
        summary.damaged += 1
    yield None


def _open(path: Path, summary: VideoSummary, device: str) -> Any:
    # A playlist would make FFmpeg open other files: what is opened is told by content, and lies in one file.
    address, options = f"file:{path}", {"protocol_whitelist": "file", "format_whitelist": ",".join(CONTAINERS)}
    if device:
        try:
            return av.open(address, options=options, hwaccel=HWAccel(device_type=device, allow_software_fallback=True))
        except (av.error.FFmpegError, OSError, ValueError, RuntimeError):
            summary.software = True  # where the file is the cause the next attempt says so
    return av.open(address, options=options)


def _check(frame: Any) -> None:
    sides = sorted((frame.width, frame.height))
    if sides[0] < 1 or sides[0] * sides[1] > LARGEST:
        raise VideoError("picture is too large", f"{frame.width} x {frame.height}")
    if sides[1] > NARROWEST * sides[0]:
        raise VideoError(
            f"picture is more than {NARROWEST} times as long as it is wide", f"{frame.width} x {frame.height}"
        )


def _picture(frame: Any, summary: VideoSummary) -> Picture:
    try:
        picture = frame.to_ndarray(format="rgb24")
    except MemoryError:
        raise
    except (av.error.FFmpegError, ValueError) as error:
        raise VideoError("pictures can't be converted to colours", _text(error)) from None
    turns = round(frame.rotation / 90) % 4
    summary.rotated = summary.rotated or turns != 0
    return np.ascontiguousarray(np.rot90(picture, turns)) if turns else picture


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"


ROWS, COLUMNS = 120, 160  # pixels of a frame on the sheet
IN_A_ROW = 6
GROUND = 24  # grey around a frame that is of another form


def thumbnail(picture: Picture) -> bytes:
    """A frame as a small JPEG, whole, in the middle of ROWS × COLUMNS."""
    import torch
    from torch.nn import functional

    rows, columns = picture.shape[:2]
    scale = min(ROWS / rows, COLUMNS / columns)
    size = (max(1, round(rows * scale)), max(1, round(columns * scale)))
    pixels = torch.from_numpy(np.ascontiguousarray(picture)).permute(2, 0, 1)[None]
    small = functional.interpolate(pixels, size, mode="bilinear", antialias=True)[0].permute(1, 2, 0).numpy()
    framed = np.full((ROWS, COLUMNS, 3), GROUND, np.uint8)
    top, left = (ROWS - size[0]) // 2, (COLUMNS - size[1]) // 2
    framed[top : top + size[0], left : left + size[1]] = small
    return to_jpeg(framed)


def to_jpeg(picture: Picture) -> bytes:
    """A picture (even numbers of rows and columns) as a JPEG."""
    encoder = av.CodecContext.create("mjpeg", "w")
    encoder.width, encoder.height, encoder.pix_fmt = picture.shape[1], picture.shape[0], "yuvj420p"
    encoder.time_base = 1  # type: ignore[assignment]
    encoder.options = {"qscale": "4", "qmin": "4", "qmax": "4"}
    frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuvj420p")
    return b"".join(bytes(packet) for packet in (*encoder.encode(frame), *encoder.encode(None)))


def from_jpeg(data: bytes) -> Picture:
    """A JPEG of ours as a picture."""
    with av.open(io.BytesIO(data), "r", format="jpeg_pipe") as container:
        return np.asarray(next(container.decode(video=0)).to_ndarray(format="rgb24"), np.uint8)


def contact_sheet(thumbnails: Sequence[bytes]) -> bytes:
    """Thumbnails in rows of IN_A_ROW, as one JPEG."""
    lines = -(-len(thumbnails) // IN_A_ROW)
    sheet = np.full((lines * ROWS, min(len(thumbnails), IN_A_ROW) * COLUMNS, 3), GROUND, np.uint8)
    for index, data in enumerate(thumbnails):
        top, left = index // IN_A_ROW * ROWS, index % IN_A_ROW * COLUMNS
        sheet[top : top + ROWS, left : left + COLUMNS] = from_jpeg(data)
    return to_jpeg(sheet)


def as_image(title: str, data: bytes) -> str:
    """A JPEG as a markdown image that needs no other file."""
    return f"![{title}](data:image/jpeg;base64,{b64encode(data).decode()})"
