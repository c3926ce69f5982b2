"""Events as animations: phases, one after the other, that move agents and things in the scene."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from workshop.scenes.easing import Easing
from workshop.scenes.initial_scene import locate
from workshop.scenes.scene import Person, Pose, Scene, Thing

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
        """Let the object be at its destination.

        Raises:
            ValueError: no destination has been chosen

        """
        if self._goal is None:
            raise ValueError(f"the event {self.record['action']!r} leads nowhere")
        thing = self.object
        thing.relation, thing.target, thing.x, thing.y, thing.slot = self._goal
        thing.flight = None
        if thing.relation == "held":
            self.scene.people[thing.target].holding = thing.id

    @property
    def manner(self) -> str | None:
        """Slowly, quickly and so on, or none."""
        manner: str | None = self.record["manner"]
        return manner

    @property
    def target(self) -> Thing | None:
        """The thing that is the target, if a thing it is."""
        return self.scene.things.get(self.record["target"] or "")

    @property
    def object(self) -> Thing:
        """The thing that it is done to.

        Raises:
            ValueError: the event has none

        """
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
