"""Make the training data of the tiny CLIP: clips of rendered scenes with sentences and labels."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import av
import numpy as np
import numpy.typing as npt
import torch
from scipy import ndimage
from torch import Tensor

from workshop.scenes.drawing import COLOURS, HEIGHTS, SIDE
from workshop.scenes.generate import SentenceWriter, data_set
from workshop.scenes.render import FPS, Frame, frame_count, paint, scenes_by_frame
from workshop.scenes.scene import Box, Person, Record, Scene, Thing, area, person_box, posture
from workshop.scenes.script import write_script
from workshop.scenes.world import ACTIONS, AGENTS, FLOOR, MANNERS, NOUNS, PLACES, SIZES, materials_of
from workshop.tiny_clip.model import GRID, PATCH, SPREAD, Patches, Pictures, stirring

T = TypeVar("T")
LENGTH = 0.5  # seconds of a clip
QUARTERS = 4
CLIPS, IDLE = 3, 2  # clips per event, and clips at random times of a scene
TRIES = 5  # sentences written for an event
NOVEL = 0.2  # share of scenes with the words of the split Novel-Word


Maps = npt.NDArray[np.uint8]  # (GRID, GRID, 2): indices into KINDS and HUES
Numbers = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Clip:
    """Half a second of a scene: its frames, labels of the middle frame's patches, and labels of its events.

    `owners` [GRID, GRID] is AGENT or THING where one is in a patch; `numbers` [GRID, GRID, NUMBERS] is its state.
    `sentences` has a list for each event in progress.
    """

    pictures: Pictures
    maps: Maps
    owners: npt.NDArray[np.uint8]
    numbers: Numbers
    attributes: Attributes
    sentences: list[list[str]]


def content(record: Record) -> str:
    return json.dumps({name: record[name] for name in ("setting", "agents", "events")}, sort_keys=True)


def known_scenes() -> set[str]:
    return {content(json.loads(line)) for line in data_set()["scripts.jsonl"].splitlines()}


def scripts(chance: random.Random, count: int, known: Container[str] = ()) -> Iterator[tuple[Record, list[list[str]]]]:
    """Yield scripts whose content is not known, with sentences for each event, if possible those of no other event."""
    for number in range(count):
        novel = chance.random() < NOVEL
        script = write_script(chance, novel=novel)
        record, writer = script.record(f"T{number}", "train"), SentenceWriter(script, chance, novel=novel)
        if script.events and content(record) not in known:
            several = [[writer.describe(event) for _ in range(TRIES)] for event in range(len(script.events))]
            alone = [[sentence for sentence in some if len(sentence.events) == 1] or some for some in several]
            yield record, [[sentence.text for sentence in some] for some in alone]


def clips(seed: int, scenes: int) -> Iterator[Clip]:
    chance = random.Random(seed)
    for record, sentences in scripts(chance, scenes, known_scenes()):
        count = frame_count(record)
        spans = [(event["start"] - 0.2, event["end"] - 0.2) for event in record["events"] for _ in range(CLIPS)]
        drawn = {min(max(round(chance.uniform(*span) * FPS), 0), count - 1) for span in spans}
        firsts = sorted(drawn | {chance.randrange(count) for _ in range(IDLE)})
        for first, (before, middle, after) in _frames_of_clips(record, firsts, _seen).items():
            start, end = first / FPS, (first + SPREAD[-1]) / FPS
            shown = [min(end, event["end"]) - max(start, event["start"]) for event in record["events"]]
            events = [index for index, seconds in enumerate(shown) if seconds >= LEAST - 1e-6]
            yield Clip(
                np.stack([before.frame, middle.frame, after.frame]),
                middle.names[middle.owners],
                middle.kinds[middle.owners],
                _numbers(before, middle, after),
                attributes(record, events, (start + end) / 2),
                [sentences[event] for event in events],
            )


def moments(seed: int, scenes: int) -> Iterator[tuple[str, Pictures]]:
    """Yield a sentence for each event, and the frames of four clips [QUARTERS, FRAMES, SIDE, SIDE, 3]."""
    shares = [(quarter + 0.5) / QUARTERS for quarter in range(QUARTERS)]
    for record, sentences in scripts(random.Random(seed), scenes, known_scenes()):
        times = [(event["start"], event["end"]) for event in record["events"]]
        middles = [[start + (end - start) * share for share in shares] for start, end in times]
        firsts = [[max(round((middle - LENGTH / 2) * FPS), 0) for middle in several] for several in middles]
        seen = _frames_of_clips(record, {first for several in firsts for first in several}, as_filmed)
        for several, texts in zip(firsts, sentences, strict=True):
            yield texts[0], np.stack([seen[first] for first in several])


def pictures_of_video(record: Record) -> Pictures:
    firsts = range(0, frame_count(record), round(LENGTH * FPS))
    return np.stack(list(_frames_of_clips(record, firsts, as_filmed).values()))


def _frames_of_clips(record: Record, firsts: Iterable[int], look: Callable[[str, Scene], T]) -> dict[int, list[T]]:
    """Look at the frames of each clip, by its first frame; the video's last frame completes its last clip."""
    last, place = frame_count(record) - 1, record["setting"]["place"]
    wanted = {first: [min(first + later, last) for later in SPREAD] for first in firsts}
    needed = {index for indices in wanted.values() for index in indices}
    scenes = enumerate(scenes_by_frame(record))
    seen = {index: look(place, scene) for index, (scene, _) in scenes if index in needed}
    return {first: [seen[index] for index in indices] for first, indices in wanted.items()}


def as_filmed(place: str, scene: Scene) -> Frame:
    """Return a frame with the colours that a video file preserves."""
    film = av.VideoFrame.from_ndarray(paint(place, scene), format="rgb24").reformat(format="yuv420p")
    return np.asarray(film.reformat(format="rgb24").to_ndarray(), np.uint8)


EDGES = np.arange(GRID) * PATCH
FILLED = 0.4  # least share of a patch that a thing covers
KINDS = ("", *sorted(NOUNS), *sorted(HEIGHTS))
HUES = ("", *COLOURS)

UNIT = SIDE / 10  # pixels; the unit of places
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


@dataclass(frozen=True)
class Seen:
    """A frame, the owner of each patch [GRID, GRID], and the owners' properties.

    Owners are numbered from 0, agents first; -1 is none, and so is the last row of `names` and `kinds`.
    """

    frame: Frame
    owners: npt.NDArray[np.int16]
    names: Maps  # [owners + 1, 2]
    kinds: npt.NDArray[np.uint8]  # [owners + 1]: AGENT, THING or NOTHING
    bodies: Numbers  # [agents, BODY]
    things: Numbers  # [things, STATE]


def _seen(place: str, scene: Scene) -> Seen:
    people, things = scene.people.values(), scene.things.values()
    boxes = [person_box(it, it.x, it.y - it.lift) for it in people] + [scene.box(it) for it in things]
    names = [(it.body.kind, it.body.colour) for it in people] + [(it.noun, it.look.colour) for it in things]
    return Seen(
        as_filmed(place, scene),
        _owners(boxes),
        np.array([(KINDS.index(kind), HUES.index(colour)) for kind, colour in [*names, ("", "")]], np.uint8),
        np.array([AGENT] * len(people) + [THING] * len(things) + [NOTHING], np.uint8),
        np.array([_body(scene, person) for person in people], np.float32),
        np.array([_state(scene, thing) for thing in things], np.float32),
    )


def _owners(boxes: list[Box | None]) -> npt.NDArray[np.int16]:
    """Return the index of the smallest box that fills a patch or has its middle there, or -1."""
    grid = np.full((GRID, GRID), -1, np.int16)
    shown = [(index, box) for index, box in enumerate(boxes) if box is not None]
    for index, (left, top, right, bottom) in sorted(shown, key=lambda one: area(one[1]), reverse=True):
        columns = np.clip(np.minimum(EDGES + PATCH, right) - np.maximum(EDGES, left), 0, PATCH) / PATCH
        rows = np.clip(np.minimum(EDGES + PATCH, bottom) - np.maximum(EDGES, top), 0, PATCH) / PATCH
        filled = rows[:, None] * columns >= FILLED
        middle = np.clip([int((top + bottom) / 2 / PATCH), int((left + right) / 2 / PATCH)], 0, GRID - 1)
        filled[tuple(middle)] = True
        grid[filled] = index
    return grid


def _body(scene: Scene, person: Person) -> list[float]:
    held = posture(scene, person)
    return [
        *(value / UNIT for value in (person.x, person.y - person.lift, person.lift)),
        float(person.facing),
        *(float(held.view == view) for view in ("front", "side", "back")),
        *(float(held.sits == seat) for seat in ("floor", "seat")),
        *(held.stride / 30, held.crouch / 10, held.lean / 10, held.kick / 30),
        *(number / 10 for hand in held.hands for number in hand),
        *(float(person.holding is not None), float(person.overhead)),
    ]


def _state(scene: Scene, thing: Thing) -> list[float]:
    pose = scene.pose(thing)
    angle = np.deg2rad(pose.angle)
    return [
        *(value / UNIT for value in (pose.x, pose.y, pose.depth)),
        *(float(pose.hidden), float(np.sin(angle)), float(np.cos(angle)), thing.squeeze),
        thing.opened if thing.opened is not None else -0.5,
        *(float(thing.relation == relation) for relation in RELATIONS),
    ]


def _numbers(before: Seen, middle: Seen, after: Seen) -> Numbers:
    """Return the states of the patches' owners in the middle, with their changes from before to after."""
    agents = np.concatenate([middle.bodies[:, PLACE:], after.bodies - before.bodies], axis=1)
    changed = (after.things - before.things)[:, :CHANGING]
    rows = np.zeros((len(middle.kinds), NUMBERS), np.float16)  # the last row is of no owner
    rows[: len(agents), :OF_AGENT] = agents
    rows[len(agents) : -1, OF_AGENT:] = np.concatenate([middle.things[:, POSE:], changed], axis=1)
    return rows[middle.owners]


AT_ONCE = 2  # events that a clip has labels for
LEAST = 0.2  # seconds of an event in a clip for which it has a label
BEGUN, ALMOST = 0.3, 0.7  # shares of an event at which its middle and its end start


def _names(several: Iterable[str]) -> tuple[str, ...]:
    return ("", *sorted(set(several)))


GROUPS = {
    "action": _names(ACTIONS),
    "direction": _names(way for action in ACTIONS.values() for way in action.directions),
    "manner": _names(MANNERS),
    "relation": _names(relation for action in ACTIONS.values() for relation in action.relations),
    "object": _names(NOUNS),
    "colour": _names(COLOURS),
    "size": _names(SIZES),
    "material": _names(word for noun in NOUNS for word in materials_of(noun, novel=True)),
    "modifier": _names(word for noun in NOUNS.values() for word in noun.modifiers),
    "agent": _names(AGENTS),
    "target": _names([*NOUNS, *AGENTS, FLOOR, *PLACES]),
    "target_colour": _names(COLOURS),
    "phase": _names(("begin", "middle", "end")),
}

Attributes = npt.NDArray[np.uint8]  # (AT_ONCE, groups): indices into GROUPS


def attributes(record: Record, events: list[int], middle: float) -> Attributes:
    """Return the labels of a clip, with `middle` (s) its middle; those of a single event are repeated."""
    rows = [_attributes(record, record["events"][index], middle) for index in events]
    table = np.zeros((AT_ONCE, len(GROUPS)), np.uint8)
    for place, row in enumerate((rows * AT_ONCE)[:AT_ONCE]):
        table[place] = [names.index(row.get(group) or "") for group, names in GROUPS.items()]
    return table


def _attributes(record: Record, event: Record, middle: float) -> dict[str, str | None]:
    items = {item["id"]: item for item in record["setting"]["items"]}
    agents = {agent["id"]: agent["noun"] for agent in record["agents"]}
    thing, target = items.get(event["object"], {}), event["target"]
    at = items.get(target) or {"noun": agents.get(target, target)}
    done = (middle - event["start"]) / (event["end"] - event["start"])
    own = {name: event[name] for name in ("action", "direction", "manner", "relation")}
    look = {name: thing.get(name) for name in ("colour", "size", "material", "modifier")}
    roles = {"object": thing.get("noun"), "agent": agents[event["agent"]]}
    roles |= {"target": at["noun"], "target_colour": at.get("colour")}
    return own | look | roles | {"phase": ("begin", "middle", "end")[(done >= BEGUN) + (done > ALMOST)]}


BATCH = 96  # clips
MIXED, MIRRORED = 0.8, 0.5  # shares of clips with the background of another, and of mirrored batches


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
        grid = self.stirs.reshape(-1, GRID, GRID)
        self.near = ndimage.binary_dilation(grid, np.ones((1, 3, 3))).reshape(self.stirs.shape)
        self.sentences = [clip.sentences for clip in several]
        self.attributes = np.stack([clip.attributes for clip in several]).astype(np.int64)
        self.patches, size = patches, (len(several), GRID * GRID, -1)
        self.maps = np.stack([clip.maps for clip in several]).reshape(size)
        self.owners = np.stack([clip.owners for clip in several]).reshape(size[:2])
        self.numbers = np.stack([clip.numbers for clip in several]).reshape(size)

    def draw(self, kept: int) -> Batch:
        """Return a batch with `kept` patches of each clip, preferably those with motion and their neighbours."""
        while len(self._order) < BATCH:
            self._order += self.chance.permutation(len(self.sentences)).tolist()
        rows, self._order = np.array(self._order[:BATCH]), self._order[BATCH:]
        wanted = 2 * self.stirs[rows] + 0.3 * self.near[rows] + self.chance.random((BATCH, GRID * GRID))
        places = np.argsort(-wanted, 1)[:, :kept]
        others = rows[self.chance.permutation(BATCH)]
        mixed = (self.chance.random(BATCH) < MIXED)[:, None] & ~self.near[rows] & ~self.near[others]
        sources = np.take_along_axis(np.where(mixed, others[:, None], rows[:, None]), places, 1)
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
