"""Apply work pools, deployments and the automation to the server of PREFECT_API_URL, for `penumbra serve`.

The deployments are those of prefect.yaml and of each data set's own penumbra.yaml. The schedules of a deployment are
off while the files of its data set are missing. A deployment that is unchanged since the last start keeps what the user
set in the UI. `prefect deploy --all` does none of the three.
"""

import json
from contextlib import suppress
from functools import cache
from hashlib import sha256
from typing import Any

import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectAlreadyExists
from prefect.utilities.callables import parameter_schema

from penumbra.artifacts.errors import MissingError
from penumbra.artifacts.locations import PROJECT, data_folder
from penumbra.flows.parameters import OWN_FILE, deployment_parameters, own_parameters
from penumbra.flows.registry import ParameterError, deployments, flow_of, prefect_yaml
from penumbra.flows.safe_console import write_error
from penumbra.flows.serve import WORKERS
from penumbra.tasks.data.dataset import Dataset, DatasetError

SILENT_RUNS = PROJECT / "flows" / "silent-runs.yaml"


def main() -> None:
    """Apply what is new or has changed."""
    with get_client(sync_client=True) as client:
        for pool in WORKERS:
            with suppress(ObjectAlreadyExists):
                client.create_work_pool(WorkPoolCreate(name=pool, type="process"))  # its worker adds the template
        versions = {(known.flow_id, known.name): known.version for known in client.read_deployments(limit=200)}
        for deployment in map(without_idle_schedules, all_deployments()):
            flow_name = deployment["tags"][0]
            flow_id, form = client.create_flow_from_name(flow_name), form_of(flow_name)
            version = sha256(json.dumps([deployment, form], sort_keys=True).encode()).hexdigest()[:16]
            if versions.get((flow_id, deployment["name"])) == version:
                continue
            client.create_deployment(
                flow_id,
                version=version,
                work_pool_name=deployment.pop("work_pool")["name"],
                schedules=[schedule_of(**schedule) for schedule in deployment.pop("schedules")],
                parameter_openapi_schema=form,
                **{"description": flow_of(flow_name).description, **deployment},
            )
        if not client.read_automations_by_name(SILENT_RUNS.stem):
            client.create_automation(AutomationCore.model_validate(yaml.safe_load(SILENT_RUNS.read_text())))


def all_deployments() -> list[dict[str, Any]]:
    """Return the deployments of prefect.yaml and of the data sets; a wrong file of a data set is a line of stderr."""
    by_name = {(deployment["tags"][0], deployment["name"]): deployment for deployment in deployments()}
    for dataset in sorted(file.parent.name for file in data_folder().glob(f"*/{OWN_FILE}")):
        try:
            own = {flow: deployment_parameters(flow, dataset) for flow in own_parameters(dataset)}
        except ParameterError as error:
            write_error(f"penumbra: {error}")
            continue
        for flow, parameters in own.items():
            usual = {**prefect_yaml()["definitions"][flow], "name": dataset, "tags": [flow, dataset]}
            by_name[flow, dataset] = {**usual, **by_name.get((flow, dataset), {}), "parameters": parameters}
    return list(by_name.values())


def without_idle_schedules(deployment: dict[str, Any]) -> dict[str, Any]:
    """Return the deployment with its schedules off if the files of its data set are missing."""
    schedules = deployment.get("schedules", [])
    try:
        Dataset(**deployment["parameters"]["dataset"]).split_files()
    except (DatasetError, MissingError):
        schedules = [{**schedule, "active": False} for schedule in schedules]
    return {**deployment, "schedules": schedules}


def schedule_of(active: bool = True, slug: str | None = None, **when: Any) -> DeploymentScheduleCreate:
    """Return a schedule of prefect.yaml as Prefect's client takes it."""
    return DeploymentScheduleCreate.model_validate({"schedule": when, "active": active, "slug": slug})


@cache
def form_of(flow_name: str) -> dict[str, Any]:
    """Return the parameters of a flow as the form in the UI needs them; all deployments of the flow share it."""
    schema: dict[str, Any] = json.loads(parameter_schema(flow_of(flow_name)).model_dump_json(exclude_unset=True))
    return schema


if __name__ == "__main__":
    main()
