"""Where there is room: furniture in two rows, things beside and near it or free on the floor, agents at things.

Each spot is the best of a few dozen: what is drawn there hides little, and is near nothing but what it is to be near.
"""

from collections.abc import Iterable, Iterator

from workshop.scenes.scene import SIDE, Box, Person, Scene, Thing, person_box

BACK, FRONT, AT_WALL = 82, 133, 66  # the rows on which furniture stands
SILL = 44  # the row of the foot of a window
BESIDE, NEAR = 1, 8  # pixels between a thing and what it is beside or near to
FAR = 12  # what is no nearer than this to a piece of furniture is neither
_LANES = (97, 101, 146, 151, 156)  # rows for what stands free on the floor
_MARGIN = 8
_UPRIGHT = {
    "window": 9,
    "door": 8,
    "closet": 7,
    "fridge": 6,
    "shelf": 5,
    "tree": 5,
    "lamp": 4,
    "cabinet": 4,
    "fence": 3,
}

Spot = tuple[float, float]


def furnish(furniture: dict[str, Thing], wanted: dict[str, float]) -> None:
    """Put furniture in two rows, the tall at the back, each in the order of its wanted x (0 to 1)."""
    ranked = sorted(furniture.values(), key=lambda it: -_UPRIGHT.get(it.noun, 0))
    back = ranked[: (len(ranked) + 1) // 2]
    for row, base in ((back, BACK), (ranked[len(back) :], FRONT)):
        row.sort(key=lambda it: wanted[it.id])
        room = SIDE - sum(it.width for it in row)
        left = 0.0
        for it in row:
            left += room / (len(row) + 1)
            it.x, it.y = left + it.width / 2, base
            if base == BACK and it.noun in ("door", "window"):
                it.y = SILL if it.noun == "window" else AT_WALL
            left += it.width


def _overlap(first: Box, second: Box) -> float:
    across = min(first[2], second[2]) - max(first[0], second[0])
    down = min(first[3], second[3]) - max(first[1], second[1])
    return max(across, 0) * max(down, 0)


def gap(first: Box, second: Box) -> float:
    """Pixels between two boxes; 0 if they touch."""
    across = max(first[0] - second[2], second[0] - first[2], 0)
    down = max(first[1] - second[3], second[1] - first[3], 0)
    return float((across**2 + down**2) ** 0.5)


def _crowding(others: list[tuple[Box, bool]], box: Box) -> float:
    """How much there is in the way of a new box: shares covered, and furniture that it would seem to belong to.

    Args:
        others: what there is, and whether it is furniture
        box: the new one

    """
    own = (box[2] - box[0]) * (box[3] - box[1])
    cost = 0.0
    for other, large in others:
        covered = _overlap(box, other)
        if covered:
            cost += covered * (90 / own + 60 / ((other[2] - other[0]) * (other[3] - other[1])))
        cost += 3 * max(FAR - gap(box, other), 0) if large else 4 * max(3 - gap(box, other), 0)
    return cost


def _others(scene: Scene, *without: str) -> list[tuple[Box, bool]]:
    return [(box, name in scene.things and scene.things[name].large) for box, name in scene.boxes(*without)]


def _box(thing: Thing, spot: Spot) -> Box:
    return (spot[0] - thing.width / 2, spot[1] - thing.height, spot[0] + thing.width / 2, spot[1])


def _inside(box: Box) -> float:
    """What it costs that a box reaches out of the picture."""
    return 40 * (max(2 - box[0], 0) + max(box[2] - SIDE + 2, 0) + max(box[3] - SIDE + 1, 0) + max(4 - box[1], 0))


def floor_spot(scene: Scene, thing: Thing, wanted: float) -> Spot:
    """A free spot on the floor for a thing, not far from the wanted x (pixels)."""
    spots = [(float(x), float(y)) for x in range(_MARGIN, SIDE - _MARGIN + 1, 4) for y in _LANES]
    others = _others(scene, thing.id)

    def cost(spot: Spot) -> float:
        box = _box(thing, spot)
        return _crowding(others, box) + _inside(box) + 0.55 * abs(spot[0] - wanted)

    return min(spots, key=cost)


def side_spot(scene: Scene, thing: Thing, relation: str, target: Thing, wanted: float) -> Spot:
    """A spot on the floor that is beside or near a thing: it touches it almost, or there is a gap."""
    pose, ground = scene.pose(target), scene.ground(target)
    apart = BESIDE if relation == "beside" else NEAR
    left, right = target.look.reach[0] + thing.look.reach[1], target.look.reach[1] + thing.look.reach[0]
    spots = [(pose.x + dx, ground + down) for dx in (-left - apart, right + apart) for down in (0, 2)]
    others = _others(scene, thing.id, target.id)
    if relation == "near":
        spots += [(pose.x + side * target.width / 4, ground + apart + thing.height) for side in (-1, 0, 1)]

    def cost(spot: Spot) -> float:
        box = _box(thing, spot)
        return _crowding(others, box) + _inside(box) + 0.1 * abs(spot[0] - wanted)

    return min(spots, key=cost)


def _stand(scene: Scene, person: Person, spots: Iterable[Spot], seen: tuple[str, ...] = ()) -> Spot:
    """The spot where an agent hides least, above all of what must be seen; of equal ones the nearest."""
    others = [
        (box, name, name in scene.things and scene.pose(scene.things[name]).depth)
        for box, name in scene.boxes(person.id, person.holding or "")
    ]

    def cost(spot: Spot) -> float:
        box = person_box(person, *spot)
        hidden = 0.0
        for other, name, depth in others:
            covered = _overlap(box, other)
            if not covered:
                continue
            weight = 6 if name in seen else 4 if name in scene.people else 1
            hidden += weight * covered * (50 / ((other[2] - other[0]) * (other[3] - other[1])) + 0.02)
            if depth > spot[1]:  # it would stand in front of the agent
                hidden += 80 * covered / ((box[2] - box[0]) * (box[3] - box[1]))
        away = abs(spot[0] - person.x) + abs(spot[1] - person.y)
        return hidden + _inside(box) + 0.12 * away

    return min(spots, key=cost)


def _clamped(spots: Iterable[Spot]) -> Iterator[Spot]:
    for x, y in spots:
        yield min(max(x, _MARGIN), SIDE - _MARGIN), min(max(y, 72), SIDE - 3)


def stand_at(scene: Scene, person: Person, x: float, ground: float, half: float, *seen: str) -> Spot:
    """Where to stand to handle what is at x: on either side of it, in front of the ground that it is on."""
    spots = [(x + side * (half + 9 + out), ground + down) for side in (-1, 1) for out in (0, 3) for down in (2, 5, 9)]
    return _stand(scene, person, _clamped(spots), seen)


def stand_behind(scene: Scene, person: Person, thing: Thing, x: float) -> Spot:
    """Where to stand to push a thing, at that x: on its row, or further to the front if one would not be seen there."""
    y = scene.pose(thing).y
    return _stand(scene, person, _clamped((x, y + down) for down in (1, 4, 8, 14, 20)), (thing.id,))


def stand_beyond(scene: Scene, person: Person, target: Thing) -> Spot:
    """Where to stand behind a thing: half of the agent is to be seen above it, where nothing on it is in the way."""
    shown = 0.5 * person.body.height - target.look.places.behind
    y, x = scene.ground(target) + min(shown, -7), scene.pose(target).x
    aside = 7.0 if target.noun == "tree" else target.width * 0.3
    return _stand(scene, person, [(x + way * aside, y) for way in (0, -1, 1)[target.noun == "tree" :]])


def stand_by(scene: Scene, person: Person, target: Thing, apart: float) -> Spot:
    """Where to stand, sit or arrive at a thing: to its left or right, that many pixels apart."""
    pose, ground = scene.pose(target), scene.ground(target)
    reach = target.width / 2 + 7 + apart
    spots = [(pose.x + side * reach, ground + down) for side in (-1, 1) for down in (1, 4)]
    return _stand(scene, person, _clamped(spots), (target.id,))


def stand_free(scene: Scene, person: Person, wanted: float, spread: int = 8) -> Spot:
    """A place on the floor about the wanted x where an agent is in nobody's way."""
    spots = [(wanted + dx, float(y)) for dx in range(-spread, spread + 1, 4) for y in (98, 106, 114, 142, 150, 156)]
    return _stand(scene, person, _clamped(spots))


def far_side(scene: Scene, person: Person, wanted: float) -> Spot:
    """A place at the side of the room that is meant."""
    return stand_free(scene, person, _MARGIN + 3 if wanted < SIDE / 2 else SIDE - _MARGIN - 3, 4)
