"""Motions of what is done with things: taking, putting, throwing, pushing, opening and the like."""

import math
from dataclasses import replace

from penumbra.tasks.sample.scenes import layout
from penumbra.tasks.sample.scenes.casting import locate
from penumbra.tasks.sample.scenes.motion import Phase, Scene, Spot, Update, face, fly, land, walk
from penumbra.tasks.sample.scenes.pace import swing
from penumbra.tasks.sample.scenes.people import Posture
from penumbra.tasks.sample.scenes.stage import SIDE, Person, Pose, Thing
from penumbra.tasks.sample.scenes.world import NOUNS

_FALL = 24  # pixels from which things fall
_ON_WHEELS = ("car", "truck", "suitcase")  # they roll without turning over
_AWAY = 20  # pixels between two agents that hand something over


def approach(scene: Scene, thing: Thing) -> Phase:
    """Walk up to where one can handle a thing."""
    pose = scene.stage.pose(thing)
    half = thing.width / 2 if not NOUNS[thing.noun].fixed or thing.noun == "lamp" else thing.width / 2 - 4
    holder = thing.target if thing.relation in ("in", "on", "under", "behind") else thing.id
    spot = layout.stand_at(scene.stage, scene.person, pose.x, scene.stage.ground(thing), half, thing.id, holder)
    return walk(scene, spot, look=pose.x)


# --- into the hands --------------------------------------------------------------------------------------------------


def take(scene: Scene) -> list[Phase]:
    """take, pick, lift: the last ends above the head."""
    return [approach(scene, scene.object), Phase(1.3, lambda: _taking(scene))]


def _taking(scene: Scene) -> Update:
    thing, person, stage = scene.object, scene.person, scene.stage
    start = stage.pose(thing)
    person.overhead = scene.event["action"] == "lift"
    face(person, start.x)
    into = fly(thing, start, lambda: stage.in_hands(person, thing), arc=4 if thing.relation == "in" else 0)

    def update(share: float) -> None:
        up = max((share - 0.3) / 0.7, 0)  # first the hands go there
        into(up)
        if up == 0:
            thing.flight = None
        pose = stage.pose(thing)
        person.reach = (pose.x, pose.y - min(thing.height * 0.4, 7))

    return land(scene, update, lambda: locate(stage, thing, "held", person.id, 0))


# --- out of the hands ------------------------------------------------------------------------------------------------


def _release(scene: Scene) -> tuple[Thing, Pose, Pose]:
    """Let the thing go to its destination; the thing, its pose in the hands and the one to come."""
    thing, person = scene.object, scene.person
    start = scene.stage.pose(thing)
    scene.settle()
    person.overhead = False
    if thing.relation != "held":
        person.holding = None
    return thing, start, scene.stage.pose(thing)


def _aim(scene: Scene) -> float:
    """About where on the floor it shall be, in pixels."""
    if scene.event["direction"] == "away":
        return float(scene.event["destination"]["x"]) * SIDE
    return scene.person.x + 14 * scene.person.facing


def _come_near(scene: Scene) -> Phase:
    """Walk up to where the thing in the hands shall go."""
    stage, person, target = scene.stage, scene.person, scene.target
    end = scene.destination(_aim(scene))
    if target is None or scene.event["relation"] in ("near", "beside", "to"):
        x, ground, half, seen = end.x, end.y, scene.object.width / 2, [it.id for it in (target,) if it is not None]
    else:
        holder = target.target if target.relation in ("in", "on") else target.id
        x, ground, half, seen = stage.pose(target).x, stage.ground(target), target.width / 2 - 2, [target.id, holder]
    return walk(scene, layout.stand_at(stage, person, x, ground, half, *seen), look=end.x)


def put(scene: Scene) -> list[Phase]:
    """Bring it there by hand."""

    def placing() -> Update:
        thing, start, end = _release(scene)
        face(scene.person, end.x)
        return land(scene, fly(thing, start, lambda: end, arc=5, person=scene.person), lambda: None)

    return [_come_near(scene), Phase(1.5, placing)]


def drop(scene: Scene) -> list[Phase]:
    """Hold it over the place and let it fall."""

    def dropping() -> Update:
        thing, start, end = _release(scene)
        face(scene.person, end.x)
        above = Pose(end.x, min(start.y, end.y - _FALL), max(start.depth, end.depth))
        over = fly(thing, start, lambda: above, person=scene.person)
        down = fly(thing, above, lambda: end, pull=lambda share: share * share)

        def update(share: float) -> None:
            over(min(share / 0.5, 1))
            if share > 0.5:
                down((share - 0.5) / 0.5)

        return land(scene, update, lambda: None)

    return [_come_near(scene), Phase(1.0, dropping)]


def throw(scene: Scene) -> list[Phase]:
    """Swing it back and let it fly, from where one stands."""
    scene.destination(_aim(scene))

    def throwing() -> Update:
        thing, start, end = _release(scene)
        face(scene.person, end.x)
        person, direction = scene.person, scene.event["direction"]
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

        return land(scene, update, lambda: None)

    return [Phase(1.2, throwing)]


def give(scene: Scene) -> list[Phase]:
    """Walk up to the other one and hand it over."""
    other = scene.stage.people[scene.event["target"]]

    scene.destination(0)

    def handing() -> Update:
        face(other, scene.person.x)
        face(scene.person, other.x)
        thing, start, _ = _release(scene)
        moved = fly(thing, start, lambda: scene.stage.in_hands(other, thing), person=scene.person)
        return land(scene, moved, lambda: None)

    return [walk(scene, _beside(scene.person, other), look=other.x), Phase(1.5, handing)]


def _beside(person: Person, other: Person) -> Spot:
    side = 1 if person.x > other.x else -1
    if not _AWAY <= other.x + side * _AWAY <= SIDE - _AWAY:
        side = -side
    return other.x + side * _AWAY, other.y


def carry(scene: Scene) -> list[Phase]:
    """Walk with it in the hands."""
    target, stage, person = scene.target, scene.stage, scene.person
    if target is None:
        spot = layout.far_side(stage, person, scene.event["agent_x"][1] * SIDE)
        return [walk(scene, spot)]
    x = stage.pose(target).x
    if scene.event["relation"] == "behind":
        return [walk(scene, layout.stand_beyond(stage, person, target))]
    apart = {"near": 13.0, "beside": 1.0}.get(scene.event["relation"], 5.0)
    return [walk(scene, layout.stand_by(stage, person, target, apart), look=x)]


# --- over the floor --------------------------------------------------------------------------------------------------


def slide(scene: Scene) -> list[Phase]:
    """push, pull, roll, kick: from where it stands on the floor to where it shall be."""
    thing, stage = scene.object, scene.stage
    start, action = stage.pose(thing), scene.event["action"]
    end = scene.destination(scene.event["destination"]["x"] * SIDE)
    way = 1 if end.x >= start.x else -1
    side = way if action == "pull" else -way
    apart = thing.width / 2 + 9
    spot = layout.stand_behind(stage, scene.person, thing, start.x + side * apart)
    walking = walk(scene, spot, look=start.x)
    length = math.hypot(end.x - start.x, end.y - start.y)
    moving = {"push": _pushing, "pull": _pushing, "roll": _rolling, "kick": _kicking}[action]
    return [walking, Phase(1.2 + length / 80, lambda: moving(scene, start, end, side * apart))]


def _pushing(scene: Scene, start: Pose, end: Pose, apart: float) -> Update:
    """The agent keeps at the same side of it, both hands on it; its feet stay on the floor in front."""
    thing, person = scene.object, scene.person
    face(person, start.x)
    moved = fly(thing, start, lambda: end)
    ground = person.y
    floor = scene.stage.ground(scene.target) + 4 if scene.target is not None else end.y
    last = max(end.y + 1, floor if scene.event["relation"] in ("under", "behind") else 0)

    def update(share: float) -> None:
        moved(share)
        pose = scene.stage.pose(thing)
        person.x = min(max(pose.x + apart, 6), SIDE - 6)
        person.y = ground + (last - ground) * share
        person.reach = (pose.x + math.copysign(thing.width / 2 - 1, apart), pose.y - min(thing.height * 0.6, 12))
        person.posture = _stepping(person, abs(pose.x - start.x), share)

    return land(scene, update, scene.settle)


def _stepping(person: Person, way: float, share: float) -> Posture:
    stride = 0 if share >= 1 else round(2 * (abs((way / 9) % 2 - 1) * 2 - 1)) * 11
    return replace(person.posture, stride=stride, lean=0 if share >= 1 else 3)


def _rolling(scene: Scene, start: Pose, end: Pose, apart: float) -> Update:
    """A push, and it rolls there by itself."""
    thing, person = scene.object, scene.person
    del apart
    face(person, start.x)
    turns = (end.x - start.x) / (math.pi * max(min(thing.width, thing.height), 6))
    whole = 0 if thing.noun in _ON_WHEELS else round(turns) or math.copysign(1, end.x - start.x)
    rolled = fly(thing, start, lambda: end, turns=whole)

    def update(share: float) -> None:
        rolled(share)
        pose = scene.stage.pose(thing)
        person.reach = (pose.x, pose.y - 4) if share < 0.25 else None

    return land(scene, update, scene.settle)


def _kicking(scene: Scene, start: Pose, end: Pose, apart: float) -> Update:
    """A swing of the leg, and it is off, ever slower."""
    thing, person = scene.object, scene.person
    del apart
    face(person, start.x)
    off = fly(thing, start, lambda: end, arc=9, pull=lambda share: 1 - (1 - share) ** 2)

    def update(share: float) -> None:
        back, ahead = -45 * min(share / 0.2, 1), 75 if 0.25 < share < 0.6 else 0
        person.posture = replace(person.posture, kick=round(back if share < 0.25 else ahead))
        if share > 0.25:
            off((share - 0.25) / 0.75)

    return land(scene, update, scene.settle)


# --- where it is -----------------------------------------------------------------------------------------------------


def open_close(scene: Scene) -> list[Phase]:
    """Walk up and move the lid, the door or the cover."""
    thing, person = scene.object, scene.person
    goal = 1.0 if scene.event["action"] == "open" else 0.0

    def moving() -> Update:
        pose = scene.stage.pose(thing)
        face(person, pose.x)

        def update(share: float) -> None:
            turned = min(max((share - 0.15) / 0.8, 0), 1)
            thing.opened = turned if goal else 1 - turned
            side = 1 if person.x > pose.x else -1
            out = thing.width / 2 - 2 + 3 * thing.opened
            person.reach = (pose.x + side * out, pose.y - thing.height * 0.5) if share < 1 else None

        return update

    return [approach(scene, thing), Phase(1.4, moving)]


def switch(scene: Scene) -> list[Phase]:
    """Turn a lamp on or off."""
    thing, person = scene.object, scene.person
    goal = 1.0 if scene.event["direction"] == "on" else 0.0

    def switching() -> Update:
        pose = scene.stage.pose(thing)
        face(person, pose.x)

        def update(share: float) -> None:
            person.reach = (pose.x, pose.y - thing.height * 0.7) if share < 1 else None
            if share > 0.5:
                thing.opened = goal

        return update

    return [approach(scene, thing), Phase(1.2, switching)]


def spin_thing(scene: Scene) -> list[Phase]:
    """Whirl a thing around its axis."""
    thing, person = scene.object, scene.person

    def spinning() -> Update:
        pose = scene.stage.pose(thing)
        face(person, pose.x)
        turn = swing(scene.manner, scene.seconds, 0.7)

        def update(share: float) -> None:
            thing.squeeze = 1.0 if share >= 1 else max(1 - abs(turn(share)) * 0.75, 0.25)
            person.reach = (pose.x, pose.y - thing.height * 0.6) if share < 0.2 else None

        return update

    return [approach(scene, thing), Phase(2.0, spinning)]
