"""Run a flow in this process, with the parameters of its deployment in prefect.yaml."""

import logging
from contextlib import nullcontext
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from penumbra.artifacts.errors import PenumbraError, without_secrets
from penumbra.flows.parameters import check_names, deployment_parameters, resolve_parameter_paths
from penumbra.flows.registry import ParameterError, flow_of
from penumbra.flows.server import environment_line, some_server

if TYPE_CHECKING:
    from prefect import Flow


class NoServerError(PenumbraError):
    """The Prefect server that PREFECT_API_URL names does not answer, or not to us."""


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
    placed = resolve_parameter_paths(flow, changes, usual)
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
    from penumbra.flows.console_output import displayed
    from penumbra.tasks.progress import quieten

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
