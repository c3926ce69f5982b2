"""Parameters from YAML files: of one run (`--config FILE`), and a data set's own (`penumbra.yaml` in its folder).

A data set's file has a group of parameters for each flow, which are those of the deployment FLOW/DATASET.
"""

import inspect
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel

from penumbra.artifacts.locations import data_folder
from penumbra.artifacts.manifest import NAME
from penumbra.flows.registry import FLOWS, ParameterError, deployments, flow_of, prefect_yaml

if TYPE_CHECKING:
    from prefect import Flow

OWN = "penumbra.yaml"
NEW = """\
# What `penumbra run FLOW {name}` starts from, and what `penumbra serve` shows as FLOW/{name}: a flow, and below it its
# parameters, in groups or by names with dots. `penumbra run FLOW --help` lists them; --config and --param beat them.
build-negatives:
  # masking.ratios: [0.25, 0.5, 0.75]   # of a query's words that carry meaning, by level
  # providers: [corpus]                 # or openai, gemini, llama, random
extract-features:
train-grounding:
  # epochs: 100
evaluate-grounding:
full-pipeline:
"""


def nested(place: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A value as nested parameters."""
    for name in reversed(place):
        value = {name: value}
    return dict(value)


def parameters_in(file: Path) -> dict[str, Any]:
    """The parameters of a YAML file, in groups or by names with dots, as in `filling.candidates: 4`.

    Raises `ParameterError` naming the file, and the line where it is no YAML.
    """
    return _without_dots(_read(file, f"--config {file}"), f"--config {file}")


def own_parameters(dataset: str) -> dict[str, dict[str, Any]]:
    """What a data set's own file says, by flow; empty where it has none.

    Raises `ParameterError` naming the file, and the line where it is no YAML, or what is no flow.
    """
    file = data_folder() / dataset / OWN
    if not NAME.match(dataset) or not file.is_file():
        return {}
    told = _read(file, str(file))
    unknown = [flow for flow in told if flow not in FLOWS]
    if unknown:
        raise ParameterError(f"{file}: no flow {unknown[0]!r}; there is: {', '.join(FLOWS)}")
    return {flow: _without_dots(said or {}, f"{file}, below {flow!r},") for flow, said in told.items()}


def datasets_with_own() -> Iterator[str]:
    """The data sets that have a file of their own."""
    yield from sorted(file.parent.name for file in data_folder().glob(f"*/{OWN}"))


def write_own(dataset: str) -> Path | None:
    """Write a data set's own file, to be edited; one that is there stays as it is, and None says so."""
    file = data_folder() / dataset / OWN
    if file.exists():
        return None
    file.write_text(NEW.format(name=dataset), encoding="utf-8")
    return file


def _read(file: Path, called: str) -> Mapping[str, Any]:
    try:
        said = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"{called} can't be read ({error}): name a YAML file of parameters") from None
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ParameterError(f"{called}{line} is no YAML ({error.problem}): write NAME: VALUE lines") from None
    if not isinstance(said, dict):
        raise ParameterError(f"{called} holds no NAME: VALUE lines, as in filling.candidates: 4")
    return said


def _without_dots(said: Any, called: str) -> dict[str, Any]:
    from penumbra.tasks.stage import merge  # it imports prefect, which reads its environment once

    if not isinstance(said, dict) or not all(isinstance(name, str) and all(name.split(".")) for name in said):
        raise ParameterError(f"{called} holds no NAME: VALUE lines, as in filling.candidates: 4")
    return reduce(merge, (nested(tuple(name.split(".")), value) for name, value in said.items()), {})


def deployment_parameters(flow: str, name: str) -> dict[str, Any]:
    """The parameters of the deployment FLOW/NAME, a data set's or a preset's; without one NAME is a data set's.

    What the data set's own penumbra.yaml says of the flow beats them. Raises `ParameterError` naming that file.
    """
    usual = next(
        (dict(one["parameters"]) for one in deployments() if one["name"] == name and flow in one["tags"]),
        {"dataset": {"name": name}},
    )
    own = own_parameters(name)
    if not own.get(flow):
        return usual
    from penumbra.tasks.stage import merge

    try:
        placed = resolve_parameter_paths(flow_of(flow), own[flow], usual)
        check_names(flow_of(flow), placed)
    except ParameterError as error:
        raise ParameterError(f"{data_folder() / name / OWN}: {error}") from None
    return dict(merge(usual, placed))


def own_deployments(name: str) -> list[dict[str, Any]]:
    """The deployments of a data set's own penumbra.yaml, in the form of prefect.yaml's, whose definitions they extend.

    Raises `ParameterError` as `deployment_parameters` does.
    """
    definitions = prefect_yaml()["definitions"]
    told = {(one["name"], one["tags"][0]): one for one in deployments()}
    return [
        {
            **definitions[flow],
            "tags": [flow, name],
            **told.get((name, flow), {"name": name}),
            "parameters": deployment_parameters(flow, name),
        }
        for flow in own_parameters(name)
    ]


def resolve_parameter_paths(
    flow: "Flow[..., Any]", changes: dict[str, Any], usual: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Put a parameter that is named without its group where it belongs: `shine` is `model.losses.shine`.

    A group may hold others, and be one of several, told apart by their name: then it is the one that the changes name,
    or the preset, which may be among the deployment's `usual` parameters.

    Raises `ParameterError` where there are several places for a name, or a place in another of the groups alone.
    """
    from penumbra.tasks.stage import merge  # it imports prefect, which reads its environment once

    parameters = inspect.signature(flow.fn).parameters
    placed = {name: value for name, value in changes.items() if name in parameters}
    kinds = {name: kinds_of(parameter.annotation) for name, parameter in parameters.items()}
    groups = {name: found[0] for name, found in kinds.items() if found}
    unions = {name: found for name, found in kinds.items() if len(found) > 1}
    for union, members in unions.items():
        groups[union] = _member(union, members, merge(usual or {}, placed))
    for name, value in changes.items():
        if name not in parameters:
            placed = merge(placed, nested(_place(name, groups, unions), value))
    for union, members in unions.items():
        if union in placed and isinstance(placed[union], dict) and groups[union] is not members[0]:
            placed[union] = {"name": _name(groups[union]), **placed[union]}
    return placed


def placed_in_layers(name: str, dataset: str, *layers: dict[str, Any]) -> dict[str, Any]:
    """What several say of a flow's parameters, a later one beating an earlier, whether or not they name groups.

    Raises as `flow_of` and `resolve_parameter_paths` do.
    """
    from penumbra.tasks.stage import merge

    flow, usual = flow_of(name), deployment_parameters(name, dataset)
    changes: dict[str, Any] = {}
    for layer in layers:
        changes = merge(changes, resolve_parameter_paths(flow, layer, merge(usual, changes)))
    return changes


def kinds_of(annotation: Any) -> list[type[BaseModel]]:
    """The group of parameters that a type is, or those that it is one of, its default first; empty for other types."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    if get_origin(annotation) is Annotated:
        return kinds_of(get_args(annotation)[0])
    kinds = [kinds_of(kind) for kind in members_of(annotation)]
    return [kind for found in kinds for kind in found] if all(kinds) else []


def members_of(annotation: Any) -> list[Any]:
    """The types of a union, but for null; empty for other types."""
    is_union = get_origin(annotation) in (Union, UnionType)
    return [kind for kind in get_args(annotation) if kind is not NoneType] if is_union else []


def _member(union: str, members: list[type[BaseModel]], said: dict[str, Any]) -> type[BaseModel]:
    """The group of a union that is meant."""
    from penumbra.tasks.grounding.training.presets import model_name

    wanted = model_name(said.get("preset"), said.get(union, {}))
    return next((member for member in members if _name(member) == wanted), members[0])


def _name(group: type[BaseModel]) -> str:
    name: str = group.model_fields["name"].default
    return name


def _place(name: str, groups: dict[str, type[BaseModel]], unions: dict[str, list[type[BaseModel]]]) -> tuple[str, ...]:
    """The one place that a parameter may have; its own name, which the flow then refuses, where there is none."""
    places = [(group, *place) for group, kind in groups.items() for place in _places(name, kind)]
    if len(places) > 1:
        raise ParameterError(f"{name!r} is in several groups: {' or '.join('.'.join(place) for place in places)}")
    for union, members in unions.items() if not places else ():
        owners = [_name(member) for member in members if _places(name, member)]
        if owners:
            raise ParameterError(
                f"{name!r} is for {union} {', '.join(owners)}, and this is {_name(groups[union])}: say {union}.name"
            )
    return places[0] if places else (name,)


def _places(name: str, group: type[BaseModel]) -> list[tuple[str, ...]]:
    """Where a name is in a group: among its own fields, or else in the groups within."""
    if name in group.model_fields:
        return [(name,)]
    within = [(field, kinds_of(info.annotation)) for field, info in group.model_fields.items()]
    return [(field, *place) for field, kinds in within for kind in kinds for place in _places(name, kind)]


def check_names(flow: "Flow[..., Any]", said: dict[str, Any]) -> None:
    """Raise `ParameterError` for a parameter that there is not, naming the nearest that there is."""
    kinds = {name: kinds_of(parameter.annotation) for name, parameter in inspect.signature(flow.fn).parameters.items()}
    places = [place for name, found in kinds.items() for place in (name, *_all_places(name, found))]
    by_name = {place.rpartition(".")[2]: place for place in reversed(places)}
    for unknown in _unknown(said, kinds):
        alike = get_close_matches(unknown.rpartition(".")[2], by_name, 1)
        nearest = ("." in unknown and get_close_matches(unknown, places, 1)) or [by_name[name] for name in alike]
        hint = f"did you mean {nearest[0]}? " if nearest else ""
        raise ParameterError(f"no parameter {unknown}: {hint}penumbra run {flow.name} --help lists them")


def _all_places(name: str, kinds: list[type[BaseModel]]) -> Iterator[str]:
    """The fields of a group, or of those that it is one of, and of the groups within, with dots between."""
    for kind in kinds:
        for field, info in kind.model_fields.items():
            yield f"{name}.{field}"
            yield from _all_places(f"{name}.{field}", kinds_of(info.annotation))


def _unknown(said: dict[str, Any], kinds: dict[str, list[type[BaseModel]]]) -> Iterator[str]:
    """What was said that no group knows."""
    for name, value in said.items():
        if name not in kinds:
            yield ".".join([name, *list(value)[:1]]) if isinstance(value, dict) else name
        elif kinds[name] and isinstance(value, dict):
            fields: dict[str, list[type[BaseModel]]] = {}
            for kind in kinds[name]:
                for field, info in kind.model_fields.items():
                    fields.setdefault(field, []).extend(kinds_of(info.annotation))
            yield from (f"{name}.{unknown}" for unknown in _unknown(value, fields))
