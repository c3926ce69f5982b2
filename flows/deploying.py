"""What `penumbra serve` puts on its server: work pools, the deployments of prefect.yaml and the automation.

`prefect deploy --all` does the same for the deployments, of every kind, and works out a flow's form anew for each.
"""

import json
from functools import cache
from typing import Any

import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound
from prefect.utilities.callables import parameter_schema
from prefect.workers.process import ProcessWorker

from penumbra.artifacts.settings import DEPLOYMENTS, PROJECT
from penumbra.flows.running import flow_of

POOLS = ("penumbra", "penumbra-gpu")
SILENT_RUNS = PROJECT / "flows" / "silent-runs.yaml"


def main() -> None:
    """Apply them to the server of PREFECT_API_URL; a pool or automation that is there keeps what was set in the UI."""
    with get_client(sync_client=True) as client:
        for pool in POOLS:
            _create_pool(client, pool)
        for deployment in yaml.safe_load(DEPLOYMENTS.read_text())["deployments"]:
            _deploy(client, deployment)
        if not client.read_automations_by_name(SILENT_RUNS.stem):
            client.create_automation(AutomationCore.model_validate(yaml.safe_load(SILENT_RUNS.read_text())))


def _create_pool(client: SyncPrefectClient, name: str) -> None:
    try:
        client.read_work_pool(name)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(WorkPoolCreate(name=name, type=ProcessWorker.type, base_job_template=template))


def _deploy(client: SyncPrefectClient, deployment: dict[str, Any]) -> None:
    """Apply one deployment, whose one tag is its flow's name."""
    rest = dict(deployment)
    pool = rest.pop("work_pool")
    name = rest["tags"][0]
    rest.setdefault("description", flow_of(name).description)
    client.create_deployment(
        client.create_flow_from_name(name),
        work_pool_name=pool["name"],
        schedules=[_schedule(**schedule) for schedule in rest.pop("schedules", ())],
        parameter_openapi_schema=_form(name),
        **rest,
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
