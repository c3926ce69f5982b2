"""What a move changes: where things and agents end up, what is open or lit afterwards."""

import random
from dataclasses import dataclass

from workshop.scenes.moves import Move
from workshop.scenes.state import Agent, Item, Location, Room
from workshop.scenes.world import FLOOR

MOVING = ("take", "pick", "lift", "put", "drop", "throw", "carry", "give", "push", "pull", "roll", "kick")
LANDING = 0.05  # how far from an agent things land that are put or fall down
AGENT_GAP = 0.06  # how near two agents come


@dataclass(frozen=True)
class Change:
    """What a move did: where its object was and is (both None without one), where the agent ended up."""

    origin: Location | None
    destination: Location | None
    agent_x: float


def _far_side(x: float) -> float:
    return 0.05 if x > 0.5 else 0.95


def _stays(move: Move) -> bool:
    """Whether the agent does not leave the spot."""
    if move.action in ("throw", "shake", "wave", "bounce", "hug", "stand"):
        return True
    return move.object is None and (move.action in ("turn", "spin") or move.direction == "up")


def _agent_end(room: Room, agent: Agent, move: Move) -> float:
    """Where the agent is after a move: at what it was done to, or where it led."""
    if _stays(move):
        return agent.x
    if move.target in room.agents:
        x = room.agents[move.target].x
        return x - AGENT_GAP if x > 0.5 else x + AGENT_GAP
    if move.object and move.object != agent.holding:
        return room.x_of(room.items[move.object])
    if move.target in room.items and move.relation != "from":
        return room.x_of(room.items[move.target]) + (AGENT_GAP if move.relation == "over" else 0)
    return _far_side(agent.x) if move.action in ("walk", "run", "carry") else agent.x


def _destination(room: Room, agent: Agent, item: Item, move: Move, chance: random.Random) -> Location:
    """Where the object of a move ends up."""
    if move.action in ("take", "pick", "lift", "carry"):
        return Location("held", agent.id, round(_agent_end(room, agent, move), 2))
    if move.target in room.agents:
        return Location("held", move.target, room.agents[move.target].x)
    if move.target in room.items:
        where = "near" if move.relation == "to" else move.relation
        return room.spot(where or "near", room.items[move.target], chance)
    if move.direction == "away":
        return room.floor(_far_side(room.x_of(item)))
    return room.floor(agent.x + chance.choice((-LANDING, LANDING)))


def _move_object(room: Room, agent: Agent, item: Item, move: Move, chance: random.Random) -> Location:
    destination = _destination(room, agent, item, move, chance)
    if agent.holding == item.id:
        agent.holding = None
    if destination.relation == "held":
        room.agents[destination.target].holding = item.id
    item.at = destination
    return destination


def _set_flags(room: Room, agent: Agent, move: Move) -> None:
    item = room.items.get(move.object or "")
    if item is not None and move.action in ("open", "close"):
        item.open = move.action == "open"
    if item is not None and move.action == "turn":
        item.lit = move.direction == "on"
    if move.action == "stand":
        agent.seat = None
    if move.action == "sit":
        agent.seat = move.target if move.relation == "on" else FLOOR


def apply(room: Room, agent: Agent, move: Move, chance: random.Random) -> Change:
    """Change the room by a move and say what changed."""
    end = _agent_end(room, agent, move)
    item = room.items.get(move.object or "")
    origin = destination = None
    if item is not None:
        origin = destination = Location(item.at.relation, item.at.target, round(room.x_of(item), 2))
        if move.action in MOVING:
            destination = _move_object(room, agent, item, move, chance)
            end = destination.x if move.action in ("push", "pull") else end
    _set_flags(room, agent, move)
    if not _stays(move):
        agent.near = move.target if move.target in room.items and move.relation != "from" else None
    agent.x = round(end, 2)
    return Change(origin, destination, agent.x)
