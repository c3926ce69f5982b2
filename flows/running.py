"""Run a flow in this process, with the parameters of its deployment in prefect.yaml."""

import os
from typing import Any

import yaml

from artifacts.manifest import Artifact
from artifacts.settings import PROJECT

DEPLOYMENTS = PROJECT / "prefect.yaml"
FLOWS = ("build-negatives",)


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` on top, group by group."""
    merged = dict(base)
    for name, value in changes.items():
        old = merged.get(name)
        merged[name] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def deployment_parameters(flow: str, dataset: str) -> dict[str, Any]:
    """The parameters of the deployment FLOW/DATASET; for an unknown data set just its name."""
    deployments = yaml.safe_load(DEPLOYMENTS.read_text())["deployments"]
    for deployment in deployments:
        if deployment["name"] == dataset and flow in deployment["tags"]:
            return dict(deployment["parameters"])
    return {"dataset": {"name": dataset}}


def run_flow(name: str, dataset: str, changes: dict[str, Any]) -> Artifact:
    """Run the flow and return what it made; raises `ValueError` naming an unknown flow or parameter."""
    if name not in FLOWS:
        raise ValueError(f"no flow {name!r}; there is: {', '.join(FLOWS)}")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    from flows.build_negatives import build_negatives

    parameters = merge(deployment_parameters(name, dataset), changes)
    artifact: Artifact = build_negatives(**parameters)
    return artifact
