"""Animations of what is done with things: taking, putting, throwing, pushing, opening and the like."""

import math
from dataclasses import replace

from workshop.scenes import layout
from workshop.scenes.animation import AnimatedEvent, Phase, Spot, Update, face, fly, land, walk
from workshop.scenes.easing import oscillation
from workshop.scenes.initial_scene import locate
from workshop.scenes.people import Posture
from workshop.scenes.scene import SIDE, Person, Pose, Thing
from workshop.scenes.world import NOUNS

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


# --- into the hands --------------------------------------------------------------------------------------------------


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


# --- out of the hands ------------------------------------------------------------------------------------------------


def _release(event: AnimatedEvent) -> tuple[Thing, Pose, Pose]:
    """Let the thing go to its destination; the thing, its pose in the hands and the one to come."""
    thing, person = event.object, event.person
    start = event.scene.pose(thing)
    event.settle()
    person.overhead = False
    if thing.relation != "held":
        person.holding = None
    return thing, start, event.scene.pose(thing)


def _aim(event: AnimatedEvent) -> float:
    """About where on the floor it shall be, in pixels."""
    if event.record["direction"] == "away":
        return float(event.record["destination"]["x"]) * SIDE
    return event.person.x + 14 * event.person.facing


def _come_near(event: AnimatedEvent) -> Phase:
    """Walk up to where the thing in the hands shall go."""
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


# --- over the floor --------------------------------------------------------------------------------------------------


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
    """The agent keeps at the same side of it, both hands on it; its feet stay on the floor in front."""
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
    """A push, and it rolls there by itself."""
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
    """A swing of the leg, and it is off, ever slower."""
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


# --- where it is -----------------------------------------------------------------------------------------------------


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
