"""The text of `penumbra run FLOW --help`. It imports the flow with everything that it runs, which takes seconds."""

import inspect
import json
from collections import Counter
from difflib import get_close_matches
from enum import Enum
from textwrap import fill
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic_core import PydanticUndefined

from penumbra.flows.parameters import Parameter, group_classes, name_of, parameters_of
from penumbra.flows.registry import ParameterError, flow_of

WIDTH = 80
INDENT = " " * 6


def overview(flow: str) -> str:
    """Return the groups of a flow's parameters with the names of their parameters, on at most two screens.

    Raises `ParameterError` if there is no such flow.
    """
    parameters = parameters_of(flow_of(flow))
    lines = [
        f"Parameters of {flow}, as --param NAME=VALUE. Types, defaults and descriptions:",
        f"penumbra run {flow} --help GROUP, with any of these groups, or all.",
    ]
    groups = {it.path: it for it in parameters if it.is_group and it.path.count(".") < 2}
    for path, group in groups.items():
        inner = tuple(f"{other}." for other in groups if other.startswith(f"{path}."))
        names = [it.path for it in parameters if it.path.startswith(f"{path}.") and not it.is_group]
        line = f"{path}: {_summary(group)}"
        lines.append(line if len(line) <= WIDTH else line[: WIDTH - 1].rsplit(" ", 1)[0] + "…")
        lines += _names(path, [name for name in names if not name.startswith(inner)])
    lines.append(f"flow: The parameters of {flow} itself.")
    lines += _names("", [it.path for it in parameters if not it.is_group and "." not in it.path])
    return "\n".join(lines)


def _summary(group: Parameter) -> str:
    classes = group_classes(group.annotation)
    if len(classes) > 1:
        return f"One of these, by its name: {', '.join(map(name_of, classes))}."
    return (inspect.getdoc(classes[0]) or "").splitlines()[0]


def _names(group: str, paths: list[str]) -> list[str]:
    """Return the names in lines of the usual width; those of a group within the group are only counted."""
    names = [path.removeprefix(f"{group}.") for path in dict.fromkeys(paths)]
    counts = Counter(name.rpartition(".")[0] for name in names)
    words = [name for name in names if "." not in name]
    words += [f"{inner}.* ({count})" for inner, count in counts.items() if inner]
    return [fill(", ".join(words), WIDTH, initial_indent="    ", subsequent_indent="    ")] if words else []


def in_full(flow: str, name: str) -> str:
    """Return a group's parameters, or `all`, each with its type, default and description, in lines of 80 columns.

    Raises `ParameterError` with the nearest name if the flow has no such group.
    """
    parameters = parameters_of(flow_of(flow))
    own = [it for it in parameters if "." not in it.path and not it.is_group] if name == "flow" else []
    wanted = own or [it for it in parameters if name == "all" or f".{name}." in f".{it.path}."]
    if not any(not it.is_group for it in wanted):
        groups = {end: it.path for it in parameters if it.is_group for end in (it.path, it.path.rpartition(".")[2])}
        near = get_close_matches(name, groups, 1)
        hint = f"did you mean {groups[near[0]]}? " if near else ""
        raise ParameterError(f"{flow} has no group {name}: {hint}penumbra run {flow} --help lists them")
    # Each parameter once, with the names of all members of a union that have it with the same default.
    alike: dict[str, list[Parameter]] = {}
    for it in wanted:
        alike.setdefault(repr((it.path, it.annotation, it.default, it.description)), []).append(it)
    return "\n".join(
        [
            f"Parameters of {flow}, as --param NAME=VALUE, and their defaults;",
            "the data set's deployment may set others.",
            *(line for several in alike.values() for line in _in_full(several)),
        ]
    )


def _in_full(alike: list[Parameter]) -> list[str]:
    it = alike[0]
    if it.is_group:
        return ["", fill(f"{it.path}: {_summary(it)}", WIDTH)]
    unset = it.default in (PydanticUndefined, inspect.Parameter.empty)
    default = "" if unset else f" = {json.dumps(it.default, default=str, ensure_ascii=False)}"
    models = ", ".join(other.model for other in alike if other.model)
    text = (f"Of {models}. " if models else "") + it.description
    lines = [
        fill(f"{it.path}: {type_name(it.annotation)}{default}", WIDTH, initial_indent="  ", subsequent_indent=INDENT)
    ]
    return lines + ([fill(text, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)] if text else [])


def type_name(annotation: Any) -> str:
    """Return a type as its values are written: `float | null`, `[int, …]`, `paper | released`."""
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
