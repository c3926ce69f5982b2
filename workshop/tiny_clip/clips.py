"""What the tiny CLIP learns from: clips of rendered scenes, some frames of each with all that can be told of them.

The scenes are made on the spot from seeds; none of them is in the data set "scenes" (`is_new` tells). Their frames have
the colours of a video file's, at half the resolution, and none of its compression.
"""

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import av
import numpy as np
import numpy.typing as npt

from workshop.scenes.backgrounds import background_of
from workshop.scenes.generate import data_set
from workshop.scenes.initial_scene import Record
from workshop.scenes.playback import FPS, Frame, Painter, frame_count, scenes_by_frame
from workshop.scenes.script import Script, write_script
from workshop.scenes.sentences import SentenceWriter
from workshop.tiny_clip.attributes import Attributes, attributes, events_within
from workshop.tiny_clip.patches import Maps, States, patch_map, patch_states

LENGTH = 0.5  # seconds of a clip
SPREAD = (0, 2, 4)  # its frames: those at the middles of its three thirds
FRAMES = len(SPREAD)
QUARTERS = 4
CLIPS, IDLE = 3, 2  # clips drawn of an event, and anywhere in a scene
TOLD = 5  # sentences tried for an event
NOVEL = 0.2  # share of scenes with the words that the data set keeps for its split Novel-Word

Pictures = npt.NDArray[np.uint8]  # (…, FRAMES, SIDE, SIDE, 3)


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
    """Scripts that are not the data set's, with sentences of each event."""
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
    """First frames of clips, some in each event and some anywhere."""
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
    painter, seen, maps, states = Painter(background_of(record["setting"]["place"])), {}, {}, {}
    for index, (scene, _) in enumerate(scenes_by_frame(record)):
        if index in needed:
            seen[index] = as_filmed(painter.paint(scene))
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
    """The frames of clips (FRAMES, SIDE, SIDE, 3) by the first one of each."""
    needed = {index for indices in wanted.values() for index in indices}
    painter = Painter(background_of(record["setting"]["place"]))
    seen = {
        index: as_filmed(painter.paint(scene))
        for index, (scene, _) in enumerate(scenes_by_frame(record))
        if index in needed
    }
    return {first: np.stack([seen[index] for index in indices]) for first, indices in wanted.items()}


def as_filmed(frame: Frame) -> Frame:
    """A frame with the colours that a video file keeps."""
    film = av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(format="yuv420p")
    return np.asarray(film.reformat(format="rgb24").to_ndarray(), np.uint8)
