"""The room as a picture has it: where each thing and each agent is now, in pixels, and what hides what."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from workshop.scenes.looks import Look
from workshop.scenes.people import Body, Posture
from workshop.scenes.world import FLOOR, NOUNS

SIDE = 160  # pixels of a frame, in both directions
WALL = 58  # the row where the wall ends and the floor begins
GROUND = 86  # the row on which one stands at a window
FREE = ("floor", "near", "beside")  # relations of what stands on the floor, at a place of its own
SHUT = 0.3  # what is opened less hides what is in it
_PEEK = 0.56  # how much of what is behind something shows above it
_OVERHEAD = 1.0
_SHELVES = {"cabinet": 14.2, "fridge": 16.0}  # how far up the second shelf is

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Pose:
    """Where the base of a thing is; what is deeper is painted earlier; only rows from `top` to `bottom` show."""

    x: float
    y: float
    depth: float
    top: float = 0
    bottom: float = 1e6
    angle: float = 0
    hidden: bool = False


@dataclass
class Thing:
    """An item on the scene. `flight` overrides where it is while it moves."""

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
        """Its kind."""
        return self.look.noun

    @property
    def width(self) -> float:
        """Pixels."""
        return self.look.extent[0]

    @property
    def height(self) -> float:
        """Pixels."""
        return self.look.extent[1]

    @property
    def large(self) -> bool:
        """Whether it is furniture."""
        return not NOUNS[self.noun].portable


@dataclass
class Person:
    """An agent on the scene: where its soles are, how high above the floor, how it is turned, what it holds."""

    id: str
    body: Body
    x: float
    y: float = 0
    lift: float = 0
    facing: int = 1
    posture: Posture = field(default_factory=Posture)
    depth: float | None = None  # where it is not simply that of the soles
    holding: str | None = None
    overhead: bool = False
    close: float = 0  # pixels by which it holds its thing nearer to itself
    offset: tuple[float, float] = (0, 0)  # by which the thing in its hands is out of place, in pixels
    reach: tuple[float, float] | None = None  # the point that its hands go for


@dataclass
class Scene:
    """All things and agents, by their ids."""

    things: dict[str, Thing] = field(default_factory=dict)
    people: dict[str, Person] = field(default_factory=dict)

    def pose(self, thing: Thing) -> Pose:
        """Where a thing is now."""
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
            return self._under(thing, target, Pose(x, base.y, base.depth + 0.2))
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

    def _under(self, thing: Thing, target: Thing, pose: Pose) -> Pose:
        """What is too tall lies down, and what is still too tall is hidden at the top."""
        room = target.look.places.under[1]
        lies = thing.height > room and thing.height > 1.25 * thing.width
        down = (thing.height - thing.width) / 2 if lies else 0
        angle = 90.0 if lies else 0.0
        top = 0 if target.noun in ("tree", "ladder") else pose.y - room
        return replace(pose, y=pose.y - 0.5 + down, angle=angle, top=top)

    def _aside(self, thing: Thing, target: Thing) -> float:
        """How far to the right of the middle the slot is."""
        sign = 1 if thing.slot else -1
        if target.noun == "tree":
            return sign * (14.0 if thing.relation == "under" else 5 + 0.05 * thing.width) * target.look.scale
        if thing.relation == "in":
            return 0 if target.noun in _SHELVES else sign * target.width * (0.2 if target.large else 0.13)
        room = target.look.places.under[0] if thing.relation == "under" else target.width * 0.84
        return sign * max(min(room / 4, (room - thing.width) / 2), 0)

    def in_hands(self, person: Person, thing: Thing) -> Pose:
        """Where a thing is that an agent holds."""
        dx, dy = person.offset
        depth = self.depth(person) + 0.3
        if person.overhead:
            return Pose(person.x + dx, person.y - person.body.height - _OVERHEAD - person.lift + dy, depth)
        ahead = person.facing * (6.5 + thing.width * 0.32 - person.close)
        level = person.body.height * (0.46 if thing.height < 15 else 0.34)
        if person.posture.sits:
            level += 1
        return Pose(person.x + ahead + dx, person.y - level - person.lift + dy, depth)

    def depth(self, person: Person) -> float:
        """How near to the front an agent is."""
        return person.y if person.depth is None else person.depth

    def ground(self, thing: Thing) -> float:
        """The row on which one stands at a thing."""
        while thing.relation not in (*FREE, "held"):
            thing = self.things[thing.target]
        y = self.pose(thing).y if thing.flight is None else thing.y
        return GROUND if thing.noun == "window" else y

    def box(self, thing: Thing) -> Box | None:
        """The pixels that a thing takes up, unless it is hidden."""
        pose = self.pose(thing)
        if pose.hidden:
            return None
        width, height = (thing.height, thing.width) if pose.angle else (thing.width, thing.height)
        shift = (thing.height - thing.width) / 2 if pose.angle else 0
        bottom = min(pose.y - shift, pose.bottom)
        return (pose.x - width / 2, max(pose.y - shift - height, pose.top), pose.x + width / 2, bottom)

    def contents(self, thing: Thing, relation: str) -> list[Thing]:
        """The other things in this relation to one."""
        return [it for it in self.things.values() if it.target == thing.id and it.relation == relation]

    def take_slot(self, thing: Thing, relation: str, target: Thing, wanted: int) -> int:
        """The wanted one of the two slots (0 left, 1 right), if it is free and nothing hides it, or else the other."""
        used = {other.slot for other in self.contents(target, relation) if other is not thing}
        if used:
            return 1 - min(used)
        facing = {"on": "behind", "behind": "on"}.get(relation, relation)
        hiding = {other.slot for other in self.contents(target, facing) if other is not thing}
        return 1 - wanted if hiding == {wanted} else wanted

    def boxes(self, *without: str) -> Iterator[tuple[Box, str]]:
        """The pixels of all that is to be seen, with its id, but for some."""
        for thing in self.things.values():
            box = None if thing.id in without else self.box(thing)
            if box is not None and thing.noun not in ("rug", "window"):
                yield box, thing.id
        for person in self.people.values():
            if person.id not in without:
                yield person_box(person, person.x, person.y), person.id


def person_box(person: Person, x: float, y: float) -> Box:
    """The pixels that an agent would take up, standing there."""
    return (x - 7, y - person.body.height, x + 7, y)


def on_floor(relation: str, target: str) -> bool:
    """Whether what is in this relation has a place of its own on the floor."""
    return target == FLOOR or relation in ("near", "beside")
