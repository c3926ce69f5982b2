"""What `penumbra run FLOW --help` says of a flow's parameters: their types, defaults and descriptions."""

import inspect
import json
from collections.abc import Iterator
from textwrap import fill
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from penumbra.flows.running import flow_of, kinds_of

WIDTH = 80


def described(name: str) -> str:
    """All groups of a flow's parameters, every field with type, default and description, in lines of 80 columns.

    Raises `ParameterError` naming an unknown flow.
    """
    parts = [
        f"Parameters of {name}, as --param NAME=VALUE, and their defaults;\nthe data set's deployment may set others."
    ]
    for parameter in inspect.signature(flow_of(name).fn).parameters.values():
        said = get_args(parameter.annotation)[1:] if get_origin(parameter.annotation) is Annotated else ()
        description = next((info.description for info in said if getattr(info, "description", None)), "")
        kinds = kinds_of(parameter.annotation)
        if len(kinds) > 1:
            parts += ["", *_union(parameter.name, kinds)]
        else:
            parts += ["", *_lines(parameter.name, parameter.annotation, parameter.default, description)]
    return "\n".join(parts)


def _lines(name: str, annotation: Any, default: Any, description: str) -> Iterator[str]:
    group, several = _group(annotation)
    if group is None or several:
        unset = default in (PydanticUndefined, inspect.Parameter.empty)
        value = "" if unset else f" = {json.dumps(default, default=str, ensure_ascii=False)}"
        yield fill(f"{name}: {type_name(annotation)}{value}", WIDTH, initial_indent="  ", subsequent_indent="      ")
        if description:
            yield fill(description, WIDTH, initial_indent="      ", subsequent_indent="      ")
    if group is None:
        return
    if not several:
        yield fill(f"{name}: {(group.__doc__ or '').strip().splitlines()[0]}", WIDTH)
    for field, info in group.model_fields.items():
        inner = f"{name}[].{field}" if several else f"{name}.{field}"
        yield from _lines(inner, info.annotation, info.get_default(call_default_factory=True), info.description or "")


def _union(name: str, members: list[type[BaseModel]]) -> Iterator[str]:
    """Groups that are told apart by their name: each field once, under the names of the groups that have it."""
    owners: dict[tuple[str, ...], list[str]] = {}
    names = [member.model_fields["name"].default for member in members]
    for member, own in zip(members, names, strict=True):
        for lines in _leaves(name, member):
            owners.setdefault(lines, []).append(own)
    yield fill(f"{name}: One of these, by its name.", WIDTH)
    yield f"  {name}.name: {' | '.join(names)} = {json.dumps(names[0])}"
    for some in dict.fromkeys(map(tuple, owners.values())):
        yield fill(f"{name}, of {', '.join(some)}:", WIDTH)
        yield from (line for lines, of in owners.items() if tuple(of) == some for line in lines)


def _leaves(name: str, group: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """What is told of each field of a group, and of the groups within; their names are told elsewhere."""
    within: list[tuple[str, type[BaseModel]]] = []
    for field, info in group.model_fields.items():
        inner, several = _group(info.annotation)
        if inner and not several:
            within.append((f"{name}.{field}", inner))
        elif field != "name":
            default = info.get_default(call_default_factory=True)
            yield tuple(_lines(f"{name}.{field}", info.annotation, default, info.description or ""))
    for place, inner in within:
        yield from _leaves(place, inner)


def _group(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The group of parameters that a type is, if any, and whether it is a list of them."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind, get_origin(annotation) in (tuple, list)
    return None, False


def type_name(annotation: Any) -> str:
    """A type as values are written: `float | null`, `[int, …]`, `paper | released`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_name(inner[0])
    if origin is Literal:
        return " | ".join(map(str, inner))
    if origin in (Union, UnionType):
        return " | ".join(map(type_name, inner))
    if origin in (tuple, list):
        return f"[{', '.join('…' if kind is ... else type_name(kind) for kind in inner)}]"
    if origin is dict:
        return "{" + ": ".join(map(type_name, inner)) + "}"
    return "null" if annotation is NoneType else getattr(annotation, "__name__", str(annotation))
