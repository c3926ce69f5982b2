"""What `penumbra run FLOW --help` says of a flow's parameters, and what a shell completes of them.

To describe a flow is to import it, with torch and all, which takes seconds. So a description is kept in the user's
cache folder, for as long as neither the code nor what is installed changes.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import cache
from hashlib import sha256
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from platformdirs import user_cache_path

from penumbra.artifacts.locations import PROJECT

if TYPE_CHECKING:
    from pydantic import BaseModel

WIDTH = 80
DIGEST = "of"
PATIENCE = 60.0  # seconds between two processes that describe the same


@dataclass(frozen=True)
class Parameter:
    """A parameter: its name with dots, its type as values are written, its default as JSON, and what it may be."""

    name: str
    type: str
    default: str
    about: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Group:
    """Parameters that belong together; `of` are the groups that have these, where there are several by name."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    of: tuple[str, ...] = ()


# -- as text ----------------------------------------------------------------------------------------------------------


def overview(flow: str) -> str:
    """The groups of a flow's parameters with the names of their parameters, on less than two screens.

    Raises `ParameterError` naming an unknown flow.
    """
    shown: dict[str, tuple[str, list[str]]] = {}
    for group in groups_of(flow):
        place = ".".join(group.name.split(".")[:2])  # groups within these are told among the names
        about, names = shown.setdefault(place, (group.about, []))
        names += [it.name.removeprefix(f"{place}.") for it in group.parameters]
    lines = [
        f"Parameters of {flow}, as --param NAME=VALUE. Types, defaults and what they do:",
        f"penumbra run {flow} --help GROUP, with any of these groups, or all.",
    ]
    for place, (about, names) in shown.items():
        lines += [_cut(f"{place}: {about}"), *_names(names)]
    return "\n".join(lines)


def _names(names: list[str]) -> Iterator[str]:
    """Names in lines; of those within a further group there are as many as of one that has more than a few."""
    told: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        inner, dot, _ = name.rpartition(".")
        told.setdefault(inner if dot else name, []).append(name)
    short = [f"{key}.* ({len(some)})" if len(some) > 1 or some[0] != key else key for key, some in told.items()]
    if short:
        yield fill(", ".join(short), WIDTH, initial_indent="    ", subsequent_indent="    ")


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1].rsplit(" ", 1)[0] + "…"


def in_full(flow: str, name: str) -> str:
    """A group and those within, every parameter with type, default and description, in lines of 80 columns.

    `all` is all of them. Raises `ParameterError` where the flow has no group of this name, with the nearest.
    """
    from penumbra.flows.registry import ParameterError

    groups = groups_of(flow)
    found = [it for it in groups if name == "all" or f".{it.name}.".find(f".{name}.") >= 0]
    if not found:
        names = {part: it.name for it in groups for part in (it.name, it.name.rpartition(".")[2])}
        near = get_close_matches(name, names, 1)
        hint = f"did you mean {names[near[0]]}? " if near else ""
        raise ParameterError(f"{flow} has no group {name}: {hint}penumbra run {flow} --help lists them")
    lines = [
        f"Parameters of {flow}, as --param NAME=VALUE, and their defaults;\nthe data set's deployment may set others."
    ]
    for group in found:
        title = f"{group.name}, of {', '.join(group.of)}:" if group.of else f"{group.name}: {group.about}"
        lines += ["", fill(title, WIDTH), *(line for it in group.parameters for line in _parameter(it))]
    return "\n".join(lines)


def _parameter(it: Parameter) -> Iterator[str]:
    value = f" = {it.default}" if it.default else ""
    yield fill(f"{it.name}: {it.type}{value}", WIDTH, initial_indent="  ", subsequent_indent="      ")
    if it.about:
        yield fill(it.about, WIDTH, initial_indent="      ", subsequent_indent="      ")


# -- what is kept -----------------------------------------------------------------------------------------------------


def groups_of(flow: str) -> list[Group]:
    """A flow's parameters: as they were kept, or described now and kept."""
    kept = kept_groups(flow)
    if kept is not None:
        return kept
    groups = describe(flow)
    file = _file(flow)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({DIGEST: _digest(), "groups": [asdict(group) for group in groups]}))
        draft.replace(file)
    except OSError:  # a folder that can't be written costs time alone
        return groups
    return groups


def kept_groups(flow: str) -> list[Group] | None:
    """A flow's parameters as they were kept, or None where they were not, or for other code."""
    try:
        kept = json.loads(_file(flow).read_text())
        if kept[DIGEST] != _digest():
            return None
        return [
            Group(**{**it, "of": tuple(it["of"]), "parameters": tuple(Parameter(**own) for own in it["parameters"])})
            for it in kept["groups"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep_soon(flow: str) -> None:
    """Describe a flow in a process of its own, which nobody waits for; none where one has begun in the last minute."""
    begun = _file(flow).with_suffix(".begun")
    try:
        if begun.exists() and time.time() - begun.stat().st_mtime < PATIENCE:
            return
        begun.parent.mkdir(parents=True, exist_ok=True)
        begun.touch()
    except OSError:  # where nothing can be kept nothing is described
        return
    subprocess.Popen(
        [sys.executable, "-P", "-m", "penumbra.flows.parameter_help", flow],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _file(flow: str) -> Path:
    return user_cache_path("penumbra") / f"parameters-{flow}.json"


@cache  # importing a flow adds places to the path
def _digest() -> str:
    """Of what a description depends on: our files, and the folders of what is installed, by their times."""
    folders = [PROJECT / room for room in ("artifacts", "flows", "models", "tasks")]
    ours: Iterable[Path] = (file for folder in folders for kind in ("*.py", "*.yaml") for file in folder.rglob(kind))
    packages = (path for path in map(Path, sys.path) if any(path.glob("*.dist-info")))
    seen = sorted((str(path), path.stat().st_mtime_ns) for path in (*ours, *packages) if path.exists())
    return sha256(repr(seen).encode()).hexdigest()


# -- from the code ----------------------------------------------------------------------------------------------------


def describe(flow: str) -> list[Group]:
    """A flow's parameters from its code; raises `ParameterError` naming an unknown flow."""
    import inspect
    from typing import Annotated, get_args, get_origin

    from penumbra.flows.parameters import kinds_of
    from penumbra.flows.registry import flow_of

    groups: list[Group] = []
    alone: list[Parameter] = []
    for parameter in inspect.signature(flow_of(flow).fn).parameters.values():
        said = get_args(parameter.annotation)[1:] if get_origin(parameter.annotation) is Annotated else ()
        about = next((info.description for info in said if getattr(info, "description", None)), "")
        kinds = kinds_of(parameter.annotation)
        if len(kinds) > 1:
            groups += _union(parameter.name, kinds)
        elif kinds:
            groups += _within(parameter.name, kinds[0])
        else:
            alone.append(_told(parameter.name, parameter.annotation, parameter.default, about))
    return [*groups, *([Group("flow", f"Of {flow} itself.", tuple(alone))] if alone else [])]


def _within(name: str, group: "type[BaseModel]") -> Iterator[Group]:
    """A group of parameters, then the groups within."""
    own, within = _fields(name, group)
    yield Group(name, _about(group), tuple(own))
    for place, inner in within:
        yield from _within(place, inner)


def _fields(name: str, group: "type[BaseModel]") -> "tuple[list[Parameter], list[tuple[str, type[BaseModel]]]]":
    """A group's own parameters, those of lists of groups among them, and the groups within by their names."""
    own: list[Parameter] = []
    within: list[tuple[str, type[BaseModel]]] = []
    for field, info in group.model_fields.items():
        inner, several = _group(info.annotation)
        if inner and not several:
            within.append((f"{name}.{field}", inner))
            continue
        own.append(
            _told(
                f"{name}.{field}", info.annotation, info.get_default(call_default_factory=True), info.description or ""
            )
        )
        if inner:
            own += _fields(f"{name}.{field}[]", inner)[0]
    return own, within


def _about(group: "type[BaseModel]") -> str:
    return (group.__doc__ or "").strip().splitlines()[0]


def _union(name: str, members: "list[type[BaseModel]]") -> Iterator[Group]:
    """Groups that are told apart by their name: each field once, under the names of the groups that have it."""
    owners: dict[Parameter, list[str]] = {}
    names = [member.model_fields["name"].default for member in members]
    for member, own in zip(members, names, strict=True):
        for group in _within(name, member):
            for parameter in group.parameters:
                if parameter.name != f"{name}.name":
                    owners.setdefault(parameter, []).append(own)
    choice = Parameter(f"{name}.name", " | ".join(names), json.dumps(names[0]), "", tuple(names))
    yield Group(name, "One of these, by its name.", (choice,))
    for some in dict.fromkeys(map(tuple, owners.values())):
        parameters = sorted((it for it, of in owners.items() if tuple(of) == some), key=lambda it: it.name.count("."))
        yield Group(name, "", tuple(parameters), some)


def _told(name: str, annotation: Any, default: Any, about: str) -> Parameter:
    import inspect

    from pydantic_core import PydanticUndefined

    unset = default in (PydanticUndefined, inspect.Parameter.empty)
    value = "" if unset else json.dumps(default, default=str, ensure_ascii=False)
    return Parameter(name, type_name(annotation), value, about, tuple(values_of(annotation)))


def _group(annotation: Any) -> "tuple[type[BaseModel] | None, bool]":
    """The group of parameters that a type is, if any, and whether it is a list of them."""
    from typing import get_args, get_origin

    from pydantic import BaseModel

    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind, get_origin(annotation) in (tuple, list)
    return None, False


def type_name(annotation: Any) -> str:
    """A type as values are written: `float | null`, `[int, …]`, `paper | released`."""
    from enum import Enum
    from types import NoneType, UnionType
    from typing import Annotated, Literal, Union, get_args, get_origin

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
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " | ".join(str(member.value) for member in annotation)
    return "null" if annotation is NoneType else getattr(annotation, "__name__", str(annotation))


def values_of(annotation: Any) -> Iterator[str]:
    """All values that a parameter may have, where they are known: not of lists."""
    from enum import Enum
    from types import NoneType, UnionType
    from typing import Annotated, Literal, Union, get_args, get_origin

    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from values_of(inner[0])
    elif origin is Literal:
        yield from map(str, inner)
    elif origin in (Union, UnionType):
        for kind in inner:
            yield from values_of(kind)
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        yield from (str(member.value) for member in annotation)
    elif annotation is bool:
        yield from ("true", "false")
    elif annotation is NoneType:
        yield "null"


if __name__ == "__main__":
    from penumbra.flows.registry import FLOWS

    for _flow in sys.argv[1:] or FLOWS:
        groups_of(_flow)
