"""Scripts: what happens in a video, event by event, with everything a renderer needs."""

import random
from dataclasses import asdict, dataclass, field
from typing import Any

from workshop.scenes.actions import ACTIONS, MANNERS, NOVEL_ACTIONS
from workshop.scenes.effects import Change, apply
from workshop.scenes.moves import Move, possible_moves
from workshop.scenes.setting import new_room
from workshop.scenes.state import Agent, Item, Location, Room

SPEED = 0.35  # room widths a second, walking
LAST_START = 25.0  # no event starts later
LONGEST = 30.0

_WEIGHTS = {
    "take": 6,
    "pick": 5,
    "lift": 4,
    "open": 6,
    "close": 4,
    "push": 5,
    "pull": 5,
    "roll": 5,
    "kick": 5,
    "put": 9,
    "drop": 5,
    "throw": 9,
    "carry": 5,
    "give": 5,
    "spin": 2,
    "turn": 4,
    "stand": 9,
    "shake": 4,
    "wave": 2,
    "jump": 2,
    "walk": 4,
    "run": 4,
    "sit": 2,
    "bounce": 9,
    "hug": 6,
}
_IN_PLACE = ("jump", "wave", "spin", "shake", "turn")  # what a second agent does meanwhile
_WITH_FULL_HANDS = ("put", "drop", "throw", "carry", "give", "shake")
_RELATIONS = {"in": 5, "on": 5, "under": 4, "at": 8, "around": 3, "to": 3, "from": 4}  # the more, the likelier; else 2
_TRIES = 30


@dataclass
class Event:
    """One thing that an agent does. `origin` and `destination` locate its object before and after."""

    start: float
    end: float
    agent: str
    move: Move
    manner: str | None
    agent_x: tuple[float, float]
    change: Change
    sentences: list[int] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """The event as a flat JSON object."""
        place = {name: _place(getattr(self.change, name)) for name in ("origin", "destination")}
        roles = {"agent": self.agent, **asdict(self.move), "manner": self.manner}
        times = {"start": self.start, "end": self.end}
        return {**times, **roles, **place, "agent_x": list(self.agent_x), "sentences": self.sentences}


@dataclass
class Script:
    """A video before it is a video: how the room is at first, and the events in order of their start."""

    duration: float
    room: Room
    events: list[Event]

    def record(self, vid: str, split: str) -> dict[str, Any]:
        """The script as one JSON object of `scripts.jsonl`."""
        items = [_item(item) for item in self.room.items.values()]
        traits = ("id", "noun", "colour", "x", "holding")
        agents = [{name: getattr(agent, name) for name in traits} for agent in self.room.agents.values()]
        setting = {"place": self.room.place, "items": items}
        events = [event.record() for event in self.events]
        whole = {"vid": vid, "split": split, "duration": self.duration}
        return {**whole, "setting": setting, "agents": agents, "events": events}


def _place(location: Location | None) -> dict[str, Any] | None:
    return asdict(location) if location else None


def _item(item: Item) -> dict[str, Any]:
    """An item as it is at first; `open` and `lit` only where they mean something."""
    row = {**asdict(item), "fixed": item.kind.fixed}
    return {name: value for name, value in row.items() if value is not None or name not in ("open", "lit")}


class _ScriptWriter:
    """Writes one script: chooses moves that are possible, and their times."""

    def __init__(self, chance: random.Random, *, novel: bool) -> None:
        self.chance = chance
        self.most = chance.choice((1, 2, 3, 3, 4, 4, 4, 5, 5))
        self.room = new_room(chance, novel=novel)
        self.first = self.room.copy()
        self.clock = round(0.3 + 1.2 * chance.random(), 1)
        self.events: list[Event] = []
        self.done: set[tuple[str, str | None]] = set()
        self.actions = [name for name in ACTIONS if novel or name not in NOVEL_ACTIONS]
        self.novel = novel

    def choose(self, agent: Agent, actions: list[str]) -> Move | None:
        """A possible move that no event of this video is like: its moment must be the only one."""
        weighted = [name for name in actions for _ in range(_WEIGHTS.get(name, 1))]
        for _ in range(_TRIES):
            moves = possible_moves(self.room, agent, self.chance.choice(weighted))
            moves = [move for move in moves if _likeness(move) not in self.done]
            if moves:
                relations = dict.fromkeys(move.relation for move in moves)
                weighted_relations = [name for name in relations for _ in range(_RELATIONS.get(name or "", 2))]
                relation = self.chance.choice(weighted_relations)
                return self.chance.choice([move for move in moves if move.relation == relation])
        return None

    def play(self, agent: Agent, move: Move, seconds: float | None = None) -> Event:
        """Make the move, now, and note it as an event."""
        self.done.add(_likeness(move))
        manners = ACTIONS[move.action].manners
        manner = self.chance.choice(manners) if self.chance.random() < 0.6 else None
        before = agent.x
        change = apply(self.room, agent, move, self.chance)
        if seconds is None:
            seconds = self.length(move, manner, abs(before - change.agent_x))
        end = round(min(self.clock + seconds, LONGEST), 1)
        self.events.append(Event(self.clock, end, agent.id, move, manner, (before, change.agent_x), change))
        return self.events[-1]

    def length(self, move: Move, manner: str | None, distance: float) -> float:
        """Seconds that it takes, with the way there."""
        speed = SPEED * (2 if move.action == "run" else 1)
        usual = ACTIONS[move.action].seconds * (0.85 + 0.3 * self.chance.random()) + distance / speed
        return max(0.8, usual * (MANNERS[manner] if manner else 1))

    def step(self) -> None:
        """One event, at times with something that another agent does meanwhile; then a pause."""
        agents = list(self.room.agents.values())
        busy = [agent for agent in agents if agent.holding or agent.seat]
        agent = self.chance.choice(busy if busy and self.chance.random() < 0.8 else agents)
        release = bool(agent.holding) and self.chance.random() < 0.6
        fresh = self.choose(agent, list(NOVEL_ACTIONS)) if self.novel else None
        move = fresh or self.choose(agent, list(_WITH_FULL_HANDS) if release else self.actions)
        if move is None:
            return
        event = self.play(agent, move)
        others = [other for other in self.room.agents.values() if other.id not in (agent.id, move.target)]
        if others and len(self.events) < self.most and self.chance.random() < 0.4:
            meanwhile = self.choose(others[0], list(_IN_PLACE))
            if meanwhile is not None and meanwhile.object in (None, others[0].holding) and not meanwhile.relation:
                self.play(others[0], meanwhile, event.end - event.start)
        self.clock = round(event.end + 0.4 + 1.8 * self.chance.random(), 1)


def _likeness(move: Move) -> tuple[str, str | None]:
    """What a sentence is sure to tell apart; to take, to pick up and to lift are alike."""
    return ("take" if move.action in ("pick", "lift") else move.action, move.object)


def write_script(chance: random.Random, *, novel: bool = False) -> Script:
    """A script of one to five events; with novel objects, agents, colours and actions if asked for."""
    writer = _ScriptWriter(chance, novel=novel)
    for _ in range(writer.most):
        if len(writer.events) < writer.most and writer.clock <= LAST_START:
            writer.step()
    last = max((event.end for event in writer.events), default=2.0)
    duration = round(min(max(last + 0.3 + 2 * chance.random(), 2.0), LONGEST), 1)
    return Script(duration, writer.first, writer.events)
