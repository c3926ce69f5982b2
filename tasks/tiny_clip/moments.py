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

FRAMES = 4  # a moment is seen at so many points of time, one in each quarter
SENTENCES = 3  # ways in which a moment is told
NOVEL = 0.2  # share of scenes with the words that the data set keeps for its split Novel-Word

Pictures = npt.NDArray[np.uint8]  # (FRAMES, SIDE, SIDE, 3)


@dataclass(frozen=True)
class Seen:
    """A thing or an agent in the picture: its name, where it is in words, and its kind and colour as a label."""

    name: str
    where: str
    label: str


@dataclass(frozen=True)
class Moment:
    """A window of a scene: what is seen, sentences that say what happens, and the place and things that are there."""

    pictures: Pictures
    sentences: list[str]
    place: str
    things: list[Seen]


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
            yield from _moments(script, record, Narrator(script, chance, novel=novel), chance)


def _moments(script: Script, record: Record, narrator: Narrator, chance: random.Random) -> Iterator[Moment]:
    told: dict[tuple[float, float], list[str]] = {}
    things = in_sight(record)
    for event in range(len(script.events)):
        for _ in range(SENTENCES):
            sentence = narrator.describe(event)
            told.setdefault(sentence.window, []).append(sentence.text)
    wanted = {window: _points(window, frame_count(record), chance) for window in told}
    needed = {index for points in wanted.values() for index in points}
    seen = {index: frame.copy() for index, frame in enumerate(frames(record)) if index in needed}
    for window, sentences in told.items():
        pictures = np.stack([seen[index] for index in wanted[window]])
        yield Moment(pictures, sentences, record["setting"]["place"], things)


def in_sight(record: Record) -> list[Seen]:
    """What can be seen all the time: agents, and things that are in nothing; where they are if no one moves them."""
    items = {item["id"]: item for item in record["setting"]["items"]}
    moved = {event["object"] for event in record["events"]}
    found = []
    for name, item in items.items():
        relation, target = item["at"]["relation"], items.get(item["at"]["target"])
        if relation != "in":
            where = f"{relation} the {_called(target)}" if target and name not in moved else ""
            found.append(Seen(_called(item), where, _called(item)))
    for agent in record["agents"]:
        dressed = f"{agent['noun']} in {agent['colour']}" if agent["colour"] else agent["noun"]
        found.append(Seen(dressed, "", dressed))
    return found


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
