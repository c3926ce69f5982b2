"""Paint the frames of scripts, and write the video of each to an mp4 file (H.264).

    python -m workshop.scenes.render FOLDER --scripts FILE

FOLDER/<video id>.mp4 has 160 × 160 pixels and 10 frames a second. The same script gives the same frames.
"""

import json
import multiprocessing
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import av
import numpy as np
import numpy.typing as npt
import typer

from workshop.scenes.animation import Event
from workshop.scenes.drawing import SIDE, background, blit, picture, pictures
from workshop.scenes.scene import Person, Record, Scene, initial_scene, posture

FPS = 10  # frames a second; scripts count tenths of a second
# With one thread and no lookahead, the same frames give the same bytes.
OPTIONS = {"crf": "18", "preset": "veryfast", "tune": "animation", "bf": "0", "g": "50", "threads": "1"}
Frame = npt.NDArray[np.uint8]  # SIDE rows of SIDE pixels, red, green and blue


def frame_count(script: Record) -> int:
    return round(float(script["duration"]) * FPS)


def frames(script: Record) -> Iterator[Frame]:
    frame, place = None, script["setting"]["place"]
    for scene, moves in scenes_by_frame(script):
        if frame is None or moves:
            frame = paint(place, scene)
        yield frame


def scenes_by_frame(script: Record) -> Iterator[tuple[Scene, bool]]:
    """Yield for each frame the same scene, updated, and whether anything moves since the frame before."""
    scene, active = initial_scene(script), list[Event]()
    waiting = sorted(script["events"], key=lambda event: float(event["start"]))
    for now in (index / FPS for index in range(frame_count(script))):
        for event in active:
            event.show(now)
        yield scene, bool(active)
        active = [event for event in active if event.end > now + 1e-6]
        while waiting and waiting[0]["start"] <= now + 1e-6:
            active.append(Event(scene, waiting.pop(0)))


def paint(place: str, scene: Scene) -> Frame:
    image = background(place).copy()
    for shown in sorted([*scene.things.values(), *scene.people.values()], key=scene.depth):
        if isinstance(shown, Person):
            for sprite in pictures(shown.body, posture(scene, shown), shown.facing):
                blit(image, sprite, round(shown.x), round(shown.y - shown.lift))
        elif not (pose := scene.pose(shown)).hidden:
            angle = round(pose.angle / 15) * 15 % 360
            sprite = picture(shown.look, shown.opened or 0.0, angle=angle, squeeze=round(shown.squeeze, 1))
            blit(image, sprite, round(pose.x), round(pose.y), round(pose.top), round(pose.bottom))
    return (image + 0.5).astype(np.uint8)


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
