"""A family is one place: models of other packages come through the same door, and a key takes what determines a run."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, ValidationError, create_model

from penumbra.artifacts.locations import PROJECT
from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.grounding.batches.inputs import Sources
from penumbra.tasks.grounding.configs import Training
from penumbra.tasks.grounding.families.bm_detr import BMDETRConfig
from penumbra.tasks.grounding.families.detr import QDDETRConfig
from penumbra.tasks.grounding.families.mmn import MMNConfig
from penumbra.tasks.grounding.families.vdi import VDIConfig
from penumbra.tasks.grounding.training.presets import MODELS, Settings, with_preset
from penumbra.tasks.grounding.training.stage import TrainingRun
from tests.grounding_data import model_of
from tests.terminal import python

pytestmark = pytest.mark.slow

TOY = '''
"""A family of another package: QD-DETR's, and one number of its own; and a metric."""

from typing import Literal

from penumbra.tasks.grounding.families.detr import DETRSystem, QDDETRConfig
from penumbra.tasks.grounding.metrics import Metric
from pydantic import Field

LATE_START = Metric(lambda split: {"late start": split.windows.predicted[:, 0, 0] - split.windows.truth[:, 0, 0]})


class Toy(QDDETRConfig):
    """A toy."""

    name: Literal["toy"] = Field("toy", description="Which model.")
    wheels: int = Field(4, ge=1, description="Wheels of the toy.")


class ToySystem(DETRSystem[Toy]):
    """Builds and trains as QD-DETR does."""

    models = (Toy,)
'''
USED = """
import json, sys
from pathlib import Path
from penumbra.flows.parameters import in_full
from penumbra.flows.parameters import with_changes
from penumbra.flows.train_grounding import train_grounding
from penumbra.tasks.grounding.metrics import Split, align, all_metrics
from penumbra.tasks.grounding.training.loop import train
from prefect.utilities.callables import parameter_schema
from tests.grounding_data import job, settings
chosen = settings({"epochs": 1}, model={"name": "toy", "wheels": 3})
rows = train(*job(Path(sys.argv[1]), chosen, count=8))
split = Split(align({"a": [[2, 6, 1.0]]}, {"a": [[1, 4]]}), {}, {})
print(json.dumps({
    "late": all_metrics()["late"].scores(split)["late start"].tolist(),
    "placed": with_changes(train_grounding, {}, {"wheels": 3, "model": {"name": "toy"}}),
    "told": "  model.wheels: int = 4" in in_full("train-grounding", "all"),
    "form": "Toy" in parameter_schema(train_grounding).definitions,
    "key": chosen.key_parameters()["model"], "trained": [row["epoch"] for row in rows if row["name"] == "total"],
}))
"""
IN_KEYS: dict[str, dict[str, Any]] = {  # the form in which keys hold a model's settings
    "qd_detr": {"queries": 5, "text_attention": "official", "losses": {"shine": True, "quotient": 4, "fine": 0.0}},
    "moment_detr": {"alignment": 64, "losses": {"align": 0.02, "coarse_terms": ["intra"]}},
    "bm_detr": {"shift_below": None, "losses": {"negatives": "both", "saliency": 1.0}},
    "mmn": {"segments": 16, "pool": 1, "losses": {"shine": True, "hard_order": 0.1, "positives": 3}},
    "vdi": {"motion": "lstm", "power": 1.0, "losses": {"spatial_dynamics": 0.01, "visual_context": 0.0}},
}


def test_a_family_and_a_metric_of_another_package_come_through_the_same_door(tmp_path: Path) -> None:
    (tmp_path / "toybox.py").write_text(TOY)
    about = tmp_path / "toybox-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toybox\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[penumbra.families]\ntoy = toybox:ToySystem\n[penumbra.metrics]\nlate = toybox:LATE_START\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", ""), str(PROJECT)])
    found = json.loads(python(USED, str(tmp_path / "run"), PYTHONPATH=path).stdout.splitlines()[-1])
    assert found["placed"] == {"model": {"name": "toy", "wheels": 3}}
    assert found["told"]
    assert found["form"]
    assert found["key"]["wheels"] == 3
    assert found["trained"] == [1]
    assert found["late"] == [1.0]


def key_of(settings: Settings) -> str:
    stages = ("annotations", "text_features", "video_features")
    annotations, texts, videos = (Artifact(root="r", dataset="d", stage=stage, key="k") for stage in stages)
    return TrainingRun(Sources(annotations, texts, (videos,)), settings).work.key


@pytest.mark.parametrize("name", list(MODELS))
def test_a_new_setting_at_its_default_changes_no_key(name: str) -> None:
    before = with_preset(None, {"model": MODELS[name](name=name), "training": Training(epochs=3)})
    newer_model = create_model("Newer", __base__=MODELS[name], added=(int, Field(7)))
    newer_training = create_model("Newer", __base__=Training, added=(float, Field(0.5)))
    newer = before.model_copy(update={"model": newer_model(), "training": newer_training(epochs=3)})
    for settings in (before, Settings.model_construct(**dict(newer))):
        assert settings.key_parameters() == {"model": {"name": name}, "training": {"epochs": 3}}
    assert key_of(newer) == key_of(before)


@pytest.mark.parametrize(
    ("change", "changes_key"),
    [
        ({"training": {"log": ["tensorboard"]}}, False),
        ({"inputs": {"negatives": "beef"}}, False),
        ({"model": {"hidden": 256}}, False),
        ({"model": {"losses": {"shine": False}}}, False),
        ({"training": {"seed": 1}}, True),
        ({"training": {"precision": "bf16"}}, True),
        ({"model": {"losses": {"shine": True}}}, True),
        ({"model": {"name": "moment_detr"}}, True),
        ({"inputs": {"longest_text": 32}}, True),
        ({"ranking": {"snap": False}}, True),
    ],
    ids=str,
)
def test_only_settings_that_change_results_change_the_key(change: dict[str, Any], changes_key: bool) -> None:
    assert (key_of(Settings.model_validate(change)) != key_of(Settings())) is changes_key


def test_settings_that_two_models_share_stay_if_another_model_is_named() -> None:
    deep = with_preset("activitynet-cg-qd_detr-shine-readme", {"model": BMDETRConfig()})
    assert isinstance(deep.model, BMDETRConfig)
    layers = {"encoder_layers": 3, "decoder_layers": 3}
    assert deep.model.ablation == {**layers, "pair_hinge": True, "pair_margin": 1.0}
    mapped = with_preset("charades-cg-qd_detr-shine", {"model": MMNConfig(ablation={"clips": 32, "segments": 64})})
    assert isinstance(mapped.model, MMNConfig)
    assert (mapped.model.losses.shine, mapped.model.network_options.clips) == (True, 32)
    motion = with_preset("scenes-mmn", {"model": VDIConfig()})
    assert isinstance(motion.model, VDIConfig)
    assert motion.model.ablation == {"proposal": 64, "joint": 64, "kernel": 3, "layers": 4, "hard_order": 0.1}


def test_settings_of_a_model_without_its_name_are_for_the_presets_model() -> None:
    chosen = with_preset("scenes-bm_detr", {"model": QDDETRConfig(hidden=32)})
    assert isinstance(chosen.model, BMDETRConfig)
    assert (chosen.model.hidden, chosen.model.ablation["alignment"]) == (32, 64)
    named = with_preset("scenes-bm_detr", {"model": QDDETRConfig(name="qd_detr", ablation={"fine": 2.0})})
    assert isinstance(named.model, QDDETRConfig)
    assert (named.model.hidden, named.model.loss_settings.fine) == (64, 2.0)


@pytest.mark.parametrize("name", IN_KEYS)
def test_keys_hold_ablations_among_the_models_settings_and_losses(name: str) -> None:
    model = {"name": name, **IN_KEYS[name]}
    flat = {**model, **model["losses"]}
    losses = {key: flat.pop(key) for key in ("shine", "negatives", "spatial_dynamics") if key in flat}
    chosen = Settings.model_validate({"model": model_of(**{**flat, "losses": losses})})
    assert chosen.key_parameters() == {"model": model}
    assert Settings.model_validate(chosen.model_dump(mode="json")) == chosen


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ({"name": "qd_detr"}, {"text_attention": "official"}),
        ({"name": "qd_detr", "losses": {"shine": True}}, {"text_attention": "official", "variant": "released"}),
        ({"name": "moment_detr"}, {}),
        ({"name": "bm_detr"}, {"frame_weights": "official", "shift_endpoints": True, "class_error": 1.0}),
        ({"name": "bm_detr", "as_published": "paper"}, {"weighted_decoder": True}),
    ],
)
def test_as_published_is_short_for_the_settings_of_released_code(model: dict[str, Any], wanted: dict[str, Any]) -> None:
    model = {"as_published": "released", **model}
    released = Settings.model_validate({"model": model})
    default = {name: value for name, value in model.items() if name != "as_published"}
    assert (
        released.key_parameters()
        == Settings.model_validate({"model": {**default, "ablation": wanted}}).key_parameters()
    )
    kept = Settings.model_validate({"model": {**model, "ablation": {"pair_margin": 1.0}}})
    assert kept.model.loss_settings == replace(released.model.loss_settings, pair_margin=1.0)


@pytest.mark.parametrize(
    ("ablation", "message"),
    [
        ({"quotien": 4}, "ablation has no setting 'quotien'; did you mean quotient"),
        ({"hidden": 4}, "ablation has no setting 'hidden'"),
        ({"semantic": 1.0}, "ablation has no setting 'semantic'"),
        ({"quotient": "many"}, "ablation.quotient: Input should be a valid integer"),
        ({"quotient": 0}, "quotient must be at least 1"),
        ({"coarse_terms": ["inner"]}, "ablation.coarse_terms: Input should be 'intra' or 'inter'"),
        ({"queries": 0}, "layers and queries must be at least 1"),
    ],
)
def test_a_wrong_ablation_is_refused(ablation: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        QDDETRConfig(ablation=ablation)


def test_a_width_that_the_heads_can_not_share_is_refused() -> None:
    with pytest.raises(ValidationError, match="hidden 18 must be a multiple of 4"):
        QDDETRConfig(hidden=18)
