"""A family is one place: models of other packages come through the same door, and a key takes what determines a run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, create_model

from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.features.extraction import FeaturesParameters
from penumbra.tasks.grounding.batches.inputs import Sources
from penumbra.tasks.grounding.configs import ModelConfig, Training
from penumbra.tasks.grounding.families.bm_detr import BMDETRConfig
from penumbra.tasks.grounding.families.detr import DETRLosses, QDDETRConfig
from penumbra.tasks.grounding.families.mmn import MMNConfig
from penumbra.tasks.grounding.families.vdi import VDIConfig
from penumbra.tasks.grounding.training.presets import MODELS, Settings, presets, with_preset
from penumbra.tasks.grounding.training.stage import TrainingRun

pytestmark = pytest.mark.slow

TOY = '''
"""A family of another package: QD-DETR's, and one number of its own."""

from typing import Literal

from penumbra.tasks.grounding.families.detr import DETRSystem, QDDETRConfig
from pydantic import Field


class Toy(QDDETRConfig):
    """A toy."""

    name: Literal["toy"] = Field("toy", description="Which model.")
    wheels: int = Field(4, ge=1, description="Wheels of the toy.")


class ToySystem(DETRSystem[Toy]):
    """Builds and trains as QD-DETR does."""

    models = (Toy,)
'''
USED = """
import json
from pathlib import Path
from penumbra.flows.parameter_help import in_full
from penumbra.flows.parameters import resolve_parameter_paths
from penumbra.flows.train_grounding import train_grounding
from penumbra.tasks.grounding.training.loop import train
from penumbra.tasks.grounding.training.stage import settings_of
from prefect.utilities.callables import parameter_schema
from tests.grounding_data import job, settings
chosen = settings({"epochs": 1}, model={"name": "toy", "wheels": 3})
rows = train(job(Path("run"), chosen, count=8))
print(json.dumps({
    "placed": resolve_parameter_paths(train_grounding, {"wheels": 3, "model": {"name": "toy"}}),
    "told": "  model.wheels: int = 4" in in_full("train-grounding", "all"),
    "form": "Toy" in parameter_schema(train_grounding).definitions,
    "determines": chosen.determines()["model"], "trained": [row["epoch"] for row in rows if row["name"] == "total"],
}))
"""


def test_a_family_of_another_package_is_trained_through_the_same_door(tmp_path: Path) -> None:
    (tmp_path / "toybox.py").write_text(TOY)
    about = tmp_path / "toybox-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toybox\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[penumbra.families]\ntoy = toybox:ToySystem\n")
    here = Path(__file__).parents[4]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", ""), str(here)])
    done = subprocess.run(
        [sys.executable, "-c", USED],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["placed"] == {"model": {"name": "toy", "wheels": 3}}
    assert found["told"]
    assert found["form"]
    assert found["determines"]["wheels"] == 3
    assert found["trained"] == [1]


# -- keys --------------------------------------------------------------------------------------------------------------


def key_of(settings: Settings) -> str:
    def artifact(stage: str) -> Artifact:
        return Artifact(root="r", dataset="d", stage=stage, key="k")

    sources = Sources(artifact("annotations"), artifact("text_features"), (artifact("video_features"),))
    return TrainingRun(sources, settings).work.key


@pytest.mark.parametrize("name", list(MODELS))
def test_a_new_setting_at_its_default_changes_no_key(name: str) -> None:
    before = with_preset(None, {"model": MODELS[name](name=name), "training": Training(epochs=3)})
    newer_model = create_model("Newer", __base__=MODELS[name], added=(int, Field(7)))
    newer_training = create_model("Newer", __base__=Training, added=(float, Field(0.5)))
    newer = before.model_copy(update={"model": newer_model(), "training": newer_training(epochs=3)})
    for settings in (before, Settings.model_construct(**dict(newer))):
        assert settings.determines() == {"model": {"name": name}, "training": {"epochs": 3}}
    assert key_of(newer) == key_of(before)


@pytest.mark.parametrize(
    "change",
    [
        {"training": {"log": ["tensorboard"]}},
        {"ranking": {"batch_size": 7}},
        {"inputs": {"negatives": "beef"}},
        {"model": {"hidden": 256}},
        {"model": {"losses": {"shine": False}}},
    ],
)
def test_where_it_is_computed_and_what_is_usual_change_no_key(change: dict[str, Any]) -> None:
    assert key_of(Settings.model_validate(change)) == key_of(Settings())


@pytest.mark.parametrize(
    "change",
    [
        {"training": {"seed": 1}},
        {"training": {"precision": "bf16"}},
        {"model": {"losses": {"shine": True}}},
        {"model": {"name": "moment_detr"}},
        {"inputs": {"longest_text": 32}},
        {"ranking": {"snap": False}},
    ],
)
def test_what_determines_a_run_changes_its_key(change: dict[str, Any]) -> None:
    assert key_of(Settings.model_validate(change)) != key_of(Settings())


def test_the_whole_settings_are_told_in_the_manifest() -> None:
    artifact = Artifact(root="r", dataset="d", stage="s", key="k")
    parameters = TrainingRun(Sources(artifact, artifact, ()), Settings()).work.parameters["settings"]
    assert parameters["model"]["hidden"] == 256
    assert parameters["training"]["device"] == "auto"


# -- presets -----------------------------------------------------------------------------------------------------------


def settings_that_repeat(said: dict[str, Any], group: Any) -> list[str]:
    """Names of values that are the group's defaults."""
    found = []
    for name, value in said.items():
        default = getattr(group, name)
        if isinstance(value, dict):
            found += [f"{name}.{inner}" for inner in settings_that_repeat(value, default)]
        elif name != "name" and (list(default) if isinstance(default, tuple) else default) == value:
            found.append(name)
    return found


@pytest.mark.parametrize("name", sorted(presets()))
def test_a_preset_repeats_no_default(name: str) -> None:
    groups = {group: values for group, values in presets()[name].items() if group != "needs"}
    usual = {**dict(Settings()), "model": MODELS[groups["model"]["name"]](), "features": FeaturesParameters()}
    assert [settings_that_repeat(said, usual[group]) for group, said in groups.items()] == [[]] * len(groups)


def test_what_two_models_share_stays_where_another_is_named() -> None:
    deep = with_preset("activitynet-cg-qd_detr-shine-readme", {"model": BMDETRConfig()})
    assert isinstance(deep.model, BMDETRConfig)
    assert (deep.model.encoder_layers, deep.model.losses.pair_margin, deep.model.losses.pair_hinge) == (3, 1.0, True)
    mapped = with_preset("charades-cg-qd_detr-shine", {"model": MMNConfig(clips=32, segments=64)})
    assert isinstance(mapped.model, MMNConfig)
    assert (mapped.model.losses.shine, mapped.model.clips) == (True, 32)
    motion = with_preset("scenes-mmn", {"model": VDIConfig()})
    assert isinstance(motion.model, VDIConfig)
    assert (motion.model.proposal, motion.model.losses.hard_order) == (64, 0.1)


def test_a_models_settings_without_its_name_are_for_the_presets() -> None:
    chosen = with_preset("scenes-bm_detr", {"model": QDDETRConfig(hidden=32)})
    assert isinstance(chosen.model, BMDETRConfig)
    assert (chosen.model.hidden, chosen.model.alignment) == (32, 64)
    with pytest.raises(ValueError, match=r"text_attention\n.*Extra inputs"):
        with_preset("scenes-bm_detr", {"model": QDDETRConfig(text_attention="official")})
    named = with_preset("scenes-bm_detr", {"model": QDDETRConfig(name="qd_detr", losses=DETRLosses(fine=2.0))})
    assert isinstance(named.model, QDDETRConfig)
    assert (named.model.hidden, named.model.losses.fine) == (64, 2.0)


def test_models_have_what_is_theirs_alone() -> None:
    def fields(model: type[ModelConfig]) -> set[str]:
        losses: Any = model.model_fields["losses"].annotation
        return set(model.model_fields) | {f"losses.{name}" for name in losses.model_fields}

    assert not fields(QDDETRConfig) & {"frame_matcher", "clips", "shifting", "losses.semantic"}
    assert not fields(BMDETRConfig) & {"text_attention", "losses.shine", "losses.coarse"}
    assert not fields(MMNConfig) & {"heads", "losses.fine", "clip_encoder", "losses.visual_context"}
    assert "hidden" not in fields(VDIConfig)
