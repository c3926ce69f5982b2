"""A contact sheet: a frame of some videos side by side, as a JPEG that a page can hold."""

import io
from base64 import b64encode
from collections.abc import Sequence

import av
import numpy as np
import torch
from torch.nn import functional

from penumbra.tasks.features.decoding.frames import Picture

ROWS, COLUMNS = 120, 160  # pixels of a frame on the sheet
IN_A_ROW = 6
GROUND = 24  # grey around a frame that is of another form


def thumbnail(picture: Picture) -> bytes:
    """A frame as a small JPEG, whole, in the middle of ROWS × COLUMNS."""
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
