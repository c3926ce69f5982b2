"""Motions of what agents do with themselves and with what they have in their hands, and the table of all deeds."""

import math
from collections.abc import Callable
from dataclasses import replace

from penumbra.tasks.sample.scenes import handling, layout
from penumbra.tasks.sample.scenes.casting import Record
from penumbra.tasks.sample.scenes.motion import RUNNING, WALKING, Motion, Phase, Scene, Update, face, walk
from penumbra.tasks.sample.scenes.pace import hops, pace, swing
from penumbra.tasks.sample.scenes.people import DRAWN, HIP
from penumbra.tasks.sample.scenes.stage import SIDE, Stage, Thing

_HOP = 17  # pixels
_VIEWS = (("front", 1), ("side", 1), ("back", 1), ("side", -1))
_NEAR = {"near": 12.0, "beside": 1.0}


# --- with what is in the hands ---------------------------------------------------------------------------------------


def shake(scene: Scene) -> list[Phase]:
    """To and fro in front of the body."""
    return [Phase(1.8, lambda: _swinging(scene, 1.7, lambda s: (4.5 * s, 0.0)))]


def wave(scene: Scene) -> list[Phase]:
    """A thing, or an empty hand, high above the head from side to side."""
    if scene.thing is not None:
        scene.person.overhead = True
        return [Phase(1.8, lambda: _swinging(scene, 1.0, lambda s: (12 * s, 5.0 * abs(s))))]
    return [Phase(1.8, lambda: _waving(scene))]


def _swinging(scene: Scene, rate: float, curve: Callable[[float], tuple[float, float]]) -> Update:
    person, side = scene.person, swing(scene.manner, scene.seconds, rate)
    lift = person.lift

    def update(share: float) -> None:
        person.offset = curve(side(share)) if share < 1 else (0, 0)
        if share >= 1:
            person.overhead, person.lift = False, lift

    return update


def _waving(scene: Scene) -> Update:
    person, side = scene.person, swing(scene.manner, scene.seconds, 1.1)
    other = scene.stage.people.get(scene.event["target"] or "")
    if other is not None:
        face(person, other.x)
    elif not person.posture.sits:
        person.posture = replace(person.posture, view="front")

    def update(share: float) -> None:
        raised = ((-8, 12), (12 + round(7 * side(share)), 38 - round(abs(side(share)) * 2)))
        person.posture = replace(person.posture, hands=raised if share < 1 else ((-8, 12), (8, 12)))

    return update


def bounce(scene: Scene) -> list[Phase]:
    """From the hand to the floor and back."""

    def bouncing() -> Update:
        person, thing = scene.person, scene.object
        start = scene.stage.pose(thing)
        deep = person.y - start.y
        times = hops(scene.manner, scene.seconds, 1.0)

        def update(share: float) -> None:
            up = abs(1 - 2 * (share * times % 1))  # 1 in the hand, 0 on the floor
            person.offset = (0, deep * (1 - up * up)) if share < 1 else (0, 0)
            high = (person.x + person.facing * 12, start.y - 6 + 4 * (1 - up))
            person.reach = high if share < 1 else None

        return update

    return [Phase(2.0, bouncing)]


def hug(scene: Scene) -> list[Phase]:
    """Close to the chest, rocking a little."""

    def hugging() -> Update:
        person, side = scene.person, swing(scene.manner, scene.seconds, 0.7)
        sits = bool(person.posture.sits)

        def update(share: float) -> None:
            near = min(share / 0.25, 1, (1 - share) / 0.15)
            person.close, person.offset = 6.0 * near, (1.6 * side(share) * near, 0)
            person.posture = replace(person.posture, lean=0 if sits or share >= 1 else round(3 * side(share)))

        return update

    return [Phase(2.0, hugging)]


# --- on the spot -----------------------------------------------------------------------------------------------------


def turn(scene: Scene) -> list[Phase]:
    """On or off, around, or to something."""
    if scene.event["direction"] in ("on", "off"):
        return handling.switch(scene)
    if scene.event["direction"] == "around":
        return [Phase(1.2, lambda: _turning(scene, 1, 0.5))]
    return [Phase(1.2, lambda: _turning_to(scene))]


def spin(scene: Scene) -> list[Phase]:
    """A thing, or oneself, around and around."""
    if scene.thing is not None:
        return handling.spin_thing(scene)
    times = max(hops(scene.manner, scene.seconds, 1.0), 2)
    return [Phase(2.0, lambda: _turning(scene, times, 0))]


def _turning(scene: Scene, times: int, more: float) -> Update:
    """Whole turns and a share of one more."""
    person = scene.person
    first = (person.posture.view, person.facing if person.posture.view == "side" else 1)
    start = _VIEWS.index(first) if first in _VIEWS else 0
    last = more or times

    def update(share: float) -> None:
        step = round(start + 4 * last * share)
        view, facing = _VIEWS[step % 4]
        person.posture = replace(person.posture, view=view)
        person.facing = facing if view == "side" else person.facing

    return update


def _turning_to(scene: Scene) -> Update:
    """Away from it first, then to it."""
    person, target = scene.person, scene.target
    x = SIDE / 2 if target is None else scene.stage.pose(target).x

    def update(share: float) -> None:
        if share >= 0.5:
            face(person, x)
        elif share > 0:
            person.posture = replace(person.posture, view="front")
        looks = person.x + (14 if x > person.x else -14), person.y - person.body.height * 0.62
        person.reach = looks if 0.5 <= share < 1 and not person.holding else None

    return update


def jump(scene: Scene) -> list[Phase]:
    """Up, over something, or on something."""
    target = scene.target
    if target is None:
        return [Phase(1.4, lambda: _hopping(scene, 0, hops(scene.manner, scene.seconds, 0.9)))]
    pose, stage = scene.stage.pose(target), scene.stage
    if scene.event["relation"] == "over":
        return _jump_over(scene, target)
    spot = layout.stand_at(stage, scene.person, pose.x, stage.ground(target), target.width / 2 - 8, target.id)
    seat, times = target.look.places.seat, hops(scene.manner, scene.seconds, 0.6)
    up = Phase(0.6, lambda: _leaping(scene, (pose.x, pose.y), seat))
    return [walk(scene, spot, look=pose.x), up, Phase(1.2, lambda: _hopping(scene, seat, times))]


def _jump_over(scene: Scene, target: Thing) -> list[Phase]:
    pose, person = scene.stage.pose(target), scene.person
    side = -1 if person.x < pose.x else 1
    reach = target.width / 2 + 13
    if not 8 <= pose.x - side * reach <= SIDE - 8:
        side = -side
    first, second = (pose.x + side * reach, pose.y + 1), (pose.x - side * reach, pose.y + 1)
    high = target.height + 8
    return [walk(scene, first, look=pose.x), Phase(1.2, lambda: _leaping(scene, second, 0, high=high))]


def _leaping(scene: Scene, to: tuple[float, float], onto: float, *, high: float = 10) -> Update:
    person = scene.person
    x, y = person.x, person.y
    face(person, to[0])

    def update(share: float) -> None:
        person.x, person.y = x + (to[0] - x) * share, y + (to[1] - y) * share
        person.lift = onto * share + (high + onto / 2) * 4 * share * (1 - share)
        person.depth = max(y, to[1]) + 0.6
        legs = 40 if 0.1 < share < 0.9 else 0
        person.posture = replace(person.posture, stride=legs)

    return update


def _hopping(scene: Scene, floor: float, times: int) -> Update:
    person = scene.person

    def update(share: float) -> None:
        phase = share * times % 1 if share < 1 else 0.0
        person.lift = floor + _HOP * 4 * phase * (1 - phase)
        up = phase > 0.12 and not person.holding
        person.posture = replace(person.posture, hands=((-12, 34), (12, 34)) if up else ((-8, 12), (8, 12)))

    return update


def sit(scene: Scene) -> list[Phase]:
    """On a seat, or on the floor."""
    stage, person, target = scene.stage, scene.person, scene.target
    scale = person.body.height / DRAWN
    if target is None or scene.event["relation"] != "on":
        spot = layout.stand_free(stage, person, person.x) if target is None else _by(scene, target)
        return [walk(scene, spot), Phase(1.2, lambda: _sitting(scene, "floor", -10.5 * scale, None))]
    pose, seat = stage.pose(target), target.look.places.seat
    spot = (pose.x, stage.ground(target) + 2)
    flat = target.noun == "rug"
    where, lift = ("floor", -10.5 * scale) if flat else ("seat", seat - HIP * scale + 2)
    return [walk(scene, spot), Phase(1.2, lambda: _sitting(scene, where, lift, None if flat else pose.y + 0.6))]


def _by(scene: Scene, target: Thing) -> tuple[float, float]:
    return layout.stand_by(scene.stage, scene.person, target, _NEAR[scene.event["relation"]] + 5)


def _sitting(scene: Scene, where: str, lift: float, depth: float | None) -> Update:
    person = scene.person
    person.posture = replace(person.posture, view="front")

    def update(share: float) -> None:
        down = share > 0.45
        person.posture = replace(person.posture, sits=where if down else None, crouch=0 if down else round(14 * share))
        person.lift = lift * (share if down else 0)
        person.depth = depth if down and depth is not None else None

    return update


def stand(scene: Scene) -> list[Phase]:
    """Up from where one sits."""

    def standing() -> Update:
        person = scene.person
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


# --- through the room ------------------------------------------------------------------------------------------------


def go(scene: Scene) -> list[Phase]:
    """walk, run: to, behind, around or away from something, or about in the place."""
    stage, person, target = scene.stage, scene.person, scene.target
    speed = RUNNING if scene.event["action"] == "run" else WALKING
    relation = scene.event["relation"]
    if target is None or relation == "from":
        aim = layout.far_side(stage, person, scene.event["agent_x"][1] * SIDE)
        if relation != "in":
            return [walk(scene, aim, speed=speed)]
        return _about(scene, aim, speed)
    x = stage.pose(target).x
    if relation == "behind":
        return [walk(scene, layout.stand_beyond(stage, person, target), speed=speed)]
    arrival = walk(scene, layout.stand_by(stage, person, target, 3), speed=speed, look=x)
    if relation == "to":
        return [arrival]
    radius = target.width / 2 + 10
    return [arrival, Phase(max(4 * radius / speed, 0.6), lambda: _circling(scene, target, radius, speed))]


def _about(scene: Scene, aim: tuple[float, float], speed: float) -> list[Phase]:
    """There by a way through the depth of the room, not straight."""
    person = scene.person
    middle = (person.x + (aim[0] - person.x) * 0.55, 152.0 if person.y < 120 else 98.0)
    first = walk(scene, middle, speed=speed)
    seconds = math.dist(middle, aim) / speed
    return [first, Phase(max(seconds, 0.05), walk(scene, aim, speed=speed).begin)]


def _circling(scene: Scene, target: Thing, radius: float, speed: float) -> Update:
    """Once around it, behind it first."""
    person, pose = scene.person, scene.stage.pose(target)
    middle = scene.stage.ground(target)
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


_PHASES: dict[str, Callable[[Scene], list[Phase]]] = {
    **dict.fromkeys(("take", "pick", "lift"), handling.take),
    **dict.fromkeys(("push", "pull", "roll", "kick"), handling.slide),
    **dict.fromkeys(("open", "close"), handling.open_close),
    **dict.fromkeys(("walk", "run"), go),
    **{"put": handling.put, "drop": handling.drop, "throw": handling.throw, "give": handling.give},
    **{"carry": handling.carry, "turn": turn, "spin": spin, "shake": shake, "wave": wave, "jump": jump, "sit": sit},
    **{"stand": stand, "bounce": bounce, "hug": hug},
}


def plan(stage: Stage, event: Record) -> Motion:
    """The motion of an event of a script, from the stage as it is when it starts, at the pace of its manner.

    Raises:
        KeyError: nobody knows how to do that, or the event names what there is not

    """
    thing = stage.things[event["object"]] if event["object"] else None
    scene = Scene(stage, event, stage.people[event["agent"]], thing, event["end"] - event["start"])
    return Motion(event["start"], event["end"], pace(scene.manner), _PHASES[event["action"]](scene))
