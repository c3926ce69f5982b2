"""Animations of what agents do with themselves and with what they hold, and the table of all actions."""

import math
from collections.abc import Callable
from dataclasses import replace

from workshop.scenes import layout, object_animations
from workshop.scenes.animation import RUNNING, WALKING, AnimatedEvent, Animation, Phase, Update, face, walk
from workshop.scenes.easing import easing, oscillation, repetitions
from workshop.scenes.initial_scene import Record
from workshop.scenes.people import DRAWN, HIP
from workshop.scenes.scene import SIDE, Scene, Thing

_HOP = 17  # pixels
_VIEWS = (("front", 1), ("side", 1), ("back", 1), ("side", -1))
_NEAR = {"near": 12.0, "beside": 1.0}


# --- with what is in the hands ---------------------------------------------------------------------------------------


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


# --- on the spot -----------------------------------------------------------------------------------------------------


def turn(event: AnimatedEvent) -> list[Phase]:
    """On or off, around, or to something."""
    if event.record["direction"] in ("on", "off"):
        return object_animations.switch(event)
    if event.record["direction"] == "around":
        return [Phase(1.2, lambda: _turning(event, 1, 0.5))]
    return [Phase(1.2, lambda: _turning_to(event))]


def spin(event: AnimatedEvent) -> list[Phase]:
    """A thing, or oneself, around and around."""
    if event.thing is not None:
        return object_animations.spin_thing(event)
    times = max(repetitions(event.manner, event.seconds, 1.0), 2)
    return [Phase(2.0, lambda: _turning(event, times, 0))]


def _turning(event: AnimatedEvent, times: int, more: float) -> Update:
    """Whole turns and a share of one more."""
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
    """Away from it first, then to it."""
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


# --- through the room ------------------------------------------------------------------------------------------------


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
    """There by a way through the depth of the room, not straight."""
    person = event.person
    middle = (person.x + (aim[0] - person.x) * 0.55, 152.0 if person.y < 120 else 98.0)
    first = walk(event, middle, speed=speed)
    seconds = math.dist(middle, aim) / speed
    return [first, Phase(max(seconds, 0.05), walk(event, aim, speed=speed).begin)]


def _circling(event: AnimatedEvent, target: Thing, radius: float, speed: float) -> Update:
    """Once around it, behind it first."""
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
    **dict.fromkeys(("take", "pick", "lift"), object_animations.take),
    **dict.fromkeys(("push", "pull", "roll", "kick"), object_animations.slide),
    **dict.fromkeys(("open", "close"), object_animations.open_close),
    **dict.fromkeys(("walk", "run"), go),
    **{
        "put": object_animations.put,
        "drop": object_animations.drop,
        "throw": object_animations.throw,
        "give": object_animations.give,
    },
    **{
        "carry": object_animations.carry,
        "turn": turn,
        "spin": spin,
        "shake": shake,
        "wave": wave,
        "jump": jump,
        "sit": sit,
    },
    **{"stand": stand, "bounce": bounce, "hug": hug},
}


def animate(scene: Scene, record: Record) -> Animation:
    """The animation of an event of a script, from the scene as it is when it starts, eased as its manner asks.

    Raises:
        KeyError: nobody knows how to do that, or the event names what there is not

    """
    thing = scene.things[record["object"]] if record["object"] else None
    event = AnimatedEvent(scene, record, scene.people[record["agent"]], thing, record["end"] - record["start"])
    return Animation(record["start"], record["end"], easing(event.manner), _PHASES[record["action"]](event))
