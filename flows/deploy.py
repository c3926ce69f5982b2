"""What `penumbra serve` puts on its server: work pools, deployments and the automation.

Deployments are those of prefect.yaml, and of each data set's own penumbra.yaml, which beats it.

A schedule is on only where the files of its data set are there, at the latest start; what the UI switched stays, until
they come or go. `prefect deploy --all` does the same for the deployments, of every kind, without looking for files, and
works out a flow's form anew for each.
"""

import json
import sys
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from typing import Any
from uuid import UUID

import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound
from prefect.utilities.callables import parameter_schema
from prefect.workers.process import ProcessWorker

from penumbra.artifacts.locations import PROJECT
from penumbra.flows.parameters import datasets_with_own, own_deployments
from penumbra.flows.registry import ParameterError, deployments, flow_of
from penumbra.tasks.data.dataset import Dataset, DatasetError

POOLS = ("penumbra", "penumbra-gpu")
SILENT_RUNS = PROJECT / "flows" / "silent-runs.yaml"


def main() -> None:
    """Apply them to the server of PREFECT_API_URL; what is there, and is the same still, keeps what the UI set."""
    with get_client(sync_client=True) as client:
        for pool in POOLS:
            _create_pool(client, pool)
        there = {(one.flow_id, one.name): one.version for one in client.read_deployments(limit=200)}
        for deployment in map(with_schedules_where_data_are, all_deployments()):
            flow_id, version = client.create_flow_from_name(_flow_name(deployment)), _version(deployment)
            if there.get((flow_id, deployment["name"])) != version:
                _deploy(client, flow_id, version, **deployment)
        if not client.read_automations_by_name(SILENT_RUNS.stem):
            client.create_automation(AutomationCore.model_validate(yaml.safe_load(SILENT_RUNS.read_text())))


def all_deployments() -> list[dict[str, Any]]:
    """Those of prefect.yaml and of the data sets; a data set's file that is wrong is told, and the others go on."""
    found = {(one["name"], _flow_name(one)): one for one in deployments()}
    for dataset in datasets_with_own():
        try:
            found.update({(one["name"], _flow_name(one)): one for one in own_deployments(dataset)})
        except ParameterError as error:
            sys.stderr.write(f"penumbra: {error}\n")
    return list(found.values())


def with_schedules_where_data_are(deployment: dict[str, Any]) -> dict[str, Any]:
    """The deployment; its schedules are off where the files of its data set are missing."""
    dataset, schedules = Dataset(**deployment["parameters"]["dataset"]), deployment.get("schedules", ())
    try:
        dataset.split_files()
    except DatasetError:
        schedules = [{**schedule, "active": False} for schedule in schedules]
    return {**deployment, "schedules": schedules}


def _create_pool(client: SyncPrefectClient, name: str) -> None:
    try:
        client.read_work_pool(name)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(WorkPoolCreate(name=name, type=ProcessWorker.type, base_job_template=template))


def _flow_name(deployment: dict[str, Any]) -> str:
    name: str = deployment["tags"][0]
    return name


def _version(deployment: dict[str, Any]) -> str:
    """A digest of all that is applied."""
    return sha256(json.dumps([deployment, _form(_flow_name(deployment))], sort_keys=True).encode()).hexdigest()[:16]


def _deploy(
    client: SyncPrefectClient,
    flow_id: UUID,
    version: str,
    *,
    work_pool: dict[str, Any],
    schedules: Sequence[dict[str, Any]] = (),
    **rest: Any,
) -> None:
    name = _flow_name(rest)
    client.create_deployment(
        flow_id,
        version=version,
        work_pool_name=work_pool["name"],
        schedules=[_schedule(**schedule) for schedule in schedules],
        parameter_openapi_schema=_form(name),
        **{"description": flow_of(name).description, **rest},
    )


def _schedule(active: bool = True, slug: str | None = None, **when: Any) -> DeploymentScheduleCreate:
    return DeploymentScheduleCreate.model_validate({"schedule": when, "active": active, "slug": slug})


@cache
def _form(name: str) -> dict[str, Any]:
    """The parameters of a flow, as the form in the UI needs them: made once for all of its deployments."""
    schema: dict[str, Any] = json.loads(parameter_schema(flow_of(name)).model_dump_json(exclude_unset=True))
    return schema


if __name__ == "__main__":
    main()
