"""What there is in the scenes and what agents can do: nouns, places, actions, and the state of a room."""

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

Words = tuple[str, ...]

FLOOR = "floor"
WORLD = yaml.safe_load(Path(__file__).with_name("world.yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Noun:
    """A kind of item. `bulk`: 1 fits in a hand, 2 in the arms, 3 can be moved with effort, 4 is fixed.

    `affords` names actions that it undergoes and the roles it plays: `on`, `under`, `behind` and `in` (things can be
    put there), `seat`, `bouncy` (one can jump on it), `door` (it is opened by a door of its own).
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
    """One kind of event: its verbs, its length in seconds, the manners, relations and directions it can have."""

    verbs: Words
    seconds: float
    manners: Words
    relations: Words = ()
    directions: Words = ()
    bare: bool = True  # whether the verb may stand without direction and target


def _load(kind: type, row: dict) -> Noun | Action:
    return kind(**{name: tuple(value.split()) if isinstance(value, str) else value for name, value in row.items()})


OBJECTS = {noun: _load(Noun, row) for noun, row in WORLD["objects"].items()}
FURNITURE = {noun: _load(Noun, row) for noun, row in WORLD["furniture"].items()}
NOUNS = OBJECTS | FURNITURE
ACTIONS = {action: _load(Action, row) for action, row in WORLD["actions"].items()}
PLACES, MANNERS, OWN_COLOURS = WORLD["places"], WORLD["manners"], WORLD["own_colours"]
AGENTS = {kind: tuple(words) for kind, words in WORLD["agents"].items()}
NOVEL_VERBS = {action: tuple(verbs) for action, verbs in WORLD["novel_verbs"].items()}
KEPT_COLD = frozenset(("apple", "bottle", "bowl", "can", "jar", "plate", "lemon"))  # all that goes into a fridge

COLOURS = ("red", "blue", "green", "yellow", "white", "black", "brown", "orange", "pink", "grey")
NOVEL_COLOUR = "purple"
FURNITURE_COLOURS = ("brown", "white", "black", "grey", "green", "blue")
SIZES = ("small", "big")
SUBSTANCES = ("glass", "paper", "straw", "rubber")  # modifiers that leave no choice of material
NOVEL_PATTERN = "dotted"  # wherever something can be striped

NOVEL_AGENT = "robot"


def fits(noun: str, relation: str, target: str) -> bool:
    """Whether a thing of this kind can be put `relation` (on, under, behind, in) a thing of that kind."""
    held, holder = NOUNS[noun], NOUNS[target]
    if relation not in holder.affords:
        return False
    if target == "fridge":
        return noun in KEPT_COLD
    if relation == "in" or not holder.fixed:
        return held.portable and held.bulk < holder.bulk - (relation != "in")
    return held.portable


def colours_of(noun: str, *, novel: bool = False) -> Words:
    """The colours that a thing of this kind comes in."""
    if noun in OWN_COLOURS:
        return OWN_COLOURS[noun]
    palette = COLOURS if noun in OBJECTS else FURNITURE_COLOURS
    return (*palette, *[NOVEL_COLOUR] * (len(palette) // 4)) if novel else palette


def materials_of(noun: str, *, novel: bool = False) -> Words:
    """The materials and patterns that a thing of this kind comes in."""
    materials = NOUNS[noun].materials
    return (*materials, NOVEL_PATTERN) if novel and "striped" in materials else materials


NOVEL_ACTIONS = ("bounce", "hug")
NOVEL_ADVERBS = {"slowly": "gradually", "quickly": "hastily", "gently": "softly"}
SIZE_WORDS = {"small": ("small",), "big": ("big", "large")}
NOVEL_SIZE_WORDS = {"small": "tiny"}

PREPOSITIONS = {  # relation -> the prepositions for it, the one for motion last
    "in": ("in", "into")
}
NOVEL_PREPOSITIONS = {"in": "inside", "on": "onto", "under": "beneath", "to": "toward"}
MOTION = frozenset(("put", "drop", "throw"))  # what is moved into or onto
VOWELS = "aeiou"


def prepositions(action: str, relation: str, *, novel: bool = False) -> Words:
    """The prepositions for a relation that comes about by an action."""
    words = PREPOSITIONS.get(relation, (relation,)) if action in MOTION else (relation,)
    moved = action in MOTION or (action == "jump" and relation == "on")
    if novel and relation in NOVEL_PREPOSITIONS and (moved or relation in ("under", "to")) and action != "give":
        return (*words, NOVEL_PREPOSITIONS[relation])
    return words


def third_person(verb: str) -> str:
    """Put -> puts, push -> pushes, carry -> carries."""
    if verb.endswith(("s", "sh", "ch", "x", "z")):
        return verb + "es"
    if verb.endswith("y") and verb[-2] not in VOWELS:
        return verb[:-1] + "ies"
    return verb + "s"


def gerund(verb: str) -> str:
    """Put -> putting, take -> taking, open -> opening."""
    if verb.endswith("e"):
        return verb[:-1] + "ing"
    one_vowel = sum(letter in VOWELS for letter in verb) == 1
    if one_vowel and verb[-2] in VOWELS and verb[-1] not in VOWELS + "wxy":
        return verb + verb[-1] + "ing"
    return verb + "ing"


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
