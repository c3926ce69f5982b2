"""Run or plan a flow in this process, for `penumbra run` and for `penumbra.build_negatives`.

The flow's parameters come from its deployment and from the caller.
"""

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from httpx import HTTPError, InvalidURL
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from penumbra.artifacts.errors import PenumbraError, without_secrets
from penumbra.artifacts.locations import data_folder
from penumbra.artifacts.store import Store
from penumbra.flows.console import live_display
from penumbra.flows.parameters import deployment_parameters, validated, with_changes
from penumbra.flows.registry import flow_of
from penumbra.flows.server import environment_line, some_server
from penumbra.tasks.parameter_group import Parameters
from penumbra.tasks.progress import prepare_log, warnings_only
from penumbra.tasks.stage import FAILS_FIRST, FEW_ROWS, IS_THERE, TO_MAKE, planning

if TYPE_CHECKING:
    import pandas as pd

UNNAMED = "sentences"
MARK = ".written-from-python"  # a file in the folders of data sets that may be replaced


def prepare(name: str, dataset: str, *layers: dict[str, Any]) -> tuple[Flow[..., Any], dict[str, Any], dict[str, Any]]:
    """Return a flow, its parameters as written, and its parameters as the flow receives them.

    `dataset` is the name of a deployment or of a data set; later layers of parameters override earlier ones. Raises
    `ParameterError` if a flow or parameter does not exist or fit, and `DatasetError` for a missing or damaged file.
    """
    flow = flow_of(name)
    parameters = deployment_parameters(name, dataset)
    for layer in layers:
        parameters = with_changes(flow, parameters, layer)
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

    A reason replaces an unknown key; it begins with `FAILS_FIRST` if the flow would fail at this stage.
    """
    flow, _, values = prepare(name, dataset, *layers)
    with planning() as plan:
        try:
            flow.fn(**values)
        except PenumbraError as error:
            plan.rows[name, TO_MAKE, f"{FAILS_FIRST}{error}"] = None
    return list(plan.rows)


def log_price(name: str, dataset: str, *layers: dict[str, Any]) -> None:
    """Log the cost of the questions to hosted language models; this makes the stages up to the masks."""
    _, _, values = prepare(name, dataset, *layers)
    filling = getattr(values.get("negatives"), "filling", values.get("filling"))
    if filling is not None and filling.hosted:
        run_flow(name, dataset, *layers, {"filling": {"dry_run": True}})


def negatives_for(
    queries: "Sequence[str] | pd.DataFrame", name: str | None, parameters: Mapping[str, Any], quiet: bool
) -> "pd.DataFrame":
    """Return a data frame of the queries' negatives, built if they do not exist.

    Its `attrs["rejected"]` lists the rejected rows, and a warning counts them. Raises `DatasetError` if there are no
    queries or if a data set of this name was not written from Python, and the exceptions of `prepare`.
    """
    from penumbra.tasks.data.dataset import DatasetError
    from penumbra.tasks.data.queries import write_queries
    from penumbra.tasks.negatives.report import outcome_line

    store = Store()
    with tempfile.TemporaryDirectory(prefix="penumbra-") as temporary:
        folder, named = Path(temporary), name or UNNAMED
        if name:
            folder = data_folder() / name
            if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).is_file():
                raise DatasetError(f"{folder} holds a data set that was not written from Python: choose another name")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / MARK).touch()
        changes: dict[str, Any] = {}
        for key, value in parameters.items():
            given = value.model_dump(mode="json", exclude_unset=True) if isinstance(value, Parameters) else value
            changes[key] = dict(given) if isinstance(given, Mapping) else given
        changes["dataset"] = {"name": named, "folder": str(folder), "files": write_queries(queries, folder)}
        flow, _, values = prepare("build-negatives", named, changes)
        with planning() as plan:
            made = flow.fn(**values).data
        is_there = all(state == IS_THERE for _, state, _ in plan.rows) and store.manifest(made.negatives).kept
        if not is_there:
            with warnings_only() if quiet else nullcontext():
                # A server shows the run, keeps hosted models' secrets, and gives workers their tasks; it takes seconds.
                if PREFECT_API_URL.value() or values["filling"].hosted or len(queries) > FEW_ROWS:
                    made = run_flow("build-negatives", named, changes)
                else:
                    with live_display():
                        made = flow.fn(**values).data
    frame = store.frame(made.negatives)
    frame.attrs["rejected"] = refused = list(store.rows(made.rejected))
    if refused:
        warnings.warn(outcome_line(store, made, "attrs['rejected']"), stacklevel=3)
    return frame


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
