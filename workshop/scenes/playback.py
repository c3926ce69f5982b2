"""From a script to frames: its events are animated and the scene is painted frame by frame."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from workshop.scenes import looks, people
from workshop.scenes.agent_animations import animate
from workshop.scenes.animation import Animation
from workshop.scenes.backgrounds import background_of
from workshop.scenes.hands import posture
from workshop.scenes.initial_scene import Record, initial_scene
from workshop.scenes.scene import SIDE, Person, Scene, Thing
from workshop.scenes.sprites import Image, Placed, Transform, blit

FPS = 10  # a frame for each tenth of a second, in which the scripts count
Frame = npt.NDArray[np.uint8]  # SIDE rows of SIDE pixels, red, green and blue
_WHOLE = (0, 0, SIDE, SIDE)


def frame_count(script: Record) -> int:
    """Frames of a script's video."""
    return round(float(script["duration"]) * FPS)


def frames(script: Record) -> Iterator[Frame]:
    """The frames of a script (an object of scripts.jsonl), one each 1 / FPS seconds from 0 up to its duration.

    A frame is the same array as the one before, changed: copy what is to be kept.

    Raises:
        KeyError: the script lacks something, or names what there is not

    """
    return (frame for _, frame in frames_with_scenes(script))


def frames_with_scenes(script: Record) -> Iterator[tuple[Scene, Frame]]:
    """The same, each frame with the scene as it is then."""
    painter = Painter(background_of(script["setting"]["place"]))
    frame = None
    for scene, moves in scenes_by_frame(script):
        if frame is None or moves:
            frame = painter.paint(scene)
        yield scene, frame


def scenes_by_frame(script: Record) -> Iterator[tuple[Scene, bool]]:
    """The scene at each frame, without painting, and whether anything moves since the frame before.

    It is the same scene, changed.
    """
    scene, going = initial_scene(script), list[Animation]()
    to_come = sorted(script["events"], key=lambda event: float(event["start"]))
    for now in (index / FPS for index in range(frame_count(script))):
        for animation in going:
            animation.show(now)
        yield scene, bool(going)
        going = [animation for animation in going if animation.end > now + 1e-6]
        while to_come and to_come[0]["start"] <= now + 1e-6:
            going.append(animate(scene, to_come.pop(0)))


class Painter:
    """Paints a scene again and again, each time only where something has changed."""

    def __init__(self, background: Image) -> None:
        self.background, self.image = background, background.copy()
        self.frame = np.zeros(background.shape, np.uint8)
        self.before: list[Placed] | None = None

    def paint(self, scene: Scene) -> Frame:
        """The scene as it is now, from the back to the front."""
        layers = placed(scene)
        changed = _WHOLE if self.before is None else _changed(self.before, layers)
        self.before = layers
        if changed is not None:
            left, top, right, bottom = changed
            part = (slice(top, bottom), slice(left, right))
            self.image[part] = self.background[part]
            for layer in layers:
                blit(self.image, layer, changed)
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


def placed(scene: Scene) -> list[Placed]:
    """All that is to be seen, the hindmost first."""
    layers = [(scene.pose(thing).depth, _thing(scene, thing)) for thing in scene.things.values()]
    layers += [(scene.depth(person), _person(scene, person)) for person in scene.people.values()]
    return [sprite for _, sprites in sorted(layers, key=lambda pair: pair[0]) for sprite in sprites]


def _thing(scene: Scene, thing: Thing) -> list[Placed]:
    pose = scene.pose(thing)
    if pose.hidden:
        return []
    transform = Transform(angle=round(pose.angle / 15) * 15 % 360, squeeze=round(thing.squeeze, 1))
    sprite = looks.picture(thing.look, thing.opened or 0.0, transform)
    return [Placed(sprite, round(pose.x), round(pose.y), round(pose.top), round(pose.bottom))]


def _person(scene: Scene, person: Person) -> list[Placed]:
    sprites = people.pictures(person.body, posture(scene, person), person.facing)
    return [Placed(sprite, round(person.x), round(person.y - person.lift)) for sprite in sprites]
