"""From a script to the scene: what stands where before the first event."""

import random
from typing import Any

from workshop.scenes import layout
from workshop.scenes.looks import Look
from workshop.scenes.people import Body
from workshop.scenes.scene import SIDE, Person, Scene, Thing, on_floor
from workshop.scenes.world import NOUNS

Record = dict[str, Any]  # an object of scripts.jsonl
_HAIR = ("brown", "black", "yellow")
_SKIN = ("skin", "skin", "tan")


def initial_scene(script: Record) -> Scene:
    """The scene of a script at its start. The same script gives the same scene.

    Raises:
        KeyError: the script lacks something, or names what there is not

    """
    scene = Scene()
    wanted = {item["id"]: float(item["at"]["x"]) for item in script["setting"]["items"]}
    things = [_thing(item) for item in script["setting"]["items"]]
    large = {thing.id: thing for thing in things if thing.large}
    scene.things.update(large)
    layout.furnish(large, wanted)
    chance = random.Random(script["vid"])
    _add_people(scene, script, chance)
    waiting = [thing for thing in things if not thing.large]
    while waiting:
        ready = [it for it in waiting if it.relation == "held" or it.target in scene.things or it.target == "floor"]
        if not ready:
            raise KeyError(f"{waiting[0].id} is located by {waiting[0].target}, which there is not")
        ready.sort(key=lambda it: it.relation == "on" and it.target == "floor")  # who can stand anywhere waits
        aim = wanted[ready[0].id] * SIDE + chance.uniform(-1, 1)
        locate(scene, ready[0], ready[0].relation, ready[0].target, aim)
        waiting.remove(ready[0])
    for record in script["agents"]:
        person = scene.people[record["id"]]
        person.x, person.y = layout.stand_free(scene, person, record["x"] * SIDE, 24)
    return scene


def _thing(item: Record) -> Thing:
    opened = item.get("open", item.get("lit"))
    at = item["at"]
    thing = Thing(item["id"], Look.of(item), at["relation"], at["target"])
    thing.opened = None if opened is None else float(opened)
    if not NOUNS[item["noun"]].portable:
        thing.relation = "floor"
    return thing


def _add_people(scene: Scene, script: Record, chance: random.Random) -> None:
    taken: set[str] = set()
    for record in script["agents"]:
        hair = chance.choice([tone for tone in _HAIR if tone not in taken])
        taken.add(hair)
        body = Body(record["noun"], record["colour"], chance.choice(_SKIN), hair)
        scene.people[record["id"]] = Person(record["id"], body, -100.0, holding=record["holding"])


def locate(scene: Scene, thing: Thing, relation: str, target: str, wanted: float) -> None:
    """Put a thing where a location of the script says, at about the wanted x (pixels).

    Raises:
        KeyError: there is no such target

    """
    scene.things[thing.id] = thing
    if on_floor(relation, target):
        near = relation in ("near", "beside")
        thing.x, thing.y = (
            layout.side_spot(scene, thing, relation, scene.things[target], wanted)
            if near
            else layout.floor_spot(scene, thing, wanted)
        )
        relation = relation if near else "floor"
    elif relation == "held":
        scene.people[target].holding = thing.id
    else:
        holder = scene.things[target]
        thing.slot = scene.take_slot(thing, relation, holder, int(wanted > scene.pose(holder).x))
    thing.relation, thing.target = relation, target
