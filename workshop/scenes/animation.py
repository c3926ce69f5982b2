"""From a script to frames: every event is animated and the scene is painted frame by frame."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from workshop.scenes import drawing as looks
from workshop.scenes import drawing as people
from workshop.scenes import scene as layout
from workshop.scenes.drawing import DRAWN, HIP, Image, Placed, Posture, Transform, background_of, blit
from workshop.scenes.scene import SIDE, Person, Pose, Record, Scene, Thing, initial_scene, locate, posture
from workshop.scenes.world import NOUNS

Easing = Callable[[float], float]  # share of the time -> share of the action, 0 to 1


def steady(time: float) -> float:
    """The same speed throughout."""
    return time


def smooth(time: float) -> float:
    """Soft at both ends."""
    return time * time * (3 - 2 * time)


def sudden(time: float) -> float:
    """Nothing for a while, then all at once."""
    return 0.0 if time < _WAIT else min((time - _WAIT) / (0.9 - _WAIT), 1.0)


def careful(time: float) -> float:
    """In three small steps, with a stop after each."""
    step, rest = divmod(min(time, 1 - 1e-9) * 3, 1)
    return (step + smooth(min(rest / 0.62, 1))) / 3


_WAIT = 0.4
EASINGS: dict[str | None, Easing] = {"suddenly": sudden, "carefully": careful, "gently": smooth}
RATES = {"slowly": 0.55, "carefully": 0.8, "gently": 0.9, "quickly": 2.8, "suddenly": 2.2}  # of what usually swings
AMPLITUDES = {"gently": 0.6, "suddenly": 1.15}


def easing(manner: str | None) -> Easing:
    """The easing of a manner."""
    return EASINGS.get(manner, steady)


def oscillation(manner: str | None, seconds: float, per_second: float) -> Callable[[float], float]:
    """-1 to 1 and back, so many times a second if it is done in no special manner; it begins and ends at 0."""
    times = max(round(seconds * per_second * RATES.get(manner or "", 1.0)), 1)
    width = AMPLITUDES.get(manner or "", 1.0)
    return lambda progress: width * math.sin(2 * math.pi * times * progress)


def repetitions(manner: str | None, seconds: float, per_second: float) -> int:
    """How many jumps, turns or bounces there are in that time."""
    return max(round(seconds * per_second * RATES.get(manner or "", 1.0)), 1)


Update = Callable[[float], None]  # shows a share (0 to 1) of a phase
Begin = Callable[[], Update]  # called when the phase begins, with the scene as it is then
Spot = tuple[float, float]

WALKING, RUNNING = 56.0, 112.0  # pixels a second, before the manner
_STEP = 11.0  # pixels


@dataclass(frozen=True)
class Phase:
    """A part of an event and the seconds that it would take if done in no special manner."""

    seconds: float
    begin: Begin


@dataclass
class Animation:
    """An event that goes on: its phases share its time."""

    start: float
    end: float
    easing: Easing
    phases: list[Phase]
    _begun: int = -1
    _update: Update = field(default=lambda share: None)

    def show(self, now: float) -> None:
        """Bring the scene to a moment, in seconds of the video, no earlier than the last one that was shown."""
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
    """An event of a script in its scene: who does it, to what, how, in how many seconds."""

    scene: Scene
    record: dict[str, Any]
    person: Person
    thing: Thing | None
    seconds: float
    _goal: tuple[str, str, float, float, int] | None = None  # where the object will be

    def destination(self, wanted: float) -> Pose:
        """Choose where the object of the event will be, about the wanted x (pixels); it stays where it is for now."""
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
        """Let the object be at its destination."""
        if self._goal is None:
            raise ValueError(f"the event {self.record['action']!r} leads nowhere")
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
        if self.thing is None:
            raise ValueError(f"the event {self.record['action']!r} has no object")
        return self.thing


def face(person: Person, x: float) -> None:
    """Turn an agent to the side where x is."""
    if abs(x - person.x) > 0.5:
        person.facing = 1 if x > person.x else -1
    person.posture = replace(person.posture, view="side")


def walk(event: AnimatedEvent, to: Spot, *, speed: float = WALKING, look: float | None = None) -> Phase:
    """Go to a spot in a straight line; at its end look where something is."""
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
            stride=_stride(share * steps, speed) if stepping else 0,
            lean=4 if stepping and speed > WALKING else 0,
        )
        if share >= 1 and look is not None:
            face(person, look)

    return update


def _stride(steps: float, speed: float) -> int:
    widest = 42 if speed > WALKING else 26
    return round(2 * (abs((steps % 2) - 1) * 2 - 1)) * widest // 2


def fly(
    thing: Thing,
    start: Pose,
    end: Callable[[], Pose],
    *,
    arc: float = 0,
    turns: float = 0,
    person: Person | None = None,
    easing: Easing = lambda share: share,
) -> Update:
    """Move a thing on a curve `arc` pixels high from one pose to another; the hands of the person, if any, follow."""

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


def land(event: AnimatedEvent, update: Update, then: Callable[[], None]) -> Update:
    """Show a flight and, at its end, let the thing be where it belongs."""

    def both(share: float) -> None:
        update(share)
        if share >= 1:
            event.object.flight, event.person.reach = None, None
            then()

    return both


_FALL = 24  # pixels from which things fall
_ON_WHEELS = ("car", "truck", "suitcase")  # they roll without turning over
_AWAY = 20  # pixels between two agents that hand something over


def approach(event: AnimatedEvent, thing: Thing) -> Phase:
    """Walk up to where one can handle a thing."""
    pose = event.scene.pose(thing)
    half = thing.width / 2 if not NOUNS[thing.noun].fixed or thing.noun == "lamp" else thing.width / 2 - 4
    holder = thing.target if thing.relation in ("in", "on", "under", "behind") else thing.id
    spot = layout.stand_at(event.scene, event.person, pose.x, event.scene.ground(thing), half, thing.id, holder)
    return walk(event, spot, look=pose.x)


def take(event: AnimatedEvent) -> list[Phase]:
    """take, pick, lift: the last ends above the head."""
    return [approach(event, event.object), Phase(1.3, lambda: _taking(event))]


def _taking(event: AnimatedEvent) -> Update:
    thing, person, scene = event.object, event.person, event.scene
    start = scene.pose(thing)
    person.overhead = event.record["action"] == "lift"
    face(person, start.x)
    into = fly(thing, start, lambda: scene.in_hands(person, thing), arc=4 if thing.relation == "in" else 0)

    def update(share: float) -> None:
        up = max((share - 0.3) / 0.7, 0)  # first the hands go there
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
    """Bring it there by hand."""

    def placing() -> Update:
        thing, start, end = _release(event)
        face(event.person, end.x)
        return land(event, fly(thing, start, lambda: end, arc=5, person=event.person), lambda: None)

    return [_come_near(event), Phase(1.5, placing)]


def drop(event: AnimatedEvent) -> list[Phase]:
    """Hold it over the place and let it fall."""

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

        return land(event, update, lambda: None)

    return [_come_near(event), Phase(1.0, dropping)]


def throw(event: AnimatedEvent) -> list[Phase]:
    """Swing it back and let it fly, from where one stands."""
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

        return land(event, update, lambda: None)

    return [Phase(1.2, throwing)]


def give(event: AnimatedEvent) -> list[Phase]:
    """Walk up to the other one and hand it over."""
    other = event.scene.people[event.record["target"]]

    event.destination(0)

    def handing() -> Update:
        face(other, event.person.x)
        face(event.person, other.x)
        thing, start, _ = _release(event)
        moved = fly(thing, start, lambda: event.scene.in_hands(other, thing), person=event.person)
        return land(event, moved, lambda: None)

    return [walk(event, _beside(event.person, other), look=other.x), Phase(1.5, handing)]


def _beside(person: Person, other: Person) -> Spot:
    side = 1 if person.x > other.x else -1
    if not _AWAY <= other.x + side * _AWAY <= SIDE - _AWAY:
        side = -side
    return other.x + side * _AWAY, other.y


def carry(event: AnimatedEvent) -> list[Phase]:
    """Walk with it in the hands."""
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
    """push, pull, roll, kick: from where it stands on the floor to where it shall be."""
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
        person.posture = _stepping(person, abs(pose.x - start.x), share)

    return land(event, update, event.settle)


def _stepping(person: Person, way: float, share: float) -> Posture:
    stride = 0 if share >= 1 else round(2 * (abs((way / 9) % 2 - 1) * 2 - 1)) * 11
    return replace(person.posture, stride=stride, lean=0 if share >= 1 else 3)


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


def open_close(event: AnimatedEvent) -> list[Phase]:
    """Walk up and move the lid, the door or the cover."""
    thing, person = event.object, event.person
    goal = 1.0 if event.record["action"] == "open" else 0.0

    def moving() -> Update:
        pose = event.scene.pose(thing)
        face(person, pose.x)

        def update(share: float) -> None:
            turned = min(max((share - 0.15) / 0.8, 0), 1)
            thing.opened = turned if goal else 1 - turned
            side = 1 if person.x > pose.x else -1
            out = thing.width / 2 - 2 + 3 * thing.opened
            person.reach = (pose.x + side * out, pose.y - thing.height * 0.5) if share < 1 else None

        return update

    return [approach(event, thing), Phase(1.4, moving)]


def switch(event: AnimatedEvent) -> list[Phase]:
    """Turn a lamp on or off."""
    thing, person = event.object, event.person
    goal = 1.0 if event.record["direction"] == "on" else 0.0

    def switching() -> Update:
        pose = event.scene.pose(thing)
        face(person, pose.x)

        def update(share: float) -> None:
            person.reach = (pose.x, pose.y - thing.height * 0.7) if share < 1 else None
            if share > 0.5:
                thing.opened = goal

        return update

    return [approach(event, thing), Phase(1.2, switching)]


def spin_thing(event: AnimatedEvent) -> list[Phase]:
    """Whirl a thing around its axis."""
    thing, person = event.object, event.person

    def spinning() -> Update:
        pose = event.scene.pose(thing)
        face(person, pose.x)
        turn = oscillation(event.manner, event.seconds, 0.7)

        def update(share: float) -> None:
            thing.squeeze = 1.0 if share >= 1 else max(1 - abs(turn(share)) * 0.75, 0.25)
            person.reach = (pose.x, pose.y - thing.height * 0.6) if share < 0.2 else None

        return update

    return [approach(event, thing), Phase(2.0, spinning)]


_HOP = 17  # pixels
_VIEWS = (("front", 1), ("side", 1), ("back", 1), ("side", -1))
_NEAR = {"near": 12.0, "beside": 1.0}


def shake(event: AnimatedEvent) -> list[Phase]:
    """To and fro in front of the body."""
    return [Phase(1.8, lambda: _swinging(event, 1.7, lambda s: (4.5 * s, 0.0)))]


def wave(event: AnimatedEvent) -> list[Phase]:
    """A thing, or an empty hand, high above the head from side to side."""
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
    """From the hand to the floor and back."""

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
    """Close to the chest, rocking a little."""

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
    """On or off, around, or to something."""
    if event.record["direction"] in ("on", "off"):
        return switch(event)
    if event.record["direction"] == "around":
        return [Phase(1.2, lambda: _turning(event, 1, 0.5))]
    return [Phase(1.2, lambda: _turning_to(event))]


def spin(event: AnimatedEvent) -> list[Phase]:
    """A thing, or oneself, around and around."""
    if event.thing is not None:
        return spin_thing(event)
    times = max(repetitions(event.manner, event.seconds, 1.0), 2)
    return [Phase(2.0, lambda: _turning(event, times, 0))]


def _turning(event: AnimatedEvent, times: int, more: float) -> Update:
    person = event.person
    first = (person.posture.view, person.facing if person.posture.view == "side" else 1)
    start = _VIEWS.index(first) if first in _VIEWS else 0
    last = more or times

    def update(share: float) -> None:
        step = round(start + 4 * last * share)
        view, facing = _VIEWS[step % 4]
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
    """Up, over something, or on something."""
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
    """On a seat, or on the floor."""
    scene, person, target = event.scene, event.person, event.target
    scale = person.body.height / DRAWN
    if target is None or event.record["relation"] != "on":
        spot = layout.stand_free(scene, person, person.x) if target is None else _by(event, target)
        return [walk(event, spot), Phase(1.2, lambda: _sitting(event, "floor", -10.5 * scale, None))]
    pose, seat = scene.pose(target), target.look.places.seat
    spot = (pose.x, scene.ground(target) + 2)
    flat = target.noun == "rug"
    where, lift = ("floor", -10.5 * scale) if flat else ("seat", seat - HIP * scale + 2)
    return [walk(event, spot), Phase(1.2, lambda: _sitting(event, where, lift, None if flat else pose.y + 0.6))]


def _by(event: AnimatedEvent, target: Thing) -> tuple[float, float]:
    return layout.stand_by(event.scene, event.person, target, _NEAR[event.record["relation"]] + 5)


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
    """Up from where one sits."""

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
    """walk, run: to, behind, around or away from something, or about in the place."""
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
        widest = 42 if speed > WALKING else 26
        stride = round(2 * (abs(share * radius * 0.35 % 2 - 1) * 2 - 1)) * widest // 2
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
    """The animation of an event of a script, from the scene as it is when it starts, eased as its manner asks."""
    thing = scene.things[record["object"]] if record["object"] else None
    event = AnimatedEvent(scene, record, scene.people[record["agent"]], thing, record["end"] - record["start"])
    return Animation(record["start"], record["end"], easing(event.manner), _PHASES[record["action"]](event))


FPS = 10  # a frame for each tenth of a second, in which the scripts count
Frame = npt.NDArray[np.uint8]  # SIDE rows of SIDE pixels, red, green and blue
_WHOLE = (0, 0, SIDE, SIDE)


def frame_count(script: Record) -> int:
    """Frames of a script's video."""
    return round(float(script["duration"]) * FPS)


def frames(script: Record) -> Iterator[Frame]:
    """The frames of a script (an object of scripts.jsonl), one each 1 / FPS seconds from 0 up to its duration.

    A frame is the same array as the one before, changed: copy what is to be kept.
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
