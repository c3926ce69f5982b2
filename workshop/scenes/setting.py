"""How a room is at first: its furniture, the objects scattered in it, the agents."""

import random

from workshop.scenes.actions import NOVEL_ACTIONS
from workshop.scenes.state import Agent, Item, Location, Room
from workshop.scenes.world import (
    AGENTS,
    COLOURS,
    NOUNS,
    NOVEL_AGENT,
    OBJECTS,
    PLACES,
    SIZES,
    SUBSTANCES,
    colours_of,
    fits,
    materials_of,
)


def _look(
    noun: str, place: str, chance: random.Random, *, novel: bool
) -> tuple[str | None, str, str | None, str | None]:
    """Modifier, colour, size and material."""
    modifiers = [word for word in NOUNS[noun].modifiers if word not in PLACES or word == place]
    modifier = chance.choice(modifiers) if modifiers and chance.random() < 0.7 else None
    size = chance.choice(SIZES) if chance.random() < 0.4 else None
    materials = materials_of(noun, novel=novel)
    material = chance.choice(materials) if materials and chance.random() < 0.5 else None
    if modifier in SUBSTANCES and material in ("wooden", "metal"):
        material = None
    return modifier, chance.choice(colours_of(noun, novel=novel)), size, material


def _add(room: Room, noun: str, at: Location, chance: random.Random, *, novel: bool) -> Item:
    number = 1 + sum(item.noun == noun for item in room.items.values())
    item = Item(f"{noun}{number}", noun, *_look(noun, room.place, chance, novel=novel), at)
    if "open" in item.kind.affords:
        item.open = chance.random() < 0.6
    if "turn" in item.kind.affords:
        item.lit = chance.random() < 0.5
    twins = [other.colour for other in room.items.values() if other.noun == noun]
    while item.colour in twins:
        item.colour = chance.choice(colours_of(noun, novel=novel))
    room.items[item.id] = item
    return item


def _furnish(room: Room, chance: random.Random, *, novel: bool) -> None:
    nouns = [noun for noun in PLACES[room.place].split() if novel or not NOUNS[noun].novel]
    chance.shuffle(nouns)
    nouns.sort(key=lambda noun: not NOUNS[noun].novel)
    chosen = nouns[: chance.choice((3, 4, 4, 5))]
    chance.shuffle(chosen)
    for i, noun in enumerate(chosen):
        _add(room, noun, room.floor((i + 1) / (len(chosen) + 1)), chance, novel=novel)


def _nouns_to_scatter(chance: random.Random, *, novel: bool) -> list[str]:
    """Four to seven kinds of objects; now and then two of a kind, told apart by their colours."""
    plain = [noun for noun, kind in OBJECTS.items() if kind.portable and not kind.novel]
    fresh = [noun for noun, kind in OBJECTS.items() if kind.novel]
    chance.shuffle(plain)
    count = chance.choice((4, 5, 5, 6, 7))
    if novel:
        plain.sort(key=lambda noun: NOUNS[noun].affords.isdisjoint(NOVEL_ACTIONS))
        chance.shuffle(fresh)
    nouns = fresh[:2] + plain[:1] + plain[-count + 3 :] if novel else plain[:count]
    twins = [noun for noun in nouns if len(colours_of(noun)) > 1]
    return [*nouns, twins[0]] if twins and chance.random() < 0.25 else nouns


def _scatter(room: Room, chance: random.Random, *, novel: bool) -> None:
    for noun in _nouns_to_scatter(chance, novel=novel):
        item = _add(room, noun, room.floor(0.05 + 0.9 * chance.random()), chance, novel=novel)
        spots = [
            (relation, other)
            for other in room.items.values()
            for relation in ("on", "in", "under", "near", "beside")
            if room.holds(item, relation, other) or (relation == "in" and fits(noun, "in", other.noun))
        ]
        if spots and chance.random() < 0.75:
            item.at = room.spot(*chance.choice(spots), chance)


def _people(room: Room, chance: random.Random, *, novel: bool) -> None:
    kinds = [kind for kind in AGENTS if kind != NOVEL_AGENT]
    chance.shuffle(kinds)
    if novel and chance.random() < 0.1:
        kinds.insert(0, NOVEL_AGENT)
    for i, kind in enumerate(kinds[: 2 if chance.random() < 0.35 else 1]):
        x = round(0.05 + 0.9 * chance.random(), 2)
        agent = room.agents[f"agent{i + 1}"] = Agent(f"agent{i + 1}", kind, chance.choice(COLOURS), x)
        if chance.random() < 0.3:
            _hand_over(room, agent, chance, novel=novel)


def _hand_over(room: Room, agent: Agent, chance: random.Random, *, novel: bool) -> None:
    """Let the agent hold something from the start: in a room of novel things, one that novel actions are for."""
    able = [item for item in room.items.values() if item.kind.portable and room.free(item) and room.reachable(item)]
    fresh = [item for item in able if novel and not item.kind.affords.isdisjoint(NOVEL_ACTIONS)]
    if able:
        item = chance.choice(fresh or able)
        item.at, agent.holding = Location("held", agent.id, agent.x), item.id


def new_room(chance: random.Random, *, novel: bool) -> Room:
    """A furnished room with objects and one or two agents; with things of novel kinds if asked for."""
    room = Room(chance.choice(tuple(PLACES)))
    _furnish(room, chance, novel=novel)
    _scatter(room, chance, novel=novel)
    _people(room, chance, novel=novel)
    return room
