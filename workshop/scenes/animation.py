"""Animate the events of a script in its scene."""

import math
from collections.abc import Callable, Generator
from contextlib import suppress
from copy import copy

from workshop.scenes import scene as layout
from workshop.scenes.drawing import DRAWN, HIP, REST, SIDE
from workshop.scenes.scene import Person, Pose, Record, Scene, Spot, locate
from workshop.scenes.world import NOUNS

Motion = Generator[None, float, None]  # starts when its phase begins, and gets shares (0 to 1) of the phase
Phase = tuple[float, Motion]  # relative duration
Action = Generator[list[Phase | float] | None, float, None]  # a motion that first yields the phases around it

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


def stride(steps: float, widest: int) -> int:
    return round(2 * (abs((steps % 2) - 1) * 2 - 1)) * widest // 2


def _widest(speed: float) -> int:
    return 42 if speed > WALKING else 26


class Event:
    """An event of a script in its scene.

    Each action has a method: up to its first `yield` it runs when the event starts. It yields the phases: those with
    their own motion, and the relative duration of the phase that the rest of the method is the motion of.
    """

    def __init__(self, scene: Scene, record: Record) -> None:
        self.scene, self.record, self.manner = scene, record, record["manner"]
        self.action, self.relation, self.direction = record["action"], record["relation"], record["direction"]
        self.person = scene.people[record["agent"]]
        self.thing, self.target = (scene.things.get(record[role]) for role in ("object", "target"))
        self.start, self.end = record["start"], record["end"]
        action: Action = getattr(self, self.action)()
        self.phases = [phase if isinstance(phase, tuple) else (phase, action) for phase in next(action)]
        self._begun = -1

    def show(self, now: float) -> None:
        """Update the scene to a time, in seconds of the video, no earlier than the last one."""
        time = min(max((now - self.start) / (self.end - self.start), 0), 1)
        progress = EASINGS[self.manner](time) if self.manner in EASINGS else time
        whole, before = sum(seconds for seconds, _ in self.phases), 0.0
        for index, (seconds, motion) in enumerate(self.phases):
            share = (progress * whole - before) / seconds
            before += seconds
            if index > self._begun and share > 0:
                self._begun = index
                next(motion)
            if index == self._begun:
                with suppress(StopIteration):  # a motion ends at 1
                    motion.send(min(share, 1.0) if share < 1 - 1e-9 else 1.0)

    def repetitions(self, per_second: float) -> int:
        return max(round((self.end - self.start) * per_second * RATES.get(self.manner, 1.0)), 1)

    def oscillation(self, per_second: float) -> Callable[[float], float]:
        """Return a function that swings between -1 and 1 and is 0 at the beginning and the end."""
        times, width = self.repetitions(per_second), AMPLITUDES.get(self.manner, 1.0)
        return lambda progress: width * math.sin(2 * math.pi * times * progress)

    def destination(self, wanted: float) -> Pose:
        """Choose and return the object's destination near the wanted x (pixels), without moving the object."""
        self._goal, to = copy(self.thing), self.record["destination"]
        self._goal.flight = None
        locate(self.scene, self._goal, to["relation"], to["target"], wanted)
        self.scene.things[self.thing.id] = self.thing
        return self.scene.pose(self._goal)

    def settle(self) -> None:
        vars(self.thing).update(vars(self._goal))
        if self.thing.relation == "held":
            self.scene.people[self.thing.target].holding = self.thing.id

    def land(self) -> None:
        self.thing.flight = self.person.reach = None

    def fly(
        self, start: Pose, end: Pose, share: float, way: float | None = None, arc=0.0, turns=0.0, by_hand=False
    ) -> None:
        """Move the object on a curve `arc` pixels high between two poses; `by_hand`: the agent's hands follow.

        `way` is the share of the way after this share of the time.
        """
        person, way = self.person, share if way is None else way
        x, y = start.x + (end.x - start.x) * way, start.y + (end.y - start.y) * way - arc * 4 * way * (1 - way)
        depth = max(start.depth, end.depth) if share < 0.85 else end.depth
        if by_hand:
            depth = max(depth, person.y + 0.3) if share < 0.85 else depth
            person.reach = (x, y - self.thing.grip)
        angle = start.angle + (end.angle - start.angle) * way + 360 * turns * way
        self.thing.flight = Pose(x, y, depth, angle=angle, bottom=end.bottom if share > 0.85 else 1e6)

    def face_thing(self) -> Pose:
        pose = self.scene.pose(self.thing)
        face(self.person, pose.x)
        return pose

    def walk_to(self, to: Spot, *, speed: float = WALKING, look: float | None = None) -> Phase:
        length = math.dist((self.person.x, self.person.y), to)
        return max(length / speed, 0.05), self.walking(to, speed, look)

    def walking(self, to: Spot, speed: float, look: float | None = None) -> Motion:
        person, (x, y), lift = self.person, (self.person.x, self.person.y), self.person.lift
        length, share = math.dist((x, y), to), 0.0
        if length > 1:
            face(person, to[0])
        steps = max(length / _STEP, 1)
        while share < 1:
            share = yield
            person.x, person.y = x + (to[0] - x) * share, y + (to[1] - y) * share
            person.lift, person.depth = lift * max(1 - 4 * share, 0), None
            steps_now = stride(share * steps, _widest(speed))
            stepping = length > 1 and share < 1
            person.change(sits=None, stride=steps_now * stepping, lean=4 * (stepping and speed > WALKING))
        if look is not None:
            face(person, look)

    def approach(self) -> Phase:
        thing, pose, ground = self.thing, self.scene.pose(self.thing), self.scene.ground(self.thing)
        half = thing.width / 2 - (4 if NOUNS[thing.noun].fixed and thing.noun != "lamp" else 0)
        holder = thing.target if thing.relation in ("in", "on", "under", "behind") else thing.id
        spot = layout.stand_at(self.scene, self.person, pose.x, ground, half, thing.id, holder)
        return self.walk_to(spot, look=pose.x)

    def take(self) -> Action:
        yield [self.approach(), 1.3]
        thing, person, start = self.thing, self.person, self.face_thing()
        person.overhead = self.action == "lift"
        arc = 4 if thing.relation == "in" else 0
        while (share := (yield)) < 1:
            if share > 0.3:  # the hands move first
                self.fly(start, self.scene.in_hands(person, thing), (share - 0.3) / 0.7, arc=arc)
            pose = self.scene.pose(thing)
            person.reach = (pose.x, pose.y - thing.grip)
        thing.relation, thing.target, person.holding = "held", person.id, thing.id
        self.land()

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
        if self.direction == "away":
            return float(self.record["destination"]["x"]) * SIDE
        return self.person.x + 14 * self.person.facing

    def _come_near(self) -> Phase:
        scene, target = self.scene, self.target
        end = self.destination(self._aim())
        if target is None or self.relation in ("near", "beside", "to"):
            x, ground, half = end.x, end.y, self.thing.width / 2
            seen = [target.id] if target else []
        else:
            x, ground, half = scene.pose(target).x, scene.ground(target), target.width / 2 - 2
            seen = [target.id, target.target if target.relation in ("in", "on") else target.id]
        return self.walk_to(layout.stand_at(scene, self.person, x, ground, half, *seen), look=end.x)

    def put(self) -> Action:
        yield [self._come_near(), 1.5]
        start, end = self._release()
        face(self.person, end.x)
        while (share := (yield)) < 1:
            self.fly(start, end, share, arc=5, by_hand=True)
        self.land()

    def drop(self) -> Action:
        yield [self._come_near(), 1.0]
        start, end = self._release()
        face(self.person, end.x)
        above = Pose(end.x, min(start.y, end.y - _FALL), max(start.depth, end.depth))
        while (share := (yield)) <= 0.5:
            self.fly(start, above, share / 0.5, by_hand=True)
        self.fly(start, above, 1, by_hand=True)
        while share < 1:
            fallen = (share - 0.5) / 0.5
            self.fly(above, end, fallen, way=fallen * fallen)
            share = yield
        self.land()

    def throw(self) -> Action:
        self.destination(self._aim())
        yield [1.2]
        person, height, (start, end) = self.person, self.person.body.height, self._release()
        face(person, end.x)
        high = {"up": 62.0, "down": 0.0}.get(self.direction, 26 + 0.18 * abs(end.x - start.x))
        high = min(high, min(start.y, end.y) - 8)
        back = Pose(person.x - 6 * person.facing, person.y - height * 0.8, start.depth)
        while (share := (yield)) <= 0.3:
            self.fly(start, back, share / 0.3, by_hand=True)
        turns = 0 if self.direction == "down" else person.facing
        while share < 1:
            self.fly(back, end, (share - 0.3) / 0.7, arc=high, turns=turns)
            person.reach = (person.x + 14 * person.facing, person.y - height * 0.7)
            share = yield
        self.land()

    def give(self) -> Action:
        other = self.scene.people[self.record["target"]]
        self.destination(0)
        side = 1 if self.person.x > other.x else -1
        if not _AWAY <= other.x + side * _AWAY <= SIDE - _AWAY:
            side = -side
        yield [self.walk_to((other.x + side * _AWAY, other.y), look=other.x), 1.5]
        face(other, self.person.x)
        face(self.person, other.x)
        start, _ = self._release()
        while (share := (yield)) < 1:
            self.fly(start, self.scene.in_hands(other, self.thing), share, by_hand=True)
        self.land()

    def push(self) -> Action:
        thing = self.thing
        start, end = self.scene.pose(thing), self.destination(self.record["destination"]["x"] * SIDE)
        way = 1 if end.x >= start.x else -1
        apart = (way if self.action == "pull" else -way) * (thing.width / 2 + 9)
        spots = layout.clamped((start.x + apart, start.y + down) for down in (1, 4, 8, 14, 20))
        spot = layout.stand(self.scene, self.person, spots, thing.id)
        length = math.dist((start.x, start.y), (end.x, end.y))
        yield [self.walk_to(spot, look=start.x), 1.2 + length / 80]
        face(self.person, start.x)
        if self.action == "roll":
            yield from self._rolling(start, end)
        elif self.action == "kick":
            yield from self._kicking(start, end)
        else:
            yield from self._pushing(start, end, apart)
        self.land()
        self.settle()

    pull = roll = kick = push

    def _pushing(self, start: Pose, end: Pose, apart: float) -> Motion:
        thing, person, ground, share = self.thing, self.person, self.person.y, 0.0
        floor = self.scene.ground(self.target) + 4 if self.target is not None else end.y
        last = max(end.y + 1, floor if self.relation in ("under", "behind") else 0)
        while share < 1:
            share = yield
            self.fly(start, end, share)
            pose = self.scene.pose(thing)
            person.x = min(max(pose.x + apart, 6), SIDE - 6)
            person.y = ground + (last - ground) * share
            person.reach = (pose.x + math.copysign(thing.width / 2 - 1, apart), pose.y - min(thing.height * 0.6, 12))
            person.change(stride=stride(abs(pose.x - start.x) / 9, 22), lean=3)
        person.change(stride=0, lean=0)

    def _rolling(self, start: Pose, end: Pose) -> Motion:
        thing = self.thing
        turns = (end.x - start.x) / (math.pi * max(min(thing.width, thing.height), 6))
        whole = 0 if thing.noun in _ON_WHEELS else round(turns) or math.copysign(1, end.x - start.x)
        while (share := (yield)) < 1:
            self.fly(start, end, share, turns=whole)
            pose = self.scene.pose(thing)
            self.person.reach = (pose.x, pose.y - 4) if share < 0.25 else None

    def _kicking(self, start: Pose, end: Pose) -> Motion:
        while (share := (yield)) < 1:
            back, ahead = -45 * min(share / 0.2, 1), 75 if 0.25 < share < 0.6 else 0
            self.person.change(kick=round(back if share < 0.25 else ahead))
            if share > 0.25:
                off = (share - 0.25) / 0.75
                self.fly(start, end, off, way=1 - (1 - off) ** 2, arc=9)
        self.person.change(kick=0)

    def close(self) -> Action:
        yield [self.approach(), 1.4]
        thing, person, pose, share = self.thing, self.person, self.face_thing(), 0.0
        while share < 1:
            share = yield
            turned = min(max((share - 0.15) / 0.8, 0), 1)
            thing.opened = turned if self.action == "open" else 1 - turned
            out = thing.width / 2 - 2 + 3 * thing.opened
            person.reach = (pose.x + (out if person.x > pose.x else -out), pose.y - thing.height * 0.5)
        person.reach = None

    open = close

    def turn(self) -> Action:
        person = self.person
        if self.direction in ("on", "off"):
            yield [self.approach(), 1.2]
            yield from self._switching()
            return
        yield [1.2]
        if self.direction == "around":
            yield from self._turning(0.5)
            return
        x = self.scene.pose(self.target).x
        while (share := (yield)) < 0.5:
            if share > 0:
                person.change(view="front")
        face(person, x)
        if not person.holding:
            person.reach = (person.x + (14 if x > person.x else -14), person.y - person.body.height * 0.62)
        while share < 1:
            share = yield
        person.reach = None

    def _switching(self) -> Motion:
        pose, share = self.face_thing(), 0.0
        while share < 1:
            share = yield
            self.person.reach = (pose.x, pose.y - self.thing.height * 0.7)
            if share > 0.5:
                self.thing.opened = float(self.direction == "on")
        self.person.reach = None

    def _turning(self, times: float) -> Motion:
        person, share = self.person, 0.0
        start = _VIEWS.index((person.posture.view, person.facing if person.posture.view == "side" else 1))
        while share < 1:
            share = yield
            view, facing = _VIEWS[round(start + 4 * times * share) % 4]
            person.change(view=view)
            person.facing = facing if view == "side" else person.facing

    def spin(self) -> Action:
        if self.thing is None:
            yield [2.0]
            yield from self._turning(max(self.repetitions(1.0), 2))
            return
        yield [self.approach(), 2.0]
        thing, pose, turn = self.thing, self.face_thing(), self.oscillation(0.7)
        while (share := (yield)) < 1:
            thing.squeeze = max(1 - abs(turn(share)) * 0.75, 0.25)
            self.person.reach = (pose.x, pose.y - thing.height * 0.6) if share < 0.2 else None
        thing.squeeze, self.person.reach = 1.0, None

    def shake(self) -> Action:
        yield [1.8]
        yield from self._swinging(1.7, 4.5, 0.0)

    def _swinging(self, rate: float, across: float, down: float) -> Motion:
        side = self.oscillation(rate)
        while (share := (yield)) < 1:
            self.person.offset = (across * side(share), down * abs(side(share)))
        self.person.offset, self.person.overhead = (0, 0), False

    def wave(self) -> Action:
        person, side, other = self.person, self.oscillation(1.1), self.scene.people.get(self.record["target"])
        person.overhead = self.thing is not None
        yield [1.8]
        if self.thing is not None:
            yield from self._swinging(1.0, 12, 5.0)
            return
        if other is not None:
            face(person, other.x)
        elif not person.posture.sits:
            person.change(view="front")
        while (share := (yield)) < 1:
            raised = (12 + round(7 * side(share)), 38 - round(abs(side(share)) * 2))
            person.change(hands=((-8, 12), raised))
        person.change(hands=REST)

    def bounce(self) -> Action:
        yield [2.0]
        person, start, times = self.person, self.scene.pose(self.thing), self.repetitions(1.0)
        deep = person.y - start.y
        while (share := (yield)) < 1:
            up = abs(1 - 2 * (share * times % 1))  # 1 in the hand, 0 on the floor
            person.offset = (0, deep * (1 - up * up))
            person.reach = (person.x + person.facing * 12, start.y - 6 + 4 * (1 - up))
        person.offset, person.reach = (0, 0), None

    def hug(self) -> Action:
        yield [2.0]
        person, side = self.person, self.oscillation(0.7)
        while (share := (yield)) < 1:
            near = min(share / 0.25, 1, (1 - share) / 0.15)
            person.close, person.offset = 6.0 * near, (1.6 * side(share) * near, 0)
            person.change(lean=0 if person.posture.sits else round(3 * side(share)))
        person.close, person.offset = 0, (0, 0)
        person.change(lean=0)

    def jump(self) -> Action:
        scene, person, target, floor, times = self.scene, self.person, self.target, 0.0, self.repetitions(0.9)
        if target is None:
            yield [1.4]
        elif self.relation == "over":
            x, y, reach = scene.pose(target).x, scene.pose(target).y + 1, target.width / 2 + 13
            side = -1 if person.x < x else 1
            if not 8 <= x - side * reach <= SIDE - 8:
                side = -side
            yield [self.walk_to((x + side * reach, y), look=x), 1.2]
            yield from self._leaping((x - side * reach, y), 0, high=target.height + 8)
            return
        else:
            pose, floor, times = scene.pose(target), target.look.places.seat, self.repetitions(0.6)
            spot = layout.stand_at(scene, person, pose.x, scene.ground(target), target.width / 2 - 8, target.id)
            yield [self.walk_to(spot, look=pose.x), (0.6, self._leaping((pose.x, pose.y), floor)), 1.2]
        while (share := (yield)) < 1:
            phase = share * times % 1
            person.lift = floor + _HOP * 4 * phase * (1 - phase)
            person.change(hands=((-12, 34), (12, 34)) if phase > 0.12 and not person.holding else REST)
        person.lift = floor
        person.change(hands=REST)

    def _leaping(self, to: Spot, onto: float, *, high: float = 10) -> Motion:
        person, x, y, share = self.person, self.person.x, self.person.y, 0.0
        face(person, to[0])
        while share < 1:
            share = yield
            person.x, person.y = x + (to[0] - x) * share, y + (to[1] - y) * share
            person.lift = onto * share + (high + onto / 2) * 4 * share * (1 - share)
            person.depth = max(y, to[1]) + 0.6
            person.change(stride=40 if 0.1 < share < 0.9 else 0)

    def sit(self) -> Action:
        scene, person, target = self.scene, self.person, self.target
        scale, where, depth = person.body.height / DRAWN, "floor", None
        lift = -10.5 * scale
        if target is None:
            spot = layout.stand_free(scene, person, person.x)
        elif self.relation != "on":
            spot = layout.stand_by(scene, person, target, {"near": 12.0, "beside": 1.0}[self.relation] + 5)
        else:
            pose = scene.pose(target)
            spot = (pose.x, scene.ground(target) + 2)
            if target.noun != "rug":
                where, lift, depth = "seat", target.look.places.seat - HIP * scale + 2, pose.y + 0.6
        yield [self.walk_to(spot), 1.2]
        share = 0.0
        person.change(view="front")
        while share < 1:
            share = yield
            down = share > 0.45
            person.change(sits=where if down else None, crouch=0 if down else round(14 * share))
            person.lift, person.depth = lift * (share if down else 0), depth if down else None

    def stand(self) -> Action:
        yield [1.2]
        person, sits, share = self.person, self.person.posture.sits, 0.0
        lift, depth, y = person.lift, person.depth, person.y
        while share < 1:
            share = yield
            up = share > 0.5
            person.change(sits=None if up else sits, crouch=round(12 * (1 - share)) if up else 0)
            person.lift, person.depth = 0 if up else lift * (1 - share), None if up else depth
            person.y = y + (4 if sits == "seat" else 0) * share

    def walk(self) -> Action:
        scene, person, target = self.scene, self.person, self.target
        speed = RUNNING if self.action == "run" else WALKING
        if target is None or self.relation == "from":
            edge = layout.MARGIN + 3
            aim = layout.stand_free(scene, person, edge if self.record["agent_x"][1] < 0.5 else SIDE - edge, 4)
            middle = (person.x + (aim[0] - person.x) * 0.55, 152.0 if person.y < 120 else 98.0)
            if self.relation == "in":
                yield [self.walk_to(middle, speed=speed), max(math.dist(middle, aim) / speed, 0.05)]
                yield from self.walking(aim, speed)
            else:
                yield [self.walk_to(aim, speed=speed)]
        elif self.relation == "behind":
            yield [self.walk_to(layout.stand_beyond(scene, person, target), speed=speed)]
        else:
            apart = {"near": 13.0, "beside": 1.0}.get(self.relation, 5.0 if self.action == "carry" else 3.0)
            spot = layout.stand_by(scene, person, target, apart)
            arrival = self.walk_to(spot, speed=speed, look=scene.pose(target).x)
            radius = target.width / 2 + 10
            yield [arrival, max(4 * radius / speed, 0.6)] if self.relation == "around" else [arrival]
            yield from self._circling(radius, speed)

    run = carry = walk

    def _circling(self, radius: float, speed: float) -> Motion:
        person, pose, middle, share = self.person, self.scene.pose(self.target), self.scene.ground(self.target), 0.0
        deep = max(min(9.0, middle - 66), 2.0)
        first = 0.0 if person.x > pose.x else math.pi
        offset = person.y - middle
        while share < 1:
            share = yield
            before, angle = person.x, first + (1 if first else -1) * 2 * math.pi * share
            person.x = min(max(pose.x + radius * math.cos(angle), 6), SIDE - 6)
            person.y = middle + deep * math.sin(angle) * (1 if math.sin(angle) < 0 else 0.7) + offset
            if abs(person.x - before) > 0.4:
                face(person, 2 * person.x - before)
            person.change(stride=stride(share * radius * 0.35, _widest(speed)))
        person.change(stride=0)
