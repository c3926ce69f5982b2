"""Run a flow in this process, with the parameters of its deployment in prefect.yaml."""

import inspect
import logging
from collections.abc import Iterator
from contextlib import nullcontext
from difflib import get_close_matches
from http import HTTPStatus
from importlib import import_module
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from penumbra.artifacts.errors import PenumbraError, without_secrets
from penumbra.artifacts.settings import data_folder
from penumbra.flows.names import FLOWS as FLOWS  # noqa: PLC0414 (its users know it from here)
from penumbra.flows.names import prefect_yaml
from penumbra.flows.parameter_files import OWN, ParameterError, nested, own_parameters
from penumbra.flows.server import environment_line, some_server

if TYPE_CHECKING:
    from prefect import Flow


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
        placed = in_groups(flow_of(flow), own[flow], usual)
        check_names(flow_of(flow), placed)
    except ParameterError as error:
        raise ParameterError(f"{data_folder() / name / OWN}: {error}") from None
    return dict(merge(usual, placed))


def deployments() -> list[dict[str, Any]]:
    """The deployments of prefect.yaml."""
    return list(prefect_yaml()["deployments"])


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


def in_groups(flow: "Flow[..., Any]", changes: dict[str, Any], usual: dict[str, Any] | None = None) -> dict[str, Any]:
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

    Raises as `flow_of` and `in_groups` do.
    """
    from penumbra.tasks.stage import merge

    flow, usual = flow_of(name), deployment_parameters(name, dataset)
    changes: dict[str, Any] = {}
    for layer in layers:
        changes = merge(changes, in_groups(flow, layer, merge(usual, changes)))
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
    from penumbra.tasks.grounding.training.settings import name_in

    wanted = name_in(said.get("preset"), said.get(union, {}))
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


class NoServerError(PenumbraError):
    """The Prefect server that PREFECT_API_URL names does not answer, or not to us."""


def flow_of(name: str) -> "Flow[..., Any]":
    """The flow of this name, imported only now; raises `ParameterError` naming an unknown one."""
    if name not in FLOWS:
        raise ParameterError(f"no flow {name!r}; there is: {', '.join(FLOWS)}")
    module, function = FLOWS[name]
    flow: Flow[..., Any] = getattr(import_module(module), function)
    return flow


def prepare(
    name: str, dataset: str, changes: dict[str, Any]
) -> tuple["Flow[..., Any]", dict[str, Any], dict[str, Any]]:
    """The flow, its parameters as they were said, and as the flow will see them.

    Raises `ParameterError` naming an unknown flow or a wrong parameter, and what is wrong with the data set's files.
    """
    flow = flow_of(name)
    from prefect.exceptions import ParameterTypeError, SignatureMismatchError

    from penumbra.tasks.stage import merge

    usual = deployment_parameters(name, dataset)
    placed = in_groups(flow, changes, usual)
    check_names(flow, placed)
    parameters = merge(usual, placed)
    prefect_says = logging.getLogger("prefect.flows")
    prefect_says.disabled = True  # it would say the same at more length
    try:
        validated: dict[str, Any] = flow.validate_parameters(parameters)
    except (ParameterTypeError, SignatureMismatchError) as error:
        raise ParameterError(str(error).replace("\n - ", " ") + f"; see penumbra run {name} --help") from None
    finally:
        prefect_says.disabled = False
    validated["dataset"].check()  # a missing or foreign file is told before a server starts
    return flow, parameters, validated


def run_flow(name: str, dataset: str, changes: dict[str, Any], prefects_lines: bool = False) -> Any:
    """Run the flow and return what it made, which has a `path`; raises as `prepare` and `ask_server` do.

    A terminal shows it live, or with all of Prefect's own lines.
    """
    flow, parameters, _ = prepare(name, dataset, changes)
    from penumbra.flows.display import displayed
    from penumbra.tasks.log_lines import quieten

    ask_server()
    if not prefects_lines:
        quieten()
    with some_server(), nullcontext() if prefects_lines else displayed():
        return flow(**parameters)


def plan_flow(name: str, dataset: str, changes: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The flow's stages in their order: which are there and which would be made, by key or why it can't be told yet.

    Nothing is made. Raises as `prepare` does.
    """
    from penumbra.tasks.stage import TO_MAKE, planning

    flow, _, validated = prepare(name, dataset, changes)
    with planning() as plan:
        try:
            flow.fn(**validated)
        except PenumbraError as error:
            plan.rows[name, TO_MAKE, f"first: {error}"] = None
    return list(plan.rows)


def log_price(name: str, dataset: str, changes: dict[str, Any]) -> None:
    """Log what asking the hosted models would cost; the masks, of which they are asked, are made."""
    _, _, validated = prepare(name, dataset, changes)
    from penumbra.tasks.stage import merge

    filling = getattr(validated.get("negatives"), "filling", validated.get("filling"))
    if filling is not None and filling.hosted:
        run_flow(name, dataset, merge(changes, {"filling": {"dry_run": True}}))


def server_address() -> str:
    """PREFECT_API_URL of the environment or of Prefect's profile, without its password; '' where there is none."""
    from prefect.settings import PREFECT_API_URL

    return without_secrets(PREFECT_API_URL.value() or "")


def ask_server() -> None:
    """Raise `NoServerError` where PREFECT_API_URL names a server that can't be asked, rather than wait for minutes."""
    from httpx import HTTPError, HTTPStatusError, InvalidURL
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    address = server_address()
    if not address:
        return
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), get_client(sync_client=True) as client:
        try:
            client.hello()
        except (HTTPError, InvalidURL) as fault:
            if isinstance(fault, HTTPStatusError) and fault.response.status_code == HTTPStatus.UNAUTHORIZED:
                remedy = f"set PREFECT_API_AUTH_STRING, for `penumbra serve` by {environment_line()}"
                raise NoServerError(f"the Prefect server at {address} asks for a credential: {remedy}") from None
            raise NoServerError(
                f"no Prefect server answers at {address} ({type(fault).__name__}): start it, or "
                "unset PREFECT_API_URL to run without one"
            ) from None
