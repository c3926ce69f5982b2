"""Write the video of each script to an mp4 file (H.264).

    python -m workshop.scenes.render FOLDER --scripts FILE

FOLDER/<video id>.mp4 has 160 × 160 pixels and 10 frames a second. The same script gives the same frames.
"""

import json
import multiprocessing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import av
import typer

from workshop.scenes.animation import FPS, frames
from workshop.scenes.drawing import SIDE
from workshop.scenes.scene import Record

# With one thread and no lookahead, the same frames give the same bytes.
OPTIONS = {"crf": "18", "preset": "veryfast", "tune": "animation", "bf": "0", "g": "50", "threads": "1"}


def render(folder: Path, script: Record) -> None:
    with av.open(str(folder / f"{script['vid']}.mp4"), "w", format="mp4") as video:
        stream: Any = video.add_stream("libx264", rate=FPS, options=OPTIONS)
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        for frame in frames(script):
            video.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        video.mux(stream.encode())


def main(folder: Path, scripts: Annotated[Path, typer.Option()]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    records = [json.loads(line) for line in scripts.read_text(encoding="utf-8").splitlines()]
    with multiprocessing.get_context("spawn").Pool() as pool:
        pool.map(partial(render, folder), records, chunksize=2)


if __name__ == "__main__":
    typer.run(main)
