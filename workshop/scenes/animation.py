"""Animate the events of a script and paint the scene frame by frame."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from workshop.scenes import scene as layout
from workshop.scenes.drawing import DRAWN, HIP, REST, SIDE, background, blit, picture, pictures
from workshop.scenes.scene import Person, Pose, Record, Scene, Spot, Thing, initial_scene, locate, posture
from workshop.scenes.world import NOUNS

Update = Callable[[float], None]  # shows a share (0 to 1) of a phase
Phase = tuple[float, Callable[[], Update]]  # relative duration, and a function that is called when it begins

_WAIT = 0.4  # share of the time before a sudden action
RATES = {"slowly": 0.55, "carefully": 0.8, "gently": 0.9, "quickly": 2.8, "suddenly": 2.2}  # relative
AMPLITUDES = {"gently": 0.6, "suddenly": 1.15}
WALKING, RUNNING = 56.0, 112.0  # pixels a second
_STEP = 11.0  # pixels
_FALL = 24  # pixels that a dropped thing falls at least
_ON_WHEELS = ("car", "truck", "suitcase")  # things that roll without turning over
_AWAY = 20  # pixels between two agents when one gives something to the other
_HOP = 17  # pixels
_VIEWS = (("front", 1), ("side", 1), ("back", 1), ("side", -1))


def smooth(time: float) -> float:
    return time * time * (3 - 2 * time)


def careful(time: float) -> float:
    """Act in three small steps, with a stop after each."""
    step, rest = divmod(min(time, 1 - 1e-9) * 3, 1)
    return (step + smooth(min(rest / 0.62, 1))) / 3


EASINGS: dict[str | None, Callable[[float], float]] = {  # share of the time -> share of the action, 0 to 1
    "suddenly": lambda time: 0.0 if time < _WAIT else min((time - _WAIT) / (0.9 - _WAIT), 1.0),
    "carefully": careful,
    "gently": smooth,
}


def face(person: Person, x: float) -> None:
    if abs(x - person.x) > 0.5:
        person.facing = 1 if x > person.x else -1
    person.change(view="side")


def _stride(steps: float, widest: int) -> int:
    return round(2 * (abs((steps % 2) - 1) * 2 - 1)) * widest // 2


def _widest(speed: float) -> int:
    return 42 if speed > WALKING else 26


def fly(
    thing: Thing,
    start: Pose,
    end: Callable[[], Pose],
    *,
    arc: float = 0,
    turns: float = 0,
    person: Person | None = None,
    easing: Callable[[float], float] = lambda time: time,
) -> Update:
    """Move a thing on a curve `arc` pixels high between two poses; the hands of the person, if any, follow."""

    def update(share: float) -> None:
        goal, way = end(), easing(share)
        x, y = start.x + (goal.x - start.x) * way, start.y + (goal.y - start.y) * way - arc * 4 * way * (1 - way)
        depth = max(start.depth, goal.depth) if share < 0.85 else goal.depth
        if person is not None:
            depth = max(depth, person.y + 0.3) if share < 0.85 else depth
            person.reach = (x, y - thing.grip)
        angle = start.angle + (goal.angle - start.angle) * way + 360 * turns * way
        thing.flight = Pose(x, y, depth, angle=angle, bottom=goal.bottom if share > 0.85 else 1e6)

    return update


class Event:
    """An event of a script in its scene. Each action has a method that returns its phases."""

    def __init__(self, scene: Scene, record: Record) -> None:
        self.scene, self.record, self.manner = scene, record, record["manner"]
        self.person = scene.people[record["agent"]]
        self.thing, self.target = (scene.things.get(record[role]) for role in ("object", "target"))
        self.start, self.end = record["start"], record["end"]
        self.phases: list[Phase] = getattr(self, record["action"])()
        self._begun = -1

    def show(self, now: float) -> None:
        """Update the scene to a time, in seconds of the video, no earlier than the last one."""
        time = min(max((now - self.start) / (self.end - self.start), 0), 1)
        progress = EASINGS[self.manner](time) if self.manner in EASINGS else time
        whole, before = sum(seconds for seconds, _ in self.phases), 0.0
        for index, (seconds, begin) in enumerate(self.phases):
            share = (progress * whole - before) / seconds
            before += seconds
            if index > self._begun and share > 0:
                self._begun, self._update = index, begin()
            if index == self._begun:
                self._update(min(share, 1.0) if share < 1 - 1e-9 else 1.0)

    def repetitions(self, per_second: float) -> int:
        return max(round((self.end - self.start) * per_second * RATES.get(self.manner, 1.0)), 1)

    def oscillation(self, per_second: float) -> Callable[[float], float]:
        """Return a function that swings between -1 and 1 and is 0 at the beginning and the end."""
        times, width = self.repetitions(per_second), AMPLITUDES.get(self.manner, 1.0)
        return lambda progress: width * math.sin(2 * math.pi * times * progress)

    def destination(self, wanted: float) -> Pose:
        """Choose and return the object's destination near the wanted x (pixels), without moving the object."""
        thing, to, before = self.thing, self.record["destination"], dict(vars(self.thing))
        thing.flight = None
        locate(self.scene, thing, to["relation"], to["target"], wanted)
        end, self._goal = self.scene.pose(thing), dict(vars(thing))
        vars(thing).update(before)
        return end

    def settle(self) -> None:
        vars(self.thing).update(self._goal)
        if self.thing.relation == "held":
            self.scene.people[self.thing.target].holding = self.thing.id

    def land(self, update: Update, then: Callable[[], None] = lambda: None) -> Update:
        """Return a flight that at its end releases the object and calls `then`."""

        def both(share: float) -> None:
            update(share)
            if share >= 1:
                self.thing.flight = self.person.reach = None
                then()

        return both

    def walk_to(self, to: Spot, *, speed: float = WALKING, look: float | None = None) -> Phase:
        person = self.person

        def begin() -> Update:
            start, lift = (person.x, person.y), person.lift
            length = math.dist(start, to)
            if length > 1:
                face(person, to[0])
            steps = max(length / _STEP, 1)

            def update(share: float) -> None:
                person.x = start[0] + (to[0] - start[0]) * share
                person.y = start[1] + (to[1] - start[1]) * share
                person.lift, person.depth = lift * max(1 - 4 * share, 0), None
                stepping = length > 1 and share < 1
                stride = _stride(share * steps, _widest(speed)) if stepping else 0
                person.change(sits=None, stride=stride, lean=4 if stepping and speed > WALKING else 0)
                if share >= 1 and look is not None:
                    face(person, look)

            return update

        return max(math.dist((person.x, person.y), to) / speed, 0.05), begin

    def approach(self) -> Phase:
        thing, pose = self.thing, self.scene.pose(self.thing)
        half = thing.width / 2 if not NOUNS[thing.noun].fixed or thing.noun == "lamp" else thing.width / 2 - 4
        holder = thing.target if thing.relation in ("in", "on", "under", "behind") else thing.id
        ground = self.scene.ground(thing)
        return self.walk_to(
            layout.stand_at(self.scene, self.person, pose.x, ground, half, thing.id, holder), look=pose.x
        )

    def take(self) -> list[Phase]:
        thing, person, scene = self.thing, self.person, self.scene

        def taking() -> Update:
            start = scene.pose(thing)
            person.overhead = self.record["action"] == "lift"
            face(person, start.x)
            into = fly(thing, start, lambda: scene.in_hands(person, thing), arc=4 if thing.relation == "in" else 0)

            def update(share: float) -> None:
                up = max((share - 0.3) / 0.7, 0)  # the hands move first
                into(up)
                if up == 0:
                    thing.flight = None
                pose = scene.pose(thing)
                person.reach = (pose.x, pose.y - thing.grip)
                if share >= 1:
                    thing.relation, thing.target, person.holding = "held", person.id, thing.id

            return self.land(update)

        return [self.approach(), (1.3, taking)]

    pick = lift = take

    def _release(self) -> tuple[Pose, Pose]:
        """Let go of the object; return its poses now and at its destination."""
        start = self.scene.pose(self.thing)
        self.settle()
        self.person.overhead = False
        if self.thing.relation != "held":
            self.person.holding = None
        return start, self.scene.pose(self.thing)

    def _aim(self) -> float:
        if self.record["direction"] == "away":
            return float(self.record["destination"]["x"]) * SIDE
        return self.person.x + 14 * self.person.facing

    def _come_near(self) -> Phase:
        scene, target = self.scene, self.target
        end = self.destination(self._aim())
        if target is None or self.record["relation"] in ("near", "beside", "to"):
            x, ground, half = end.x, end.y, self.thing.width / 2
            seen = [target.id] if target else []
        else:
            x, ground, half = scene.pose(target).x, scene.ground(target), target.width / 2 - 2
            seen = [target.id, target.target if target.relation in ("in", "on") else target.id]
        return self.walk_to(layout.stand_at(scene, self.person, x, ground, half, *seen), look=end.x)

    def put(self) -> list[Phase]:
        def placing() -> Update:
            start, end = self._release()
            face(self.person, end.x)
            return self.land(fly(self.thing, start, lambda: end, arc=5, person=self.person))

        return [self._come_near(), (1.5, placing)]

    def drop(self) -> list[Phase]:
        def dropping() -> Update:
            start, end = self._release()
            face(self.person, end.x)
            above = Pose(end.x, min(start.y, end.y - _FALL), max(start.depth, end.depth))
            over = fly(self.thing, start, lambda: above, person=self.person)
            down = fly(self.thing, above, lambda: end, easing=lambda share: share * share)

            def update(share: float) -> None:
                over(min(share / 0.5, 1))
                if share > 0.5:
                    down((share - 0.5) / 0.5)

            return self.land(update)

        return [self._come_near(), (1.0, dropping)]

    def throw(self) -> list[Phase]:
        person, direction = self.person, self.record["direction"]
        self.destination(self._aim())

        def throwing() -> Update:
            start, end = self._release()
            face(person, end.x)
            high = {"up": 62.0, "down": 0.0}.get(direction, 26 + 0.18 * abs(end.x - start.x))
            high = min(high, min(start.y, end.y) - 8)
            back = Pose(person.x - 6 * person.facing, person.y - person.body.height * 0.8, start.depth)
            swung = fly(self.thing, start, lambda: back, person=person)
            turns = 0 if direction == "down" else 1
            gone = fly(self.thing, back, lambda: end, arc=high, turns=turns * person.facing)

            def update(share: float) -> None:
                if share <= 0.3:
                    swung(share / 0.3)
                else:
                    gone((share - 0.3) / 0.7)
                    person.reach = (person.x + 14 * person.facing, person.y - person.body.height * 0.7)

            return self.land(update)

        return [(1.2, throwing)]

    def give(self) -> list[Phase]:
        person, other = self.person, self.scene.people[self.record["target"]]
        self.destination(0)

        def handing() -> Update:
            face(other, person.x)
            face(person, other.x)
            start, _ = self._release()
            return self.land(fly(self.thing, start, lambda: self.scene.in_hands(other, self.thing), person=person))

        side = 1 if person.x > other.x else -1
        if not _AWAY <= other.x + side * _AWAY <= SIDE - _AWAY:
            side = -side
        return [self.walk_to((other.x + side * _AWAY, other.y), look=other.x), (1.5, handing)]

    def carry(self) -> list[Phase]:
        target, scene, person = self.target, self.scene, self.person
        if target is None:
            return [self.walk_to(layout.far_side(scene, person, self.record["agent_x"][1] * SIDE))]
        if self.record["relation"] == "behind":
            return [self.walk_to(layout.stand_beyond(scene, person, target))]
        apart = {"near": 13.0, "beside": 1.0}.get(self.record["relation"], 5.0)
        return [self.walk_to(layout.stand_by(scene, person, target, apart), look=scene.pose(target).x)]

    def push(self) -> list[Phase]:
        thing, person, action = self.thing, self.person, self.record["action"]
        start, end = self.scene.pose(thing), self.destination(self.record["destination"]["x"] * SIDE)
        way = 1 if end.x >= start.x else -1
        apart = (way if action == "pull" else -way) * (thing.width / 2 + 9)
        spot = layout.stand_behind(self.scene, person, thing, start.x + apart)
        length = math.dist((start.x, start.y), (end.x, end.y))

        def moving() -> Update:
            face(person, start.x)
            if action == "roll":
                return self.land(self._rolling(start, end), self.settle)
            if action == "kick":
                return self.land(self._kicking(start, end), self.settle)
            return self.land(self._pushing(start, end, apart), self.settle)

        return [self.walk_to(spot, look=start.x), (1.2 + length / 80, moving)]

    pull = roll = kick = push

    def _pushing(self, start: Pose, end: Pose, apart: float) -> Update:
        thing, person, ground = self.thing, self.person, self.person.y
        moved = fly(thing, start, lambda: end)
        floor = self.scene.ground(self.target) + 4 if self.target is not None else end.y
        last = max(end.y + 1, floor if self.record["relation"] in ("under", "behind") else 0)

        def update(share: float) -> None:
            moved(share)
            pose = self.scene.pose(thing)
            person.x = min(max(pose.x + apart, 6), SIDE - 6)
            person.y = ground + (last - ground) * share
            person.reach = (pose.x + math.copysign(thing.width / 2 - 1, apart), pose.y - min(thing.height * 0.6, 12))
            stride = _stride(abs(pose.x - start.x) / 9, 22) if share < 1 else 0
            person.change(stride=stride, lean=3 if share < 1 else 0)

        return update

    def _rolling(self, start: Pose, end: Pose) -> Update:
        thing = self.thing
        turns = (end.x - start.x) / (math.pi * max(min(thing.width, thing.height), 6))
        whole = 0 if thing.noun in _ON_WHEELS else round(turns) or math.copysign(1, end.x - start.x)
        rolled = fly(thing, start, lambda: end, turns=whole)

        def update(share: float) -> None:
            rolled(share)
            pose = self.scene.pose(thing)
            self.person.reach = (pose.x, pose.y - 4) if share < 0.25 else None

        return update

    def _kicking(self, start: Pose, end: Pose) -> Update:
        off = fly(self.thing, start, lambda: end, arc=9, easing=lambda share: 1 - (1 - share) ** 2)

        def update(share: float) -> None:
            back, ahead = -45 * min(share / 0.2, 1), 75 if 0.25 < share < 0.6 else 0
            self.person.change(kick=round(back if share < 0.25 else ahead))
            if share > 0.25:
                off((share - 0.25) / 0.75)

        return update

    def _handle(self, seconds: float, update: Callable[[float, Pose], None]) -> list[Phase]:
        """Return the phases of an action on a thing that stays in its place, at a pose."""

        def begin() -> Update:
            pose = self.scene.pose(self.thing)
            face(self.person, pose.x)
            return lambda share: update(share, pose)

        return [self.approach(), (seconds, begin)]

    def close(self) -> list[Phase]:
        thing, person, opens = self.thing, self.person, self.record["action"] == "open"

        def update(share: float, pose: Pose) -> None:
            turned = min(max((share - 0.15) / 0.8, 0), 1)
            thing.opened = turned if opens else 1 - turned
            side = 1 if person.x > pose.x else -1
            out = thing.width / 2 - 2 + 3 * thing.opened
            person.reach = (pose.x + side * out, pose.y - thing.height * 0.5) if share < 1 else None

        return self._handle(1.4, update)

    open = close

    def turn(self) -> list[Phase]:
        direction = self.record["direction"]
        if direction not in ("on", "off"):
            return [(1.2, lambda: self._turning(0.5) if direction == "around" else self._turning_to())]

        def update(share: float, pose: Pose) -> None:
            self.person.reach = (pose.x, pose.y - self.thing.height * 0.7) if share < 1 else None
            if share > 0.5:
                self.thing.opened = float(direction == "on")

        return self._handle(1.2, update)

    def spin(self) -> list[Phase]:
        if self.thing is None:
            times = max(self.repetitions(1.0), 2)
            return [(2.0, lambda: self._turning(times))]
        turn = self.oscillation(0.7)

        def update(share: float, pose: Pose) -> None:
            self.thing.squeeze = 1.0 if share >= 1 else max(1 - abs(turn(share)) * 0.75, 0.25)
            self.person.reach = (pose.x, pose.y - self.thing.height * 0.6) if share < 0.2 else None

        return self._handle(2.0, update)

    def shake(self) -> list[Phase]:
        return [(1.8, lambda: self._swinging(1.7, lambda s: (4.5 * s, 0.0)))]

    def wave(self) -> list[Phase]:
        if self.thing is None:
            return [(1.8, self._waving)]
        self.person.overhead = True
        return [(1.8, lambda: self._swinging(1.0, lambda s: (12 * s, 5.0 * abs(s))))]

    def _swinging(self, rate: float, curve: Callable[[float], Spot]) -> Update:
        person, side = self.person, self.oscillation(rate)

        def update(share: float) -> None:
            person.offset = curve(side(share)) if share < 1 else (0, 0)
            if share >= 1:
                person.overhead = False

        return update

    def _waving(self) -> Update:
        person, side = self.person, self.oscillation(1.1)
        other = self.scene.people.get(self.record["target"])
        if other is not None:
            face(person, other.x)
        elif not person.posture.sits:
            person.change(view="front")

        def update(share: float) -> None:
            raised = ((-8, 12), (12 + round(7 * side(share)), 38 - round(abs(side(share)) * 2)))
            person.change(hands=raised if share < 1 else REST)

        return update

    def bounce(self) -> list[Phase]:
        person = self.person

        def bouncing() -> Update:
            start, times = self.scene.pose(self.thing), self.repetitions(1.0)
            deep = person.y - start.y

            def update(share: float) -> None:
                up = abs(1 - 2 * (share * times % 1))  # 1 in the hand, 0 on the floor
                person.offset = (0, deep * (1 - up * up)) if share < 1 else (0, 0)
                high = (person.x + person.facing * 12, start.y - 6 + 4 * (1 - up))
                person.reach = high if share < 1 else None

            return update

        return [(2.0, bouncing)]

    def hug(self) -> list[Phase]:
        person, side = self.person, self.oscillation(0.7)
        sits = bool(person.posture.sits)

        def update(share: float) -> None:
            near = min(share / 0.25, 1, (1 - share) / 0.15)
            person.close, person.offset = 6.0 * near, (1.6 * side(share) * near, 0)
            person.change(lean=0 if sits or share >= 1 else round(3 * side(share)))

        return [(2.0, lambda: update)]

    def _turning(self, times: float) -> Update:
        person = self.person
        first = (person.posture.view, person.facing if person.posture.view == "side" else 1)
        start = _VIEWS.index(first)

        def update(share: float) -> None:
            view, facing = _VIEWS[round(start + 4 * times * share) % 4]
            person.change(view=view)
            person.facing = facing if view == "side" else person.facing

        return update

    def _turning_to(self) -> Update:
        person, x = self.person, self.scene.pose(self.target).x

        def update(share: float) -> None:
            if share >= 0.5:
                face(person, x)
            elif share > 0:
                person.change(view="front")
            looks = person.x + (14 if x > person.x else -14), person.y - person.body.height * 0.62
            person.reach = looks if 0.5 <= share < 1 and not person.holding else None

        return update

    def jump(self) -> list[Phase]:
        scene, person, target = self.scene, self.person, self.target
        if target is None:
            return [(1.4, lambda: self._hopping(0, self.repetitions(0.9)))]
        pose = scene.pose(target)
        if self.record["relation"] == "over":
            side, reach = -1 if person.x < pose.x else 1, target.width / 2 + 13
            if not 8 <= pose.x - side * reach <= SIDE - 8:
                side = -side
            first, second = (pose.x + side * reach, pose.y + 1), (pose.x - side * reach, pose.y + 1)
            over = (1.2, lambda: self._leaping(second, 0, high=target.height + 8))
            return [self.walk_to(first, look=pose.x), over]
        spot = layout.stand_at(scene, person, pose.x, scene.ground(target), target.width / 2 - 8, target.id)
        seat, times = target.look.places.seat, self.repetitions(0.6)
        up = (0.6, lambda: self._leaping((pose.x, pose.y), seat))
        return [self.walk_to(spot, look=pose.x), up, (1.2, lambda: self._hopping(seat, times))]

    def _leaping(self, to: Spot, onto: float, *, high: float = 10) -> Update:
        person, x, y = self.person, self.person.x, self.person.y
        face(person, to[0])

        def update(share: float) -> None:
            person.x, person.y = x + (to[0] - x) * share, y + (to[1] - y) * share
            person.lift = onto * share + (high + onto / 2) * 4 * share * (1 - share)
            person.depth = max(y, to[1]) + 0.6
            person.change(stride=40 if 0.1 < share < 0.9 else 0)

        return update

    def _hopping(self, floor: float, times: int) -> Update:
        person = self.person

        def update(share: float) -> None:
            phase = share * times % 1 if share < 1 else 0.0
            person.lift = floor + _HOP * 4 * phase * (1 - phase)
            person.change(hands=((-12, 34), (12, 34)) if phase > 0.12 and not person.holding else REST)

        return update

    def sit(self) -> list[Phase]:
        scene, person, target = self.scene, self.person, self.target
        scale, relation = person.body.height / DRAWN, self.record["relation"]
        where, lift, depth = "floor", -10.5 * scale, None
        if target is None:
            spot = layout.stand_free(scene, person, person.x)
        elif relation != "on":
            spot = layout.stand_by(scene, person, target, {"near": 12.0, "beside": 1.0}[relation] + 5)
        else:
            pose = scene.pose(target)
            spot = (pose.x, scene.ground(target) + 2)
            if target.noun != "rug":
                where, lift, depth = "seat", target.look.places.seat - HIP * scale + 2, pose.y + 0.6
        return [self.walk_to(spot), (1.2, lambda: self._sitting(where, lift, depth))]

    def _sitting(self, where: str, lift: float, depth: float | None) -> Update:
        person = self.person
        person.change(view="front")

        def update(share: float) -> None:
            down = share > 0.45
            person.change(sits=where if down else None, crouch=0 if down else round(14 * share))
            person.lift = lift * (share if down else 0)
            person.depth = depth if down else None

        return update

    def stand(self) -> list[Phase]:
        person = self.person

        def standing() -> Update:
            lift, x, y = person.lift, person.x, person.y
            ahead = 4 if person.posture.sits == "seat" else 0

            def update(share: float) -> None:
                up = share > 0.5
                sits = None if up else person.posture.sits
                person.change(sits=sits, crouch=round(12 * (1 - share)) if up else 0)
                person.lift = 0 if up else lift * (1 - share)
                person.x, person.y = x, y + ahead * share
                person.depth = None if up else person.depth

            return update

        return [(1.2, standing)]

    def walk(self) -> list[Phase]:
        scene, person, target, relation = self.scene, self.person, self.target, self.record["relation"]
        speed = RUNNING if self.record["action"] == "run" else WALKING
        if target is None or relation == "from":
            aim = layout.far_side(scene, person, self.record["agent_x"][1] * SIDE)
            direct = self.walk_to(aim, speed=speed)
            if relation != "in":
                return [direct]
            middle = (person.x + (aim[0] - person.x) * 0.55, 152.0 if person.y < 120 else 98.0)
            return [self.walk_to(middle, speed=speed), (max(math.dist(middle, aim) / speed, 0.05), direct[1])]
        if relation == "behind":
            return [self.walk_to(layout.stand_beyond(scene, person, target), speed=speed)]
        arrival = self.walk_to(layout.stand_by(scene, person, target, 3), speed=speed, look=scene.pose(target).x)
        if relation == "to":
            return [arrival]
        radius = target.width / 2 + 10
        return [arrival, (max(4 * radius / speed, 0.6), lambda: self._circling(radius, speed))]

    run = walk

    def _circling(self, radius: float, speed: float) -> Update:
        person, pose, middle = self.person, self.scene.pose(self.target), self.scene.ground(self.target)
        deep = max(min(9.0, middle - 66), 2.0)
        first = 0.0 if person.x > pose.x else math.pi
        offset = person.y - middle

        def update(share: float) -> None:
            before, angle = person.x, first + (1 if first else -1) * 2 * math.pi * share
            person.x = min(max(pose.x + radius * math.cos(angle), 6), SIDE - 6)
            person.y = middle + deep * math.sin(angle) * (1 if math.sin(angle) < 0 else 0.7) + offset
            if abs(person.x - before) > 0.4:
                face(person, 2 * person.x - before)
            person.change(stride=0 if share >= 1 else _stride(share * radius * 0.35, _widest(speed)))

        return update


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
    scene, active = initial_scene(script), list[Event]()
    waiting = sorted(script["events"], key=lambda event: float(event["start"]))
    for now in (index / FPS for index in range(frame_count(script))):
        for event in active:
            event.show(now)
        yield scene, bool(active)
        active = [event for event in active if event.end > now + 1e-6]
        while waiting and waiting[0]["start"] <= now + 1e-6:
            active.append(Event(scene, waiting.pop(0)))


def paint(place: str, scene: Scene) -> Frame:
    image = background(place).copy()

    def depth(shown: Thing | Person) -> float:
        return scene.depth(shown) if isinstance(shown, Person) else scene.pose(shown).depth

    for shown in sorted([*scene.things.values(), *scene.people.values()], key=depth):
        if isinstance(shown, Person):
            for sprite in pictures(shown.body, posture(scene, shown), shown.facing):
                blit(image, sprite, round(shown.x), round(shown.y - shown.lift))
        elif not (pose := scene.pose(shown)).hidden:
            angle = round(pose.angle / 15) * 15 % 360
            sprite = picture(shown.look, shown.opened or 0.0, angle=angle, squeeze=round(shown.squeeze, 1))
            blit(image, sprite, round(pose.x), round(pose.y), round(pose.top), round(pose.bottom))
    return (image + 0.5).astype(np.uint8)
