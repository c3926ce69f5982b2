"""Videos as mp4 files: written whole or not at all, and known again by a digest of what they were made from."""

import hashlib
import json
import os
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import cast

import av
import numpy as np
import numpy.typing as npt
from av.video.stream import VideoStream

from workshop.scenes.initial_scene import Record
from workshop.scenes.playback import FPS, frame_count, frames
from workshop.scenes.scene import SIDE

CODEC = "libx264"
OPTIONS = {  # one thread and no lookahead over frames to come: the same frames give the same bytes
    "crf": "18",
    "preset": "veryfast",
    "tune": "animation",
    "bf": "0",
    "g": "50",
    "threads": "1",
}


@cache
def _renderer() -> str:
    """A digest of the code of this package and of the encoder's release: after a change all is rendered anew."""
    digest = hashlib.sha256(version("av").encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def script_digest(script: Record) -> str:
    """A digest of all that determines the video of a script."""
    content = {name: value for name, value in script.items() if name != "split"}
    return hashlib.sha256(f"{_renderer()}{json.dumps(content, sort_keys=True)}".encode()).hexdigest()


def is_whole(path: Path, script: Record) -> bool:
    """Whether a file is the whole video of this script, as the code draws it now.

    The index of an mp4 file is at its end here: a file that is cut off can't be opened.
    """
    if not path.is_file():
        return False
    try:
        with av.open(str(path)) as video:
            count = video.streams.video[0].frames
            return count == frame_count(script) and video.metadata.get("comment") == script_digest(script)
    except (av.error.FFmpegError, OSError, IndexError):
        return False


def write_mp4(path: Path, pictures: Iterable[npt.NDArray[np.uint8]], comment: str = "") -> None:
    """Write frames (SIDE × SIDE × 3, red, green and blue, FPS a second) to an mp4 file, H.264.

    Raises:
        OSError: the file can't be written

    """
    with av.open(str(path), "w", format="mp4") as video:
        video.metadata["comment"] = comment
        stream = cast("VideoStream", video.add_stream(CODEC, rate=FPS, options=OPTIONS))
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        for picture in pictures:
            video.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        video.mux(stream.encode())


def encode_script(script: Record, path: Path) -> int:
    """Make the video of a script, under another name until it is whole. The size of the file, in bytes.

    Raises:
        KeyError: the script lacks something, or names what there is not
        OSError: the file can't be written

    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write_mp4(part, frames(script), script_digest(script))
        size = part.stat().st_size
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return size
