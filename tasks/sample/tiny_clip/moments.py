"""What the tiny CLIP learns from: moments of rendered scenes, some frames of each with sentences that describe it.

The scenes are made on the spot from seeds; none of them is in the data set "scenes" (`is_new` tells).
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penumbra.tasks.sample.scenes.initial_scene import Record
from penumbra.tasks.sample.scenes.people import HEIGHTS
from penumbra.tasks.sample.scenes.playback import FPS, frame_count, frames_with_scenes
from penumbra.tasks.sample.scenes.render import read_scripts
from penumbra.tasks.sample.scenes.scene import SIDE, Box, Scene, person_box
from penumbra.tasks.sample.scenes.script import Script, write_script
from penumbra.tasks.sample.scenes.sentences import SentenceWriter
from penumbra.tasks.sample.scenes.sprites import COLOURS
from penumbra.tasks.sample.scenes.world import NOUNS

FRAMES = 4  # a moment is seen at so many points of time, one in each quarter
SENTENCES = 3  # sentences for an event of a moment
NOVEL = 0.2  # share of scenes with the words that the data set keeps for its split Novel-Word

PATCH = 20  # pixels of a patch, in both directions
GRID = SIDE // PATCH
EDGES = np.arange(GRID) * PATCH
FILLED = 0.4  # share of a patch that is a thing's
KINDS = ("", *sorted(NOUNS), *sorted(HEIGHTS))
HUES = ("", *COLOURS)

Pictures = npt.NDArray[np.uint8]  # (FRAMES, SIDE, SIDE, 3)
Maps = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class VisibleThing:
    """A thing or an agent in the picture: its name, and where it is in words."""

    name: str
    where: str


@dataclass(frozen=True)
class Moment:
    """A window of a scene: what is seen, sentences that say what happens, and the place and things that are there.

    `maps` (FRAMES, GRID, GRID, 2) tell what is in each patch of each picture: its kind and its colour, by their places
    in KINDS and HUES.
    """

    pictures: Pictures
    maps: Maps
    sentences: list[str]
    place: str
    things: list[VisibleThing]


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
            yield from _moments(script, record, SentenceWriter(script, chance, novel=novel), chance)


def _moments(script: Script, record: Record, writer: SentenceWriter, chance: random.Random) -> Iterator[Moment]:
    sentences_by_window: dict[tuple[float, float], list[str]] = {}
    things = in_sight(record)
    for event in range(len(script.events)):
        for _ in range(SENTENCES):
            sentence = writer.describe(event)
            sentences_by_window.setdefault(sentence.window, []).append(sentence.text)
    wanted = {window: _points(window, frame_count(record), chance) for window in sentences_by_window}
    needed = {index for points in wanted.values() for index in points}
    seen = {index: (frame.copy(), patch_map(scene)) for index, (scene, frame) in enumerate(frames_with_scenes(record))
            if index in needed}  # fmt: skip
    for window, sentences in sentences_by_window.items():
        pictures, maps = zip(*(seen[index] for index in wanted[window]), strict=True)
        yield Moment(np.stack(pictures), np.stack(maps), sentences, record["setting"]["place"], things)


def patch_map(scene: Scene) -> Maps:
    """(GRID, GRID, 2): kind and colour of the smallest thing or agent that fills a patch, or has its middle there."""
    grid = np.zeros((GRID, GRID, 2), np.uint8)
    boxes = [(scene.box(thing), thing.noun, thing.look.colour) for thing in scene.things.values()]
    boxes += [(person_box(it, it.x, it.y - it.lift), it.body.kind, it.body.colour) for it in scene.people.values()]
    shown = [(box, kind, colour) for box, kind, colour in boxes if box is not None]
    for (left, top, right, bottom), kind, colour in sorted(shown, key=lambda one: _area(one[0]), reverse=True):
        columns = np.clip(np.minimum(EDGES + PATCH, right) - np.maximum(EDGES, left), 0, PATCH) / PATCH
        rows = np.clip(np.minimum(EDGES + PATCH, bottom) - np.maximum(EDGES, top), 0, PATCH) / PATCH
        filled = rows[:, None] * columns >= FILLED
        middle = (int((top + bottom) / 2 / PATCH), int((left + right) / 2 / PATCH))
        filled[min(max(middle[0], 0), GRID - 1), min(max(middle[1], 0), GRID - 1)] = True
        grid[filled] = KINDS.index(kind), HUES.index(colour or "")
    return grid


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def in_sight(record: Record) -> list[VisibleThing]:
    """What can be seen all the time: agents, and things that are in nothing; where they are if no one moves them."""
    items = {item["id"]: item for item in record["setting"]["items"]}
    moved = {event["object"] for event in record["events"]}
    things = []
    for name, item in items.items():
        relation, target = item["at"]["relation"], items.get(item["at"]["target"])
        if relation != "in":
            where = f"{relation} the {_called(target)}" if target and name not in moved else ""
            things.append(VisibleThing(_called(item), where))
    for agent in record["agents"]:
        things.append(VisibleThing(f"{agent['noun']} in {agent['colour']}" if agent["colour"] else agent["noun"], ""))
    return things


def _called(item: Record) -> str:
    return " ".join(filter(None, [item["colour"], item["noun"]]))


def caption(moment: Moment, chance: np.random.Generator) -> str:
    """A sentence that names some of what is in the picture."""
    most = min(len(moment.things), 4)
    some = chance.choice(len(moment.things), chance.integers(1, most + 1), replace=False)
    phrases = [f"a {moment.things[i].name} {moment.things[i].where}".strip() for i in some]
    return " and ".join(phrases) + (f" in the {moment.place}." if chance.random() < 0.5 else ".")


def _points(window: tuple[float, float], count: int, chance: random.Random) -> list[int]:
    """A frame of each quarter of a window."""
    start, end = window
    times = [start + (end - start) * (quarter + chance.random()) / FRAMES for quarter in range(FRAMES)]
    return [min(int(time * FPS), count - 1) for time in times]
