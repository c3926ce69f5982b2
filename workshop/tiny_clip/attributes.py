"""What a clip shows, in groups of names: what is done, how, by whom, with what and where; and how far it has come."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from workshop.scenes.actions import ACTIONS, MANNERS
from workshop.scenes.initial_scene import Record
from workshop.scenes.observe import MATERIALS, MODIFIERS, SIZES
from workshop.scenes.sprites import COLOURS
from workshop.scenes.world import AGENTS, FLOOR, NOUNS, NOVEL_COLOUR, PLACES

AT_ONCE = 2  # events that a clip can show
LEAST = 0.2  # seconds of an event within a clip, or it is not told
BEGUN, ALMOST = 0.3, 0.7  # shares of an event: its beginning, its middle, its end


def _names(several: Iterable[str]) -> tuple[str, ...]:
    return ("", *sorted(set(several)))


GROUPS = {
    "action": _names(ACTIONS),
    "direction": _names(way for action in ACTIONS.values() for way in action.directions),
    "manner": _names(MANNERS),
    "relation": _names(relation for action in ACTIONS.values() for relation in action.relations),
    "object": _names(NOUNS),
    "colour": _names([*COLOURS, NOVEL_COLOUR]),
    "size": _names(SIZES),
    "material": _names(MATERIALS),
    "modifier": _names(MODIFIERS),
    "agent": _names(AGENTS),
    "target": _names([*NOUNS, *AGENTS, FLOOR, *PLACES]),
    "target_colour": _names([*COLOURS, NOVEL_COLOUR]),
    "phase": _names(("begin", "middle", "end")),
}

Attributes = npt.NDArray[np.uint8]  # (AT_ONCE, groups): places in GROUPS


def events_within(record: Record, start: float, end: float) -> list[int]:
    """The events, by index, that a clip from `start` to `end` (s) shows enough of."""
    shown = [min(end, event["end"]) - max(start, event["start"]) for event in record["events"]]
    return [index for index, seconds in enumerate(shown) if seconds >= LEAST - 1e-6]


def attributes(record: Record, events: list[int], middle: float) -> Attributes:
    """What a clip of these events shows, `middle` (s) being its middle; one event twice, nothing as nothing."""
    rows = [_attributes(record, record["events"][index], middle) for index in events]
    table = np.zeros((AT_ONCE, len(GROUPS)), np.uint8)
    for place, row in enumerate((rows * AT_ONCE)[:AT_ONCE]):
        table[place] = [names.index(row.get(group) or "") for group, names in GROUPS.items()]
    return table


def _attributes(record: Record, event: Record, middle: float) -> dict[str, str | None]:
    items = {item["id"]: item for item in record["setting"]["items"]}
    agents = {agent["id"]: agent for agent in record["agents"]}
    thing, target = items.get(event["object"], {}), event["target"]
    at = items.get(target) or {"noun": agents[target]["noun"] if target in agents else target}
    done = (middle - event["start"]) / (event["end"] - event["start"])
    own = {name: event[name] for name in ("action", "direction", "manner", "relation")}
    look = {name: thing.get(name) for name in ("colour", "size", "material", "modifier")}
    return {
        **own,
        **look,
        "object": thing.get("noun"),
        "agent": agents[event["agent"]]["noun"],
        "target": at["noun"],
        "target_colour": at.get("colour"),
        "phase": "begin" if done < BEGUN else "end" if done > ALMOST else "middle",
    }
