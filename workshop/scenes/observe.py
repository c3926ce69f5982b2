"""What an ideal detector and tracker would report of the scenes: features of clips without pictures.

    python -m workshop.scenes.observe FOLDER --scripts FILE [--clip-length 0.5]

Writes FOLDER/<vid>.npy, clips × channels. They take perception out of the question whether a model composes words it
knows: what is there and how it moves is given, what it is called is not. `imports.sources` takes the folder.

A clip is described from the side of each agent, the livelier first: the agent, the thing that it is busy with, and the
thing or agent which that is at. Each is what it is (kind, colour, size, material), how it stands or lies in the middle
of the clip, how that differs between the clip's end and beginning, and how much it moved on the way.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from workshop.scenes.animation import FPS, scenes_by_frame
from workshop.scenes.drawing import COLOURS, HEIGHTS
from workshop.scenes.render import read_scripts
from workshop.scenes.scene import SIDE, Person, Record, Scene, Thing, posture
from workshop.scenes.world import NOUNS, PLACES

AGENTS = 2
UNIT = SIDE / 10  # pixels; places and movements are in such units
HUES = (*COLOURS,)
KINDS = (*sorted(NOUNS), *sorted(HEIGHTS))
MATERIALS = ("wooden", "metal", "striped", "dotted")
MODIFIERS = tuple(sorted({word for noun in NOUNS.values() for word in noun.modifiers}))
SIZES = ("small", "big")
VIEWS, SEATS = ("front", "side", "back"), ("floor", "seat")
RELATIONS = ("floor", "on", "under", "behind", "in", "near", "beside", "held")
LOOK = len(KINDS) + len(HUES) + len(SIZES) + len(MATERIALS) + len(MODIFIERS)
BODY = 19  # numbers of an agent's state
STATE = 8 + len(RELATIONS)  # numbers of a thing's state

Numbers = npt.NDArray[np.float32]


def one_of(choices: Sequence[str], chosen: str | None) -> list[float]:
    """1 at the choice, 0 elsewhere."""
    return [float(choice == chosen) for choice in choices]


def look_of(thing: Thing) -> Numbers:
    """What a thing is [LOOK]."""
    look = thing.look
    identity = [*one_of(KINDS, look.noun), *one_of(HUES, look.colour), *one_of(SIZES, look.size)]
    return np.array([*identity, *one_of(MATERIALS, look.material), *one_of(MODIFIERS, look.modifier)], np.float32)


def look_of_person(person: Person) -> Numbers:
    """Who an agent is [LOOK]."""
    identity = [*one_of(KINDS, person.body.kind), *one_of(HUES, person.body.colour)]
    return np.array([*identity, *[0.0] * (LOOK - len(identity))], np.float32)


def body_of(scene: Scene, person: Person) -> list[float]:
    """How an agent stands [BODY]."""
    held = posture(scene, person)
    (a, b), (c, d) = held.hands
    return [
        person.x / UNIT,
        (person.y - person.lift) / UNIT,
        person.lift / UNIT,
        float(person.facing),
        *one_of(VIEWS, held.view),
        *one_of(SEATS, held.sits),
        held.stride / 30,
        held.crouch / 10,
        held.lean / 10,
        held.kick / 30,
        a / 10,
        b / 10,
        c / 10,
        d / 10,
        float(person.holding is not None),
        float(person.overhead),
    ]


def state_of(scene: Scene, thing: Thing) -> list[float]:
    """How a thing stands, lies or flies [STATE]."""
    pose = scene.pose(thing)
    turned = np.deg2rad(pose.angle)
    return [
        pose.x / UNIT,
        pose.y / UNIT,
        pose.depth / UNIT,
        float(pose.hidden),
        float(np.sin(turned)),
        float(np.cos(turned)),
        thing.squeeze,
        thing.opened if thing.opened is not None else -0.5,
        *one_of(RELATIONS, thing.relation),
    ]


class ObservedScript:
    """The states of all agents [frames, agents, BODY] and things [frames, things, STATE] of a script."""

    def __init__(self, script: Record) -> None:
        bodies, states, held = [], [], []
        scene = Scene()
        for scene, _ in scenes_by_frame(script):
            things = list(scene.things)
            bodies.append([body_of(scene, person) for person in scene.people.values()])
            states.append([state_of(scene, thing) for thing in scene.things.values()])
            holding = [person.holding for person in scene.people.values()]
            held.append([things.index(thing) if thing in scene.things else -1 for thing in holding])
        self.bodies = np.array(bodies, np.float32)
        self.states = np.array(states, np.float32).reshape(len(bodies), len(scene.things), STATE)
        self.held = np.array(held)
        self.people = [look_of_person(person) for person in scene.people.values()]
        self.things = [look_of(thing) for thing in scene.things.values()]
        self.place = np.array(one_of(sorted(PLACES), script["setting"]["place"]), np.float32)

    def clips(self, length: float) -> Numbers:
        """Features [clips, channels]; clip i covers [i·length, (i + 1)·length) s."""
        frames, size = len(self.bodies), round(length * FPS)
        return np.stack([self._clip(first, min(first + size, frames - 1)) for first in range(0, frames, size)])

    def _clip(self, first: int, last: int) -> Numbers:
        bodies, states = self.bodies[first : last + 1], self.states[first : last + 1]
        stirring = np.abs(np.diff(states, axis=0)).sum((0, 2))  # of each thing
        order = np.argsort(-np.abs(np.diff(bodies, axis=0)).sum((0, 2)), kind="stable")
        parts = [self._agent(agent, first, bodies, states, stirring) for agent in order[:AGENTS]]
        while len(parts) < AGENTS:
            parts.append(np.zeros_like(parts[0]))
        return np.concatenate([*parts, self.place])

    def _agent(self, agent: int, first: int, bodies: Numbers, states: Numbers, stirring: Numbers) -> Numbers:
        middle = len(states) // 2
        own = bodies[middle, agent, :2]
        busy = self._busy_with(agent, first, own, states[middle], stirring)
        centre = states[middle, busy, :2]
        near = self._distances(centre, states[middle])
        near[busy] = np.inf
        others = np.linalg.norm(bodies[middle, :, :2] - centre, axis=1)
        others[agent] = np.inf
        if others.min() < near.min():
            other = int(others.argmin())
            target = np.concatenate([self.people[other], _course(bodies[:, other], own)[: 3 * STATE]])
        else:
            target = np.concatenate([self.things[near.argmin()], _course(states[:, near.argmin()], own)])
        target = np.pad(target, (0, LOOK + 3 * STATE - len(target)))
        thing = np.concatenate([self.things[busy], _course(states[:, busy], own)])
        return np.concatenate([self.people[agent], _course(bodies[:, agent], own), thing, target])

    def _busy_with(self, agent: int, first: int, own: Numbers, states: Numbers, stirring: Numbers) -> int:
        held = int(self.held[first : first + 2, agent].max())
        if held >= 0:
            return held
        return int((self._distances(own, states) - 100 * (stirring > 0.05)).argmin())

    @staticmethod
    def _distances(point: Numbers, states: Numbers) -> Numbers:
        distances: Numbers = np.linalg.norm(states[:, :2] - point, axis=1)
        return distances


def _course(states: Numbers, origin: Numbers) -> Numbers:
    """State [3·n] of the clip's middle, places from the origin; its change from beginning to end; how much it moved."""
    middle = states[len(states) // 2].copy()
    middle[:2] -= origin
    change, moved = states[-1] - states[0], np.abs(np.diff(states, axis=0)).sum(0)
    return np.concatenate([middle, change, moved])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scripts", type=Path, required=True)
    parser.add_argument("--clip-length", type=float, default=0.5, metavar="S", help="seconds of a clip")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for script in read_scripts(options.scripts):
        clips = ObservedScript(script).clips(options.clip_length)
        np.save(options.folder / f"{script['vid']}.npy", clips.astype(np.float16))


if __name__ == "__main__":
    main()
