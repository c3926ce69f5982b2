"""Make the training data of the tiny CLIP: clips of rendered scenes with sentences and labels."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from workshop.scenes.animation import FPS, Frame, frame_count, paint, scenes_by_frame
from workshop.scenes.drawing import COLOURS, HEIGHTS
from workshop.scenes.generate import data_set
from workshop.scenes.scene import SIDE, Box, Person, Record, Scene, Thing, person_box, posture
from workshop.scenes.script import Event, Script, write_script
from workshop.scenes.sentences import SentenceWriter
from workshop.scenes.world import ACTIONS, AGENTS, FLOOR, MANNERS, NOUNS, NOVEL_COLOUR, PLACES, SIZES
from workshop.tiny_clip.model import GRID, PATCH, SPREAD, Patches, Pictures, stirring

LENGTH = 0.5  # seconds of a clip
QUARTERS = 4
CLIPS, IDLE = 3, 2  # clips per event, and clips at random times of a scene
TRIES = 5  # sentences written for an event
NOVEL = 0.2  # share of scenes with the words of the split Novel-Word


@dataclass(frozen=True)
class Clip:
    """Half a second of a scene: its frames, labels of the middle frame's patches, and labels of its events.

    `sentences` has a list for each event in progress.
    """

    pictures: Pictures
    maps: Maps
    states: States
    attributes: Attributes
    sentences: list[list[str]]


@dataclass(frozen=True)
class Moment:
    """An event of a scene: a sentence, and the frames of four clips (QUARTERS, FRAMES, SIDE, SIDE, 3)."""

    sentence: str
    pictures: Pictures


def is_new(record: Record, known: set[str]) -> bool:
    return _content(record) not in known


def known_scenes() -> set[str]:
    return {_content(json.loads(line)) for line in data_set()["scripts.jsonl"].splitlines()}


def _content(record: Record) -> str:
    return json.dumps({name: record[name] for name in ("setting", "agents", "events")}, sort_keys=True)


def clips(seed: int, scenes: int) -> Iterator[Clip]:
    chance = random.Random(seed)
    for script, record, sentences in _new_scenes(chance, scenes):
        yield from _clips(record, sorted(_drawn(script, frame_count(record), chance)), sentences)


def moments(seed: int, scenes: int) -> Iterator[Moment]:
    chance = random.Random(seed)
    for script, record, sentences in _new_scenes(chance, scenes):
        firsts = [
            [_first_frame(event, (quarter + 0.5) / QUARTERS) for quarter in range(QUARTERS)] for event in script.events
        ]
        seen = _filmed(record, frames_of_clips(record, {first for several in firsts for first in several}))
        for several, texts in zip(firsts, sentences, strict=True):
            yield Moment(texts[0], np.stack([seen[first] for first in several]))


def _first_frame(event: Event, share: float) -> int:
    """Return the first frame of the clip around this share of an event."""
    return max(round((event.start + (event.end - event.start) * share - LENGTH / 2) * FPS), 0)


def _new_scenes(chance: random.Random, scenes: int) -> Iterator[tuple[Script, Record, list[list[str]]]]:
    known = known_scenes()
    for scene in range(scenes):
        novel = chance.random() < NOVEL
        script = write_script(chance, novel=novel)
        record = script.record(f"T{scene}", "train")
        if script.events and is_new(record, known):
            yield script, record, sentences_of(script, chance, novel=novel)


def sentences_of(script: Script, chance: random.Random, *, novel: bool) -> list[list[str]]:
    """Return sentences for each event, if possible only those that describe no other event."""
    writer = SentenceWriter(script, chance, novel=novel)
    several = [[writer.describe(event) for _ in range(TRIES)] for event in range(len(script.events))]
    alone = [[sentence.text for sentence in some if len(sentence.events) == 1] for some in several]
    return [some or [sentence.text for sentence in all_] for some, all_ in zip(alone, several, strict=True)]


def _drawn(script: Script, count: int, chance: random.Random) -> set[int]:
    drawn = {
        min(max(round(chance.uniform(event.start - 0.2, event.end - 0.2) * FPS), 0), count - 1)
        for event in script.events
        for _ in range(CLIPS)
    }
    return drawn | {chance.randrange(count) for _ in range(IDLE)}


def frames_of_clips(record: Record, firsts: Iterable[int]) -> dict[int, list[int]]:
    """Return the frames of each clip by its first frame; the video's last frame completes its last clip."""
    last = frame_count(record) - 1
    return {first: [min(first + later, last) for later in SPREAD] for first in firsts}


def _clips(record: Record, firsts: Iterable[int], sentences: list[list[str]]) -> Iterator[Clip]:
    wanted = frames_of_clips(record, firsts)
    needed = {index for indices in wanted.values() for index in indices}
    seen, maps, states = {}, {}, {}
    for index, (scene, _) in enumerate(scenes_by_frame(record)):
        if index in needed:
            seen[index] = as_filmed(paint(record["setting"]["place"], scene))
            maps[index], states[index] = patch_map(scene), patch_states(scene)
    for first, indices in wanted.items():
        start, end = first / FPS, (first + SPREAD[-1]) / FPS
        events = events_within(record, start, end)
        before, middle, after = (states[index] for index in indices)
        yield Clip(
            np.stack([seen[index] for index in indices]),
            maps[indices[1]],
            middle.since(before, after),
            attributes(record, events, (start + end) / 2),
            [sentences[event] for event in events],
        )


def pictures_of_video(record: Record) -> Pictures:
    wanted = frames_of_clips(record, range(0, frame_count(record), round(LENGTH * FPS)))
    return np.stack(list(_filmed(record, wanted).values()))


def _filmed(record: Record, wanted: dict[int, list[int]]) -> dict[int, Pictures]:
    needed = {index for indices in wanted.values() for index in indices}
    seen = {
        index: as_filmed(paint(record["setting"]["place"], scene))
        for index, (scene, _) in enumerate(scenes_by_frame(record))
        if index in needed
    }
    return {first: np.stack([seen[index] for index in indices]) for first, indices in wanted.items()}


def as_filmed(frame: Frame) -> Frame:
    """Return a frame with the colours that a video file preserves."""
    film = av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(format="yuv420p")
    return np.asarray(film.reformat(format="rgb24").to_ndarray(), np.uint8)


EDGES = np.arange(GRID) * PATCH
FILLED = 0.4  # least share of a patch that a thing covers
KINDS = ("", *sorted(NOUNS), *sorted(HEIGHTS))
HUES = ("", *COLOURS)

UNIT = SIDE / 10  # pixels; the unit of places
MATERIALS = ("wooden", "metal", "striped", "dotted")
RELATIONS = ("floor", "on", "under", "behind", "in", "near", "beside", "held")
BODY, STATE = 19, 8 + len(RELATIONS)  # lengths of the state of an agent and of a thing
PLACE = 2  # numbers of an agent's place, which its patch implies
POSE = 4  # numbers of a thing's place, depth and visibility
CHANGING = 8  # numbers of a thing's state without its relation
POSTURE = BODY - PLACE
OF_AGENT = POSTURE + BODY  # an agent's posture, and the change of its state
OF_THING = STATE - POSE + CHANGING
NUMBERS = OF_AGENT + OF_THING
NOTHING, AGENT, THING = 0, 1, 2

Maps = npt.NDArray[np.uint8]  # (GRID, GRID, 2): indices into KINDS and HUES
Numbers = npt.NDArray[np.float32]


def one_hot(choices: Sequence[str], chosen: str | None) -> list[float]:
    return [float(choice == chosen) for choice in choices]


def body_of(scene: Scene, person: Person) -> list[float]:
    held = posture(scene, person)
    place = [person.x, person.y - person.lift, person.lift]
    angles = [held.stride / 30, held.crouch / 10, held.lean / 10, held.kick / 30]
    return [
        *(value / UNIT for value in place),
        float(person.facing),
        *one_hot(("front", "side", "back"), held.view),
        *one_hot(("floor", "seat"), held.sits),
        *angles,
        *(number / 10 for hand in held.hands for number in hand),
        float(person.holding is not None),
        float(person.overhead),
    ]


def state_of(scene: Scene, thing: Thing) -> list[float]:
    pose = scene.pose(thing)
    angle = np.deg2rad(pose.angle)
    return [
        *(value / UNIT for value in (pose.x, pose.y, pose.depth)),
        float(pose.hidden),
        float(np.sin(angle)),
        float(np.cos(angle)),
        thing.squeeze,
        thing.opened if thing.opened is not None else -0.5,
        *one_hot(RELATIONS, thing.relation),
    ]


@dataclass(frozen=True)
class States:
    """For each patch, what is in it [GRID, GRID] and the state of that agent or thing [GRID, GRID, NUMBERS]."""

    owners: npt.NDArray[np.uint8]
    numbers: npt.NDArray[np.float16]


@dataclass(frozen=True)
class SceneStates:
    """The states of all agents [agents, BODY] and things [things, STATE], and the owner of each patch.

    Owners are numbered from 0, agents first; -1 is none.
    """

    bodies: Numbers
    things: Numbers
    owners: npt.NDArray[np.int16]

    def since(self, before: SceneStates, after: SceneStates) -> States:
        """Return the states of the patches' owners, with their changes between two other times."""
        agents = np.concatenate([self.bodies[:, PLACE:], after.bodies - before.bodies], axis=1)
        changed = (after.things - before.things)[:, :CHANGING]
        things = np.concatenate([self.things[:, POSE:], changed], axis=1)
        rows = np.zeros((len(agents) + len(things) + 1, NUMBERS), np.float16)  # the last row is of no owner
        rows[: len(agents), :OF_AGENT] = agents
        rows[len(agents) : -1, OF_AGENT:] = things
        kinds = np.array([AGENT] * len(agents) + [THING] * len(things) + [NOTHING], np.uint8)
        return States(kinds[self.owners], rows[self.owners])


def patch_states(scene: Scene) -> SceneStates:
    people, things = list(scene.people.values()), list(scene.things.values())
    boxes = [person_box(person, person.x, person.y - person.lift) for person in people]
    owners = np.full((GRID, GRID), -1, np.int16)
    _fill(owners, [*enumerate(boxes), *enumerate((scene.box(thing) for thing in things), len(people))])
    bodies = np.array([body_of(scene, person) for person in people], np.float32)
    states = np.array([state_of(scene, thing) for thing in things], np.float32).reshape(len(things), STATE)
    return SceneStates(bodies, states, owners)


def patch_map(scene: Scene) -> Maps:
    """Return kind and colour (GRID, GRID, 2) of the smallest owner that fills a patch or has its middle there."""
    grid = np.zeros((GRID, GRID, 2), np.uint8)
    named = [(scene.box(thing), thing.noun, thing.look.colour) for thing in scene.things.values()]
    named += [(person_box(it, it.x, it.y - it.lift), it.body.kind, it.body.colour) for it in scene.people.values()]
    _fill(grid, [((KINDS.index(kind), HUES.index(colour or "")), box) for box, kind, colour in named])
    return grid


def _fill(grid: npt.NDArray[np.integer], marks: list[tuple[Any, Box | None]]) -> None:
    shown = [(mark, box) for mark, box in marks if box is not None]
    for mark, (left, top, right, bottom) in sorted(shown, key=lambda one: _area(one[1]), reverse=True):
        columns = np.clip(np.minimum(EDGES + PATCH, right) - np.maximum(EDGES, left), 0, PATCH) / PATCH
        rows = np.clip(np.minimum(EDGES + PATCH, bottom) - np.maximum(EDGES, top), 0, PATCH) / PATCH
        filled = rows[:, None] * columns >= FILLED
        middle = (int((top + bottom) / 2 / PATCH), int((left + right) / 2 / PATCH))
        filled[min(max(middle[0], 0), GRID - 1), min(max(middle[1], 0), GRID - 1)] = True
        grid[filled] = mark


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


AT_ONCE = 2  # events that a clip has labels for
LEAST = 0.2  # seconds of an event in a clip that get it a label
BEGUN, ALMOST = 0.3, 0.7  # shares of an event at which its middle and its end start


def _names(several: Iterable[str]) -> tuple[str, ...]:
    return ("", *sorted(set(several)))


GROUPS = {
    "action": _names(ACTIONS),
    "direction": _names(way for action in ACTIONS.values() for way in action.directions),
    "manner": _names(MANNERS),
    "relation": _names(relation for action in ACTIONS.values() for relation in action.relations),
    "object": _names(NOUNS),
    "colour": _names([*COLOURS, NOVEL_COLOUR]),
    "size": _names(SIZES),
    "material": _names(MATERIALS),
    "modifier": _names(word for noun in NOUNS.values() for word in noun.modifiers),
    "agent": _names(AGENTS),
    "target": _names([*NOUNS, *AGENTS, FLOOR, *PLACES]),
    "target_colour": _names([*COLOURS, NOVEL_COLOUR]),
    "phase": _names(("begin", "middle", "end")),
}

Attributes = npt.NDArray[np.uint8]  # (AT_ONCE, groups): indices into GROUPS


def events_within(record: Record, start: float, end: float) -> list[int]:
    """Return the indices of the events that a clip from `start` to `end` (s) shows long enough."""
    shown = [min(end, event["end"]) - max(start, event["start"]) for event in record["events"]]
    return [index for index, seconds in enumerate(shown) if seconds >= LEAST - 1e-6]


def attributes(record: Record, events: list[int], middle: float) -> Attributes:
    """Return the labels of a clip, with `middle` (s) its middle; those of a single event are repeated."""
    rows = [_attributes(record, record["events"][index], middle) for index in events]
    table = np.zeros((AT_ONCE, len(GROUPS)), np.uint8)
    for place, row in enumerate((rows * AT_ONCE)[:AT_ONCE]):
        table[place] = [names.index(row.get(group) or "") for group, names in GROUPS.items()]
    return table


def _attributes(record: Record, event: Record, middle: float) -> dict[str, str | None]:
    items = {item["id"]: item for item in record["setting"]["items"]}
    agents = {agent["id"]: agent for agent in record["agents"]}
    thing, target = items.get(event["object"], {}), event["target"]
    at = items.get(target) or {"noun": agents[target]["noun"] if target in agents else target}
    done = (middle - event["start"]) / (event["end"] - event["start"])
    own = {name: event[name] for name in ("action", "direction", "manner", "relation")}
    look = {name: thing.get(name) for name in ("colour", "size", "material", "modifier")}
    return {
        **own,
        **look,
        "object": thing.get("noun"),
        "agent": agents[event["agent"]]["noun"],
        "target": at["noun"],
        "target_colour": at.get("colour"),
        "phase": "begin" if done < BEGUN else "end" if done > ALMOST else "middle",
    }


BATCH = 96  # clips
MIXED, MIRRORED = 0.8, 0.5  # shares of clips with the background of another, and of mirrored batches

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Clips with some patches of each, at `places` of the grid; `busy` are the clips with a sentence."""

    patches: Tensor
    places: Tensor
    stirs: Tensor
    maps: Tensor
    owners: Tensor
    numbers: Tensor
    attributes: Tensor
    busy: list[int]
    sentences: list[str]


class Batches:
    """Draws batches of clips, each clip once an epoch.

    A model could recognise a scene by its background, so most clips get the patches far from any motion from another
    clip. Half of the batches are mirrored, and each clip is moved by at most one patch to a side.
    """

    def __init__(self, several: Sequence[Clip], patches: Patches, seed: int) -> None:
        self.chance, self._order = np.random.default_rng(seed), list[int]()
        self.stirs = stirring(patches)
        self.near = _grown(self.stirs)
        self.sentences = [clip.sentences for clip in several]
        self.attributes = np.stack([clip.attributes for clip in several]).astype(np.int64)
        self.patches, size = patches, (len(several), GRID * GRID, -1)
        self.maps = np.stack([clip.maps for clip in several]).reshape(size)
        self.owners = np.stack([clip.states.owners for clip in several]).reshape(size[:2])
        self.numbers = np.stack([clip.states.numbers for clip in several]).reshape(size)

    def draw(self, kept: int) -> Batch:
        """Return a batch with `kept` patches of each clip, preferably those with motion and their neighbours."""
        while len(self._order) < BATCH:
            self._order += self.chance.permutation(len(self.sentences)).tolist()
        rows, self._order = np.array(self._order[:BATCH]), self._order[BATCH:]
        wanted = 2 * self.stirs[rows] + 0.3 * self.near[rows] + self.chance.random((BATCH, GRID * GRID))
        places = np.argsort(-wanted, 1)[:, :kept]
        sources = self._sources(rows, places)
        seen, maps, owners, numbers, stirs = (
            torch.from_numpy(values[sources, places])
            for values in (self.patches, self.maps, self.owners, self.numbers, self.stirs)
        )
        if self.chance.random() < MIRRORED:
            seen = seen.reshape(*seen.shape[:2], -1, PATCH).flip(-1).flatten(-2)
            places = places // GRID * GRID + GRID - 1 - places % GRID
            owners = torch.zeros_like(owners)  # states depend on left and right
        columns = places % GRID + self.chance.integers(-1, 2, (BATCH, 1))
        places = places // GRID * GRID + np.clip(columns, 0, GRID - 1)
        of_rows = [self.sentences[row] for row in rows]
        busy = [place for place, several in enumerate(of_rows) if several]
        texts = [str(self.chance.choice(of_rows[i][self.chance.integers(len(of_rows[i]))])) for i in busy]
        attributes = torch.from_numpy(self.attributes[rows])
        return Batch(seen, torch.from_numpy(places), stirs, maps.long(), owners, numbers, attributes, busy, texts)

    def _sources(self, rows: Rows, places: Rows) -> Rows:
        order = self.chance.permutation(BATCH)
        mixed = (self.chance.random(BATCH) < MIXED)[:, None] & ~self.near[rows] & ~self.near[rows[order]]
        taken = np.where(mixed, rows[order][:, None], rows[:, None])
        return np.take_along_axis(taken, places, 1)


def _grown(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    padded = np.pad(flags.reshape(-1, GRID, GRID), ((0, 0), (1, 1), (1, 1)))
    around = [padded[:, down : down + GRID, across : across + GRID] for down in range(3) for across in range(3)]
    grown: npt.NDArray[np.bool_] = np.any(around, axis=0).reshape(-1, GRID * GRID)
    return grown
