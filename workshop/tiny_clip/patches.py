"""What is in each patch of a picture: kind and colour, and how what is there stands, lies and moves.

Names and states are known of every scene; they are what the encoder's patches are taught, beside CLIP's own loss.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workshop.scenes.observe import BODY, STATE, body_of, state_of
from workshop.scenes.people import HEIGHTS
from workshop.scenes.scene import SIDE, Box, Scene, person_box
from workshop.scenes.sprites import COLOURS
from workshop.scenes.world import NOUNS

PATCH = 20  # pixels of a patch, in both directions
GRID = SIDE // PATCH
EDGES = np.arange(GRID) * PATCH
FILLED = 0.4  # share of a patch that is a thing's
KINDS = ("", *sorted(NOUNS), *sorted(HEIGHTS))
HUES = ("", *COLOURS)

PLACE = 2  # an agent's first numbers are where it is, which its patch tells
POSE = 4  # a thing's first ones are where it is, how deep, and whether it is hidden
CHANGING = 8  # the rest of a thing's, its relation, changes at once
POSTURE = BODY - PLACE
OF_AGENT = POSTURE + BODY  # how an agent stands, and what of it has changed
OF_THING = STATE - POSE + CHANGING
NUMBERS = OF_AGENT + OF_THING
NOTHING, AGENT, THING = 0, 1, 2

Maps = npt.NDArray[np.uint8]  # (GRID, GRID, 2): places in KINDS and HUES
Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True)
class States:
    """For each patch whether an agent or a thing is in it [GRID, GRID], and that one's state [GRID, GRID, NUMBERS]."""

    owners: npt.NDArray[np.uint8]
    numbers: npt.NDArray[np.float16]


@dataclass(frozen=True)
class SceneStates:
    """The states of all agents [agents, BODY] and things [things, STATE], and who is in each patch.

    Agents are numbered from 0, things go on from there; -1 is nobody.
    """

    bodies: Numbers
    things: Numbers
    owners: npt.NDArray[np.int16]

    def since(self, before: "SceneStates", after: "SceneStates") -> States:
        """The states of those in each patch, with what changes from one moment to another."""
        agents = np.concatenate([self.bodies[:, PLACE:], after.bodies - before.bodies], axis=1)
        changed = (after.things - before.things)[:, :CHANGING]
        things = np.concatenate([self.things[:, POSE:], changed], axis=1)
        rows = np.zeros((len(agents) + len(things) + 1, NUMBERS), np.float16)  # the last one is nobody's
        rows[: len(agents), :OF_AGENT] = agents
        rows[len(agents) : -1, OF_AGENT:] = things
        kinds = np.array([AGENT] * len(agents) + [THING] * len(things) + [NOTHING], np.uint8)
        return States(kinds[self.owners], rows[self.owners])


def patch_states(scene: Scene) -> SceneStates:
    """The states of a scene, as it is now."""
    people, things = list(scene.people.values()), list(scene.things.values())
    boxes = [person_box(person, person.x, person.y - person.lift) for person in people]
    owners = np.full((GRID, GRID), -1, np.int16)
    _fill(owners, [*enumerate(boxes), *enumerate((scene.box(thing) for thing in things), len(people))])
    bodies = np.array([body_of(scene, person) for person in people], np.float32)
    states = np.array([state_of(scene, thing) for thing in things], np.float32).reshape(len(things), STATE)
    return SceneStates(bodies, states, owners)


def patch_map(scene: Scene) -> Maps:
    """(GRID, GRID, 2): kind and colour of the smallest thing or agent that fills a patch, or has its middle there."""
    grid = np.zeros((GRID, GRID, 2), np.uint8)
    named = [(scene.box(thing), thing.noun, thing.look.colour) for thing in scene.things.values()]
    named += [(person_box(it, it.x, it.y - it.lift), it.body.kind, it.body.colour) for it in scene.people.values()]
    _fill(grid, [((KINDS.index(kind), HUES.index(colour or "")), box) for box, kind, colour in named])
    return grid


def _fill(grid: npt.NDArray[np.integer], marks: list[tuple[Any, Box | None]]) -> None:
    """Mark the patches of every box that shows, the smallest last."""
    shown = [(mark, box) for mark, box in marks if box is not None]
    for mark, (left, top, right, bottom) in sorted(shown, key=lambda one: _area(one[1]), reverse=True):
        columns = np.clip(np.minimum(EDGES + PATCH, right) - np.maximum(EDGES, left), 0, PATCH) / PATCH
        rows = np.clip(np.minimum(EDGES + PATCH, bottom) - np.maximum(EDGES, top), 0, PATCH) / PATCH
        filled = rows[:, None] * columns >= FILLED
        middle = (int((top + bottom) / 2 / PATCH), int((left + right) / 2 / PATCH))
        filled[min(max(middle[0], 0), GRID - 1), min(max(middle[1], 0), GRID - 1)] = True
        grid[filled] = mark


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])
