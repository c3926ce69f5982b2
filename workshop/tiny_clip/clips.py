"""Clips of rendered scenes with their sentences, attributes and patches: what the tiny CLIP learns from."""

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
from workshop.scenes.observe import BODY, MATERIALS, MODIFIERS, SIZES, STATE, body_of, state_of
from workshop.scenes.scene import Box, Record, Scene, person_box
from workshop.scenes.script import Script, write_script
from workshop.scenes.sentences import SentenceWriter
from workshop.scenes.world import ACTIONS, AGENTS, FLOOR, MANNERS, NOUNS, NOVEL_COLOUR, PLACES
from workshop.tiny_clip.model import GRID, PATCH, SPREAD, Patches, Pictures, stirring

LENGTH = 0.5  # seconds of a clip
QUARTERS = 4
CLIPS, IDLE = 3, 2  # clips drawn of an event, and anywhere in a scene
TOLD = 5  # sentences tried for an event
NOVEL = 0.2  # share of scenes with the words that the data set keeps for its split Novel-Word


@dataclass(frozen=True)
class Clip:
    """Half a second of a scene: its frames, what is in each patch of the middle one, what goes on, and sentences.

    `sentences` are those of each event under way; none where nothing goes on.
    """

    pictures: Pictures
    maps: Maps
    states: States
    attributes: Attributes
    sentences: list[list[str]]


@dataclass(frozen=True)
class Moment:
    """An event of a scene: a sentence, and the frames of a clip of each quarter (QUARTERS, FRAMES, SIDE, SIDE, 3)."""

    sentence: str
    pictures: Pictures


def is_new(record: Record, known: set[str]) -> bool:
    """Whether a scene is not one of the data set's."""
    return _content(record) not in known


def known_scenes() -> set[str]:
    """The data set's scenes."""
    return {_content(json.loads(line)) for line in data_set()["scripts.jsonl"].splitlines()}


def _content(record: Record) -> str:
    return json.dumps({name: record[name] for name in ("setting", "agents", "events")}, sort_keys=True)


def clips(seed: int, scenes: int) -> Iterator[Clip]:
    """Clips of so many new scenes; the same seed gives the same."""
    chance = random.Random(seed)
    for script, record, sentences in _new_scenes(chance, scenes):
        yield from _clips(record, sorted(_drawn(script, frame_count(record), chance)), sentences)


def moments(seed: int, scenes: int) -> Iterator[Moment]:
    """The events of so many new scenes; the same seed gives the same."""
    chance = random.Random(seed)
    for script, record, sentences in _new_scenes(chance, scenes):
        drawn = [
            [
                event.start + (event.end - event.start) * (quarter + 0.5) / QUARTERS - LENGTH / 2
                for quarter in range(QUARTERS)
            ]
            for event in script.events
        ]
        firsts = [[max(round(start * FPS), 0) for start in starts] for starts in drawn]
        wanted = frames_of_clips(record, {first for several in firsts for first in several})
        seen = _filmed(record, wanted)
        for several, texts in zip(firsts, sentences, strict=True):
            yield Moment(texts[0], np.stack([seen[first] for first in several]))


def _new_scenes(chance: random.Random, scenes: int) -> Iterator[tuple[Script, Record, list[list[str]]]]:
    known = known_scenes()
    for scene in range(scenes):
        novel = chance.random() < NOVEL
        script = write_script(chance, novel=novel)
        record = script.record(f"T{scene}", "train")
        if script.events and is_new(record, known):
            yield script, record, told(script, chance, novel=novel)


def told(script: Script, chance: random.Random, *, novel: bool) -> list[list[str]]:
    """Sentences of each event, alone where one tells it alone."""
    writer = SentenceWriter(script, chance, novel=novel)
    several = [[writer.describe(event) for _ in range(TOLD)] for event in range(len(script.events))]
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
    """The frames of clips by the first one of each; a video's last frame fills up its last clip."""
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
    """The frames of every clip of a scene (clips, FRAMES, SIDE, SIDE, 3), as extraction takes them from its video."""
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
    """A frame with the colours that a video file keeps."""
    film = av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(format="yuv420p")
    return np.asarray(film.reformat(format="rgb24").to_ndarray(), np.uint8)


EDGES = np.arange(GRID) * PATCH
FILLED = 0.4  # share of a patch that is a thing's
KINDS = ("", *sorted(NOUNS), *sorted(HEIGHTS))
HUES = ("", *COLOURS)

PLACE = 2  # an agent's first numbers are where it is, which its patch tells
POSE = 4  # a thing's first ones are where it is, how deep, and whether it is hidden
CHANGING = 8  # the rest of a thing's, its relation, changes at once
POSTURE = BODY - PLACE
OF_AGENT = POSTURE + BODY  # how an agent stands, and what of it has changed
OF_THING = STATE - POSE + CHANGING
NUMBERS = OF_AGENT + OF_THING
NOTHING, AGENT, THING = 0, 1, 2

Maps = npt.NDArray[np.uint8]  # (GRID, GRID, 2): places in KINDS and HUES
Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True)
class States:
    """For each patch whether an agent or a thing is in it [GRID, GRID], and that one's state [GRID, GRID, NUMBERS]."""

    owners: npt.NDArray[np.uint8]
    numbers: npt.NDArray[np.float16]


@dataclass(frozen=True)
class SceneStates:
    """The states of all agents [agents, BODY] and things [things, STATE], and who is in each patch.

    Agents are numbered from 0, things go on from there; -1 is nobody.
    """

    bodies: Numbers
    things: Numbers
    owners: npt.NDArray[np.int16]

    def since(self, before: SceneStates, after: SceneStates) -> States:
        """The states of those in each patch, with what changes from one moment to another."""
        agents = np.concatenate([self.bodies[:, PLACE:], after.bodies - before.bodies], axis=1)
        changed = (after.things - before.things)[:, :CHANGING]
        things = np.concatenate([self.things[:, POSE:], changed], axis=1)
        rows = np.zeros((len(agents) + len(things) + 1, NUMBERS), np.float16)  # the last one is nobody's
        rows[: len(agents), :OF_AGENT] = agents
        rows[len(agents) : -1, OF_AGENT:] = things
        kinds = np.array([AGENT] * len(agents) + [THING] * len(things) + [NOTHING], np.uint8)
        return States(kinds[self.owners], rows[self.owners])


def patch_states(scene: Scene) -> SceneStates:
    """The states of a scene, as it is now."""
    people, things = list(scene.people.values()), list(scene.things.values())
    boxes = [person_box(person, person.x, person.y - person.lift) for person in people]
    owners = np.full((GRID, GRID), -1, np.int16)
    _fill(owners, [*enumerate(boxes), *enumerate((scene.box(thing) for thing in things), len(people))])
    bodies = np.array([body_of(scene, person) for person in people], np.float32)
    states = np.array([state_of(scene, thing) for thing in things], np.float32).reshape(len(things), STATE)
    return SceneStates(bodies, states, owners)


def patch_map(scene: Scene) -> Maps:
    """(GRID, GRID, 2): kind and colour of the smallest thing or agent that fills a patch, or has its middle there."""
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


AT_ONCE = 2  # events that a clip can show
LEAST = 0.2  # seconds of an event within a clip, or it is not told
BEGUN, ALMOST = 0.3, 0.7  # shares of an event: its beginning, its middle, its end


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
    "modifier": _names(MODIFIERS),
    "agent": _names(AGENTS),
    "target": _names([*NOUNS, *AGENTS, FLOOR, *PLACES]),
    "target_colour": _names([*COLOURS, NOVEL_COLOUR]),
    "phase": _names(("begin", "middle", "end")),
}

Attributes = npt.NDArray[np.uint8]  # (AT_ONCE, groups): places in GROUPS


def events_within(record: Record, start: float, end: float) -> list[int]:
    """The events, by index, that a clip from `start` to `end` (s) shows enough of."""
    shown = [min(end, event["end"]) - max(start, event["start"]) for event in record["events"]]
    return [index for index, seconds in enumerate(shown) if seconds >= LEAST - 1e-6]


def attributes(record: Record, events: list[int], middle: float) -> Attributes:
    """What a clip of these events shows, `middle` (s) being its middle; one event twice, nothing as nothing."""
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
MIXED, MIRRORED = 0.8, 0.5  # shares of clips with another's furniture, and of mirrored batches

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """What a step takes: clips with some patches of each, at `places` of the grid; `busy` have a sentence."""

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
    """Draws batches of clips, all of them once before any is drawn again.

    A scene is soon known by its furniture, and then everything about it: so most clips get what rests, far from what
    moves, from another clip; half of the batches are mirrored, and each clip is moved by a patch to a side, or not.
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
        """A batch with so many patches of each clip, those that stir first, then those about them."""
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
            owners = torch.zeros_like(owners)  # states tell left from right
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
