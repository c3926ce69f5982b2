"""Nouns, places and actions of the scenes, and the state of a room."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import yaml

Words = tuple[str, ...]

FLOOR = "floor"
WORLD = yaml.safe_load(Path(__file__).with_name("world.yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Noun:
    """A kind of item. `bulk`: 1 fits in a hand, 2 in the arms, 3 can be moved with effort, 4 is fixed.

    `affords` names the actions that apply to it and its roles: `on`, `under`, `behind` and `in` (things can be put
    there), `seat`, `bouncy` (agents can jump on it), `door` (it has a door).
    """

    bulk: int
    affords: Words
    materials: Words = ()
    modifiers: Words = ()
    novel: bool = False

    @property
    def portable(self) -> bool:
        return self.bulk <= 2

    @property
    def fixed(self) -> bool:
        return self.bulk == 4


@dataclass(frozen=True)
class Action:
    """A kind of event: its verbs, seconds, manners, relations and directions, and how often it is chosen."""

    verbs: Words
    seconds: float
    manners: Words = ("slowly", "quickly", "gently", "suddenly", "carefully")
    relations: Words = ()
    directions: Words = ()
    bare: bool = True  # whether the verb may have no direction and no target
    weight: int = 1


def _load(kind: type, row: dict) -> Noun | Action:
    return kind(**{name: tuple(value.split()) if isinstance(value, str) else value for name, value in row.items()})


OBJECTS = {noun: _load(Noun, row) for noun, row in WORLD["objects"].items()}
FURNITURE = {noun: _load(Noun, row) for noun, row in WORLD["furniture"].items()}
NOUNS = OBJECTS | FURNITURE
ACTIONS = {action: _load(Action, row) for action, row in WORLD["actions"].items()}
PLACES, MANNERS, OWN_COLOURS = WORLD["places"], WORLD["manners"], WORLD["own_colours"]
AGENTS, NOVEL_VERBS = WORLD["agents"], WORLD["novel_verbs"]
KEPT_COLD = frozenset(("apple", "bottle", "bowl", "can", "jar", "plate", "lemon"))  # things for a fridge

COLOURS = ("red", "blue", "green", "yellow", "white", "black", "brown", "orange", "pink", "grey")
NOVEL_COLOUR = "purple"
FURNITURE_COLOURS = ("brown", "white", "black", "grey", "green", "blue")
SIZES = ("small", "big")
SUBSTANCES = ("glass", "paper", "straw", "rubber")  # modifiers that name a material
NOVEL_PATTERN = "dotted"  # for things that can be striped

NOVEL_AGENT = "robot"


def fits(noun: str, relation: str, target: str) -> bool:
    """Return whether a thing of one kind can be put `relation` (on, under, behind, in) a thing of another kind."""
    held, holder = NOUNS[noun], NOUNS[target]
    if relation not in holder.affords:
        return False
    if target == "fridge":
        return noun in KEPT_COLD
    if relation == "in" or not holder.fixed:
        return held.portable and held.bulk < holder.bulk - (relation != "in")
    return held.portable


def colours_of(noun: str, *, novel: bool = False) -> Words:
    if noun in OWN_COLOURS:
        return tuple(OWN_COLOURS[noun])
    palette = COLOURS if noun in OBJECTS else FURNITURE_COLOURS
    return (*palette, *[NOVEL_COLOUR] * (len(palette) // 4)) if novel else palette


def materials_of(noun: str, *, novel: bool = False) -> Words:
    materials = NOUNS[noun].materials
    return (*materials, NOVEL_PATTERN) if novel and "striped" in materials else materials


NOVEL_ACTIONS = frozenset(("bounce", "hug"))
NOVEL_ADVERBS = {"slowly": "gradually", "quickly": "hastily", "gently": "softly"}
SIZE_WORDS = {"small": ("small",), "big": ("big", "large")}
NOVEL_SIZE_WORDS = {"small": "tiny"}

NOVEL_PREPOSITIONS = {"in": "inside", "on": "onto", "under": "beneath", "to": "toward"}
MOTION = frozenset(("put", "drop", "throw"))
VOWELS = "aeiou"


def prepositions(action: str, relation: str, *, novel: bool = False) -> Words:
    words = ("in", "into") if action in MOTION and relation == "in" else (relation,)
    moved = action in MOTION or (action == "jump" and relation == "on")
    if novel and relation in NOVEL_PREPOSITIONS and (moved or relation in ("under", "to")) and action != "give":
        return (*words, NOVEL_PREPOSITIONS[relation])
    return words


def third_person(verb: str) -> str:
    """Return the third person of a verb, or the plural of a noun: puts, pushes, carries."""
    if verb.endswith(("s", "sh", "ch", "x", "z", "o")):
        return verb + "es"
    if verb.endswith("y") and verb[-2:-1] not in VOWELS:
        return verb[:-1] + "ies"
    return verb + "s"


def gerund(verb: str) -> str:
    """Return the gerund: putting, taking, opening."""
    if verb.endswith("e"):
        return verb[:-1] + "ing"
    one_vowel = sum(letter in VOWELS for letter in verb) == 1
    doubles = one_vowel and verb[-2] in VOWELS and verb[-1] not in VOWELS + "wxy"
    return verb + doubles * verb[-1] + "ing"


BESIDE, NEAR = 0.06, 0.09  # distances from a thing's middle; the room has width 1


@dataclass(frozen=True)
class Location:
    """A relation to an item, to the floor, or to the agent that holds the thing; `x` is 0 (left) to 1."""

    relation: str
    target: str
    x: float


@dataclass
class Item:
    """A piece of furniture or an object. `open` and `lit` are None for items without a lid, door or light."""

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
        return NOUNS[self.noun]


@dataclass
class Agent:
    id: str
    noun: str
    colour: str
    x: float
    seat: str | None = None  # the item or the floor that the agent sits on
    near: str | None = None  # the item next to the agent
    holding: str | None = None


@dataclass
class Room:
    place: str
    items: dict[str, Item] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)

    def by(self, item: Item) -> list[str]:
        """Return the relations of the items that are located by this one."""
        return [other.at.relation for other in self.items.values() if other.at.target == item.id]

    def free(self, item: Item) -> bool:
        """Return whether no agent uses the item and no other item but its contents depends on its place."""
        used = any(agent.seat and item.id in (agent.seat, agent.near) for agent in self.agents.values())
        return not used and item.at.relation != "held" and {*self.by(item)} <= {"in"}

    def reachable(self, item: Item) -> bool:
        """Return whether the item is not held, and not in a closed or held one."""
        if item.at.relation != "in":
            return item.at.relation != "held"
        holder = self.items[item.at.target]
        return holder.open is not False and self.reachable(holder)

    def on_floor(self, item: Item) -> bool:
        return item.at.target == FLOOR or item.at.relation in ("near", "beside")

    def holds(self, item: Item, relation: str, target: Item) -> bool:
        """Return whether the item can be put in this relation to the target now."""
        shut = relation == "in" and target.open is False
        if item is target or not self.reachable(target) or target.id == item.at.target or shut:
            return False
        if relation in ("near", "beside"):
            stands = not target.kind.portable or ("in" in target.kind.affords and self.on_floor(target))
            return stands and target.noun not in ("rug", "window")
        seated = any(agent.seat == target.id for agent in self.agents.values())
        return not seated and fits(item.noun, relation, target.noun) and self.by(target).count(relation) < 2

    def x_of(self, item: Item) -> float:
        """Return the item's x, which is that of its container or holder."""
        if item.at.relation == "held":
            return self.agents[item.at.target].x
        return self.x_of(self.items[item.at.target]) if item.at.relation == "in" else item.at.x

    def spot(self, relation: str, target: Item, chance: random.Random) -> Location:
        x = self.x_of(target)
        if relation in ("near", "beside"):
            side = chance.choice((-1, 1)) * (NEAR if relation == "near" else BESIDE)
            x = x + side if 0.03 <= x + side <= 0.97 else x - side
        return Location(relation, target.id, round(x, 2))

    def floor(self, x: float) -> Location:
        return Location("on", FLOOR, round(min(max(x, 0.03), 0.97), 2))
