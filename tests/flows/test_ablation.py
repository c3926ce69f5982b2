"""A grid as a flow: each row trains on its own negatives, a killed grid resumes, failures are reported."""

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penumbra.artifacts.manifest import Artifact, Manifest
from penumbra.artifacts.store import Store
from penumbra.flows.ablation import ablation
from penumbra.flows.local_run import run_flow
from penumbra.tasks.data.annotations import Annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.features.clip import Clip
from penumbra.tasks.features.extraction import FeaturesParameters
from penumbra.tasks.features.video import features_table
from penumbra.tasks.grounding.ablation import table_text
from penumbra.tasks.grounding.batches.inputs import Sources
from penumbra.tasks.grounding.configs import InputConfig, Training
from penumbra.tasks.grounding.families.detr import QDDETRConfig
from penumbra.tasks.grounding.runs import CONSTANT, WITH_REJECTION, RunError, run_folder
from penumbra.tasks.grounding.training.presets import with_preset
from penumbra.tasks.grounding.training.stage import settings_for_clips
from penumbra.tasks.negatives.parameters import NegativesParameters
from penumbra.tasks.negatives.providers.settings import Filling
from tests.grounding_data import TINY, model_of
from tests.rows import build, first_videos

pytestmark = pytest.mark.long

CHANNELS, CLIP, VIDEOS = 8, 1.0, 5
PARAMETERS: dict[str, Any] = {
    "features": FeaturesParameters(clip=Clip(encoder="tiny-clip")),
    "negatives": NegativesParameters(filling=Filling(candidates=2)),
    "model": QDDETRConfig(**model_of(**TINY)),
    "training": Training(epochs=1),
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    counts = dict.fromkeys(("train", "test_trivial", "novel_composition"), VIDEOS)
    return Dataset(name="little", folder=str(first_videos(tmp_path_factory.mktemp("little"), **counts)))


@pytest.fixture(scope="module")
def world(dataset: Dataset, module_store: Store, prefect_server: None) -> Iterator[tuple[Store, Artifact]]:
    """A store that holds random video features, and those."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OPENAI_API_KEY", raising=False)
        rows = [row for make in Annotations(dataset).parts() for row in make().rows.to_pylist()]
        generator, found = np.random.default_rng(0), []
        for vid, duration in {row["vid"]: row["duration"] for row in rows}.items():
            values = generator.normal(size=(max(1, int(duration / CLIP)), CHANNELS)).astype(np.float16)
            found.append((vid, duration, values))
        table = features_table("random", CLIP, found, CHANNELS)
        parameters = {"encoder": "random"}
        yield module_store, build(module_store, "video_features", table, parameters=parameters, dataset="little")


def grid_of(dataset: Dataset, *rows: str) -> Artifact:
    return ablation(dataset, "llms", rows, 2, **PARAMETERS)


@pytest.fixture(scope="module")
def made(dataset: Dataset, world: tuple[Store, Artifact]) -> Artifact:
    """Two rows, of which the second builds negatives, and a third that has no key."""
    with pytest.raises(RunError, match=r"1 failed \(gpt: openai: no API key.*the rest is in"):
        grid_of(dataset, "base", "random", "gpt")
    return Store().newest("little", "ablation")


def trainings(store: Store, made: Artifact) -> dict[tuple[str, int], Manifest]:
    """The manifest of each row's and seed's training."""
    manifest = store.manifest(made)
    evaluations = [store.manifest(parent) for parent in manifest.parents]
    metrics = [next(p for p in evaluation.parents if p.stage == "metrics") for evaluation in evaluations]
    places = [(label, seed) for label, seed in manifest.parameters["rows"]]
    return dict(zip(places, map(store.manifest, metrics), strict=True))


def test_each_row_trains_on_its_own_negatives_and_their_features(world: tuple[Store, Artifact], made: Artifact) -> None:
    store, videos = world
    found = trainings(store, made)
    assert list(found) == [("base", 2018), ("base", 2019), ("random", 2018), ("random", 2019)]
    for (label, seed), manifest in found.items():
        parents = {parent.stage: parent for parent in manifest.parents}
        assert manifest.parameters["settings"]["training"]["seed"] == seed
        assert parents["video_features"] == videos
        texts = {parent.stage: parent for parent in store.manifest(parents["text_features"]).parents}
        assert texts.get("negatives") == parents.get("negatives")
        assert ("negatives" in parents) == (label == "random")
    negatives = store.newest("little", "negatives")
    assert set(store.table(negatives)["provider"].to_pylist()) == {"random"}
    assert negatives in found["random", 2018].parents


def test_figures_and_failures_are_a_table_and_an_artifact(world: tuple[Store, Artifact], made: Artifact) -> None:
    store, _ = world
    rows = store.table(made).to_pylist()
    assert {(row["row"], row["seed"]) for row in rows} == {(CONSTANT, 2018), *trainings(store, made)}
    assert {row["split"] for row in rows if row["metric"] == "mIoU"} == {"test", "composition"}
    costs = {row["metric"]: row["value"] for row in rows if row["split"] == "" and row["row"] == "random"}
    assert all(costs[name] > 0 for name in ("parameters", "training seconds", "milliseconds a query"))
    assert store.manifest(made).rejected == {
        "openai: no API key: set OPENAI_API_KEY, or make a Prefect Secret block named 'openai-api-key'": 1
    }
    lines = table_text(made).splitlines()
    assert lines[4].startswith(f"| {CONSTANT} |  | ")
    assert next(line for line in lines if line.startswith("| gpt |")).endswith("| – | – | – |")


def test_trainings_are_reused_after_a_kill(dataset: Dataset, world: tuple[Store, Artifact], made: Artifact) -> None:
    """As after a kill: one evaluation is lost. Newer negatives of others' are not taken for a row's."""
    store, _ = world
    before = {manifest.key: manifest.ended for manifest in trainings(store, made).values()}
    lost = store.manifest(made).parents[1]
    shutil.rmtree(lost.path)
    negatives = store.table(store.newest("little", "negatives"))
    build(store, "negatives", negatives, parameters={"of": "somebody else"}, dataset="little")
    again = grid_of(dataset, "base", "random")
    assert store.manifest(again).parents == store.manifest(made).parents
    assert {manifest.key: manifest.ended for manifest in trainings(store, again).values()} == before
    assert {m.key for m in store.find("little", "metrics")} == set(before)
    assert not store.manifest(again).rejected


def test_a_failed_training_affects_its_seed(dataset: Dataset, world: tuple[Store, Artifact], made: Artifact) -> None:
    store, _ = world
    found = trainings(store, made)["base", 2019]
    folder = run_folder(store.reference(found))
    shutil.rmtree(folder)
    typed = {"seeds": 2, **{name: group.model_dump(exclude_unset=True) for name, group in PARAMETERS.items()}}
    with pytest.raises(RunError, match=r"1 failed \(base, seed 2019: the checkpoints of .* are not in"):
        run_flow("ablation", "little", {**typed, "dataset": dataset.model_dump(), "name": "llms", "rows": ["base"]})
    assert store.manifest(store.newest("little", "ablation")).parameters["rows"] == [["base", 2018]]


def test_a_preset_cuts_videos_after_seconds_for_any_clip_length(world: tuple[Store, Artifact]) -> None:
    store, videos = world
    halves = build(store, "video_features", store.table(videos), parameters={"clip_length": 0.5}, dataset="little")
    preset = "charades-sta-bm_detr"
    for features, own, cut in ((halves, None, 150), (videos, None, 75), (halves, 60, 60)):
        settings = with_preset(preset, {"inputs": InputConfig(longest_video=own) if own else None})
        sources = Sources(videos, videos, (features,))
        assert settings_for_clips(sources, settings, preset).inputs.longest_video == cut
    unlimited = with_preset("charades-cg-bm_detr", {})
    assert settings_for_clips(Sources(videos, videos, (halves,)), unlimited, "charades-cg-bm_detr") == unlimited


def test_each_row_is_asked_the_negatives_of_several_providers(dataset: Dataset, world: tuple[Store, Artifact]) -> None:
    store, _ = world  # last: evaluations made later ask its negatives, too
    nearest = NegativesParameters.model_validate({"filling": {"candidates": 2}, "sourcing": {"source": "nearest"}})
    parameters = PARAMETERS | {"negatives": nearest}  # a source of what is trained on, not of what is asked
    made: Artifact = ablation(dataset, "rejection", ("base", "other videos"), 1, **parameters)
    rows, kinds = store.table(made).to_pylist(), {"another video", "near real"}
    kinds |= {f"level {level} by {provider}" for level in (1, 2, 3) for provider in ("corpus", "random")}
    for label in ("base", "other videos"):
        for split in ("test", "composition"):
            found = {row["metric"] for row in rows if (row["row"], row["split"]) == (label, split)}
            assert {f"{metric}, {kind}" for metric in ("AUROC", "rejected") for kind in kinds} <= found
            assert {WITH_REJECTION, "calibration error", "group score, near real"} <= found
    heads = [line for line in table_text(made).splitlines() if line.startswith("|  | ")]
    assert [head.split(" | ")[2] for head in heads] == ["Test-Trivial R1@0.5", "Novel-Composition R1@0.5"]
    assert all("AUROC, level 1 by random" in head for head in heads)
    assert store.newest_if_any("little", "judging_negatives") is not None
    judged = [store.manifest(parent).parents for parent in store.manifest(made).parents]
    asked = {parent.stage for parents in judged for parent in parents}
    assert "existence" in asked
    assert "judging_negatives" not in asked
