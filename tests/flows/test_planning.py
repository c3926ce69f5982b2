"""A plan is the flow itself: for every preset and every row of every grid its keys are those that are made then."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penumbra.artifacts.store import Store
from penumbra.flows.ablation import Materials, run_row
from penumbra.flows.evaluate_grounding import evaluate_grounding
from penumbra.flows.full_pipeline import full_pipeline
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.features.clip import Clip
from penumbra.tasks.features.extraction import FeaturesParameters
from penumbra.tasks.features.video import Videos
from penumbra.tasks.grounding.ablation import Results, grids, plan
from penumbra.tasks.grounding.configs import ModelConfig, RunChoice, Training
from penumbra.tasks.grounding.training.presets import MODELS, Settings, layered, presets
from penumbra.tasks.negatives.parameters import NegativesParameters, QualityConfig
from penumbra.tasks.negatives.providers.settings import Filling
from penumbra.tasks.parameter_group import merge
from penumbra.tasks.stage import IS_THERE, TO_MAKE, planning
from tests.corner import cut_out, without_prefect
from tests.grounding_data import model_of
from tests.rows import files_in

pytestmark = [pytest.mark.slow, pytest.mark.long]

SMALL: dict[str, Any] = {"hidden": 8, "heads": 2, "feed_forward": 8, "encoder_layers": 1, "decoder_layers": 1}
SMALL |= {"queries": 3, "alignment": 4, "clips": 4, "segments": 8, "pool": 2, "counts": (3,), "proposal": 8}
SMALL |= {"kernel": 3, "layers": 1, "joint": 8, "clip_encoder": "tiny-clip"}
QUICK = Training(epochs=1, batch_size=8, validation=0.3, start_from="")
LOCAL = {"corpus", "random"}
NEGATIVES = NegativesParameters(filling=Filling(candidates=2), judging=QualityConfig(judge=False))
Made = set[tuple[str, str]]


def small(model: ModelConfig) -> ModelConfig:
    dumped = model.model_dump(exclude_unset=True)
    smaller = type(model).model_validate(model_of(name=model.name, **sizes_of(model))).model_dump(exclude_unset=True)
    return type(model).model_validate(merge(dumped, smaller))


def sizes_of(model: ModelConfig) -> dict[str, Any]:
    known = {*type(model).model_fields, *vars(model.network_options)}
    return {name: size for name, size in SMALL.items() if name in known}


@pytest.fixture(scope="module")
def corner(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Some videos of the sample, rendered, and what their sentences say."""
    return Dataset(name="corner", folder=str(cut_out(tmp_path_factory.mktemp("corner"))))


@pytest.fixture(scope="module")
def features(corner: Dataset) -> FeaturesParameters:
    videos = Videos(folder=f"{corner.folder}/videos", clip_length=1.0)
    return FeaturesParameters(clip=Clip(encoder="tiny-clip"), videos=videos)


@pytest.fixture(scope="module")
def kept(module_store: Store) -> Iterator[Store]:
    """A store for all tests of this file, and flows that run without Prefect: its server has no part in any key."""
    with without_prefect():
        yield module_store


def there(store: Store) -> Made:
    return {(manifest.stage, manifest.key) for manifest in store.find()}


def planned(run: Any) -> tuple[Made, Made, set[str]]:
    """What a flow would find, what it would make, and the stages whose keys it can't tell yet."""
    with planning() as found:
        run()
    known = {(stage, key): state for stage, state, key in found.rows if len(key) == 16 and " " not in key}
    unknown = {stage for stage, _, key in found.rows if (stage, key) not in known}
    there, to_make = ({place for place, state in known.items() if state == it} for it in (IS_THERE, TO_MAKE))
    return there, to_make, unknown


def check(store: Store, run: Any) -> Made:
    """Plan, make, plan again: returns all that is there for it then."""
    before = there(store)
    found, to_make, unknown = planned(run)
    assert found <= before
    run()
    made = there(store) - before
    assert to_make <= made
    assert {stage for stage, key in made - to_make} <= unknown
    found, to_make, unknown = planned(run)
    assert (to_make, unknown) == (set(), set())
    assert made <= found
    return found


@pytest.mark.parametrize("preset", sorted(presets()))
def test_a_preset_is_planned_as_it_is_made(
    preset: str, corner: Dataset, features: FeaturesParameters, kept: Store
) -> None:
    model = layered(preset).model
    chosen = MODELS[model.name].model_validate(model_of(name=model.name, **sizes_of(model)))
    keys = dict(check(kept, lambda: full_pipeline.fn(corner, NEGATIVES, features, preset, chosen, QUICK)))
    assert {"metrics", "predictions", "evaluation"} <= keys.keys()
    made = {stage: kept.manifest(kept.with_key("corner", stage, key)) for stage, key in keys.items()}
    parents = {parent.stage for parent in made["metrics"].parents}
    encoders = [made[stage].parameters["encoder"] for stage in ("text_features", "video_features")]
    assert encoders == (["all-MiniLM-L6-v2", "simulated"] if "simulated" in preset else ["tiny-clip"] * 2)
    settings = layered(preset, {"model": chosen.model_dump(exclude_unset=True)}).model
    optional = {"patch_features", "in_video_negatives", "visual_dynamic_queries", "negatives"}
    assert optional & set(parents) == settings.reads
    found, to_make, _ = planned(lambda: evaluate_grounding.fn(corner, RunChoice(run=keys["metrics"])))
    assert ("evaluation", keys["evaluation"]) in found, "a later evaluate-grounding finds what the pipeline made"
    assert not to_make


def rows() -> list[tuple[str, str]]:
    return [(name, row.label) for name, grid in grids().items() for row in grid.rows if row.providers <= LOCAL]


@pytest.mark.parametrize(("name", "label"), rows(), ids=lambda value: value)
def test_a_row_of_a_grid_is_planned_as_it_is_made(
    name: str, label: str, corner: Dataset, features: FeaturesParameters, kept: Store
) -> None:
    changes = {**dict(NEGATIVES), **dict(features), "training": QUICK}
    grid, [row] = plan(name, (label,), "corner", "scenes-qd_detr", changes)
    settings = Settings(model=small(row.settings.model), training=QUICK)
    shrunk = replace(row, settings=settings)
    results = Results(grid, 1)

    def made() -> None:
        run_row(shrunk, Materials(corner), results, "")

    stages = {stage for stage, _ in check(kept, made)}
    assert not results.failures
    assert {"metrics", "predictions", "evaluation"} <= stages
    assert ("fills" in stages) == ("negatives" in settings.model.reads), "nothing is built that the row does not read"


def test_a_plan_reads_manifests_and_deletes_nothing(
    corner: Dataset, features: FeaturesParameters, kept: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of parts it reads the names of the videos alone, whose files' digest is a key; a damaged part stays as it is."""

    def run() -> None:
        full_pipeline.fn(corner, NEGATIVES, features, "scenes-qd_detr-shine", small(MODELS["qd_detr"]()), QUICK)

    run()
    damaged = Path(kept.newest("corner", "tags").path) / "part-00000.parquet"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-9])
    before, read = files_in(Path(kept.root)), list[tuple[str, tuple[str, ...]]]()
    part = Store.part

    def reading(store: Store, artifact: Any, index: int, columns: list[str] | None = None) -> Any:
        read.append((artifact.stage, tuple(columns or ("all of them",))))
        return part(store, artifact, index, columns)

    monkeypatch.setattr(Store, "part", reading)
    found, _, unknown = planned(run)
    assert ("tags", damaged.parent.name) in found, "whether it is whole is found out when it is read"
    assert not unknown
    assert set(read) <= {("annotations", ("vid", "duration"))}
    assert files_in(Path(kept.root)) == before
    damaged.write_bytes(whole)
