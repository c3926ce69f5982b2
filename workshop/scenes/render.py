"""Make the videos of scripts: one mp4 file (H.264) a script.

    python -m workshop.scenes.render FOLDER --scripts FILE [--limit N]

FOLDER/<video id>.mp4 has 160 × 160 pixels and 10 frames a second. The same script gives the same frames.
"""

import argparse
import json
import multiprocessing
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import cast

import av
import numpy as np
import numpy.typing as npt
from av.video.stream import VideoStream

from workshop.scenes.animation import FPS, frames
from workshop.scenes.drawing import SIDE
from workshop.scenes.scene import Record

OPTIONS = {  # one thread and no lookahead: the same frames give the same bytes
    "crf": "18",
    "preset": "veryfast",
    "tune": "animation",
    "bf": "0",
    "g": "50",
    "threads": "1",
}


def read_scripts(path: Path) -> list[Record]:
    """Return the scripts of a file that `workshop.scenes.generate` wrote."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_mp4(path: Path, pictures: Iterable[npt.NDArray[np.uint8]]) -> None:
    """Write frames [SIDE, SIDE, 3] to an mp4 file."""
    with av.open(str(path), "w", format="mp4") as video:
        stream = cast("VideoStream", video.add_stream("libx264", rate=FPS, options=OPTIONS))
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        for picture in pictures:
            video.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        video.mux(stream.encode())


def render(folder: Path, script: Record) -> None:
    """Make the video of a script."""
    write_mp4(folder / f"{script['vid']}.mp4", frames(script))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scripts", type=Path, required=True)
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool() as pool:
        pool.map(partial(render, options.folder), read_scripts(options.scripts)[: options.limit], chunksize=2)


if __name__ == "__main__":
    main()
