"""Run a flow in this process, with the parameters of its deployment in prefect.yaml."""

import inspect
import logging
import os
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import yaml
from penumbra.artifacts.errors import PenumbraError, without_secrets
from penumbra.artifacts.settings import PROJECT

if TYPE_CHECKING:
    from prefect import Flow

DEPLOYMENTS = PROJECT / "prefect.yaml"
FLOWS = {  # where each flow is; the modules are imported when one runs
    "build-negatives": ("penumbra.flows.build_negatives", "build_negatives"),
    "train-grounding": ("penumbra.flows.train_grounding", "train_grounding"),
    "evaluate-grounding": ("penumbra.flows.evaluate_grounding", "evaluate_grounding"),
    "extract-features": ("penumbra.flows.extract_features", "extract_features"),
    "full-pipeline": ("penumbra.flows.full_pipeline", "full_pipeline"),
    "ablation": ("penumbra.flows.ablation", "ablation"),
}


def deployment_parameters(flow: str, name: str) -> dict[str, Any]:
    """The parameters of the deployment FLOW/NAME, a data set's or a preset's; without one NAME is a data set's."""
    deployments = yaml.safe_load(DEPLOYMENTS.read_text())["deployments"]
    for deployment in deployments:
        if deployment["name"] == name and flow in deployment["tags"]:
            return dict(deployment["parameters"])
    return {"dataset": {"name": name}}


def in_groups(flow: "Flow[..., Any]", changes: dict[str, Any]) -> dict[str, Any]:
    """Put a parameter that is named without its groups where it belongs: `providers` is `filling.providers`.

    Raises `ParameterError` where several groups have one of that name.
    """
    from penumbra.tasks.stage import merge  # it imports prefect, which reads its environment once

    parameters = inspect.signature(flow.fn).parameters
    homes = [path for name, parameter in parameters.items() for path in _paths(name, parameter.annotation)]
    placed: dict[str, Any] = {}
    for name, value in changes.items():
        places = [] if name in parameters else [path for path in homes if path[-1] == name]
        shortest = [path for path in places if len(path) == min(map(len, places))]
        if len(shortest) > 1:
            raise ParameterError(f"{name!r} is in several groups: {' or '.join(map('.'.join, shortest))}")
        nested = value
        for part in reversed(shortest[0] if shortest else (name,)):
            nested = {part: nested}
        placed = merge(placed, nested)
    return placed


def _paths(name: str, annotation: Any) -> Iterator[tuple[str, ...]]:
    """The places of all parameters in a group and in the groups that it holds."""
    for field, info in getattr(annotation, "model_fields", {}).items():
        yield name, field
        yield from ((name, *path) for path in _paths(field, info.annotation))


class ParameterError(PenumbraError):
    """There is no such flow or parameter, or a value does not fit it."""


class NoServerError(PenumbraError):
    """The Prefect server that PREFECT_API_URL names does not answer."""


class _OneLine(logging.Filter):
    """Takes the traceback from log records of faults that are not the code's: their message says what to do."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], PenumbraError):
            record.exc_info, record.told_at_the_end = None, True
        return True


class _Once(logging.Filter):
    """Keeps from the terminal, not from the UI, what the command says at its end."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (hasattr(record, "told_at_the_end") or record.getMessage().startswith("Finished in state Failed("))


def flow_of(name: str) -> "Flow[..., Any]":
    """The flow of this name, imported only now; raises `ParameterError` naming an unknown one."""
    if name not in FLOWS:
        raise ParameterError(f"no flow {name!r}; there is: {', '.join(FLOWS)}")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")  # on a busy machine
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
    from penumbra.tasks.stage import merge
    from prefect.exceptions import ParameterTypeError, SignatureMismatchError

    parameters = merge(deployment_parameters(name, dataset), in_groups(flow, changes))
    prefect_says = logging.getLogger("prefect.flows")
    prefect_says.disabled = True  # it would say the same at more length
    try:
        validated: dict[str, Any] = flow.validate_parameters(parameters)
    except (ParameterTypeError, SignatureMismatchError) as error:
        raise ParameterError(str(error).replace("\n - ", " ") + f"; see penumbra run {name} --help") from None
    finally:
        prefect_says.disabled = False
    validated["dataset"].split_files()  # a missing file is told before a server starts
    return flow, parameters, validated


def run_flow(name: str, dataset: str, changes: dict[str, Any]) -> Any:
    """Run the flow and return what it made, which has a `path`; raises as `prepare` and `ask_server` do."""
    flow, parameters, _ = prepare(name, dataset, changes)
    ask_server()
    quieten()
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


def ask_server() -> None:
    """Raise `NoServerError` where PREFECT_API_URL names a server that does not answer, rather than wait for minutes."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    address = PREFECT_API_URL.value()
    if not address:
        return
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
        fault = get_client(sync_client=True).api_healthcheck()
    if fault:
        raise NoServerError(
            f"no Prefect server answers at {without_secrets(address)} ({type(fault).__name__}): start it, or "
            "unset PREFECT_API_URL to run without one"
        )


def quieten() -> None:
    """Show what is wrong outside the code once: Prefect's log keeps it for the UI, the command says it at its end."""
    from prefect.logging.configuration import setup_logging
    from prefect.logging.handlers import PrefectConsoleHandler

    setup_logging()  # as the flow would: now its handlers are there
    for logger in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(logger).addFilter(_OneLine())
    for handler in logging.getLogger().handlers:
        if isinstance(handler, PrefectConsoleHandler):
            handler.addFilter(_Once())
