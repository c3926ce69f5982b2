"""Where the hands of an agent are: on what it holds, at what it reaches for, or at its sides."""

from dataclasses import replace

from workshop.scenes.people import DRAWN, Posture
from workshop.scenes.scene import Person, Scene

_REST = ((-8, 12), (8, 12))
_LOW = 9  # hands that go lower than this make one stoop
_STOOP = 8


def _local(person: Person, x: float, y: float) -> tuple[int, int]:
    """A point of the picture in the pixels of the drawing."""
    scale = person.body.height / DRAWN
    u, v = (x - person.x) * person.facing / scale, (person.y - person.lift - y) / scale
    return 2 * round(u / 2), 2 * round(v / 2)  # so that few pictures of arms are needed


def posture(scene: Scene, person: Person) -> Posture:
    """The posture with the hands where they have to be."""
    hands = person.posture.hands
    if person.reach is not None:
        u, v = _local(person, *person.reach)
        hands = ((u, v), (u, v + 2))
    elif person.holding is not None:
        hands = _holding(scene, person)
    crouch = person.posture.crouch
    if min(v for _, v in hands) < _LOW and not person.posture.sits:
        crouch = max(crouch, _STOOP)
    return replace(person.posture, hands=hands, crouch=crouch)


def _holding(scene: Scene, person: Person) -> tuple[tuple[int, int], tuple[int, int]]:
    thing = scene.things[person.holding or ""]
    pose = scene.pose(thing)
    u, v = _local(person, pose.x, pose.y - min(thing.height * 0.4, 7))
    if person.overhead:
        return (u - 5, v - 4), (u + 5, v - 4)
    near = round(thing.width * 0.2)
    return (u - near, v), (u - near + 2, v + 2)
