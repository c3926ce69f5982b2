"""What agents can do, with the verbs, adverbs and prepositions that say so."""

from dataclasses import dataclass

Words = tuple[str, ...]

MANNERS = {  # how much longer an action takes that is done so
    "slowly": 1.8,
    "carefully": 1.5,
    "gently": 1.25,
    "quickly": 0.6,
    "suddenly": 0.7,
}


@dataclass(frozen=True)
class Action:
    """One kind of event: its verbs, its length in seconds, the manners, relations and directions it can have."""

    verbs: Words
    seconds: float
    manners: Words
    relations: Words = ()
    directions: Words = ()
    bare: bool = True  # whether the verb may stand without direction and target


def _action(
    verbs: str, seconds: float, manners: str, relations: str = "", directions: str = "", *, bare: bool = True
) -> Action:
    return Action(
        *(tuple(verbs.split()), seconds, tuple(manners.split())),
        tuple(relations.split()),
        tuple(directions.split()),
        bare,
    )


_ALL = "slowly quickly gently suddenly carefully"
ACTIONS = {
    "take": _action("take grab", 1.4, _ALL, "from"),
    "pick": _action("pick", 1.4, _ALL, "from", "up", bare=False),
    "lift": _action("lift", 1.6, _ALL, "from", "up"),
    "put": _action("put place", 1.6, _ALL, "on under behind in near beside", "down", bare=False),
    "drop": _action("drop", 1.0, "gently suddenly carefully quickly", "on in near beside behind"),
    "throw": _action("throw", 1.2, "quickly gently suddenly", "on under behind in near to", "up down away"),
    "carry": _action("carry", 2.6, _ALL, "to near beside behind", "away"),
    "give": _action("give", 1.6, _ALL, "to", bare=False),
    "push": _action("push", 2.2, _ALL, "to near beside under behind", "away"),
    "pull": _action("pull", 2.4, _ALL, "to near beside", "away"),
    "roll": _action("roll", 1.8, _ALL, "to near beside under behind", "away"),
    "kick": _action("kick", 1.1, "quickly gently suddenly", "to near beside under behind", "away"),
    "open": _action("open", 1.5, _ALL),
    "close": _action("close", 1.3, _ALL),
    "turn": _action("turn", 1.2, "slowly quickly suddenly", "to", "around away on off", bare=False),
    "spin": _action("spin", 2.0, "slowly quickly suddenly gently", "", "around"),
    "shake": _action("shake", 1.8, _ALL),
    "wave": _action("wave", 1.8, "slowly quickly gently suddenly", "at"),
    "jump": _action("jump", 1.4, "quickly suddenly carefully", "on over", "up"),
    "walk": _action("walk", 2.4, _ALL, "to behind around in from", "away"),
    "run": _action("run", 1.6, "quickly suddenly slowly", "to behind around in from", "away"),
    "sit": _action("sit", 1.4, _ALL, "on near beside", "down"),
    "stand": _action("stand", 1.2, "slowly quickly suddenly carefully", "from", "up", bare=False),
    "bounce": _action("bounce", 2.0, "slowly quickly gently"),
    "hug": _action("hug", 2.0, "slowly gently suddenly"),
}
NOVEL_ACTIONS = ("bounce", "hug")
NOVEL_VERBS = {
    "throw": ("toss",),
    "pull": ("drag",),
    "jump": ("hop",),
    "close": ("shut",),
    "bounce": ("bounce",),
    "hug": ("hug",),
}
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
