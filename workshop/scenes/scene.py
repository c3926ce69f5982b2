"""The things and agents of a frame, and free places for them."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from workshop.scenes.drawing import DRAWN, SIDE, Body, Look, Posture
from workshop.scenes.world import FLOOR, NOUNS

GROUND = 86  # row of an agent at a window
FREE = ("floor", "near", "beside")  # relations of things on the floor
SHUT = 0.3  # a lid that is opened less hides the contents
_PEEK = 0.56  # visible share of a thing behind another
_OVERHEAD = 1.0
_SHELVES = {"cabinet": 14.2, "fridge": 16.0}  # height of the second shelf

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Pose:
    """The base of a thing; a smaller depth is painted earlier; rows from `top` to `bottom` are visible."""

    x: float
    y: float
    depth: float
    top: float = 0
    bottom: float = 1e6
    angle: float = 0
    hidden: bool = False


@dataclass
class Thing:
    """An item; `flight` is its pose while it moves."""

    id: str
    look: Look
    relation: str
    target: str
    x: float = 0
    y: float = 0
    slot: int = 0
    opened: float | None = None
    squeeze: float = 1.0
    flight: Pose | None = None

    @property
    def noun(self) -> str:
        return self.look.noun

    @property
    def width(self) -> float:
        return 2 * max(self.look.reach[:2])

    @property
    def height(self) -> float:
        return self.look.reach[2]

    @property
    def grip(self) -> float:
        """The height at which hands hold it."""
        return min(self.height * 0.4, 7)

    @property
    def large(self) -> bool:
        return not NOUNS[self.noun].portable


@dataclass
class Person:
    """An agent: the place of its soles, the height above the floor, the direction, and the held thing."""

    id: str
    body: Body
    x: float
    y: float = 0
    lift: float = 0
    facing: int = 1
    posture: Posture = field(default_factory=Posture)
    depth: float | None = None  # None: that of the soles
    holding: str | None = None
    overhead: bool = False
    close: float = 0  # pixels that the held thing is nearer to the body
    offset: tuple[float, float] = (0, 0)  # of the held thing, in pixels
    reach: tuple[float, float] | None = None  # the point that its hands reach for

    def change(self, **posture: Any) -> None:
        self.posture = replace(self.posture, **posture)


@dataclass
class Scene:
    things: dict[str, Thing] = field(default_factory=dict)
    people: dict[str, Person] = field(default_factory=dict)

    def pose(self, thing: Thing) -> Pose:
        if thing.flight is not None:
            return thing.flight
        if thing.relation == "held":
            return self.in_hands(self.people[thing.target], thing)
        if thing.relation in FREE:
            return Pose(thing.x, thing.y, thing.y - (16 if thing.noun == "rug" else 0))
        return self._at(thing, self.things[thing.target])

    def _at(self, thing: Thing, target: Thing) -> Pose:
        base, places = self.pose(target), target.look.places
        x = base.x + places.middle + self._aside(thing, target)
        if thing.relation == "on":
            y = base.y - places.on
            return Pose(x, y, y if target.noun == "rug" else base.depth + 0.2)
        if thing.relation == "under":
            lies = thing.height > max(places.room, 1.25 * thing.width)
            y = base.y - 0.5 + ((thing.height - thing.width) / 2 if lies else 0)
            top = 0 if target.noun in ("tree", "ladder") else base.y - places.room
            return Pose(x, y, base.depth + 0.2, top, angle=90.0 if lies else 0.0)
        if thing.relation == "behind":
            shown = _PEEK * thing.height
            y = base.y - 5 if target.noun == "tree" else base.y - places.behind - shown + thing.height
            return Pose(x, y, base.depth - 0.5)
        inside = places.inside + (_SHELVES.get(target.noun, 0) * target.look.scale if thing.slot else 0)
        if places.rim is not None:
            inside = max(inside, places.rim - (1 - _PEEK) * thing.height)
        y, rim = base.y - inside, 1e6 if places.rim is None else base.y - places.rim
        shut = target.opened is not None and target.opened < SHUT
        return Pose(x, y, base.depth + 0.1, bottom=rim, hidden=base.hidden or shut)

    def _aside(self, thing: Thing, target: Thing) -> float:
        sign = 1 if thing.slot else -1
        if target.noun == "tree":
            return sign * (14.0 if thing.relation == "under" else 5 + 0.05 * thing.width) * target.look.scale
        if thing.relation == "in":
            return 0 if target.noun in _SHELVES else sign * target.width * (0.2 if target.large else 0.13)
        room = target.look.places.width if thing.relation == "under" else target.width * 0.84
        return sign * max(min(room / 4, (room - thing.width) / 2), 0)

    def in_hands(self, person: Person, thing: Thing) -> Pose:
        dx, dy = person.offset
        depth = self.depth(person) + 0.3
        if person.overhead:
            return Pose(person.x + dx, person.y - person.body.height - _OVERHEAD - person.lift + dy, depth)
        ahead = person.facing * (6.5 + thing.width * 0.32 - person.close)
        level = person.body.height * (0.46 if thing.height < 15 else 0.34) + bool(person.posture.sits)
        return Pose(person.x + ahead + dx, person.y - level - person.lift + dy, depth)

    def depth(self, shown: Person | Thing) -> float:
        if isinstance(shown, Thing):
            return self.pose(shown).depth
        return shown.y if shown.depth is None else shown.depth

    def ground(self, thing: Thing) -> float:
        while thing.relation not in (*FREE, "held"):
            thing = self.things[thing.target]
        y = self.pose(thing).y if thing.flight is None else thing.y
        return GROUND if thing.noun == "window" else y

    def box(self, thing: Thing) -> Box | None:
        pose = self.pose(thing)
        if pose.hidden:
            return None
        width, height, y = thing.width, thing.height, pose.y
        if pose.angle:
            width, height, y = height, width, y - (height - width) / 2
        return (pose.x - width / 2, max(y - height, pose.top), pose.x + width / 2, min(y, pose.bottom))

    def take_slot(self, thing: Thing, relation: str, target: Thing, wanted: int) -> int:
        """Return the wanted slot (0 left, 1 right) if it is free and visible, otherwise the other one."""
        facing = {"on": "behind", "behind": "on"}.get(relation, relation)
        others = [it for it in self.things.values() if it.target == target.id and it is not thing]
        if used := {it.slot for it in others if it.relation == relation}:
            return 1 - min(used)
        return 1 - wanted if {it.slot for it in others if it.relation == facing} == {wanted} else wanted

    def boxes(self, *without: str) -> Iterator[tuple[Box, str]]:
        """Yield the pixels and the id of everything visible, without some ids."""
        for thing in self.things.values():
            box = None if thing.id in without else self.box(thing)
            if box is not None and thing.noun not in ("rug", "window"):
                yield box, thing.id
        for person in self.people.values():
            if person.id not in without:
                yield person_box(person, person.x, person.y), person.id


def person_box(person: Person, x: float, y: float) -> Box:
    return (x - 7, y - person.body.height, x + 7, y)


BACK, FRONT, AT_WALL = 82, 133, {"door": 66, "window": 44}  # lower rows of furniture
BESIDE, NEAR = 1, 8  # pixels between two things
FAR = 12  # pixels from which a thing is neither near nor beside furniture
_LANES = (97, 101, 146, 151, 156)  # rows of things on the floor
MARGIN = 8
_TALL = {"window": 9, "door": 8, "closet": 7, "fridge": 6, "shelf": 5, "tree": 5, "lamp": 4, "cabinet": 4, "fence": 3}

Spot = tuple[float, float]


def furnish(furniture: list[Thing], wanted: dict[str, float]) -> None:
    ranked = sorted(furniture, key=lambda it: -_TALL.get(it.noun, 0))
    back = ranked[: (len(ranked) + 1) // 2]
    for row, base in ((back, BACK), (ranked[len(back) :], FRONT)):
        row.sort(key=lambda it: wanted[it.id])
        room, left = SIDE - sum(it.width for it in row), 0.0
        for it in row:
            left += room / (len(row) + 1)
            it.x, it.y = left + it.width / 2, AT_WALL.get(it.noun, base) if base == BACK else base
            left += it.width


def area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _overlap(first: Box, second: Box) -> float:
    across = min(first[2], second[2]) - max(first[0], second[0])
    down = min(first[3], second[3]) - max(first[1], second[1])
    return max(across, 0) * max(down, 0)


def _freest(scene: Scene, thing: Thing, spots: list[Spot], wanted: float, weight: float, *without: str) -> Spot:
    """Return the spot that covers little, seems to belong to no furniture, and is near the wanted x."""
    others = [(box, name in scene.things and scene.things[name].large) for box, name in scene.boxes(thing.id, *without)]

    def cost(spot: Spot) -> float:
        x, y = spot
        box, crowding = (x - thing.width / 2, y - thing.height, x + thing.width / 2, y), 0.0
        for other, large in others:
            if covered := _overlap(box, other):
                crowding += covered * (90 / area(box) + 60 / area(other))
            across, down = (max(box[i] - other[i + 2], other[i] - box[i + 2], 0) for i in (0, 1))
            gap = float((across**2 + down**2) ** 0.5)
            crowding += 3 * max(FAR - gap, 0) if large else 4 * max(3 - gap, 0)
        return crowding + _outside(box) + weight * abs(x - wanted)

    return min(spots, key=cost)


def _outside(box: Box) -> float:
    return 40 * (max(2 - box[0], 0) + max(box[2] - SIDE + 2, 0) + max(box[3] - SIDE + 1, 0) + max(4 - box[1], 0))


def side_spot(scene: Scene, thing: Thing, relation: str, target: Thing, wanted: float) -> Spot:
    pose, ground = scene.pose(target), scene.ground(target)
    apart = BESIDE if relation == "beside" else NEAR
    left, right = target.look.reach[0] + thing.look.reach[1], target.look.reach[1] + thing.look.reach[0]
    spots = [(pose.x + dx, ground + down) for dx in (-left - apart, right + apart) for down in (0, 2)]
    if relation == "near":
        spots += [(pose.x + side * target.width / 4, ground + apart + thing.height) for side in (-1, 0, 1)]
    return _freest(scene, thing, spots, wanted, 0.1, target.id)


def stand(scene: Scene, person: Person, spots: Iterable[Spot], *seen: str) -> Spot:
    """Return the spot that hides little, above all of what must be seen, and is near the agent."""
    others = []
    for box, name in scene.boxes(person.id, person.holding or ""):
        weight = 6 if name in seen else 1 + 3 * (name in scene.people)
        others.append((box, weight, name in scene.things and scene.depth(scene.things[name])))

    def cost(spot: Spot) -> float:
        box, hidden = person_box(person, *spot), 0.0
        for other, weight, depth in others:
            covered = _overlap(box, other)
            hidden += weight * covered * (50 / area(other) + 0.02) if covered else 0
            if covered and depth > spot[1]:  # the other one hides the agent
                hidden += 80 * covered / area(box)
        away = abs(spot[0] - person.x) + abs(spot[1] - person.y)
        return hidden + _outside(box) + 0.12 * away

    return min(spots, key=cost)


def clamped(spots: Iterable[Spot]) -> list[Spot]:
    return [(min(max(x, MARGIN), SIDE - MARGIN), min(max(y, 72), SIDE - 3)) for x, y in spots]


def stand_at(scene: Scene, person: Person, x: float, ground: float, half: float, *seen: str) -> Spot:
    """Return a spot at which to handle a thing at x, on either side of it."""
    spots = [(x + side * (half + 9 + out), ground + down) for side in (-1, 1) for out in (0, 3) for down in (2, 5, 9)]
    return stand(scene, person, clamped(spots), *seen)


def stand_beyond(scene: Scene, person: Person, target: Thing) -> Spot:
    """Return a spot behind a thing, where half of the agent is visible."""
    shown = 0.5 * person.body.height - target.look.places.behind
    y, x = scene.ground(target) + min(shown, -7), scene.pose(target).x
    aside = 7.0 if target.noun == "tree" else target.width * 0.3
    return stand(scene, person, [(x + way * aside, y) for way in (0, -1, 1)[target.noun == "tree" :]])


def stand_by(scene: Scene, person: Person, target: Thing, apart: float) -> Spot:
    """Return a spot to the left or right of a thing, that many pixels apart."""
    pose, ground = scene.pose(target), scene.ground(target)
    reach = target.width / 2 + 7 + apart
    spots = [(pose.x + side * reach, ground + down) for side in (-1, 1) for down in (1, 4)]
    return stand(scene, person, clamped(spots), target.id)


def stand_free(scene: Scene, person: Person, wanted: float, spread: int = 8) -> Spot:
    spots = [(wanted + dx, float(y)) for dx in range(-spread, spread + 1, 4) for y in (98, 106, 114, 142, 150, 156)]
    return stand(scene, person, clamped(spots))


Record = dict[str, Any]  # an object of scripts.jsonl


def initial_scene(script: Record) -> Scene:
    scene, chance, wanted, things = Scene(), random.Random(script["vid"]), dict[str, float](), list[Thing]()
    for item in script["setting"]["items"]:
        wanted[item["id"]] = float(item["at"]["x"])
        look = Look(*(item[name] for name in ("noun", "colour", "material", "modifier", "size")))
        relation = item["at"]["relation"] if NOUNS[look.noun].portable else "floor"
        opened = item.get("open", item.get("lit"))
        opened = None if opened is None else float(opened)
        things.append(Thing(item["id"], look, relation, item["at"]["target"], opened=opened))
    scene.things = {thing.id: thing for thing in things if thing.large}
    furnish(list(scene.things.values()), wanted)
    tones = ["brown", "black", "yellow"]
    for record in script["agents"]:
        hair = chance.choice(tones)
        tones.remove(hair)
        body = Body(record["noun"], record["colour"], chance.choice(("skin", "skin", "tan")), hair)
        scene.people[record["id"]] = Person(record["id"], body, -100.0, holding=record["holding"])
    waiting = [thing for thing in things if not thing.large]
    while waiting:
        ready = [it for it in waiting if it.relation == "held" or it.target in scene.things or it.target == FLOOR]
        first = min(ready, key=lambda it: it.relation == "on" and it.target == FLOOR)  # those come last
        locate(scene, first, first.relation, first.target, wanted[first.id] * SIDE + chance.uniform(-1, 1))
        waiting.remove(first)
    for record in script["agents"]:
        person = scene.people[record["id"]]
        person.x, person.y = stand_free(scene, person, record["x"] * SIDE, 24)
    return scene


def locate(scene: Scene, thing: Thing, relation: str, target: str, wanted: float) -> None:
    """Put a thing in its relation to a target (an item, an agent or the floor), near the wanted x (pixels)."""
    scene.things[thing.id] = thing
    if relation in ("near", "beside"):
        thing.x, thing.y = side_spot(scene, thing, relation, scene.things[target], wanted)
    elif target == FLOOR:
        spots = [(float(x), float(y)) for x in range(MARGIN, SIDE - MARGIN + 1, 4) for y in _LANES]
        thing.x, thing.y = _freest(scene, thing, spots, wanted, 0.55)
        relation = "floor"
    elif relation != "held":
        holder = scene.things[target]
        thing.slot = scene.take_slot(thing, relation, holder, int(wanted > scene.pose(holder).x))
    thing.relation, thing.target = relation, target


_LOW, _STOOP = 9, 8  # hands that are lower make the agent crouch that far


def posture(scene: Scene, person: Person) -> Posture:
    """Return the posture of an agent, with hands that hold or reach for something."""
    hands, crouch, scale = person.posture.hands, person.posture.crouch, person.body.height / DRAWN
    if person.reach is not None or person.holding is not None:
        thing = scene.things.get(person.holding or "")
        x, y = person.reach or (scene.pose(thing).x, scene.pose(thing).y - thing.grip)
        u, v = (x - person.x) * person.facing / scale, (person.y - person.lift - y) / scale
        u, v = 2 * round(u / 2), 2 * round(v / 2)  # so that few pictures of arms are drawn
        near = 0 if person.reach else round(thing.width * 0.2)
        hands = ((u - near, v), (u - near + 2 * (not person.reach), v + 2))
        if person.overhead and not person.reach:
            hands = ((u - 5, v - 4), (u + 5, v - 4))
    if min(v for _, v in hands) < _LOW and not person.posture.sits:
        crouch = max(crouch, _STOOP)
    return replace(person.posture, hands=hands, crouch=crouch)
