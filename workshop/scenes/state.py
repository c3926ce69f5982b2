"""The state of one room: where everything is, what is open, what agents hold."""

import random
from dataclasses import dataclass, field, replace

from workshop.scenes.world import FLOOR, NOUNS, Noun, fits

BESIDE = 0.06  # how far from a thing's middle "beside" and "near" it are; the room is 1 wide
NEAR = 0.09


@dataclass(frozen=True)
class Location:
    """On, under, behind, in, near or beside an item, on the floor, or held by an agent; `x` is 0 (left) to 1."""

    relation: str
    target: str
    x: float


@dataclass
class Item:
    """A piece of furniture or an object. `open` and `lit` are None for what has no lid, door or light."""

    id: str
    noun: str
    modifier: str | None
    colour: str
    size: str | None
    material: str | None
    at: Location
    open: bool | None = None
    lit: bool | None = None

    @property
    def kind(self) -> Noun:
        """What can be done with it."""
        return NOUNS[self.noun]


@dataclass
class Agent:
    """Somebody: a man, a woman, a boy, a girl (or a robot), the colour of the clothes, where and how."""

    id: str
    noun: str
    colour: str
    x: float
    seat: str | None = None  # the item, or the floor, that the agent sits on
    near: str | None = None  # the item that the agent stands or sits at
    holding: str | None = None


@dataclass
class Room:
    """A place with its items and agents, as they are at one moment."""

    place: str
    items: dict[str, Item] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)

    def copy(self) -> "Room":
        """The room as it is now, whatever happens to this one."""
        items = {name: replace(item) for name, item in self.items.items()}
        return Room(self.place, items, {name: replace(agent) for name, agent in self.agents.items()})

    def on_it(self, item: Item, *relations: str) -> list[Item]:
        """What is located by this item, in these relations (all if none is named)."""
        dependents = [other for other in self.items.values() if other.at.target == item.id]
        return [other for other in dependents if not relations or other.at.relation in relations]

    def free(self, item: Item) -> bool:
        """Nobody holds it and nothing depends on where it is, but for what is in it."""
        used = any(agent.seat and item.id in (agent.seat, agent.near) for agent in self.agents.values())
        return not used and item.at.relation != "held" and len(self.on_it(item)) == len(self.on_it(item, "in"))

    def reachable(self, item: Item) -> bool:
        """Not held, and not in anything that is closed or held."""
        if item.at.relation == "held":
            return False
        holder = self.items.get(item.at.target)
        if holder is None or item.at.relation != "in":
            return True
        return holder.open is not False and self.reachable(holder)

    def on_floor(self, item: Item) -> bool:
        """Whether it stands free on the floor."""
        return item.at.target == FLOOR or item.at.relation in ("near", "beside")

    def holds(self, item: Item, relation: str, target: Item) -> bool:
        """Whether there is room for the item in this relation to the target now."""
        if item is target or not self.reachable(target) or target.id == item.at.target:
            return False
        if relation in ("near", "beside"):
            stands = not target.kind.portable or ("in" in target.kind.affords and self.on_floor(target))
            return stands and target.noun not in ("rug", "window")
        if relation == "in" and target.open is False:
            return False
        seated = any(agent.seat == target.id for agent in self.agents.values())
        return not seated and fits(item.noun, relation, target.noun) and len(self.on_it(target, relation)) < 2

    def x_of(self, item: Item) -> float:
        """Where it is now: with what it is in, or with who holds it."""
        if item.at.relation == "held":
            return self.agents[item.at.target].x
        holder = self.items.get(item.at.target)
        return self.x_of(holder) if holder is not None and item.at.relation == "in" else item.at.x

    def spot(self, relation: str, target: Item, chance: random.Random) -> Location:
        """A location in this relation to the target."""
        x = self.x_of(target)
        if relation in ("near", "beside"):
            side = chance.choice((-1, 1)) * (NEAR if relation == "near" else BESIDE)
            x = x + side if 0.03 <= x + side <= 0.97 else x - side
        return Location(relation, target.id, round(x, 2))

    def floor(self, x: float) -> Location:
        """A location on the floor, kept within the room."""
        return Location("on", FLOOR, round(min(max(x, 0.03), 0.97), 2))
