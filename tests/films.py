"""Videos for tests, made with PyAV: each frame's grey encodes its number, so that a test recognises it."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

BASE = Fraction(1, 1000)  # milliseconds
FORMATS = {"libx264": "yuv444p", "ffv1": "yuv444p", "mjpeg": "yuvj420p"}
LOSSLESS = {"qp": "0", "qmin": "1", "qmax": "1", "g": "10", "bf": "0"}


def grey(number: int) -> int:
    return 20 + 4 * (number % 50)


def number_of(picture: Any) -> int:
    """Return the number of a frame by the grey of its middle."""
    rows, columns = picture.shape[:2]
    return round((float(picture[rows // 2, columns // 2].mean()) - 20) / 4)


def film(
    path: Path,
    frames: int = 20,
    rate: int = 10,
    size: tuple[int, int] = (48, 64),
    times: Sequence[int] | None = None,
    codec: str = "libx264",
    options: dict[str, str] | None = None,
    container: str | None = None,
) -> Path:
    """Write a video of grey frames; `times` are timestamps in milliseconds where they are not even."""
    with av.open(str(path), "w", format=container, options=options or {}) as out:
        stream = out.add_stream(codec, rate=rate, options=dict(LOSSLESS))
        stream.height, stream.width = size
        stream.pix_fmt = FORMATS.get(codec, "yuv420p")
        if times is not None:
            stream.codec_context.time_base = BASE
        for number in range(frames if times is None else len(times)):
            picture = np.full((*size, 3), grey(number), np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = times[number], BASE
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return path


def sound(path: Path) -> Path:
    """Write a file with a moment of sound and no picture."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream("aac", rate=16000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16000
        out.mux([*stream.encode(frame), *stream.encode()])
    return path


def turn(path: Path) -> Path:
    """Write a quarter turn into the track header of an mp4 file, as phones do."""
    data = bytearray(path.read_bytes())
    header = data.index(b"tkhd") + 4  # version and flags follow
    matrix = header + 4 + 20 + 16
    turned = (0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    data[matrix : matrix + 36] = b"".join(value.to_bytes(4, "big", signed=True) for value in turned)
    path.write_bytes(data)
    return path


def cut(path: Path, share: float) -> Path:
    """Break an mp4 file off after this share of its pictures' data."""
    data = path.read_bytes()
    start = data.index(b"mdat")
    size = int.from_bytes(data[start - 4 : start], "big")
    path.write_bytes(data[: start - 4 + int(size * share)])
    return path


def lie_about_duration(path: Path, factor: int = 100) -> Path:
    """Multiply every duration in an mp4 file's headers."""
    data = bytearray(path.read_bytes())
    for name, skip in ((b"mvhd", 16), (b"mdhd", 16), (b"tkhd", 20)):
        at = data.index(name) + 4 + skip
        duration = int.from_bytes(data[at : at + 4], "big")
        data[at : at + 4] = (duration * factor).to_bytes(4, "big")
    path.write_bytes(data)
    return path
