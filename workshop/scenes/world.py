"""What there is in the scenes: places, furniture, objects, agents, how they look and what can be done with them.

Words marked novel occur in the Novel-Word split only.
"""

from dataclasses import dataclass

Words = tuple[str, ...]

FLOOR = "floor"


@dataclass(frozen=True)
class Noun:
    """A kind of item. `bulk`: 1 fits in a hand, 2 in the arms, 3 can be moved with effort, 4 is fixed.

    `affords` names actions that it undergoes and the roles it plays: `on`, `under`, `behind` and `in` (things can be
    put there), `seat`, `bouncy` (one can jump on it), `door` (it is opened by a door of its own).
    """

    bulk: int
    affords: frozenset[str]
    materials: Words = ()
    modifiers: Words = ()
    novel: bool = False

    @property
    def portable(self) -> bool:
        """Whether one person carries it with ease."""
        return self.bulk <= 2

    @property
    def fixed(self) -> bool:
        """Whether it never moves."""
        return self.bulk == 4


def _noun(bulk: int, affords: str, materials: str = "", modifiers: str = "", *, novel: bool = False) -> Noun:
    return Noun(bulk, frozenset(affords.split()), tuple(materials.split()), tuple(modifiers.split()), novel)


OBJECTS = {
    "apple": _noun(1, "roll throw"),
    "bag": _noun(2, "open in throw shake lift pull", "striped", "paper beach school straw gift"),
    "ball": _noun(1, "throw roll kick spin bounce", "striped", "beach rubber"),
    "basket": _noun(2, "in push pull lift kick", "wooden", "straw beach"),
    "bear": _noun(1, "throw shake wave hug", "striped", "toy teddy"),
    "blanket": _noun(2, "throw shake wave pull", "striped", "baby beach"),
    "block": _noun(1, "throw push kick", "wooden", "toy"),
    "book": _noun(1, "open throw wave", "", "school"),
    "bottle": _noun(1, "roll shake spin kick", "metal", "water glass baby"),
    "bowl": _noun(2, "in spin shake", "wooden metal striped", "glass cookie"),
    "box": _noun(2, "open in push pull kick lift shake", "wooden metal striped", "gift toy"),
    "broom": _noun(2, "wave lift shake", "", "straw kitchen"),
    "bucket": _noun(2, "in push pull lift kick shake", "metal striped", "water beach"),
    "can": _noun(1, "roll kick shake throw", "metal", "coffee water"),
    "car": _noun(1, "push pull roll spin lift", "wooden metal", "toy"),
    "chair": _noun(3, "push pull lift spin on seat", "wooden metal", "kitchen office garden"),
    "cup": _noun(1, "shake lift spin", "striped metal", "coffee paper"),
    "doll": _noun(1, "throw shake wave hug", "wooden", "baby paper"),
    "duck": _noun(1, "throw shake push", "wooden", "toy rubber"),
    "flag": _noun(1, "wave shake", "striped", "paper"),
    "hat": _noun(1, "throw wave spin", "striped", "straw paper"),
    "hoop": _noun(2, "roll spin throw wave", "striped metal wooden"),
    "jar": _noun(1, "open shake roll lift", "", "coffee cookie glass"),
    "laptop": _noun(1, "open lift", "", "office"),
    "phone": _noun(1, "shake wave spin", "striped", "office toy"),
    "pillow": _noun(2, "throw shake hug kick", "striped", "baby"),
    "plate": _noun(1, "spin lift", "wooden metal striped", "paper glass"),
    "shoe": _noun(1, "throw kick shake", "striped", "baby"),
    "stool": _noun(3, "push pull lift spin on seat kick", "wooden metal", "kitchen garden"),
    "suitcase": _noun(2, "open in push pull lift roll", "striped metal"),
    "towel": _noun(1, "throw shake wave pull", "striped", "beach kitchen"),
    "truck": _noun(1, "push pull roll spin lift", "wooden metal", "toy"),
    "vase": _noun(1, "lift spin", "striped", "glass"),
    "wheel": _noun(2, "roll push spin lift kick", "wooden metal"),
    "barrel": _noun(2, "in push roll kick", "wooden metal", "water", novel=True),
    "crate": _noun(2, "in push pull lift kick", "wooden", "", novel=True),
    "drum": _noun(2, "roll spin lift kick shake", "striped wooden", "toy", novel=True),
    "lemon": _noun(1, "roll throw", "", "", novel=True),
    "scarf": _noun(1, "wave throw shake", "striped", "", novel=True),
    "umbrella": _noun(1, "open wave spin shake", "striped", "beach", novel=True),
}

FURNITURE = {
    "bed": _noun(4, "on under behind seat bouncy", "wooden metal"),
    "bench": _noun(4, "on under behind seat bouncy", "wooden metal", "garden hallway garage"),
    "cabinet": _noun(4, "on in open door", "wooden metal", "kitchen bathroom office garage"),
    "closet": _noun(4, "in open door", "wooden", "bedroom hallway"),
    "desk": _noun(4, "on under behind", "wooden metal", "office bedroom"),
    "door": _noun(4, "open", "wooden metal", "kitchen bedroom office garage bathroom hallway"),
    "fence": _noun(4, "behind", "wooden metal", "garden"),
    "fridge": _noun(4, "in open door", "", "kitchen"),
    "lamp": _noun(4, "turn", "metal", "office bedroom hallway"),
    "rug": _noun(4, "on seat bouncy", "striped", "bedroom bathroom hallway"),
    "shelf": _noun(4, "on", "wooden metal", "kitchen garage office bathroom"),
    "sofa": _noun(4, "on behind seat bouncy", "striped", "office"),
    "table": _noun(4, "on under behind", "wooden metal", "kitchen garden garage coffee"),
    "tree": _noun(4, "under behind"),
    "window": _noun(4, "open", "", "kitchen bedroom office garage bathroom"),
    "bathtub": _noun(4, "in behind", "", "", novel=True),
    "ladder": _noun(4, "behind under", "wooden metal", "", novel=True),
}

NOUNS = OBJECTS | FURNITURE

PLACES = {
    "bathroom": "cabinet door window rug shelf stool bathtub",
    "bedroom": "bed closet desk door lamp rug window chair",
    "garage": "bench cabinet door shelf table window stool ladder",
    "garden": "bench fence table tree chair stool ladder",
    "hallway": "bench closet door lamp rug",
    "kitchen": "cabinet door fridge shelf table window chair stool",
    "office": "cabinet desk door lamp shelf sofa window chair",
}

KEPT_COLD = frozenset(("apple", "bottle", "bowl", "can", "jar", "plate", "lemon"))  # all that goes into a fridge

COLOURS = ("red", "blue", "green", "yellow", "white", "black", "brown", "orange", "pink", "grey")
NOVEL_COLOUR = "purple"
FURNITURE_COLOURS = ("brown", "white", "black", "grey", "green", "blue")
OWN_COLOURS = {
    "apple": ("red", "green", "yellow"),
    "bear": ("brown", "white", "black", "grey"),
    "broom": ("brown", "yellow", "red"),
    "lemon": ("yellow",),
    "tree": ("green",),
    "laptop": ("black", "white", "grey"),
}
SIZES = ("small", "big")
SUBSTANCES = ("glass", "paper", "straw", "rubber")  # modifiers that leave no choice of material
NOVEL_PATTERN = "dotted"  # wherever something can be striped

AGENTS = {  # kind of agent -> the words for it, the plain ones first
    "man": ("person", "man", "guy"),
    "woman": ("person", "woman", "lady"),
    "boy": ("person", "boy", "child"),
    "girl": ("person", "girl", "child"),
    "robot": ("robot",),
}
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
