"""From a script to frames: the stage is played and painted frame by frame."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from penumbra.tasks.sample.scenes import looks, people
from penumbra.tasks.sample.scenes.casting import Record, set_stage
from penumbra.tasks.sample.scenes.deeds import plan
from penumbra.tasks.sample.scenes.drawing import Image, Placed, Turn, put
from penumbra.tasks.sample.scenes.gestures import posture
from penumbra.tasks.sample.scenes.motion import Motion
from penumbra.tasks.sample.scenes.rooms import room_picture
from penumbra.tasks.sample.scenes.stage import SIDE, Person, Stage, Thing

FPS = 10  # a frame for each tenth of a second, in which the scripts count
Frame = npt.NDArray[np.uint8]  # SIDE rows of SIDE pixels, red, green and blue
_WHOLE = (0, 0, SIDE, SIDE)


def frame_count(script: Record) -> int:
    """Frames of a script's film."""
    return round(float(script["duration"]) * FPS)


def frames(script: Record) -> Iterator[Frame]:
    """The frames of a script (an object of scripts.jsonl), one each 1 / FPS seconds from 0 up to its duration.

    A frame is the same array as the one before, changed: copy what is to be kept.

    Raises:
        KeyError: the script lacks something, or names what there is not

    """
    return (frame for _, frame in played(script))


def played(script: Record) -> Iterator[tuple[Stage, Frame]]:
    """The same, each frame with the stage as it is then."""
    painter = Painter(room_picture(script["setting"]["place"]))
    frame = None
    for stage, moves in staged(script):
        if frame is None or moves:
            frame = painter.paint(stage)
        yield stage, frame


def staged(script: Record) -> Iterator[tuple[Stage, bool]]:
    """The stage at each frame, without painting, and whether anything moves since the frame before.

    It is the same stage, changed.
    """
    stage, going = set_stage(script), list[Motion]()
    to_come = sorted(script["events"], key=lambda event: float(event["start"]))
    for now in (index / FPS for index in range(frame_count(script))):
        for motion in going:
            motion.show(now)
        yield stage, bool(going)
        going = [motion for motion in going if motion.end > now + 1e-6]
        while to_come and to_come[0]["start"] <= now + 1e-6:
            going.append(plan(stage, to_come.pop(0)))


class Painter:
    """Paints a stage again and again, each time only where something has changed."""

    def __init__(self, background: Image) -> None:
        self.background, self.image = background, background.copy()
        self.frame = np.zeros(background.shape, np.uint8)
        self.before: list[Placed] | None = None

    def paint(self, stage: Stage) -> Frame:
        """The stage as it is now, from the back to the front."""
        layers = placed(stage)
        changed = _WHOLE if self.before is None else _changed(self.before, layers)
        self.before = layers
        if changed is not None:
            left, top, right, bottom = changed
            part = (slice(top, bottom), slice(left, right))
            self.image[part] = self.background[part]
            for layer in layers:
                put(self.image, layer, changed)
            self.frame[part] = (self.image[part] + 0.5).astype(np.uint8)
        return self.frame


def _changed(before: list[Placed], after: list[Placed]) -> tuple[int, int, int, int] | None:
    """The part of the picture where the layers differ."""
    kept = set(before) & set(after)
    if [layer for layer in before if layer in kept] != [layer for layer in after if layer in kept]:
        return _WHOLE  # something has come before or behind something else
    boxes = [layer.box() for layer in (*before, *after) if layer not in kept]
    if not boxes:
        return None
    left, top = max(min(box[0] for box in boxes), 0), max(min(box[1] for box in boxes), 0)
    return left, top, min(max(box[2] for box in boxes), SIDE), min(max(box[3] for box in boxes), SIDE)


def placed(stage: Stage) -> list[Placed]:
    """All that is to be seen, the hindmost first."""
    layers = [(stage.pose(thing).depth, _thing(stage, thing)) for thing in stage.things.values()]
    layers += [(stage.depth(person), _person(stage, person)) for person in stage.people.values()]
    return [sprite for _, sprites in sorted(layers, key=lambda pair: pair[0]) for sprite in sprites]


def _thing(stage: Stage, thing: Thing) -> list[Placed]:
    pose = stage.pose(thing)
    if pose.hidden:
        return []
    turn = Turn(angle=round(pose.angle / 15) * 15 % 360, squeeze=round(thing.squeeze, 1))
    sprite = looks.picture(thing.look, thing.opened or 0.0, turn)
    return [Placed(sprite, round(pose.x), round(pose.y), round(pose.top), round(pose.bottom))]


def _person(stage: Stage, person: Person) -> list[Placed]:
    sprites = people.pictures(person.body, posture(stage, person), person.facing)
    return [Placed(sprite, round(person.x), round(person.y - person.lift)) for sprite in sprites]
