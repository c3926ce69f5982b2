"""Write scripts: the random events of a video, and their effects on the room."""

import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any

from workshop.scenes import world
from workshop.scenes.world import Agent, Item, Location, Room, colours_of, fits, materials_of


def _add(room: Room, noun: str, at: Location, chance: random.Random, *, novel: bool) -> Item:
    modifiers = [word for word in world.NOUNS[noun].modifiers if word not in world.PLACES or word == room.place]
    modifier = chance.choice(modifiers) if modifiers and chance.random() < 0.7 else None
    size = chance.choice(world.SIZES) if chance.random() < 0.4 else None
    materials = materials_of(noun, novel=novel)
    material = chance.choice(materials) if materials and chance.random() < 0.5 else None
    if modifier in world.SUBSTANCES and material in ("wooden", "metal"):
        material = None
    twins = [other.colour for other in room.items.values() if other.noun == noun]
    colours = colours_of(noun, novel=novel)
    item = Item(f"{noun}{len(twins) + 1}", noun, modifier, chance.choice(colours), size, material, at)
    item.open = chance.random() < 0.6 if "open" in item.kind.affords else None
    item.lit = chance.random() < 0.5 if "turn" in item.kind.affords else None
    while item.colour in twins:
        item.colour = chance.choice(colours)
    room.items[item.id] = item
    return item


def _scatter(room: Room, chance: random.Random, *, novel: bool) -> None:
    nouns = [noun for noun, kind in world.OBJECTS.items() if kind.portable and not kind.novel]
    chance.shuffle(nouns)
    count = chance.choice((4, 5, 5, 6, 7))
    if novel:
        fresh = [noun for noun, kind in world.OBJECTS.items() if kind.novel]
        nouns.sort(key=lambda noun: world.NOVEL_ACTIONS.isdisjoint(world.NOUNS[noun].affords))
        chance.shuffle(fresh)
        nouns = fresh[:2] + nouns[:1] + nouns[-count + 3 :]
    else:
        nouns = nouns[:count]
    twins = [noun for noun in nouns if len(colours_of(noun)) > 1]
    nouns += twins[:1] if twins and chance.random() < 0.25 else []
    for noun in nouns:
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
    kinds = [kind for kind in world.AGENTS if kind != world.NOVEL_AGENT]
    chance.shuffle(kinds)
    if novel and chance.random() < 0.1:
        kinds.insert(0, world.NOVEL_AGENT)
    for i, kind in enumerate(kinds[: 2 if chance.random() < 0.35 else 1], 1):
        x = round(0.05 + 0.9 * chance.random(), 2)
        agent = room.agents[f"agent{i}"] = Agent(f"agent{i}", kind, chance.choice(world.COLOURS), x)
        items = [it for it in room.items.values() if it.kind.portable and room.free(it) and room.reachable(it)]
        if chance.random() < 0.3 and items:
            fresh = [it for it in items if novel and not world.NOVEL_ACTIONS.isdisjoint(it.kind.affords)]
            item = chance.choice(fresh or items)
            item.at, agent.holding = Location("held", agent.id, agent.x), item.id


def new_room(chance: random.Random, *, novel: bool) -> Room:
    """Return a furnished room with objects and one or two agents; `novel` adds things of novel kinds."""
    room = Room(chance.choice(tuple(world.PLACES)))
    nouns = [noun for noun in world.PLACES[room.place].split() if novel or not world.NOUNS[noun].novel]
    chance.shuffle(nouns)
    nouns.sort(key=lambda noun: not world.NOUNS[noun].novel)
    chosen = nouns[: chance.choice((3, 4, 4, 5))]
    chance.shuffle(chosen)
    for i, noun in enumerate(chosen, 1):
        _add(room, noun, room.floor(i / (len(chosen) + 1)), chance, novel=novel)
    _scatter(room, chance, novel=novel)
    _people(room, chance, novel=novel)
    return room


@dataclass(frozen=True)
class Move:
    """An action with its roles. `target` is an item, an agent, the floor or the place."""

    action: str
    object: str | None = None
    relation: str | None = None
    target: str | None = None
    direction: str | None = None


class _Moves:
    """The moves of an agent in a room. Each action has a method that yields its moves."""

    def __init__(self, room: Room, agent: Agent, action: str) -> None:
        self.room, self.agent, self.action, self.items = room, agent, action, room.items.values()
        self.held = room.items.get(agent.holding or "")
        self.others = [other for other in room.agents.values() if other is not agent]
        self.takers = [other for other in self.others if not other.holding and not other.seat]

    def move(self, item: Item | None = None, relation: str | None = None, target: Any = None, way: str = "") -> Move:
        target = target.id if isinstance(target, Item | Agent) else target
        return Move(self.action, item.id if item else None, relation, target, way or None)

    def places_for(self, item: Item) -> Iterator[Move]:
        for relation in world.ACTIONS[self.action].relations:
            where = "near" if relation == "to" else relation
            yield from (self.move(item, relation, it) for it in self.items if self.room.holds(item, where, it))

    def take(self) -> Iterator[Move]:
        lifts = self.action == "lift"
        for item in self.items:
            light = item.kind.portable or (lifts and not item.kind.fixed)
            able = light and (not lifts or "lift" in item.kind.affords)
            if not self.held and able and self.room.free(item) and self.room.reachable(item):
                source = ("from", item.at.target) if item.at.relation in ("on", "in") else ()
                yield self.move(item, *source, way="" if self.action == "take" else "up")

    pick = lift = take

    def put(self) -> Iterator[Move]:
        if self.held is None or (self.action == "throw" and "throw" not in self.held.kind.affords):
            return
        yield from self.places_for(self.held)
        yield from (self.move(self.held, way=way) for way in world.ACTIONS[self.action].directions)
        if self.action == "drop":
            yield self.move(self.held, "on", world.FLOOR)
        if self.action == "throw":
            yield from (self.move(self.held, "to", other) for other in self.takers)

    drop = throw = carry = put

    def give(self) -> Iterator[Move]:
        if self.held and self.held.kind.portable:
            yield from (self.move(self.held, "to", other) for other in self.takers)

    def push(self) -> Iterator[Move]:
        for item in self.items:
            able = not self.held and self.action in item.kind.affords
            if able and self.room.free(item) and self.room.on_floor(item):
                yield from self.places_for(item)
                yield self.move(item, way="away")

    pull = roll = kick = push

    def close(self) -> Iterator[Move]:
        for item in self.items:
            hands = item.kind.fixed or not self.held
            if item.open is (self.action == "close") and hands and self.room.reachable(item):
                yield self.move(item)

    open = close

    def turn(self) -> Iterator[Move]:
        yield from [self.move(it, way="off" if it.lit else "on") for it in self.items if it.lit is not None] * 4
        yield self.move(way="around")
        others = (item for item in self.items if item.kind.fixed and abs(item.at.x - self.agent.x) > 0.1)
        yield from (self.move(relation="to", target=item) for item in others)

    def shake(self) -> Iterator[Move]:
        if self.held and self.action in self.held.kind.affords:
            yield self.move(self.held)
        if self.action == "wave" and not self.held:
            yield self.move()
            yield from (self.move(relation="at", target=other) for other in self.others)

    wave = bounce = hug = shake

    def spin(self) -> Iterator[Move]:
        yield self.move(way="around")
        for item in self.items:
            shown = self.room.on_floor(item) or item.at.relation == "on"
            if not self.held and self.action in item.kind.affords and shown and self.room.free(item):
                yield self.move(item)

    def walk(self) -> Iterator[Move]:
        if self.held:
            return
        yield self.move(way="away")
        yield self.move(relation="in", target=self.room.place)
        if self.agent.near in self.room.items:
            yield self.move(relation="from", target=self.agent.near, way="away")
        for item in self.items:
            if not item.kind.portable and self.room.reachable(item) and item.id != self.agent.near:
                relations = ("to", "around", "behind") if "behind" in item.kind.affords else ("to",)
                yield from (self.move(relation=relation, target=item) for relation in relations)

    run = walk

    def sit(self) -> Iterator[Move]:
        for item in self.items:
            if item.kind.portable or item.at.relation == "held":
                continue
            if "seat" in item.kind.affords and (item.noun == "rug" or self.room.free(item)):
                yield self.move(relation="on", target=item, way="down")
            elif item.kind.fixed and "seat" not in item.kind.affords:
                yield from (self.move(relation=side, target=item, way="down") for side in ("near", "beside"))
        yield self.move(relation="on", target=world.FLOOR, way="down")

    def stand(self) -> Iterator[Move]:
        yield self.move(relation="from", target=self.agent.seat, way="up")

    def jump(self) -> Iterator[Move]:
        yield self.move(way="up")
        for item in self.items:
            if "bouncy" in item.kind.affords and self.room.free(item):
                yield self.move(relation="on", target=item)
            if item.kind.portable and self.room.on_floor(item) and self.room.free(item):
                yield self.move(relation="over", target=item)


SEATED = ("stand", "shake", "wave", "hug")  # actions of a sitting agent
MOVING = ("take", "pick", "lift", "put", "drop", "throw", "carry", "give", "push", "pull", "roll", "kick")
LANDING = 0.05  # distance between an agent and a thing that it puts or drops
AGENT_GAP = 0.06  # least distance between two agents


def _far_side(x: float) -> float:
    return 0.05 if x > 0.5 else 0.95


def _stays(move: Move) -> bool:
    if move.action in ("throw", "shake", "wave", "bounce", "hug", "stand"):
        return True
    return move.object is None and (move.action in ("turn", "spin") or move.direction == "up")


def _agent_end(room: Room, agent: Agent, move: Move) -> float:
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


def apply(room: Room, agent: Agent, move: Move, chance: random.Random) -> tuple[Location, Location] | tuple[None, None]:
    """Apply a move to the room; return the object's locations before and after (None without an object)."""
    end = _agent_end(room, agent, move)
    item = room.items.get(move.object or "")
    origin = destination = None
    if item is not None:
        origin = destination = Location(item.at.relation, item.at.target, round(room.x_of(item), 2))
        if move.action in MOVING:
            item.at = destination = _destination(room, agent, item, move, chance)
            if agent.holding == item.id:
                agent.holding = None
            if destination.relation == "held":
                room.agents[destination.target].holding = item.id
            end = destination.x if move.action in ("push", "pull") else end
        item.open = move.action == "open" if move.action in ("open", "close") else item.open
        item.lit = move.direction == "on" if move.action == "turn" else item.lit
    if move.action in ("sit", "stand"):
        seat = move.target if move.relation == "on" else world.FLOOR
        agent.seat = seat if move.action == "sit" else None
    if not _stays(move):
        agent.near = move.target if move.target in room.items and move.relation != "from" else None
    agent.x = round(end, 2)
    return origin, destination


SPEED = 0.35  # of walking, in room widths a second
LAST_START = 25.0  # s
LONGEST = 30.0  # s, of a video

_IN_PLACE = ("jump", "wave", "spin", "shake", "turn")  # actions of a second agent at the same time
_WITH_FULL_HANDS = ("put", "drop", "throw", "carry", "give", "shake")
_RELATIONS = {"in": 5, "on": 5, "under": 4, "at": 8, "around": 3, "to": 3, "from": 4}  # weights; others have 2
_TRIES = 30


@dataclass
class Event:
    """An action of an agent, with its times, manner and effect."""

    start: float
    end: float
    agent: str
    move: Move
    manner: str | None
    origin: Location | None  # of the object
    destination: Location | None
    agent_x: tuple[float, float]  # before and after
    sentences: list[int] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        row = asdict(self)
        move = row.pop("move")
        return {name: row.pop(name) for name in ("start", "end", "agent")} | move | row


@dataclass
class Script:
    """The room at the beginning of a video, and the events in order of their start."""

    duration: float
    room: Room
    events: list[Event]

    def record(self, vid: str, split: str) -> dict[str, Any]:
        items = [{**asdict(item), "fixed": item.kind.fixed} for item in self.room.items.values()]
        for row in items:
            for name in ("open", "lit"):
                if row[name] is None:
                    del row[name]
        traits = ("id", "noun", "colour", "x", "holding")
        agents = [{name: getattr(agent, name) for name in traits} for agent in self.room.agents.values()]
        record = {"vid": vid, "split": split, "duration": self.duration}
        record["setting"] = {"place": self.room.place, "items": items}
        return {**record, "agents": agents, "events": [event.record() for event in self.events]}


class _ScriptWriter:
    def __init__(self, chance: random.Random, *, novel: bool) -> None:
        self.chance, self.novel = chance, novel
        self.most, self.room = chance.choice((1, 2, 3, 3, 4, 4, 4, 5, 5)), new_room(chance, novel=novel)
        self.first, self.clock = deepcopy(self.room), round(0.3 + 1.2 * chance.random(), 1)
        self.events, self.done = list[Event](), set[tuple[str, str | None]]()
        self.actions = [name for name in world.ACTIONS if novel or name not in world.NOVEL_ACTIONS]

    def choose(self, agent: Agent, actions: list[str]) -> Move | None:
        """Return a possible move that is unlike all events of this video, or None."""
        weighted = [name for name in actions for _ in range(world.ACTIONS[name].weight)]
        for _ in range(_TRIES):
            action = self.chance.choice(weighted)
            if (agent.seat and action not in SEATED) or (action == "stand" and not agent.seat):
                continue
            moves = list(getattr(_Moves(self.room, agent, action), action)())
            moves = [move for move in moves if _likeness(move) not in self.done]
            if moves:
                relations = dict.fromkeys(move.relation for move in moves)
                relation = self.chance.choice([it for it in relations for _ in range(_RELATIONS.get(it or "", 2))])
                return self.chance.choice([move for move in moves if move.relation == relation])
        return None

    def play(self, agent: Agent, move: Move, seconds: float | None = None) -> Event:
        self.done.add(_likeness(move))
        manners = world.ACTIONS[move.action].manners
        manner = self.chance.choice(manners) if self.chance.random() < 0.6 else None
        before = agent.x
        places = apply(self.room, agent, move, self.chance)
        if seconds is None:
            seconds = world.ACTIONS[move.action].seconds * (0.85 + 0.3 * self.chance.random())
            seconds += abs(before - agent.x) / (SPEED * (2 if move.action == "run" else 1))
            seconds = max(0.8, seconds * (world.MANNERS[manner] if manner else 1))
        end = round(min(self.clock + seconds, LONGEST), 1)
        self.events.append(Event(self.clock, end, agent.id, move, manner, *places, (before, agent.x)))
        return self.events[-1]

    def step(self) -> None:
        agents = list(self.room.agents.values())
        busy = [agent for agent in agents if agent.holding or agent.seat]
        agent = self.chance.choice(busy if busy and self.chance.random() < 0.8 else agents)
        release = bool(agent.holding) and self.chance.random() < 0.6
        fresh = self.choose(agent, sorted(world.NOVEL_ACTIONS)) if self.novel else None
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
    return ("take" if move.action in ("pick", "lift") else move.action, move.object)


def write_script(chance: random.Random, *, novel: bool = False) -> Script:
    """Return a script of up to five events; `novel` adds novel objects, agents, colours and actions."""
    writer = _ScriptWriter(chance, novel=novel)
    for _ in range(writer.most):
        if len(writer.events) < writer.most and writer.clock <= LAST_START:
            writer.step()
    last = max((event.end for event in writer.events), default=2.0)
    duration = round(min(max(last + 0.3 + 2 * chance.random(), 2.0), LONGEST), 1)
    return Script(duration, writer.first, writer.events)
