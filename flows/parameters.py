"""The parameters of a run and their help. They come from four sources; a later source overrides the earlier ones.

The sources are the deployment in prefect.yaml, `penumbra.yaml` in the data set's folder (a group for each flow),
`--config` and `--param`. A key is a parameter's path (`filling.candidates`) or the end of exactly one path.
"""

import inspect
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from enum import Enum
from functools import cache
from pathlib import Path
from textwrap import fill, shorten
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError, create_model
from pydantic_core import to_json

from penumbra.artifacts.errors import PenumbraError, what_there_is
from penumbra.artifacts.locations import data_folder
from penumbra.artifacts.manifest import NAME, flat
from penumbra.artifacts.markdown import truncated
from penumbra.flows.registry import FLOWS, ParameterError, flow_of, prefect_yaml
from penumbra.tasks.parameter_group import Parameters, merge

if TYPE_CHECKING:
    from prefect import Flow

OWN_FILE = "penumbra.yaml"
# Data sets are shared: their file must not set where a key is sent, which key, the price of answers, or who gets data.
NOT_OWN, HOSTED = ("base_url", "key_block", "price", "log"), ("openai", "gemini")
WIDTH, INDENT = 80, " " * 6  # of the help
LONGEST, DEEPEST = 100_000, 20  # characters of a parameter file; depth of nested lists and groups
WORDS = {"": None, "~": None, "True": True, "False": False}  # words of YAML that JSON lacks


class Parameter(NamedTuple):
    """A parameter of a flow, or a group of parameters, which has no type."""

    path: str  # as users type it
    type: str
    default: str  # as JSON; '' if it is required
    description: str
    models: tuple[str, ...] = ()  # the members of a union that have the parameter, such as mmn


@cache
def model_of(flow: "Flow[..., Any]") -> type[Parameters]:
    """Return the parameters of a flow as a group of parameters."""
    fields: dict[str, Any] = {
        name: (it.annotation, ... if it.default is it.empty else it.default)
        for name, it in inspect.signature(flow.fn).parameters.items()
    }
    return create_model(flow.name, __base__=Parameters, **fields)


def parameters_of(flow: "Flow[..., Any]") -> list[Parameter]:
    """Return all parameters of a flow, each group before its members."""
    models: dict[Parameter, tuple[str, ...]] = {}
    for it in _members(model_of(flow)):
        same = it._replace(models=())
        models[same] = models.get(same, ()) + it.models
    return [it._replace(models=having) for it, having in models.items()]


def _members(group: type[BaseModel], within: str = "", models: tuple[str, ...] = ()) -> Iterator[Parameter]:
    for name, field in group.model_fields.items():
        path, groups = f"{within}{name}", groups_of(field.annotation)
        if len(groups) > 1:
            yield Parameter(path, "", "", f"One of these, by its name: {', '.join(map(name_of, groups))}.", models)
        elif groups:
            yield Parameter(path, "", "", (inspect.getdoc(groups[0]) or "").splitlines()[0], models)
        else:
            default = field.get_default(call_default_factory=True)
            shown = "" if field.is_required() else to_json(default, fallback=str).decode()
            yield Parameter(path, type_name(field.annotation), shown, field.description or "", models)
            if get_origin(field.annotation) in (tuple, list):  # of groups, as imports.sources
                path, groups = f"{path}[]", groups_of(get_args(field.annotation)[0])
        for inner in groups:
            yield from _members(inner, f"{path}.", (name_of(inner),) if len(groups) > 1 else models)


def groups_of(annotation: Any) -> list[type[BaseModel]]:
    """Return the parameter groups in a type: the type itself, the members of a union, or none."""
    if get_origin(annotation) in (Annotated, Union, UnionType):
        return [group for kind in get_args(annotation) for group in groups_of(kind)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []


def name_of(group: type[BaseModel]) -> str:
    """Return the name by which a member of a union is chosen."""
    return str(group.model_fields["name"].default)


def type_name(annotation: Any) -> str:
    """Return a type in the notation of its values: `float | null`, `[int, …]`, `paper | released`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_name(inner[0])
    if origin is Literal:
        return " | ".join(map(str, inner))
    if origin in (Union, UnionType):
        return " | ".join(map(type_name, inner))
    if origin in (tuple, list):
        return f"[{', '.join(map(type_name, inner))}]"
    if origin is dict:
        return f"{{{': '.join(map(type_name, inner))}}}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " | ".join(str(member.value) for member in annotation)
    return {NoneType: "null", ...: "…"}.get(annotation) or str(getattr(annotation, "__name__", annotation))


# From keys to paths, and to values that fit


def with_changes(flow: "Flow[..., Any]", parameters: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a flow, overridden by changes by name: `shine` changes `model.losses.shine`.

    A changed model includes its name: the given name or the preset's. Raises `ParameterError` if no parameter or
    several parameters end with a name.
    """
    paths = list(dict.fromkeys(it.path for it in parameters_of(flow)))
    merged = dict(parameters)
    for key, value in changes.items():
        first, *inner = str(key).split(".")
        ends, shown = _paths_with_end(paths, first), truncated(first, WIDTH)
        if not ends:
            every = {name: [it.path for it in parameters_of(flow_of(name))] for name in FLOWS}
            having = " and ".join(name for name, its in every.items() if _paths_with_end(its, first))
            near = f"it belongs to {having}; " if having else _nearest(first, paths)
            raise ParameterError(f"no parameter {shown}: {near}penumbra run {flow.name} --help lists them")
        if len(ends) > 1:
            typed = " or ".join(f"--param {path}=…" for path in ends)
            raise ParameterError(f"several parameters end with {shown!r}: type {typed}")
        nested: Any = value
        for name in reversed([*ends[0].split("."), *inner]):
            nested = {name: nested}
        merged = merge(merged, nested)
    if isinstance(merged.get("model"), dict):
        from penumbra.tasks.grounding.training.presets import DEFAULT, model_name

        name = model_name(str(merged.get("preset")), merged["model"])
        merged["model"] = {**({} if name == DEFAULT else {"name": name}), **merged["model"]}
    return merged


def _paths_with_end(paths: list[str], key: str) -> list[str]:
    """Return the paths that a key may mean: the key itself if it is a path, or all paths that end with it."""
    return [key] if key in paths else [it for it in paths if it.endswith(f".{key}") and "[]" not in it]


def _nearest(unknown: str, paths: list[str]) -> str:
    by_end = {path.rpartition(".")[2]: path for path in reversed(paths)}
    ends = [by_end[end] for end in get_close_matches(unknown.rpartition(".")[2], by_end, 1)]
    near = ("." in unknown and get_close_matches(unknown, paths, 1)) or ends
    return f"did you mean {near[0]}? " if near else ""


def validated(flow: "Flow[..., Any]", parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters as the flow receives them; raise `ParameterError`, which suggests the nearest name."""
    try:
        return dict(model_of(flow)(**parameters))
    except ValidationError as error:
        faults = error.errors(include_url=False)
    known = {it.path: it for it in parameters_of(flow)}
    models = {name for it in known.values() for name in it.models}
    lines = []
    for fault in faults:
        at = ".".join(map(str, fault["loc"]))
        line = f"{at}: {fault['msg'].removeprefix('Value error, ')}"
        context = fault.get("ctx", {})
        names = re.findall(r"'([^']*)'", str(context.get("expected_tags") or context.get("expected") or ""))
        given = context.get("tag", fault["input"])
        tuple_of = known.get(at if at in known else at.rpartition(".")[0])
        if tuple_of and tuple_of.type.startswith("[float, f") and fault["type"] != "value_error":
            numbers = tuple_of.type.count("float")
            line = f"{tuple_of.path}: it takes {numbers} numbers, as in {tuple_of.path}={tuple_of.default}"
        elif f"{at}.name" in known and isinstance(fault["input"], str):
            line = f"{at} is a group of parameters: type {at}.name={fault['input']}"
        elif names and isinstance(given, str):
            line = f"{at}{'.name' * ('tag' in context)}: no {given!r}; {what_there_is(given, names)}"
        elif fault["type"] == "extra_forbidden":
            path = ".".join(str(part) for part in fault["loc"] if part not in models)
            owners = " or ".join(known[path].models) if path in known else ""
            line += f"; it belongs to model.name={owners}" if owners else f": {_nearest(path, [*known])}"
        lines.append(truncated(" ".join(line.split()), 4 * WIDTH))
    raise ParameterError(
        f"{'; '.join(lines)}; penumbra run {flow.name} --help {truncated(str(faults[0]['loc'][0]), 80)}"
    )


# From files and the command line


def deployment_parameters(flow: str, name: str) -> dict[str, Any]:
    """Return the parameters of the deployment FLOW/NAME (or of a data set), overridden by the data set's own file."""
    deployed: dict[str, Any] = prefect_yaml()[1].get((flow, name), {"parameters": {"dataset": {"name": name}}})
    own = own_parameters(name).get(flow)
    if not own:
        return dict(deployed["parameters"])
    try:
        parameters = with_changes(flow_of(flow), deployed["parameters"], own)
        validated(flow_of(flow), parameters)
        return parameters
    except PenumbraError as error:
        raise ParameterError(f"{data_folder() / name / OWN_FILE}: {error}") from None


def own_parameters(dataset: str) -> dict[str, dict[str, Any]]:
    """Return the parameters of a data set's own file, by flow; raise `ParameterError` naming the file."""
    file = data_folder() / dataset / OWN_FILE
    if not NAME.match(dataset) or not file.is_file():
        return {}
    flows = {}
    for flow, values in _read(file, str(file)).items():
        if flow not in FLOWS:
            raise ParameterError(f"{file}: no flow {flow!r}; {what_there_is(flow, list(FLOWS))}")
        flows[flow] = _with_names(values or {}, f"{file}, below {flow!r},")
    for path, value in flat(flows):
        names = path.split(".")
        asks = names[-1] == "providers" and not {*HOSTED}.isdisjoint(value if isinstance(value, list) else [value])
        if asks or not {*NOT_OWN}.isdisjoint(names):
            raise ParameterError(f"{file}: {path} decides who is paid or sent what: give it with --param or --config")
    return flows


def parameters_in(file: Path) -> dict[str, Any]:
    """Return the parameters of a `--config` file by their names; raise `ParameterError` naming the file."""
    return _read(file, f"--config {file}")


def parse_parameters(pairs: Iterable[str]) -> dict[str, Any]:
    """Return values by name from pairs such as `masking.ratios=[0.1,0.3,0.5]`; a value that is not YAML is text."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ParameterError(f"--param {truncated(pair, WIDTH)!r} is not NAME=VALUE, as in filling.candidates=4")
        values.pop(name, None)  # a later pair overrides those before it
        try:
            values[name] = read_value(text)
        except ValueError:
            values[name] = text
    return values


def _read(file: Path, label: str) -> dict[str, Any]:
    try:
        with file.open(encoding="utf-8") as stream:  # a pipe may have no end
            values = read_value(stream.read(LONGEST + 1)) or {}
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
        raise ParameterError(f"{label} can't be read ({error}): name a YAML file of parameters") from None
    return _with_names(values, label)


def _with_names(values: Any, label: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ParameterError(f"{label} has no NAME: VALUE lines, as in filling.candidates: 4")
    return values


def read_value(text: str) -> Any:
    """Return the value of YAML text of unknown origin; raise `ValueError` with a one-line message if it is invalid.

    Scalars are read as JSON if possible; all others are text, for example a date.
    """
    if len(text) > LONGEST:
        raise ValueError(f"it has more than {LONGEST:,} characters")
    try:
        values = list(_values(yaml.parse(text)))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from None
    if len(values) > 1:
        raise ValueError("it has more than one document")
    return values[0] if values else None


def _values(events: Iterator[yaml.Event], depth: int = 0) -> Iterator[Any]:
    """Yield the values that a parser's events describe, up to the end of the list or group that holds them."""
    if depth > DEEPEST:
        raise ValueError(f"it has more than {DEEPEST} nested lists and groups")
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            return
        if getattr(event, "anchor", None) or getattr(event, "tag", None):  # aliases might expand without bounds
            raise ValueError("tags, anchors and aliases are refused: text with & * or ! needs quotes")
        if isinstance(event, yaml.SequenceStartEvent):
            yield list(_values(events, depth + 1))
        elif isinstance(event, yaml.MappingStartEvent):
            inner = list(_values(events, depth + 1))
            if any(isinstance(name, list | dict) for name in inner[::2]):  # its text might grow without bounds
                raise ValueError("a name is a list or a group")
            names = [str(name) for name in inner[::2]]
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise ValueError(f"it has the name {truncated(twice[0], WIDTH)!r} twice")
            yield dict(zip(names, inner[1::2], strict=True))
        elif isinstance(event, yaml.ScalarEvent):
            try:
                yield event.value if event.style else json.loads(event.value)
            except ValueError:
                yield WORDS.get(event.value, event.value)


# The help of a flow


def overview(flow: str) -> str:
    """Return the groups of a flow's parameters with the names of their parameters, on at most two screens."""
    parameters = parameters_of(flow_of(flow))
    lines = [
        f"Parameters of {flow}, as --param NAME=VALUE. Types, defaults and descriptions:",
        f"penumbra run {flow} --help GROUP, with any of these groups, or all.",
    ]
    groups = {it.path: it for it in parameters if not it.type and it.path.count(".") < 2}
    for path, group in [*groups.items(), ("", None)]:
        lines.append(shorten(f"{path}: {group.description}", WIDTH, placeholder="…") if group else "Others:")
        inner = [it for it in parameters if it.path.rpartition(".")[0] == path and it.path not in groups]
        names = ", ".join(dict.fromkeys(it.path.rpartition(".")[2] + ("" if it.type else ".*") for it in inner))
        lines += [fill(names, WIDTH, initial_indent="    ", subsequent_indent="    ")] if names else []
    return "\n".join(lines)


def in_full(flow: str, name: str) -> str:
    """Return the parameters of a group, or `all`, with types, defaults and descriptions; raise `ParameterError`."""
    parameters = parameters_of(flow_of(flow))
    wanted = [it for it in parameters if name == "all" or f".{name}." in f".{it.path}."]
    if not wanted:
        hint = _nearest(name, [it.path for it in parameters if not it.type])
        raise ParameterError(f"{flow} has no group {name}: {hint}penumbra run {flow} --help lists them")
    lines = [f"Parameters of {flow}, as --param NAME=VALUE, and their defaults;"]
    lines.append("the data set's deployment may set others.")
    for it in wanted:
        if not it.type:
            lines.append("\n" + fill(f"{it.path}: {it.description}", WIDTH))
            continue
        default = f" = {it.default}" if it.default else ""
        text = (f"Of {', '.join(it.models)}. " if it.models else "") + it.description
        lines.append(fill(f"{it.path}: {it.type}{default}", WIDTH, initial_indent="  ", subsequent_indent=INDENT))
        lines += [fill(text, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)] if text else []
    return "\n".join(lines)
