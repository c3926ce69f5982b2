"""Which moves an agent can make in a room now."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from workshop.scenes.actions import ACTIONS
from workshop.scenes.state import Agent, Item, Room
from workshop.scenes.world import FLOOR


@dataclass(frozen=True)
class Move:
    """An action with its roles. `target` is an item, an agent, the floor or the place."""

    action: str
    object: str | None = None
    relation: str | None = None
    target: str | None = None
    direction: str | None = None


Moves = Iterator[Move]


def _pick_up(room: Room, agent: Agent, action: str) -> Moves:
    """take, pick (up), lift"""
    for item in room.items.values():
        light = item.kind.portable or (action == "lift" and not item.kind.fixed)
        able = action != "lift" or "lift" in item.kind.affords
        if agent.holding or not (light and able and room.free(item) and room.reachable(item)):
            continue
        source = (item.at.relation, item.at.target) if item.at.relation in ("on", "in") else None
        up = "up" if action != "take" else None
        yield Move(action, item.id, "from" if source else None, source[1] if source else None, up)


def _places_for(room: Room, item: Item, action: str) -> Iterator[tuple[str, str]]:
    """Every (relation, target) where this action can bring the item."""
    for relation in ACTIONS[action].relations:
        where = "near" if relation == "to" else relation
        yield from ((relation, other.id) for other in room.items.values() if room.holds(item, where, other))


def _let_go(room: Room, agent: Agent, action: str) -> Moves:
    """put, drop, throw, carry"""
    item = room.items.get(agent.holding or "")
    if item is None or (action == "throw" and "throw" not in item.kind.affords):
        return
    yield from (Move(action, item.id, *place) for place in _places_for(room, item, action))
    yield from (Move(action, item.id, direction=direction) for direction in ACTIONS[action].directions)
    if action == "drop":
        yield Move(action, item.id, "on", FLOOR)
    if action == "throw":
        yield from (Move(action, item.id, "to", other.id) for other in _takers(room, agent))


def _takers(room: Room, agent: Agent) -> list[Agent]:
    others = [other for other in room.agents.values() if other is not agent]
    return [other for other in others if not other.holding and not other.seat]


def _give(room: Room, agent: Agent, action: str) -> Moves:
    if agent.holding and room.items[agent.holding].kind.portable:
        yield from (Move(action, agent.holding, "to", other.id) for other in _takers(room, agent))


def _slide(room: Room, agent: Agent, action: str) -> Moves:
    """push, pull, roll, kick"""
    for item in room.items.values():
        if agent.holding or action not in item.kind.affords or not (room.free(item) and room.on_floor(item)):
            continue
        yield from (Move(action, item.id, *place) for place in _places_for(room, item, action))
        yield Move(action, item.id, direction="away")


def _open_close(room: Room, agent: Agent, action: str) -> Moves:
    for item in room.items.values():
        hands = item.kind.fixed or not agent.holding
        if item.open is (action == "close") and hands and room.reachable(item):
            yield Move(action, item.id)


def _turn(room: Room, agent: Agent, action: str) -> Moves:
    lamps = [item for item in room.items.values() if item.lit is not None]
    yield from [Move(action, item.id, direction="off" if item.lit else "on") for item in lamps] * 4
    yield Move(action, direction="around")
    others = [item.id for item in room.items.values() if item.kind.fixed and abs(item.at.x - agent.x) > 0.1]
    yield from (Move(action, relation="to", target=other) for other in others)


def _in_hand(room: Room, agent: Agent, action: str) -> Moves:
    """shake, wave, bounce, hug"""
    if agent.holding and action in room.items[agent.holding].kind.affords:
        yield Move(action, agent.holding)
    if action == "wave" and not agent.holding:
        yield Move(action)
        others = [other.id for other in room.agents.values() if other is not agent]
        yield from (Move(action, relation="at", target=other) for other in others)


def _spin(room: Room, agent: Agent, action: str) -> Moves:
    yield Move(action, direction="around")
    for item in room.items.values():
        shown = room.on_floor(item) or item.at.relation == "on"
        if not agent.holding and action in item.kind.affords and shown and room.free(item):
            yield Move(action, item.id)


def _go(room: Room, agent: Agent, action: str) -> Moves:
    """walk, run: with empty hands, for with full ones it is to carry"""
    if agent.holding:
        return
    yield Move(action, direction="away")
    yield Move(action, relation="in", target=room.place)
    if agent.near in room.items:
        yield Move(action, relation="from", target=agent.near, direction="away")
    for item in room.items.values():
        if not item.kind.portable and room.reachable(item) and item.id != agent.near:
            yield Move(action, relation="to", target=item.id)
            roles = ("around", "behind") if "behind" in item.kind.affords else ()
            yield from (Move(action, relation=relation, target=item.id) for relation in roles)


def _sit(room: Room, agent: Agent, action: str) -> Moves:
    for item in room.items.values():
        if item.kind.portable or item.at.relation == "held":
            continue
        if "seat" in item.kind.affords and (item.noun == "rug" or room.free(item)):
            yield Move(action, relation="on", target=item.id, direction="down")
        elif item.kind.fixed and "seat" not in item.kind.affords:
            yield from (Move(action, relation=side, target=item.id, direction="down") for side in ("near", "beside"))
    yield Move(action, relation="on", target=FLOOR, direction="down")


def _stand(room: Room, agent: Agent, action: str) -> Moves:
    yield Move(action, relation="from", target=agent.seat, direction="up")


def _jump(room: Room, agent: Agent, action: str) -> Moves:
    yield Move(action, direction="up")
    for item in room.items.values():
        if "bouncy" in item.kind.affords and room.free(item):
            yield Move(action, relation="on", target=item.id)
        if item.kind.portable and room.on_floor(item) and room.free(item):
            yield Move(action, relation="over", target=item.id)


_MOVES: dict[str, Callable[[Room, Agent, str], Moves]] = {
    **dict.fromkeys(("take", "pick", "lift"), _pick_up),
    **dict.fromkeys(("put", "drop", "throw", "carry"), _let_go),
    **dict.fromkeys(("push", "pull", "roll", "kick"), _slide),
    **dict.fromkeys(("open", "close"), _open_close),
    **dict.fromkeys(("shake", "wave", "bounce", "hug"), _in_hand),
    **dict.fromkeys(("walk", "run"), _go),
    **{"give": _give, "turn": _turn, "spin": _spin, "sit": _sit, "stand": _stand, "jump": _jump},
}
SEATED = ("stand", "shake", "wave", "hug")  # what one can do while sitting


def possible_moves(room: Room, agent: Agent, action: str) -> list[Move]:
    """All moves of this action that the agent can make now."""
    if (agent.seat is not None and action not in SEATED) or (action == "stand" and agent.seat is None):
        return []
    return list(_MOVES[action](room, agent, action))
