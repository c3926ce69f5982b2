"""Apply work pools, deployments and the automation to the server of PREFECT_API_URL, for `penumbra serve`.

A deployment that is unchanged since the last start keeps what the user set in the UI; `prefect deploy --all` would not.
"""

import json
import sys
from contextlib import suppress
from functools import cache
from hashlib import sha256
from inspect import signature
from typing import Any

import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectAlreadyExists
from prefect.utilities.callables import parameter_schema

from penumbra.artifacts.errors import MissingError, PenumbraError, what_there_is
from penumbra.artifacts.locations import PROJECT, data_folder
from penumbra.flows.console import write_error
from penumbra.flows.parameters import OWN_FILE, deployment_parameters, groups_of, own_parameters
from penumbra.flows.registry import FLOWS, ParameterError, flow_of, prefect_yaml
from penumbra.flows.serve import WORKERS
from penumbra.tasks.data.dataset import Dataset, DatasetError

ALL = "--all"
SILENT_RUNS = PROJECT / "flows" / "silent-runs.yaml"


def main(chosen: str = "") -> None:
    """Apply new and changed deployments: of a data set, `--all`, or '': of existing data sets, removing the others."""
    every = all_deployments()
    wanted = wanted_of(every, chosen)
    with get_client(sync_client=True) as client:
        for pool in WORKERS:
            with suppress(ObjectAlreadyExists):
                client.create_work_pool(WorkPoolCreate(name=pool, type="process"))  # its worker adds the template
        versions = {(known.flow_id, known.name): known.version for known in client.read_deployments(limit=200)}
        flows = {flow: client.create_flow_from_name(flow) for flow in FLOWS}
        for deployment in (d for d in every if d not in wanted and not has_files(d)):
            if (flows[deployment["tags"][0]], deployment["name"]) in versions:
                client.delete_deployment(client.read_deployment_by_name("/".join(name_of(deployment))).id)
        for deployment in map(without_idle_schedules, wanted):
            flow_name = deployment["tags"][0]
            flow_id, form = flows[flow_name], form_of(flow_name)
            deployment["parameters"] = with_defaults(flow_name, deployment["parameters"])
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
    names = ", ".join(sorted({dataset_of(deployment) for deployment in wanted}))
    left = "" if chosen else f"; {len(every) - len(wanted)} are of data sets that are not here (--all)"
    print(f"{len(wanted)} deployments of {names}{left}", flush=True)


def wanted_of(every: list[dict[str, Any]], chosen: str) -> list[dict[str, Any]]:
    """Return the deployments to apply, see `main`; raise `PenumbraError` if a chosen data set has none."""
    if chosen == ALL:
        return every
    there = [deployment for deployment in every if has_files(deployment)]
    wanted = [deployment for deployment in there if chosen in ("", dataset_of(deployment))]
    if not wanted:
        raise PenumbraError(f"--dataset: {what_there_is(chosen, sorted({dataset_of(it) for it in there}))}")
    return wanted


def name_of(deployment: dict[str, Any]) -> tuple[str, str]:
    return deployment["tags"][0], deployment["name"]


def dataset_of(deployment: dict[str, Any]) -> str:
    return str(deployment["parameters"]["dataset"]["name"])


def has_files(deployment: dict[str, Any]) -> bool:
    try:
        Dataset(**deployment["parameters"]["dataset"]).split_files()
    except (DatasetError, MissingError):
        return False
    return True


def with_defaults(flow_name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a deployment with all values of its groups, which the form would show as empty.

    Groups that a preset sets (their default is None) stay as they are: a value in them overrides the preset.
    """
    filled = dict(parameters)
    for name, parameter in signature(flow_of(flow_name).fn).parameters.items():
        groups = groups_of(parameter.annotation)
        if name in filled and parameter.default is not None and len(groups) == 1:
            filled[name] = groups[0].model_validate(filled[name]).model_dump(mode="json")
    return filled


def all_deployments() -> list[dict[str, Any]]:
    """Return the deployments of prefect.yaml and of the data sets; a wrong file of a data set is a line of stderr."""
    by_name = {(deployment["tags"][0], deployment["name"]): deployment for deployment in prefect_yaml()["deployments"]}
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
    if not has_files(deployment):
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
    try:
        main(*sys.argv[1:])
    except PenumbraError as error:
        write_error(f"penumbra: {error}")
        sys.exit(1)
