"""Run a flow in this process, with the parameters of its deployment in prefect.yaml."""

import inspect
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import yaml
from penumbra.artifacts.errors import PenumbraError, without_secrets
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.settings import DEPLOYMENTS
from penumbra.tasks.stage import merge

if TYPE_CHECKING:
    from prefect import Flow

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
    """Put a parameter that is named without its group where it belongs: `providers` is `filling.providers`.

    Raises `ParameterError` where several groups have one of that name.
    """
    parameters = inspect.signature(flow.fn).parameters
    groups = {
        name: parameter.annotation.model_fields
        for name, parameter in parameters.items()
        if hasattr(parameter.annotation, "model_fields")
    }
    placed: dict[str, Any] = {}
    for name, value in changes.items():
        homes = [] if name in parameters else [group for group, fields in groups.items() if name in fields]
        if len(homes) > 1:
            raise ParameterError(f"{name!r} is in several groups: {' or '.join(f'{home}.{name}' for home in homes)}")
        placed = merge(placed, {homes[0]: {name: value}} if homes else {name: value})
    return placed


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


def run_flow(name: str, dataset: str, changes: dict[str, Any]) -> Artifact:
    """Run the flow and return what it made; raises as `prepare` and `ask_server` do, and what the flow raises."""
    flow, parameters, _ = prepare(name, dataset, changes)
    ask_server()
    quieten()
    with patience():
        artifact: Artifact = flow(**parameters)
    return artifact


@contextmanager
def patience() -> Iterator[None]:
    """Settings of the server that a run without one starts: time enough on a busy machine, and nothing sent home.

    What the environment says goes first. Prefect reads that when it is imported, so it is too late to set it here.
    """
    from prefect.settings import (
        PREFECT_SERVER_ANALYTICS_ENABLED,
        PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
        temporary_settings,
    )  # fmt: skip

    ours = {PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: 180, PREFECT_SERVER_ANALYTICS_ENABLED: False}
    with temporary_settings({setting: value for setting, value in ours.items() if setting.name not in os.environ}):
        yield


def server_address() -> str:
    """PREFECT_API_URL of the environment or of Prefect's profile, without its password; '' where there is none."""
    from prefect.settings import PREFECT_API_URL

    return without_secrets(PREFECT_API_URL.value() or "")


def ask_server() -> None:
    """Raise `NoServerError` where PREFECT_API_URL names a server that does not answer, rather than wait for minutes."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    address = server_address()
    if not address:
        return
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
        fault = get_client(sync_client=True).api_healthcheck()
    if fault:
        raise NoServerError(
            f"no Prefect server answers at {address} ({type(fault).__name__}): start it, or "
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
