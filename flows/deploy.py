"""Apply work pools, deployments and the automation to the server of PREFECT_API_URL, for `penumbra serve`.

A deployment that is unchanged since the last start keeps what the user set in the UI; `prefect deploy --all` would not.
"""

import json
import sys
from contextlib import suppress
from hashlib import sha256
from typing import Any

import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import StateType
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectAlreadyExists
from prefect.states import Crashed
from prefect.utilities.callables import parameter_schema
from prefect.workers.process import ProcessWorker

from penumbra.artifacts.errors import MissingError, PenumbraError, what_there_is
from penumbra.artifacts.locations import PROJECT, data_folder
from penumbra.flows.console import warn
from penumbra.flows.parameters import OWN_FILE, deployment_parameters, groups_of, model_of, own_parameters
from penumbra.flows.registry import FLOWS, ParameterError, flow_of, prefect_yaml
from penumbra.flows.server import WORKERS
from penumbra.tasks.data.dataset import Dataset, DatasetError

ALL = "--all"
SILENT_RUNS = PROJECT / "flows" / "silent-runs.yaml"
Deployment = dict[str, Any]  # as in prefect.yaml; its first tag is the flow's name


def main(chosen: str = "") -> None:
    """Apply new and changed deployments, and delete the others whose data sets have no files.

    `chosen` is the name of a data set, `--all`, or '' for all data sets whose files exist.
    """
    every = all_deployments()
    there = [deployment for deployment in every if has_files(deployment)]
    wanted = every if chosen == ALL else wanted_of(there, chosen)
    with get_client(sync_client=True) as client:
        end_abandoned_runs(client)
        template = ProcessWorker.get_default_base_job_template()  # else all workers would write it at the same time
        for pool in WORKERS:
            with suppress(ObjectAlreadyExists):
                client.create_work_pool(WorkPoolCreate(name=pool, type="process", base_job_template=template))
        flows = {flow: client.create_flow_from_name(flow) for flow in FLOWS}
        forms = {flow: form_of(flow) for flow in FLOWS}
        known = {(it.flow_id, it.name): it for it in client.read_deployments(limit=200)}
        for deployment in every:
            flow, is_there = deployment["tags"][0], deployment in there
            one = known.get((flows[flow], deployment["name"]))
            if deployment not in wanted:
                if one and not is_there:
                    client.delete_deployment(one.id)
                continue
            settings = {**deployment, "parameters": with_defaults(flow, deployment["parameters"])}
            version = sha256(json.dumps([settings, forms[flow], is_there], sort_keys=True).encode()).hexdigest()[:16]
            if one and one.version == version:
                continue
            settings |= {
                "description": deployment.get("description", flow_of(flow).description),
                "schedules": [schedule_of(schedule, is_there) for schedule in deployment.get("schedules", ())],
                "work_pool_name": settings.pop("work_pool")["name"],
            }
            client.create_deployment(flows[flow], version=version, parameter_openapi_schema=forms[flow], **settings)
        if not client.read_automations_by_name(SILENT_RUNS.stem):
            client.create_automation(AutomationCore.model_validate(yaml.safe_load(SILENT_RUNS.read_text())))
    left = "" if chosen else f"; {len(every) - len(wanted)} others are of data sets without files here (--all)"
    print(f"{len(wanted)} deployments of {', '.join(datasets_of(wanted))}{left}", flush=True)


def end_abandoned_runs(client: SyncPrefectClient) -> None:
    """Mark as crashed the deployments' runs that ended with an earlier `penumbra serve`.

    Each of them holds the only slot of its deployment, so that the next run would wait until the slot's lease ends.
    """
    under_way = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
    chosen = FlowRunFilter.model_validate({"state": {"type": {"any_": under_way}}})
    for run in client.read_flow_runs(flow_run_filter=chosen):
        if run.deployment_id:  # other runs are separate processes, which may continue
            client.set_flow_run_state(run.id, Crashed(message="Its `penumbra serve` ended."), force=True)


def all_deployments() -> list[Deployment]:
    """Return the deployments of prefect.yaml and of the data sets; warn about an invalid file of a data set."""
    definitions, deployments = prefect_yaml()
    found = dict(deployments)
    for dataset in sorted(file.parent.name for file in data_folder().glob(f"*/{OWN_FILE}")):
        try:
            own = {flow: deployment_parameters(flow, dataset) for flow in own_parameters(dataset)}
        except ParameterError as error:
            warn(str(error))
            continue
        for flow, parameters in own.items():
            usual = {**definitions[flow], "name": dataset, "tags": [flow, dataset]}
            found[flow, dataset] = {**usual, **deployments.get((flow, dataset), {}), "parameters": parameters}
    return list(found.values())


def wanted_of(there: list[Deployment], chosen: str) -> list[Deployment]:
    """Return the deployments of a data set, or with '' all; raise `PenumbraError` if there are none."""
    wanted = [deployment for deployment in there if chosen in ("", *datasets_of([deployment]))]
    if not wanted:
        raise PenumbraError(f"--dataset: {what_there_is(chosen, datasets_of(there))}")
    return wanted


def datasets_of(deployments: list[Deployment]) -> list[str]:
    return sorted({it["parameters"]["dataset"]["name"] for it in deployments})


def has_files(deployment: Deployment) -> bool:
    try:
        Dataset(**deployment["parameters"]["dataset"]).split_files()
    except (DatasetError, MissingError):
        return False
    return True


def with_defaults(flow: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a deployment with the defaults of its groups: the form shows missing values as empty.

    Groups that a preset sets (their default is None) stay as they are: a value in them overrides the preset.
    """
    filled = dict(parameters)
    for name, field in model_of(flow_of(flow)).model_fields.items():
        groups = groups_of(field.annotation)
        if name in filled and field.default is not None and len(groups) == 1:
            filled[name] = groups[0].model_validate(filled[name]).model_dump(mode="json")
    return filled


def schedule_of(schedule: dict[str, Any], is_possible: bool) -> DeploymentScheduleCreate:
    """Return a schedule of prefect.yaml as Prefect's client takes it; it is inactive if the data set has no files."""
    when = {name: value for name, value in schedule.items() if name not in ("active", "slug")}
    active = schedule.get("active", True) and is_possible
    return DeploymentScheduleCreate.model_validate({"schedule": when, "active": active, "slug": schedule.get("slug")})


def form_of(flow: str) -> dict[str, Any]:
    """Return the parameters of a flow as the form in the UI needs them; all deployments of the flow share it."""
    return dict(json.loads(parameter_schema(flow_of(flow)).model_dump_json(exclude_unset=True)))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except PenumbraError as error:
        warn(str(error))
        sys.exit(1)
