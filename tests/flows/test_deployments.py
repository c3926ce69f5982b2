"""Every deployment's parameters fit its flow."""

from importlib import import_module
from typing import Any

import pytest
import yaml

from penumbra.artifacts.locations import DEPLOYMENTS
from penumbra.flows.parameters import deployment_parameters
from penumbra.flows.registry import FLOWS
from penumbra.tasks.grounding.training.presets import presets

PLAN = yaml.safe_load(DEPLOYMENTS.read_text())["deployments"]


@pytest.mark.parametrize("deployment", PLAN, ids=lambda d: f"{d['tags'][0]}/{d['name']}")
def test_a_deployment_s_parameters_fit_its_flow(deployment: dict[str, Any]) -> None:
    path, _, function = deployment["entrypoint"].rpartition(".")
    flow = getattr(import_module(path), function)
    if flow.name in FLOWS:
        assert FLOWS[flow.name] == (path, function)
    dataset = deployment["parameters"]["dataset"]["name"]
    assert deployment["tags"][:2] == [flow.name, dataset], "found by flow and by data set"
    preset = presets().get(deployment["parameters"].get("preset"), {})
    trained = [preset["model"]["name"]] if preset else []
    assert flow.name == "ablation" or deployment["tags"][2:3] == trained, "and by model"
    assert deployment["description"].endswith(".")
    validated = flow.validate_parameters(deployment["parameters"])
    assert deployment["name"] in (validated["dataset"].name, validated.get("preset"))
    assert deployment_parameters(flow.name, deployment["name"]) == deployment["parameters"]


def test_every_system_has_a_training_and_every_data_set_what_leads_to_it() -> None:
    there = {(deployment["tags"][0], deployment["name"]): deployment for deployment in PLAN}
    trainings = {name: deployment for (flow, name), deployment in there.items() if flow == "train-grounding"}
    datasets = {deployment["parameters"]["dataset"]["name"] for deployment in trainings.values()}
    assert datasets == {"charades-cg", "activitynet-cg", "charades-sta", "qvhighlights", "tacos", "scenes"}
    named = {preset for preset in presets() if preset.endswith(("-bm_detr", "-mmn", "-vdi"))}
    named = {preset for preset in named if "-study-" not in preset and "-simulated-" not in preset}  # by an ablation
    assert trainings.keys() == datasets | named
    for preset in named:
        parameters = trainings[preset]["parameters"]
        assert parameters == {"dataset": {"name": parameters["dataset"]["name"]}, "preset": preset}
        assert preset.startswith(parameters["dataset"]["name"])
        assert "schedules" not in trainings[preset]
    for flow in FLOWS.keys() - {"full-pipeline"}:
        assert {(flow, dataset) for dataset in datasets} <= there.keys()
