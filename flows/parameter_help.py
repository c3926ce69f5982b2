"""The text of `penumbra run FLOW --help`, and the values of a parameter for completion in a shell.

Both import the flow with everything that it runs, which takes some seconds.
"""

import inspect
import json
from collections.abc import Iterator
from difflib import get_close_matches
from enum import Enum
from textwrap import fill
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic_core import PydanticUndefined

from penumbra.flows.parameters import Parameter, group_classes, name_of, parameters_of
from penumbra.flows.registry import ParameterError, flow_of

WIDTH = 80


def overview(flow: str) -> str:
    """Return the groups of a flow's parameters with the names of their parameters, on at most two screens.

    Raises `ParameterError` if there is no such flow.
    """
    parameters = parameters_of(flow_of(flow))
    lines = [
        f"Parameters of {flow}, as --param NAME=VALUE. Types, defaults and descriptions:",
        f"penumbra run {flow} --help GROUP, with any of these groups, or all.",
    ]
    groups = [it for it in parameters if it.is_group and it.path.count(".") < 2]
    for group in {it.path: it for it in groups}.values():
        inner = [it.path for it in groups if it.path.startswith(f"{group.path}.")]
        names = [it.path for it in parameters if it.path.startswith(f"{group.path}.") and not it.is_group]
        own = [name for name in names if not any(name.startswith(f"{other}.") for other in inner)]
        lines += [_shortened(f"{group.path}: {_summary(group)}"), *_names(group.path, own)]
    lines.append(f"flow: The parameters of {flow} itself.")
    lines += _names("", [it.path for it in parameters if not it.is_group and "." not in it.path])
    return "\n".join(lines)


def _summary(group: Parameter) -> str:
    classes = group_classes(group.annotation)
    if len(classes) > 1:
        return f"One of these, by its name: {', '.join(name_of(kind) for kind in classes)}."
    return (inspect.getdoc(classes[0]) or "").splitlines()[0]


def _names(group: str, paths: list[str]) -> list[str]:
    """Return the names in lines of the usual width; those of a group within the group are only counted."""
    names = [path.removeprefix(f"{group}.") for path in dict.fromkeys(paths)]
    by_group: dict[str, list[str]] = {}
    for name in names:
        by_group.setdefault(name.rpartition(".")[0], []).append(name)
    words = by_group.pop("", []) + [f"{inner}.* ({len(several)})" for inner, several in by_group.items()]
    return [fill(", ".join(words), WIDTH, initial_indent="    ", subsequent_indent="    ")] if words else []


def _shortened(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1].rsplit(" ", 1)[0] + "…"


def in_full(flow: str, name: str) -> str:
    """Return a group's parameters, or `all`, each with its type, default and description, in lines of 80 columns.

    Raises `ParameterError` with the nearest name if the flow has no such group.
    """
    parameters = parameters_of(flow_of(flow))
    wanted = [it for it in parameters if name == "all" or f".{name}." in f".{it.path}." or _is_own(it, name)]
    if not any(not it.is_group for it in wanted):
        groups = {end: it.path for it in parameters if it.is_group for end in (it.path, it.path.rpartition(".")[2])}
        near = get_close_matches(name, groups, 1)
        hint = f"did you mean {groups[near[0]]}? " if near else ""
        raise ParameterError(f"{flow} has no group {name}: {hint}penumbra run {flow} --help lists them")
    lines = [
        f"Parameters of {flow}, as --param NAME=VALUE, and their defaults;\nthe data set's deployment may set others."
    ]
    for parameter, models in _with_models(wanted):
        lines += _in_full(parameter, models)
    return "\n".join(lines)


def _is_own(parameter: Parameter, name: str) -> bool:
    return name == "flow" and "." not in parameter.path and not parameter.is_group


def _with_models(parameters: list[Parameter]) -> list[tuple[Parameter, list[str]]]:
    """Return each parameter once, with the names of all members of a union that have it with the same default."""
    models: dict[str, list[str]] = {}
    first: dict[str, Parameter] = {}
    for it in parameters:
        same = repr((it.path, it.annotation, it.default, it.description))
        first.setdefault(same, it)
        models.setdefault(same, []).append(it.model)
    return [(first[same], list(filter(None, names))) for same, names in models.items()]


def _in_full(parameter: Parameter, models: list[str]) -> Iterator[str]:
    if parameter.is_group:
        yield ""
        yield fill(f"{parameter.path}: {_summary(parameter)}", WIDTH)
        return
    unset = parameter.default in (PydanticUndefined, inspect.Parameter.empty)
    default = "" if unset else f" = {json.dumps(parameter.default, default=str, ensure_ascii=False)}"
    line = f"{parameter.path}: {type_name(parameter.annotation)}{default}"
    yield fill(line, WIDTH, initial_indent="  ", subsequent_indent="      ")
    of_models = f"Of {', '.join(models)}. " if models else ""
    if of_models or parameter.description:
        yield fill(of_models + parameter.description, WIDTH, initial_indent="      ", subsequent_indent="      ")


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


def known_values(annotation: Any) -> list[str]:
    """Return all values of a choice or a switch; of other types nothing."""
    if get_origin(annotation) not in (Literal, Union, UnionType) and not isinstance(annotation, type):
        return []
    values = type_name(annotation).replace("bool", "true | false").split(" | ")
    is_choice = len(values) > 1 and not {"str", "int", "float"} & {*values}
    return values if is_choice or get_origin(annotation) is Literal else []
