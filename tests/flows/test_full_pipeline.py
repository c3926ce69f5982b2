"""`full-pipeline` hands its own negatives on; every deployment's parameters fit its flow."""

from importlib import import_module
from typing import Any

import pytest
import yaml

from artifacts.manifest import Artifact
from flows import full_pipeline as module
from flows.running import DEPLOYMENTS, FLOWS, deployment_parameters
from tasks.dataset import Dataset
from tasks.fills import Filling
from tasks.text_features import Texts

PLAN = yaml.safe_load(DEPLOYMENTS.read_text())["deployments"]


@pytest.mark.parametrize("deployment", PLAN, ids=lambda d: f"{d['tags'][0]}/{d['name']}")
def test_a_deployment_s_parameters_fit_its_flow(deployment: dict[str, Any]) -> None:
    path, _, function = deployment["entrypoint"].rpartition(".")
    flow = getattr(import_module(path), function)
    if flow.name in FLOWS:
        assert FLOWS[flow.name] == (path, function)
    assert [flow.name] == deployment["tags"]
    validated = flow.validate_parameters(deployment["parameters"])
    assert validated["dataset"].name == deployment["name"]
    assert deployment_parameters(flow.name, deployment["name"]) == deployment["parameters"]


@pytest.mark.parametrize("dry_run", [False, True])
def test_features_are_those_of_the_negatives_just_built(dry_run: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    negatives = Artifact(root="r", dataset="scenes", stage="negatives", key="abc")
    features = Artifact(root="r", dataset="scenes", stage="video_features", key="def")
    asked: list[Texts] = []

    def extract(dataset: Dataset, clip: object, texts: Texts, *others: object) -> Artifact:
        asked.append(texts)
        return features

    monkeypatch.setattr(module, "build_negatives", lambda *_: negatives)
    monkeypatch.setattr(module, "extract_features", extract)
    made = module.full_pipeline.fn(Dataset(name="scenes"), filling=Filling(dry_run=dry_run))
    assert made == (negatives if dry_run else features)
    assert [texts.negatives for texts in asked] == ([] if dry_run else ["abc"])
