"""`full-pipeline` hands its own negatives on; every deployment's parameters fit its flow."""

from importlib import import_module
from typing import Any

import pytest
import yaml
from penumbra.artifacts.manifest import Artifact
from penumbra.flows import full_pipeline as module
from penumbra.flows.running import DEPLOYMENTS, FLOWS, deployment_parameters
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.features.text import Texts
from penumbra.tasks.features.video import Videos
from penumbra.tasks.grounding.evaluation.choice import Choice
from penumbra.tasks.grounding.families.vdi import VDI, VDILosses
from penumbra.tasks.grounding.settings import Inputs
from penumbra.tasks.grounding.training.settings import presets
from penumbra.tasks.negatives.filling import Filling

PLAN = yaml.safe_load(DEPLOYMENTS.read_text())["deployments"]


@pytest.mark.parametrize("deployment", PLAN, ids=lambda d: f"{d['tags'][0]}/{d['name']}")
def test_a_deployment_s_parameters_fit_its_flow(deployment: dict[str, Any]) -> None:
    path, _, function = deployment["entrypoint"].rpartition(".")
    flow = getattr(import_module(path), function)
    if flow.name in FLOWS:
        assert FLOWS[flow.name] == (path, function)
    assert [flow.name] == deployment["tags"]
    validated = flow.validate_parameters(deployment["parameters"])
    assert deployment["name"] in (validated["dataset"].name, validated.get("preset"))
    assert deployment_parameters(flow.name, deployment["name"]) == deployment["parameters"]


def test_every_system_has_a_training_and_every_data_set_what_leads_to_it() -> None:
    there = {(deployment["tags"][0], deployment["name"]): deployment for deployment in PLAN}
    trainings = {name: deployment for (flow, name), deployment in there.items() if flow == "train-grounding"}
    datasets = {deployment["parameters"]["dataset"]["name"] for deployment in trainings.values()}
    assert datasets == {"charades-cg", "activitynet-cg", "charades-sta", "qvhighlights", "tacos", "scenes"}
    named = {preset for preset in presets() if preset.endswith(("-bm_detr", "-mmn", "-vdi"))}
    named = {preset for preset in named if not preset.startswith("scenes-study-")}  # a study's, by its ablation
    assert trainings.keys() == datasets | named
    for preset in named:
        parameters = trainings[preset]["parameters"]
        assert parameters == {"dataset": {"name": parameters["dataset"]["name"]}, "preset": preset}
        assert preset.startswith(parameters["dataset"]["name"])
        assert "schedules" not in trainings[preset]
    for flow in FLOWS.keys() - {"full-pipeline"}:
        assert {(flow, dataset) for dataset in datasets} <= there.keys()


def artifact(stage: str) -> Artifact:
    return Artifact(root="r", dataset="scenes", stage=stage, key=f"key of {stage}")


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("dynamic", [0.0, 0.01])
def test_each_flow_takes_what_the_one_before_made(
    dry_run: bool, dynamic: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def extract(dataset: Dataset, clip: object, texts: Texts, videos: Videos, imports: object) -> Artifact:
        asked["texts"], asked["patches"] = texts.negatives, videos.patches
        return artifact("video_features")

    def train(dataset: Dataset, preset: str | None, **groups: Any) -> Artifact:
        asked["inputs"] = groups["inputs"]
        return artifact("metrics")

    def evaluate(dataset: Dataset, choice: Choice) -> Artifact:
        asked["run"] = choice.run
        return artifact("evaluation")

    monkeypatch.setattr(module, "build_negatives", lambda *_: artifact("negatives"))
    monkeypatch.setattr(module, "extract_features", extract)
    monkeypatch.setattr(module, "read_annotations", lambda *_: artifact("annotations"))
    monkeypatch.setattr(module, "embed", lambda *_: artifact("embeddings"))
    monkeypatch.setattr(module, "pair", lambda *_: artifact("in_video_negatives"))
    monkeypatch.setattr(module, "encode_queries", lambda *_: artifact("text_features"))
    monkeypatch.setattr(module, "encode_patches", lambda *_: artifact("patch_features"))
    monkeypatch.setattr(module, "train_grounding", train)
    monkeypatch.setattr(module, "evaluate_grounding", evaluate)
    made = module.full_pipeline.fn(
        Dataset(name="scenes"), filling=Filling(dry_run=dry_run), preset="scenes-vdi",
        model=VDI(losses=VDILosses(spatial_dynamics=dynamic)),
    )  # fmt: skip
    assert made == artifact("negatives" if dry_run else "evaluation")
    if not dry_run:
        assert asked["texts"] == "key of negatives"
        assert asked["run"] == "key of metrics"
        assert asked["patches"] == (dynamic > 0)
        assert asked["inputs"] == Inputs(
            negatives="key of negatives", in_video_negatives="key of in_video_negatives",
            text_features="key of text_features", video_features=("key of video_features",),
            patch_features="key of patch_features" if dynamic else None,
        )  # fmt: skip
