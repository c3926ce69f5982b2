"""Run or plan a flow in this process, with the parameters of its deployment and those that the caller names."""

from typing import Any

from httpx import HTTPError, InvalidURL
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from penumbra.artifacts.errors import PenumbraError, without_secrets
from penumbra.flows.console import live_display
from penumbra.flows.parameters import deployment_parameters, resolve_parameter_paths, validated
from penumbra.flows.registry import flow_of
from penumbra.flows.server import environment_line, some_server
from penumbra.tasks.parameter_group import merge
from penumbra.tasks.progress import prepare_log
from penumbra.tasks.stage import TO_MAKE, planning

FAILS_FIRST = "first: "  # prefix of the reason why a planned stage cannot be made


def prepare(name: str, dataset: str, *layers: dict[str, Any]) -> tuple[Flow[..., Any], dict[str, Any], dict[str, Any]]:
    """Return a flow, its parameters as they were written, and as the flow receives them.

    `dataset` is the name of a deployment or of a data set; later layers of parameters override earlier ones. Raises
    `ParameterError` if a flow or parameter does not exist or fit, and `DatasetError` for a missing or damaged file.
    """
    flow = flow_of(name)
    parameters = deployment_parameters(name, dataset)
    for layer in layers:
        parameters = merge(parameters, resolve_parameter_paths(flow, layer, parameters))
    values = validated(flow, parameters)
    if values.get("preset"):
        from penumbra.tasks.grounding.training.presets import preset_named

        preset_named(values["preset"])  # raises for an unknown name before a server is started
    values["dataset"].check()
    return flow, parameters, values


def run_flow(name: str, dataset: str, *layers: dict[str, Any]) -> Any:
    """Run a flow and return its result, which has a `path`; raise as `prepare` and `check_server` do."""
    flow, parameters, _ = prepare(name, dataset, *layers)
    check_server()
    prepare_log()
    with some_server(), live_display():
        return flow(**parameters)


def plan_flow(name: str, dataset: str, *layers: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return name, state and key of each stage of a flow; nothing is made. Raises as `prepare` does.

    A reason is in place of an unknown key, beginning with `FAILS_FIRST` if the flow would fail at this stage.
    """
    flow, _, values = prepare(name, dataset, *layers)
    with planning() as plan:
        try:
            flow.fn(**values)
        except PenumbraError as error:
            plan.rows[name, TO_MAKE, f"{FAILS_FIRST}{error}"] = None
    return list(plan.rows)


def log_price(name: str, dataset: str, *layers: dict[str, Any]) -> None:
    """Log what the questions to hosted language models would cost; this makes the stages up to the masks."""
    _, _, values = prepare(name, dataset, *layers)
    filling = getattr(values.get("negatives"), "filling", values.get("filling"))
    if filling is not None and filling.hosted:
        run_flow(name, dataset, *layers, {"filling": {"dry_run": True}})


def server_address() -> str:
    """Return PREFECT_API_URL of the environment or of Prefect's profile without its password, '' if it is not set."""
    return without_secrets(PREFECT_API_URL.value() or "")


def check_server() -> None:
    """Raise `PenumbraError` if PREFECT_API_URL names a server that does not answer, or refuses our credential."""
    if not (address := server_address()):
        return
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), get_client(sync_client=True) as client:
        try:
            client.hello()
        except (HTTPError, InvalidURL) as fault:
            if getattr(getattr(fault, "response", None), "status_code", None) == 401:
                remedy = f"set PREFECT_API_AUTH_STRING, for `penumbra serve` by {environment_line()}"
                raise PenumbraError(f"the Prefect server at {address} asks for a credential: {remedy}") from None
            raise PenumbraError(
                f"no Prefect server answers at {address} ({type(fault).__name__}): start it, or "
                "unset PREFECT_API_URL to run without one"
            ) from None
