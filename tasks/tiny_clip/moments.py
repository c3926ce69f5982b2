"""What the tiny CLIP learns from: moments of rendered scenes, some frames of each with sentences that describe it.

The scenes are made on the spot from seeds; none of them is in the data set "scenes" (`is_new` tells).
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.scenes.casting import Record
from tasks.scenes.film import FPS, frame_count, frames
from tasks.scenes.render import read_scripts
from tasks.scenes.script import Script, write_script
from tasks.scenes.sentences import Narrator
from tasks.scenes.stage import SIDE

FRAMES = 4  # a moment is seen at so many points of time, one in each quarter
SENTENCES = 3  # ways in which a moment is told
NOVEL = 0.2  # share of scenes with the words that the data set keeps for its split Novel-Word

Pictures = npt.NDArray[np.uint8]  # (FRAMES, SIDE, SIDE, 3)


@dataclass(frozen=True)
class Moment:
    """A window of a scene: which scene, what is seen, and sentences that say it."""

    scene: int
    pictures: Pictures
    sentences: list[str]


def is_new(record: Record, known: set[str]) -> bool:
    """Whether a scene is not one of the data set's."""
    return _content(record) not in known


def known_scenes() -> set[str]:
    """The data set's scenes."""
    return {_content(script) for script in read_scripts()}


def _content(record: Record) -> str:
    return json.dumps({name: record[name] for name in ("setting", "agents", "events")}, sort_keys=True)


def moments(seed: int, scenes: int) -> Iterator[Moment]:
    """The moments of so many new scenes; the same seed gives the same."""
    chance, known = random.Random(seed), known_scenes()
    for scene in range(scenes):
        novel = chance.random() < NOVEL
        script = write_script(chance, novel=novel)
        record = script.record(f"T{scene}", "train")
        if script.events and is_new(record, known):
            yield from _moments(scene, script, record, Narrator(script, chance, novel=novel), chance)


def _moments(scene: int, script: Script, record: Record, narrator: Narrator, chance: random.Random) -> Iterator[Moment]:
    told: dict[tuple[float, float], list[str]] = {}
    for event in range(len(script.events)):
        for _ in range(SENTENCES):
            sentence = narrator.describe(event)
            told.setdefault(sentence.window, []).append(sentence.text)
    wanted = {window: _points(window, frame_count(record), chance) for window in told}
    needed = {index for points in wanted.values() for index in points}
    seen = {index: frame.copy() for index, frame in enumerate(frames(record)) if index in needed}
    for window, sentences in told.items():
        yield Moment(scene, np.stack([seen[index] for index in wanted[window]]), sentences)


def _points(window: tuple[float, float], count: int, chance: random.Random) -> list[int]:
    """A frame of each quarter of a window."""
    start, end = window
    times = [start + (end - start) * (quarter + chance.random()) / FRAMES for quarter in range(FRAMES)]
    return [min(int(time * FPS), count - 1) for time in times]


def gather(seed: int, scenes: int) -> tuple[Pictures, list[list[str]], npt.NDArray[np.int64]]:
    """All moments: pictures (moments, FRAMES, SIDE, SIDE, 3), the sentences of each, the scene of each."""
    found = list(moments(seed, scenes))
    pictures = np.empty((len(found), FRAMES, SIDE, SIDE, 3), np.uint8)
    for index, moment in enumerate(found):
        pictures[index] = moment.pictures
    return pictures, [moment.sentences for moment in found], np.array([moment.scene for moment in found])
