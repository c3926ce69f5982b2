"""The parameters of a run and their help. They come from four places, of which a later one overrides the others.

These are the deployment in prefect.yaml, `penumbra.yaml` in the data set's folder (a group for each flow), `--config`
and `--param`. A key is a parameter's path (`filling.candidates`), or its end where only one has that end.
"""

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from enum import Enum
from functools import reduce
from pathlib import Path
from textwrap import fill, shorten
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from yaml.constructor import ConstructorError

from penumbra.artifacts.locations import data_folder
from penumbra.artifacts.manifest import NAME
from penumbra.artifacts.markdown import truncated
from penumbra.flows.registry import FLOWS, ParameterError, flow_of, prefect_yaml
from penumbra.tasks.parameter_group import merge

if TYPE_CHECKING:
    from prefect import Flow

OWN_FILE = "penumbra.yaml"
NAMES = re.compile(r"(?=.{1,200}$)[^.\s]+(\.[^.\s]+)*")  # a parameter's path
WIDTH, INDENT = 80, " " * 6  # of the help
NUMERALS = {2: "two", 3: "three"}
TEMPLATE = """\
# The parameters of `penumbra run FLOW {name}`, and of the deployments FLOW/{name} of `penumbra serve`: a line for each
# flow, and below it the flow's parameters. `penumbra run FLOW --help` lists them; --config and --param override it.
build-negatives:
  # masking.ratios: [0.25, 0.5, 0.75]   # share of the maskable words that each level masks
  # providers: [llama]                  # or corpus, openai, gemini, random
extract-features:
train-grounding:
  # epochs: 100
evaluate-grounding:
full-pipeline:
"""


class Parameter(NamedTuple):
    """A parameter of a flow, or a group of parameters."""

    path: str  # as users type it
    annotation: Any
    default: Any
    description: str
    is_group: bool
    model: str  # name of the member of a union that has the parameter, as in mmn; '' outside of unions


def parameters_of(flow: "Flow[..., Any]") -> list[Parameter]:
    """Return all parameters of a flow, each group before its members."""
    top = inspect.signature(flow.fn).parameters.values()
    return [inner for it in top for inner in _walk(it.name, it.annotation, it.default, "", "")]


def _walk(path: str, annotation: Any, default: Any, description: str, model: str) -> Iterator[Parameter]:
    if get_origin(annotation) is Annotated:
        annotation, *notes = get_args(annotation)
        description = next((note.description for note in notes if getattr(note, "description", None)), description)
    classes = group_classes(annotation)
    yield Parameter(path, annotation, default, description, bool(classes), model)
    if not classes and get_origin(annotation) in (tuple, list):  # of groups, as imports.sources
        classes, path = group_classes(get_args(annotation)[0]), f"{path}[]"
    for kind in classes:
        member = name_of(kind) if len(classes) > 1 else model
        for name, info in kind.model_fields.items():
            value = info.get_default(call_default_factory=True)
            yield from _walk(f"{path}.{name}", info.annotation, value, info.description or "", member)


def group_classes(annotation: Any) -> list[type[BaseModel]]:
    """Return the group of parameters that a type is, or the members of a union of groups; for other types nothing."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    if get_origin(annotation) is Annotated:
        return group_classes(get_args(annotation)[0])
    if get_origin(annotation) not in (Union, UnionType):
        return []
    members = [group_classes(kind) for kind in get_args(annotation) if kind is not NoneType]
    return [kind for classes in members for kind in classes] if all(members) else []


def name_of(kind: type[BaseModel]) -> str:
    """Return the name by which a member of a union is chosen."""
    return str(kind.model_fields["name"].default)


# From keys to paths


def resolve_parameter_paths(
    flow: "Flow[..., Any]", changes: Mapping[str, Any], deployed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the changes with the path of each parameter: `shine` becomes `model.losses.shine`.

    The model is that of the changes, or of the preset of the changes or of the `deployed` parameters. Raises
    `ParameterError` if several parameters end with a key, or none does.
    """
    parameters, top = parameters_of(flow), inspect.signature(flow.fn).parameters
    resolved = {key: value for key, value in changes.items() if key in top}
    model = _model_of_run(merge(dict(deployed or {}), resolved)) if "model" in top else ""
    for key, value in changes.items():
        if key not in top:
            resolved = merge(resolved, nested(_path_of(key, parameters, model).split("."), value))
    if isinstance(resolved.get("model"), dict) and model and model != next(it.model for it in parameters if it.model):
        resolved["model"] = {"name": model, **resolved["model"]}
    return _checked(flow.name, resolved, {it.path: it for it in parameters})


def _model_of_run(values: Mapping[str, Any]) -> str:
    """Return the name of the model; raise `ParameterError` with the nearest names for an unknown preset."""
    from penumbra.tasks.grounding.training.presets import model_name, presets

    preset, model = values.get("preset"), values.get("model")
    name = model.get("name") if isinstance(model, dict) else None
    if isinstance(preset, str) and preset not in presets():
        near = " or ".join(get_close_matches(preset, presets(), 3, 0.4))
        hint = f"did you mean {near}? " if near else ""
        raise ParameterError(f"no preset {truncated(preset, WIDTH)!r}: {hint}grounding/training/presets.yaml has all")
    return model_name(preset if isinstance(preset, str) else None, {"name": name} if isinstance(name, str) else {})


def _path_of(key: str, parameters: list[Parameter], model: str) -> str:
    """Return the path of the only parameter that ends with the key, or the key itself if there is none."""
    ending = [it for it in parameters if it.path.endswith(f".{key}") and "[]" not in it.path]
    paths = {it.path for it in ending if it.model in ("", model)}
    groups = {path: f"{path.rpartition('.')[0]}." for path in paths}
    # A group's own parameter comes before those of the groups within it.
    outer = {it for it in paths if not any(it != path and it.startswith(group) for path, group in groups.items())}
    if len(outer) > 1:
        typed = " or ".join(f"--param {path}=…" for path in sorted(outer))
        raise ParameterError(f"{key!r} is the end of several parameters: type {typed}")
    if ending and not outer:
        models = ", ".join(dict.fromkeys(it.model for it in ending))
        raise ParameterError(
            f"{key!r} is a parameter of model {models}, and this run has {model}: "
            f"add --param model.name={ending[0].model}"
        )
    return next(iter(outer), key)


def _is_of_ablation(name: str) -> bool:
    from penumbra.tasks.grounding.training.presets import MODELS

    return any(model.declaration_of(name) for model in MODELS.values())


def _checked(
    flow: str, values: Mapping[str, Any], parameters: Mapping[str, Parameter], group: str = ""
) -> dict[str, Any]:
    """Return the values with `openai` as `[openai]` where a list is expected.

    Raises `ParameterError` with the nearest name for an unknown parameter, and for a value that is no group or no list.
    """
    checked = dict(values)
    for name, value in values.items():
        path = f"{group}{name}"
        if path not in parameters:
            unknown = ".".join([path, *map(str, list(value)[:1])]) if isinstance(value, dict) else path
            if "model.ablation" in parameters and _is_of_ablation(name):
                raise ParameterError(f"{path} is a setting of --param 'model.ablation={{{name}: {value}}}'")
            hint = "".join(f"did you mean {near}? " for near in _nearest(unknown, list(parameters)))
            raise ParameterError(f"no parameter {unknown}: {hint}penumbra run {flow} --help lists them")
        it, shown = parameters[path], truncated(str(value), WIDTH)
        is_list, kinds = get_origin(it.annotation) in (tuple, list), get_args(it.annotation)
        count = len(kinds) if is_list and set(kinds) == {float} else 0
        if it.is_group and isinstance(value, dict):
            checked[name] = _checked(flow, value, parameters, f"{path}.")
        elif it.is_group and value is not None:
            meant = f"{path}.{'name' if f'{path}.name' in parameters else 'NAME'}={shown}"
            hint = f"did you mean {meant}? penumbra run {flow} --help {path} lists them"
            raise ParameterError(f"{path} is a group of parameters: {hint}")
        elif is_list and isinstance(value, str) and not count:
            checked[name] = [value]
        elif is_list and not _is_list(value, count):
            example = f", as in {path}={json.dumps(it.default, default=str, separators=(',', ':'))}"
            wanted = f"{NUMERALS.get(count, count)} numbers" if count else "a list"
            raise ParameterError(f"{path}={shown}: it takes {wanted}{example if it.default else ''}")
    return checked


def _is_list(value: Any, numbers: int) -> bool:
    """Return whether a value is a list; of so many numbers, unless `numbers` is 0."""
    if not isinstance(value, list | tuple | set):
        return False
    return not numbers or (len(value) == numbers and all(type(it) in (int, float) for it in value))


def _nearest(unknown: str, paths: list[str]) -> list[str]:
    by_end = {path.rpartition(".")[2]: path for path in reversed(paths)}
    ends = get_close_matches(unknown.rpartition(".")[2], by_end, 1)
    return ("." in unknown and get_close_matches(unknown, paths, 1)) or [by_end[end] for end in ends]


def nested(path: list[str], value: Any) -> dict[str, Any]:
    """Return a value as nested parameters: `{'a': {'b': value}}` for the path `['a', 'b']`."""
    return {path[0]: nested(path[1:], value) if len(path) > 1 else value}


# From files


def deployment_parameters(flow: str, name: str) -> dict[str, Any]:
    """Return the parameters of the deployment FLOW/NAME (or of a data set) under those of the data set's own file."""
    deployed: dict[str, Any] = next(
        (
            dict(one["parameters"])
            for one in prefect_yaml()["deployments"]
            if one["name"] == name and flow in one["tags"]
        ),
        {"dataset": {"name": name}},
    )
    own = own_parameters(name).get(flow)
    if not own:
        return deployed
    try:
        return merge(deployed, resolve_parameter_paths(flow_of(flow), own, deployed))
    except ParameterError as error:
        raise ParameterError(f"{data_folder() / name / OWN_FILE}: {error}") from None


def own_parameters(dataset: str) -> dict[str, dict[str, Any]]:
    """Return the parameters of a data set's own file, by flow; raise `ParameterError` naming file and line."""
    file = data_folder() / dataset / OWN_FILE
    if not NAME.match(dataset) or not file.is_file():
        return {}
    flows = _read(file, str(file))
    unknown = [flow for flow in flows if flow not in FLOWS]
    if unknown:
        raise ParameterError(f"{file}: no flow {unknown[0]!r}; there is: {', '.join(FLOWS)}")
    return {flow: _split_at_dots(values or {}, f"{file}, below {flow!r},") for flow, values in flows.items()}


def parameters_in(file: Path) -> dict[str, Any]:
    """Return the parameters of a `--config` file; raise `ParameterError` naming the file, and the line if not YAML."""
    label = f"--config {file}"
    return _split_at_dots(_read(file, label), label)


def parse_parameters(pairs: Iterable[str]) -> dict[str, Any]:
    """Return `masking.ratios=[0.1,0.3,0.5]` as nested parameters; raise `ParameterError` for what is refused."""
    from penumbra.flows.parameter_values import read_value

    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        label = f"--param {truncated(pair, WIDTH)!r}"
        if not equals or not NAMES.fullmatch(name):
            raise ParameterError(f"{label} is no NAME=VALUE, as in filling.candidates=4")
        try:
            values[name] = read_value(text)
        except ConstructorError as error:
            raise ParameterError(f"{label} is refused: {error.problem}") from None
        except yaml.YAMLError:
            values[name] = text
    return _split_at_dots(values, "--param")


def _read(file: Path, label: str) -> Mapping[str, Any]:
    from penumbra.flows.parameter_values import LONGEST, read_value

    try:
        with file.open(encoding="utf-8") as stream:
            values = read_value(stream.read(LONGEST + 1)) or {}
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
        raise ParameterError(f"{label} can't be read ({error}): name a YAML file of parameters") from None
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", "")
        line = f" line {mark.line + 1}" if mark else ""
        raise ParameterError(f"{label}{line} is no YAML of parameters ({problem}): write NAME: VALUE lines") from None
    if not isinstance(values, dict):
        raise ParameterError(f"{label} holds no NAME: VALUE lines, as in filling.candidates: 4")
    return values


def _split_at_dots(values: Any, label: str) -> dict[str, Any]:
    """Return parameters by their paths as nested parameters."""
    if not isinstance(values, dict) or not all(isinstance(name, str) and NAMES.fullmatch(name) for name in values):
        raise ParameterError(f"{label} holds no NAME: VALUE lines, as in filling.candidates: 4")
    for name, value in values.items():
        inner = next((other for other in values if other.startswith(f"{name}.")), None)
        if inner and not isinstance(value, dict):
            raise ParameterError(f"{label} has both {name} and {inner}: {name} is a group of parameters")
    return reduce(merge, (nested(name.split("."), value) for name, value in values.items()), {})


# The help of a flow


def overview(flow: str) -> str:
    """Return the groups of a flow's parameters with the names of their parameters, on at most two screens."""
    parameters = parameters_of(flow_of(flow))
    lines = [
        f"Parameters of {flow}, as --param NAME=VALUE. Types, defaults and descriptions:",
        f"penumbra run {flow} --help GROUP, with any of these groups, or all.",
    ]
    groups = {it.path: it for it in parameters if it.is_group and it.path.count(".") < 2}
    for path, group in [*groups.items(), ("", None)]:
        lines.append(shorten(f"{path}: {_summary(group)}", WIDTH, placeholder="…") if group else "Others:")
        inner = [it for it in parameters if it.path.rpartition(".")[0] == path and it.path not in groups]
        names = ", ".join(dict.fromkeys(it.path.rpartition(".")[2] + ".*" * it.is_group for it in inner))
        lines += [fill(names, WIDTH, initial_indent="    ", subsequent_indent="    ")] if names else []
    return "\n".join(lines)


def _summary(group: Parameter) -> str:
    classes = group_classes(group.annotation)
    if len(classes) > 1:
        return f"One of these, by its name: {', '.join(map(name_of, classes))}."
    return (inspect.getdoc(classes[0]) or "").splitlines()[0]


def in_full(flow: str, name: str) -> str:
    """Return the parameters of a group, or `all`, with types, defaults and descriptions; raise `ParameterError`."""
    parameters = parameters_of(flow_of(flow))
    wanted = [it for it in parameters if name == "all" or f".{name}." in f".{it.path}."]
    if not any(not it.is_group for it in wanted):
        groups = {end: it.path for it in parameters if it.is_group for end in (it.path, it.path.rpartition(".")[2])}
        hint = "".join(f"did you mean {groups[near]}? " for near in get_close_matches(name, groups, 1))
        raise ParameterError(f"{flow} has no group {name}: {hint}penumbra run {flow} --help lists them")
    # Each parameter once, with the names of all members of a union that have it with the same default.
    models: dict[tuple[str, ...], list[str]] = {}
    for it in wanted:
        models.setdefault(_explanation(it), []).extend([it.model] if it.model else [])
    lines = [f"Parameters of {flow}, as --param NAME=VALUE, and their defaults;"]
    lines.append("the data set's deployment may set others.")
    for (first, description), having in models.items():
        text = (f"Of {', '.join(having)}. " if having else "") + description
        lines += [first, *([fill(text, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)] if text else [])]
    return "\n".join(lines)


def _explanation(it: Parameter) -> tuple[str, str]:
    """Return the line of a parameter or a group, and its description."""
    if it.is_group:
        return "\n" + fill(f"{it.path}: {_summary(it)}", WIDTH), ""
    unset = it.default in (PydanticUndefined, inspect.Parameter.empty)
    default = "" if unset else f" = {json.dumps(it.default, default=str, ensure_ascii=False)}"
    line = f"{it.path}: {type_name(it.annotation)}{default}"
    return fill(line, WIDTH, initial_indent="  ", subsequent_indent=INDENT), it.description


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
