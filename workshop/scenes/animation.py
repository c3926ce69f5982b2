"""Animate the events of a script and paint the scene frame by frame."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from workshop.scenes import scene as layout
from workshop.scenes.drawing import DRAWN, HIP, Placed, Transform, background_of, blit, picture, pictures
from workshop.scenes.scene import SIDE, Person, Pose, Record, Scene, Thing, initial_scene, locate, posture
from workshop.scenes.world import NOUNS

Easing = Callable[[float], float]  # share of the time -> share of the action, 0 to 1
Update = Callable[[float], None]  # shows a share (0 to 1) of a phase
Spot = tuple[float, float]

_WAIT = 0.4  # share of the time before a sudden action
RATES = {"slowly": 0.55, "carefully": 0.8, "gently": 0.9, "quickly": 2.8, "suddenly": 2.2}  # relative
AMPLITUDES = {"gently": 0.6, "suddenly": 1.15}


def smooth(time: float) -> float:
    return time * time * (3 - 2 * time)


def careful(time: float) -> float:
    """Act in three small steps, with a stop after each."""
    step, rest = divmod(min(time, 1 - 1e-9) * 3, 1)
    return (step + smooth(min(rest / 0.62, 1))) / 3


EASINGS: dict[str | None, Easing] = {
    "suddenly": lambda time: 0.0 if time < _WAIT else min((time - _WAIT) / (0.9 - _WAIT), 1.0),
    "carefully": careful,
    "gently": smooth,
}


def repetitions(manner: str | None, seconds: float, per_second: float) -> int:
    return max(round(seconds * per_second * RATES.get(manner or "", 1.0)), 1)


def oscillation(manner: str | None, seconds: float, per_second: float) -> Callable[[float], float]:
    """Return a function that swings between -1 and 1 and is 0 at the beginning and the end."""
    times, width = repetitions(manner, seconds, per_second), AMPLITUDES.get(manner or "", 1.0)
    return lambda progress: width * math.sin(2 * math.pi * times * progress)


WALKING, RUNNING = 56.0, 112.0  # pixels a second
_STEP = 11.0  # pixels


@dataclass(frozen=True)
class Phase:
    """A part of an event, its relative duration, and a function that is called when it begins."""

    seconds: float
    begin: Callable[[], Update]


@dataclass
class Animation:
    start: float
    end: float
    easing: Easing
    phases: list[Phase]
    _begun: int = -1
    _update: Update = field(default=lambda share: None)

    def show(self, now: float) -> None:
        """Update the scene to a time, in seconds of the video, no earlier than the last one."""
        progress = self.easing(min(max((now - self.start) / (self.end - self.start), 0), 1))
        whole = sum(phase.seconds for phase in self.phases)
        before = 0.0
        for index, phase in enumerate(self.phases):
            share = (progress * whole - before) / phase.seconds
            before += phase.seconds
            if index > self._begun and share > 0:
                self._begun, self._update = index, phase.begin()
            if index == self._begun:
                self._update(min(share, 1.0) if share < 1 - 1e-9 else 1.0)


@dataclass
class AnimatedEvent:
    """An event of a script with its scene, agent, object and duration."""

    scene: Scene
    record: dict[str, Any]
    person: Person
    thing: Thing | None
    seconds: float
    _goal: tuple[str, str, float, float, int] | None = None  # of the object

    def destination(self, wanted: float) -> Pose:
        """Choose and return the object's destination near the wanted x (pixels), without moving the object."""
        thing, scene, to = self.object, self.scene, self.record["destination"]
        before, flight = (thing.relation, thing.target, thing.x, thing.y, thing.slot), thing.flight
        thing.flight = None
        held = {person.id: person.holding for person in scene.people.values()}
        locate(scene, thing, to["relation"], to["target"], wanted)
        end, self._goal = scene.pose(thing), (thing.relation, thing.target, thing.x, thing.y, thing.slot)
        thing.relation, thing.target, thing.x, thing.y, thing.slot = before
        thing.flight = flight
        for person in scene.people.values():
            person.holding = held[person.id]
        return end

    def settle(self) -> None:
        assert self._goal is not None
        thing = self.object
        thing.relation, thing.target, thing.x, thing.y, thing.slot = self._goal
        thing.flight = None
        if thing.relation == "held":
            self.scene.people[thing.target].holding = thing.id

    @property
    def manner(self) -> str | None:
        manner: str | None = self.record["manner"]
        return manner

    @property
    def target(self) -> Thing | None:
        return self.scene.things.get(self.record["target"] or "")

    @property
    def object(self) -> Thing:
        assert self.thing is not None
        return self.thing


def face(person: Person, x: float) -> None:
    if abs(x - person.x) > 0.5:
        person.facing = 1 if x > person.x else -1
    person.posture = replace(person.posture, view="side")


def walk(event: AnimatedEvent, to: Spot, *, speed: float = WALKING, look: float | None = None) -> Phase:
    person = event.person
    seconds = max(((to[0] - person.x) ** 2 + (to[1] - person.y) ** 2) ** 0.5 / speed, 0.05)
    return Phase(seconds, lambda: _walking(person, to, speed, look))


def _walking(person: Person, to: Spot, speed: float, look: float | None) -> Update:
    start, lift = (person.x, person.y), person.lift
    length = ((to[0] - start[0]) ** 2 + (to[1] - start[1]) ** 2) ** 0.5
    if length > 1:
        face(person, to[0])
    steps = max(length / _STEP, 1)

    def update(share: float) -> None:
        person.x = start[0] + (to[0] - start[0]) * share
        person.y = start[1] + (to[1] - start[1]) * share
        person.lift, person.depth = lift * max(1 - 4 * share, 0), None
        stepping = length > 1 and share < 1
        person.posture = replace(
            person.posture,
            sits=None,
            stride=_stride(share * steps, _widest(speed)) if stepping else 0,
            lean=4 if stepping and speed > WALKING else 0,
        )
        if share >= 1 and look is not None:
            face(person, look)

    return update


def _widest(speed: float) -> int:
    return 42 if speed > WALKING else 26


def _stride(steps: float, widest: int) -> int:
    return round(2 * (abs((steps % 2) - 1) * 2 - 1)) * widest // 2


def fly(
    thing: Thing,
    start: Pose,
    end: Callable[[], Pose],
    *,
    arc: float = 0,
    turns: float = 0,
    person: Person | None = None,
    easing: Easing = lambda time: time,
) -> Update:
    """Move a thing on a curve `arc` pixels high between two poses; the hands of the person, if any, follow."""

    def update(share: float) -> None:
        goal, way = end(), easing(share)
        x, y = start.x + (goal.x - start.x) * way, start.y + (goal.y - start.y) * way - arc * 4 * way * (1 - way)
        depth = max(start.depth, goal.depth) if share < 0.85 else goal.depth
        if person is not None:
            depth = max(depth, person.y + 0.3) if share < 0.85 else depth
            person.reach = (x, y - min(thing.height * 0.4, 7))
        angle = start.angle + (goal.angle - start.angle) * way + 360 * turns * way
        thing.flight = Pose(x, y, depth, angle=angle, bottom=goal.bottom if share > 0.85 else 1e6)

    return update


def land(event: AnimatedEvent, update: Update, then: Callable[[], None] | None = None) -> Update:
    """Return a flight that at its end releases the object and calls `then`."""

    def both(share: float) -> None:
        update(share)
        if share >= 1:
            event.object.flight, event.person.reach = None, None
            if then:
                then()

    return both


_FALL = 24  # pixels that a dropped thing falls at least
_ON_WHEELS = ("car", "truck", "suitcase")  # things that roll without turning over
_AWAY = 20  # pixels between two agents when one gives something to the other


def approach(event: AnimatedEvent, thing: Thing) -> Phase:
    pose = event.scene.pose(thing)
    half = thing.width / 2 if not NOUNS[thing.noun].fixed or thing.noun == "lamp" else thing.width / 2 - 4
    holder = thing.target if thing.relation in ("in", "on", "under", "behind") else thing.id
    spot = layout.stand_at(event.scene, event.person, pose.x, event.scene.ground(thing), half, thing.id, holder)
    return walk(event, spot, look=pose.x)


def take(event: AnimatedEvent) -> list[Phase]:
    return [approach(event, event.object), Phase(1.3, lambda: _taking(event))]


def _taking(event: AnimatedEvent) -> Update:
    thing, person, scene = event.object, event.person, event.scene
    start = scene.pose(thing)
    person.overhead = event.record["action"] == "lift"
    face(person, start.x)
    into = fly(thing, start, lambda: scene.in_hands(person, thing), arc=4 if thing.relation == "in" else 0)

    def update(share: float) -> None:
        up = max((share - 0.3) / 0.7, 0)  # the hands move first
        into(up)
        if up == 0:
            thing.flight = None
        pose = scene.pose(thing)
        person.reach = (pose.x, pose.y - min(thing.height * 0.4, 7))

    return land(event, update, lambda: locate(scene, thing, "held", person.id, 0))


def _release(event: AnimatedEvent) -> tuple[Thing, Pose, Pose]:
    thing, person = event.object, event.person
    start = event.scene.pose(thing)
    event.settle()
    person.overhead = False
    if thing.relation != "held":
        person.holding = None
    return thing, start, event.scene.pose(thing)


def _aim(event: AnimatedEvent) -> float:
    if event.record["direction"] == "away":
        return float(event.record["destination"]["x"]) * SIDE
    return event.person.x + 14 * event.person.facing


def _come_near(event: AnimatedEvent) -> Phase:
    scene, person, target = event.scene, event.person, event.target
    end = event.destination(_aim(event))
    if target is None or event.record["relation"] in ("near", "beside", "to"):
        x, ground, half, seen = end.x, end.y, event.object.width / 2, [it.id for it in (target,) if it is not None]
    else:
        holder = target.target if target.relation in ("in", "on") else target.id
        x, ground, half, seen = scene.pose(target).x, scene.ground(target), target.width / 2 - 2, [target.id, holder]
    return walk(event, layout.stand_at(scene, person, x, ground, half, *seen), look=end.x)


def put(event: AnimatedEvent) -> list[Phase]:

    def placing() -> Update:
        thing, start, end = _release(event)
        face(event.person, end.x)
        return land(event, fly(thing, start, lambda: end, arc=5, person=event.person))

    return [_come_near(event), Phase(1.5, placing)]


def drop(event: AnimatedEvent) -> list[Phase]:

    def dropping() -> Update:
        thing, start, end = _release(event)
        face(event.person, end.x)
        above = Pose(end.x, min(start.y, end.y - _FALL), max(start.depth, end.depth))
        over = fly(thing, start, lambda: above, person=event.person)
        down = fly(thing, above, lambda: end, easing=lambda share: share * share)

        def update(share: float) -> None:
            over(min(share / 0.5, 1))
            if share > 0.5:
                down((share - 0.5) / 0.5)

        return land(event, update)

    return [_come_near(event), Phase(1.0, dropping)]


def throw(event: AnimatedEvent) -> list[Phase]:
    event.destination(_aim(event))

    def throwing() -> Update:
        thing, start, end = _release(event)
        face(event.person, end.x)
        person, direction = event.person, event.record["direction"]
        high = {"up": 62.0, "down": 0.0}.get(direction, 26 + 0.18 * abs(end.x - start.x))
        high = min(high, min(start.y, end.y) - 8)
        back = Pose(person.x - 6 * person.facing, person.y - person.body.height * 0.8, start.depth)
        swung = fly(thing, start, lambda: back, person=person)
        turns = 0 if direction == "down" else 1
        gone = fly(thing, back, lambda: end, arc=high, turns=turns * person.facing)

        def update(share: float) -> None:
            if share <= 0.3:
                swung(share / 0.3)
            else:
                gone((share - 0.3) / 0.7)
                person.reach = (person.x + 14 * person.facing, person.y - person.body.height * 0.7)

        return land(event, update)

    return [Phase(1.2, throwing)]


def give(event: AnimatedEvent) -> list[Phase]:
    other = event.scene.people[event.record["target"]]
    event.destination(0)

    def handing() -> Update:
        face(other, event.person.x)
        face(event.person, other.x)
        thing, start, _ = _release(event)
        moved = fly(thing, start, lambda: event.scene.in_hands(other, thing), person=event.person)
        return land(event, moved)

    return [walk(event, _beside(event.person, other), look=other.x), Phase(1.5, handing)]


def _beside(person: Person, other: Person) -> Spot:
    side = 1 if person.x > other.x else -1
    if not _AWAY <= other.x + side * _AWAY <= SIDE - _AWAY:
        side = -side
    return other.x + side * _AWAY, other.y


def carry(event: AnimatedEvent) -> list[Phase]:
    target, scene, person = event.target, event.scene, event.person
    if target is None:
        spot = layout.far_side(scene, person, event.record["agent_x"][1] * SIDE)
        return [walk(event, spot)]
    x = scene.pose(target).x
    if event.record["relation"] == "behind":
        return [walk(event, layout.stand_beyond(scene, person, target))]
    apart = {"near": 13.0, "beside": 1.0}.get(event.record["relation"], 5.0)
    return [walk(event, layout.stand_by(scene, person, target, apart), look=x)]


def slide(event: AnimatedEvent) -> list[Phase]:
    thing, scene = event.object, event.scene
    start, action = scene.pose(thing), event.record["action"]
    end = event.destination(event.record["destination"]["x"] * SIDE)
    way = 1 if end.x >= start.x else -1
    side = way if action == "pull" else -way
    apart = thing.width / 2 + 9
    spot = layout.stand_behind(scene, event.person, thing, start.x + side * apart)
    walking = walk(event, spot, look=start.x)
    length = math.hypot(end.x - start.x, end.y - start.y)
    moving = {"push": _pushing, "pull": _pushing, "roll": _rolling, "kick": _kicking}[action]
    return [walking, Phase(1.2 + length / 80, lambda: moving(event, start, end, side * apart))]


def _pushing(event: AnimatedEvent, start: Pose, end: Pose, apart: float) -> Update:
    thing, person = event.object, event.person
    face(person, start.x)
    moved = fly(thing, start, lambda: end)
    ground = person.y
    floor = event.scene.ground(event.target) + 4 if event.target is not None else end.y
    last = max(end.y + 1, floor if event.record["relation"] in ("under", "behind") else 0)

    def update(share: float) -> None:
        moved(share)
        pose = event.scene.pose(thing)
        person.x = min(max(pose.x + apart, 6), SIDE - 6)
        person.y = ground + (last - ground) * share
        person.reach = (pose.x + math.copysign(thing.width / 2 - 1, apart), pose.y - min(thing.height * 0.6, 12))
        stride = _stride(abs(pose.x - start.x) / 9, 22) if share < 1 else 0
        person.posture = replace(person.posture, stride=stride, lean=3 if share < 1 else 0)

    return land(event, update, event.settle)


def _rolling(event: AnimatedEvent, start: Pose, end: Pose, apart: float) -> Update:
    thing, person = event.object, event.person
    del apart
    face(person, start.x)
    turns = (end.x - start.x) / (math.pi * max(min(thing.width, thing.height), 6))
    whole = 0 if thing.noun in _ON_WHEELS else round(turns) or math.copysign(1, end.x - start.x)
    rolled = fly(thing, start, lambda: end, turns=whole)

    def update(share: float) -> None:
        rolled(share)
        pose = event.scene.pose(thing)
        person.reach = (pose.x, pose.y - 4) if share < 0.25 else None

    return land(event, update, event.settle)


def _kicking(event: AnimatedEvent, start: Pose, end: Pose, apart: float) -> Update:
    thing, person = event.object, event.person
    del apart
    face(person, start.x)
    off = fly(thing, start, lambda: end, arc=9, easing=lambda share: 1 - (1 - share) ** 2)

    def update(share: float) -> None:
        back, ahead = -45 * min(share / 0.2, 1), 75 if 0.25 < share < 0.6 else 0
        person.posture = replace(person.posture, kick=round(back if share < 0.25 else ahead))
        if share > 0.25:
            off((share - 0.25) / 0.75)

    return land(event, update, event.settle)


def _handle(event: AnimatedEvent, seconds: float, update_of: Callable[[Pose], Update]) -> list[Phase]:

    def begin() -> Update:
        pose = event.scene.pose(event.object)
        face(event.person, pose.x)
        return update_of(pose)

    return [approach(event, event.object), Phase(seconds, begin)]


def open_close(event: AnimatedEvent) -> list[Phase]:
    thing, person, opens = event.object, event.person, event.record["action"] == "open"

    def moving(pose: Pose) -> Update:
        def update(share: float) -> None:
            turned = min(max((share - 0.15) / 0.8, 0), 1)
            thing.opened = turned if opens else 1 - turned
            side = 1 if person.x > pose.x else -1
            out = thing.width / 2 - 2 + 3 * thing.opened
            person.reach = (pose.x + side * out, pose.y - thing.height * 0.5) if share < 1 else None

        return update

    return _handle(event, 1.4, moving)


def switch(event: AnimatedEvent) -> list[Phase]:
    thing, person = event.object, event.person

    def switching(pose: Pose) -> Update:
        def update(share: float) -> None:
            person.reach = (pose.x, pose.y - thing.height * 0.7) if share < 1 else None
            if share > 0.5:
                thing.opened = float(event.record["direction"] == "on")

        return update

    return _handle(event, 1.2, switching)


def spin_thing(event: AnimatedEvent) -> list[Phase]:
    thing, person = event.object, event.person
    turn = oscillation(event.manner, event.seconds, 0.7)

    def spinning(pose: Pose) -> Update:
        def update(share: float) -> None:
            thing.squeeze = 1.0 if share >= 1 else max(1 - abs(turn(share)) * 0.75, 0.25)
            person.reach = (pose.x, pose.y - thing.height * 0.6) if share < 0.2 else None

        return update

    return _handle(event, 2.0, spinning)


_HOP = 17  # pixels
_VIEWS = (("front", 1), ("side", 1), ("back", 1), ("side", -1))
_NEAR = {"near": 12.0, "beside": 1.0}


def shake(event: AnimatedEvent) -> list[Phase]:
    return [Phase(1.8, lambda: _swinging(event, 1.7, lambda s: (4.5 * s, 0.0)))]


def wave(event: AnimatedEvent) -> list[Phase]:
    if event.thing is not None:
        event.person.overhead = True
        return [Phase(1.8, lambda: _swinging(event, 1.0, lambda s: (12 * s, 5.0 * abs(s))))]
    return [Phase(1.8, lambda: _waving(event))]


def _swinging(event: AnimatedEvent, rate: float, curve: Callable[[float], tuple[float, float]]) -> Update:
    person, side = event.person, oscillation(event.manner, event.seconds, rate)
    lift = person.lift

    def update(share: float) -> None:
        person.offset = curve(side(share)) if share < 1 else (0, 0)
        if share >= 1:
            person.overhead, person.lift = False, lift

    return update


def _waving(event: AnimatedEvent) -> Update:
    person, side = event.person, oscillation(event.manner, event.seconds, 1.1)
    other = event.scene.people.get(event.record["target"] or "")
    if other is not None:
        face(person, other.x)
    elif not person.posture.sits:
        person.posture = replace(person.posture, view="front")

    def update(share: float) -> None:
        raised = ((-8, 12), (12 + round(7 * side(share)), 38 - round(abs(side(share)) * 2)))
        person.posture = replace(person.posture, hands=raised if share < 1 else ((-8, 12), (8, 12)))

    return update


def bounce(event: AnimatedEvent) -> list[Phase]:

    def bouncing() -> Update:
        person, thing = event.person, event.object
        start = event.scene.pose(thing)
        deep = person.y - start.y
        times = repetitions(event.manner, event.seconds, 1.0)

        def update(share: float) -> None:
            up = abs(1 - 2 * (share * times % 1))  # 1 in the hand, 0 on the floor
            person.offset = (0, deep * (1 - up * up)) if share < 1 else (0, 0)
            high = (person.x + person.facing * 12, start.y - 6 + 4 * (1 - up))
            person.reach = high if share < 1 else None

        return update

    return [Phase(2.0, bouncing)]


def hug(event: AnimatedEvent) -> list[Phase]:

    def hugging() -> Update:
        person, side = event.person, oscillation(event.manner, event.seconds, 0.7)
        sits = bool(person.posture.sits)

        def update(share: float) -> None:
            near = min(share / 0.25, 1, (1 - share) / 0.15)
            person.close, person.offset = 6.0 * near, (1.6 * side(share) * near, 0)
            person.posture = replace(person.posture, lean=0 if sits or share >= 1 else round(3 * side(share)))

        return update

    return [Phase(2.0, hugging)]


def turn(event: AnimatedEvent) -> list[Phase]:
    if event.record["direction"] in ("on", "off"):
        return switch(event)
    if event.record["direction"] == "around":
        return [Phase(1.2, lambda: _turning(event, 0.5))]
    return [Phase(1.2, lambda: _turning_to(event))]


def spin(event: AnimatedEvent) -> list[Phase]:
    if event.thing is not None:
        return spin_thing(event)
    times = max(repetitions(event.manner, event.seconds, 1.0), 2)
    return [Phase(2.0, lambda: _turning(event, times))]


def _turning(event: AnimatedEvent, times: float) -> Update:
    person = event.person
    first = (person.posture.view, person.facing if person.posture.view == "side" else 1)
    start = _VIEWS.index(first) if first in _VIEWS else 0

    def update(share: float) -> None:
        view, facing = _VIEWS[round(start + 4 * times * share) % 4]
        person.posture = replace(person.posture, view=view)
        person.facing = facing if view == "side" else person.facing

    return update


def _turning_to(event: AnimatedEvent) -> Update:
    person, target = event.person, event.target
    x = SIDE / 2 if target is None else event.scene.pose(target).x

    def update(share: float) -> None:
        if share >= 0.5:
            face(person, x)
        elif share > 0:
            person.posture = replace(person.posture, view="front")
        looks = person.x + (14 if x > person.x else -14), person.y - person.body.height * 0.62
        person.reach = looks if 0.5 <= share < 1 and not person.holding else None

    return update


def jump(event: AnimatedEvent) -> list[Phase]:
    target = event.target
    if target is None:
        return [Phase(1.4, lambda: _hopping(event, 0, repetitions(event.manner, event.seconds, 0.9)))]
    pose, scene = event.scene.pose(target), event.scene
    if event.record["relation"] == "over":
        return _jump_over(event, target)
    spot = layout.stand_at(scene, event.person, pose.x, scene.ground(target), target.width / 2 - 8, target.id)
    seat, times = target.look.places.seat, repetitions(event.manner, event.seconds, 0.6)
    up = Phase(0.6, lambda: _leaping(event, (pose.x, pose.y), seat))
    return [walk(event, spot, look=pose.x), up, Phase(1.2, lambda: _hopping(event, seat, times))]


def _jump_over(event: AnimatedEvent, target: Thing) -> list[Phase]:
    pose, person = event.scene.pose(target), event.person
    side = -1 if person.x < pose.x else 1
    reach = target.width / 2 + 13
    if not 8 <= pose.x - side * reach <= SIDE - 8:
        side = -side
    first, second = (pose.x + side * reach, pose.y + 1), (pose.x - side * reach, pose.y + 1)
    high = target.height + 8
    return [walk(event, first, look=pose.x), Phase(1.2, lambda: _leaping(event, second, 0, high=high))]


def _leaping(event: AnimatedEvent, to: tuple[float, float], onto: float, *, high: float = 10) -> Update:
    person = event.person
    x, y = person.x, person.y
    face(person, to[0])

    def update(share: float) -> None:
        person.x, person.y = x + (to[0] - x) * share, y + (to[1] - y) * share
        person.lift = onto * share + (high + onto / 2) * 4 * share * (1 - share)
        person.depth = max(y, to[1]) + 0.6
        legs = 40 if 0.1 < share < 0.9 else 0
        person.posture = replace(person.posture, stride=legs)

    return update


def _hopping(event: AnimatedEvent, floor: float, times: int) -> Update:
    person = event.person

    def update(share: float) -> None:
        phase = share * times % 1 if share < 1 else 0.0
        person.lift = floor + _HOP * 4 * phase * (1 - phase)
        up = phase > 0.12 and not person.holding
        person.posture = replace(person.posture, hands=((-12, 34), (12, 34)) if up else ((-8, 12), (8, 12)))

    return update


def sit(event: AnimatedEvent) -> list[Phase]:
    scene, person, target = event.scene, event.person, event.target
    scale = person.body.height / DRAWN

    def by(target: Thing) -> Spot:
        return layout.stand_by(scene, person, target, _NEAR[event.record["relation"]] + 5)

    if target is None or event.record["relation"] != "on":
        spot = layout.stand_free(scene, person, person.x) if target is None else by(target)
        return [walk(event, spot), Phase(1.2, lambda: _sitting(event, "floor", -10.5 * scale, None))]
    pose, seat = scene.pose(target), target.look.places.seat
    spot = (pose.x, scene.ground(target) + 2)
    flat = target.noun == "rug"
    where, lift = ("floor", -10.5 * scale) if flat else ("seat", seat - HIP * scale + 2)
    return [walk(event, spot), Phase(1.2, lambda: _sitting(event, where, lift, None if flat else pose.y + 0.6))]


def _sitting(event: AnimatedEvent, where: str, lift: float, depth: float | None) -> Update:
    person = event.person
    person.posture = replace(person.posture, view="front")

    def update(share: float) -> None:
        down = share > 0.45
        person.posture = replace(person.posture, sits=where if down else None, crouch=0 if down else round(14 * share))
        person.lift = lift * (share if down else 0)
        person.depth = depth if down and depth is not None else None

    return update


def stand(event: AnimatedEvent) -> list[Phase]:

    def standing() -> Update:
        person = event.person
        lift, x, y = person.lift, person.x, person.y
        ahead = 4 if person.posture.sits == "seat" else 0

        def update(share: float) -> None:
            up = share > 0.5
            sits = None if up else person.posture.sits
            person.posture = replace(person.posture, sits=sits, crouch=round(12 * (1 - share)) if up else 0)
            person.lift = 0 if up else lift * (1 - share)
            person.x, person.y = x, y + ahead * share
            person.depth = None if up else person.depth

        return update

    return [Phase(1.2, standing)]


def go(event: AnimatedEvent) -> list[Phase]:
    scene, person, target = event.scene, event.person, event.target
    speed = RUNNING if event.record["action"] == "run" else WALKING
    relation = event.record["relation"]
    if target is None or relation == "from":
        aim = layout.far_side(scene, person, event.record["agent_x"][1] * SIDE)
        if relation != "in":
            return [walk(event, aim, speed=speed)]
        return _about(event, aim, speed)
    x = scene.pose(target).x
    if relation == "behind":
        return [walk(event, layout.stand_beyond(scene, person, target), speed=speed)]
    arrival = walk(event, layout.stand_by(scene, person, target, 3), speed=speed, look=x)
    if relation == "to":
        return [arrival]
    radius = target.width / 2 + 10
    return [arrival, Phase(max(4 * radius / speed, 0.6), lambda: _circling(event, target, radius, speed))]


def _about(event: AnimatedEvent, aim: tuple[float, float], speed: float) -> list[Phase]:
    person = event.person
    middle = (person.x + (aim[0] - person.x) * 0.55, 152.0 if person.y < 120 else 98.0)
    first = walk(event, middle, speed=speed)
    seconds = math.dist(middle, aim) / speed
    return [first, Phase(max(seconds, 0.05), walk(event, aim, speed=speed).begin)]


def _circling(event: AnimatedEvent, target: Thing, radius: float, speed: float) -> Update:
    person, pose = event.person, event.scene.pose(target)
    middle = event.scene.ground(target)
    deep = max(min(9.0, middle - 66), 2.0)
    first = 0.0 if person.x > pose.x else math.pi
    offset = person.y - middle

    def update(share: float) -> None:
        before, angle = person.x, first + (1 if first else -1) * 2 * math.pi * share
        person.x = min(max(pose.x + radius * math.cos(angle), 6), SIDE - 6)
        person.y = middle + deep * math.sin(angle) * (1 if math.sin(angle) < 0 else 0.7) + offset
        if abs(person.x - before) > 0.4:
            face(person, 2 * person.x - before)
        stride = _stride(share * radius * 0.35, _widest(speed))
        person.posture = replace(person.posture, stride=0 if share >= 1 else stride)

    return update


_PHASES: dict[str, Callable[[AnimatedEvent], list[Phase]]] = {
    **dict.fromkeys(("take", "pick", "lift"), take),
    **dict.fromkeys(("push", "pull", "roll", "kick"), slide),
    **dict.fromkeys(("open", "close"), open_close),
    **dict.fromkeys(("walk", "run"), go),
    **{"put": put, "drop": drop, "throw": throw, "give": give},
    **{"carry": carry, "turn": turn, "spin": spin, "shake": shake, "wave": wave, "jump": jump, "sit": sit},
    **{"stand": stand, "bounce": bounce, "hug": hug},
}


def animate(scene: Scene, record: Record) -> Animation:
    thing = scene.things[record["object"]] if record["object"] else None
    event = AnimatedEvent(scene, record, scene.people[record["agent"]], thing, record["end"] - record["start"])
    return Animation(
        record["start"], record["end"], EASINGS.get(event.manner, lambda time: time), _PHASES[record["action"]](event)
    )


FPS = 10  # frames a second; scripts count tenths of a second
Frame = npt.NDArray[np.uint8]  # SIDE rows of SIDE pixels, red, green and blue


def frame_count(script: Record) -> int:
    return round(float(script["duration"]) * FPS)


def frames(script: Record) -> Iterator[Frame]:
    frame, place = None, script["setting"]["place"]
    for scene, moves in scenes_by_frame(script):
        if frame is None or moves:
            frame = paint(place, scene)
        yield frame


def scenes_by_frame(script: Record) -> Iterator[tuple[Scene, bool]]:
    """Yield for each frame the same scene, updated, and whether anything moves since the frame before."""
    scene, active = initial_scene(script), list[Animation]()
    waiting = sorted(script["events"], key=lambda event: float(event["start"]))
    for now in (index / FPS for index in range(frame_count(script))):
        for animation in active:
            animation.show(now)
        yield scene, bool(active)
        active = [animation for animation in active if animation.end > now + 1e-6]
        while waiting and waiting[0]["start"] <= now + 1e-6:
            active.append(animate(scene, waiting.pop(0)))


def paint(place: str, scene: Scene) -> Frame:
    image = background_of(place)
    layers = [(scene.pose(thing).depth, _thing(scene, thing)) for thing in scene.things.values()]
    layers += [(scene.depth(person), _person(scene, person)) for person in scene.people.values()]
    for _, sprites in sorted(layers, key=lambda pair: pair[0]):
        for sprite in sprites:
            blit(image, sprite)
    return (image + 0.5).astype(np.uint8)


def _thing(scene: Scene, thing: Thing) -> list[Placed]:
    pose = scene.pose(thing)
    if pose.hidden:
        return []
    transform = Transform(angle=round(pose.angle / 15) * 15 % 360, squeeze=round(thing.squeeze, 1))
    sprite = picture(thing.look, thing.opened or 0.0, transform)
    return [Placed(sprite, round(pose.x), round(pose.y), round(pose.top), round(pose.bottom))]


def _person(scene: Scene, person: Person) -> list[Placed]:
    sprites = pictures(person.body, posture(scene, person), person.facing)
    return [Placed(sprite, round(person.x), round(person.y - person.lift)) for sprite in sprites]
