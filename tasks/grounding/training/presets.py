"""The settings of a run: the models that exist, the presets of the papers (presets.yaml), and how they are combined."""

import re
from collections.abc import Mapping
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union

import yaml
from pydantic import Field, GetJsonSchemaHandler, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from penumbra.artifacts.errors import PenumbraError, what_there_is
from penumbra.artifacts.manifest import flat
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.data.rows import training_queries
from penumbra.tasks.features.extraction import FeaturesParameters
from penumbra.tasks.grounding.configs import NAMED_ARTIFACTS, BaseSettings, ModelConfig, declaring
from penumbra.tasks.grounding.families import families
from penumbra.tasks.grounding.families.detr import QDDETRConfig
from penumbra.tasks.parameter_group import Parameters, merge
from penumbra.tasks.progress import logger

PRESETS = Path(__file__).with_name("presets.yaml")
MODELS: dict[str, type[ModelConfig]] = {model.model_fields["name"].default: model for model in families()}
DEFAULT = QDDETRConfig.model_fields["name"].default
KEY = re.compile(r"[0-9a-f]{1,16}")
FEW, SMALL = 500, "small"  # training queries below which this preset is the default
WITH_ANY_MODEL = {"losses.shine"}  # settings that do not imply a certain model


def _with_name(values: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate a model whose name may be missing; such a name does not count as explicitly set."""
    if not isinstance(values, dict) or "name" in values:
        return validate(values)
    model = validate({"name": DEFAULT, **values})
    model.model_fields_set.discard("name")
    return model


class _OneChoice:
    """JSON schema of all models and None as one list of choices, which the forms of both Prefect UIs can show."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        models, none = handler(schema)["anyOf"]
        return {"anyOf": [*models["oneOf"], none]}


if TYPE_CHECKING:
    Model = ModelConfig
    OptionalModelConfig = ModelConfig | None
else:  # a union of all models, discriminated by name
    Model = Annotated[Union[tuple(MODELS.values())], Field(discriminator="name"), WrapValidator(_with_name)]  # noqa: UP007 (of a tuple)
    OptionalModelConfig = Annotated[Model | None, _OneChoice]


class Settings(BaseSettings):
    """All parameters of a run."""

    model: Model = QDDETRConfig()

    def with_seed(self, seed: int) -> "Settings":
        return self.model_copy(update={"training": self.training.model_copy(update={"seed": seed})})

    def key_parameters(self) -> dict[str, Any]:
        """Return the settings that enter the run's key: the model's name, and settings that differ from the defaults.

        A new parameter therefore changes no key, and a changed default needs a new version of the stage. Named
        artifacts are left out because they are parents of the run, and `log` because it does not affect the weights.
        Renamed parameters keep their first name in keys.
        """
        left_out = {"training": {"log"}, "inputs": NAMED_ARTIFACTS}
        values = self.model_dump(mode="json", exclude={"model": True, **left_out}, exclude_defaults=True)
        training, inputs = values.get("training", {}), values.setdefault("inputs", {})
        if isinstance(training.get("milestones"), int):
            training["learning_rate_drop"] = training.pop("milestones")
        if isinstance(training.get("validation"), float):
            training["held_out"] = training.pop("validation")
        encoders = [name for name in self.inputs.video_features if not KEY.fullmatch(name)]
        if encoders:
            inputs["video_encoders"] = encoders
        if self.inputs.text_features and not KEY.fullmatch(self.inputs.text_features):
            inputs["text_encoder"] = self.inputs.text_features
        return {name: group for name, group in ({"model": self.model.key_parameters()} | values).items() if group}


def non_default_settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's model and settings that differ from the defaults, by full names; all if they are not valid."""
    try:
        settings = Settings.model_validate(parameters)
    except ValidationError:
        return dict(flat(parameters))
    values = settings.model_dump(mode="json", exclude_defaults=True)
    return dict(flat(merge({"model": {"name": settings.model.name}}, values)))


Preset = Annotated[
    str | None, Field(description="Settings of a paper, by name in tasks/grounding/training/presets.yaml.")
]


@cache
def presets() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the presets by name: for each group of parameters, the values that differ from the defaults."""
    return dict(yaml.safe_load(PRESETS.read_text(encoding="utf-8")))


def preset_named(name: str | None) -> dict[str, dict[str, Any]]:
    """Return the parameters of a preset, by group; raise `PenumbraError` if the name is unknown."""
    if name is not None and name not in presets():
        raise PenumbraError(f"no preset {name!r}: {what_there_is(name, list(presets()))}")
    return presets()[name] if name else {}


def preset_for(dataset: Dataset, preset: str | None, model: ModelConfig | None) -> str | None:
    """Return the preset, or `small` if no preset and no model is given and the training queries are few."""
    given = dict(flat(model.model_dump(exclude_unset=True))) if model else {}
    if preset is not None or given.keys() - WITH_ANY_MODEL or (model and model.name != DEFAULT):
        return preset
    number = training_queries(dataset, FEW) if "train" in dataset.split_files() else FEW
    if number >= FEW:
        return None
    name = presets()[SMALL]["model"]["name"]
    logger().info(
        "%s training queries are fewer than %d: the model is %s (preset=%s); model.name=%s selects another",
        *(number, FEW, name, SMALL, DEFAULT),
    )
    return SMALL


def features_with_preset(name: str | None, features: FeaturesParameters | None) -> FeaturesParameters:
    """Return the parameters of feature extraction: those of a preset, overridden by those that were set explicitly."""
    layers = {"features": preset_named(name).get("features", {})}, explicitly_set({"features": features})
    return FeaturesParameters.model_validate(reduce(merge, layers).get("features", {}))


def with_preset(name: str | None, groups: Mapping[str, Parameters | None]) -> Settings:
    """Return a preset's settings, overridden by explicit ones; raise `PenumbraError` if it is unknown."""
    return layered(name, explicitly_set(groups))


def explicitly_set(groups: Mapping[str, Parameters | None]) -> dict[str, dict[str, Any]]:
    """Return the parameters that were set explicitly, by group; a model's name counts if it is not the default's."""
    values = {name: group.model_dump(exclude_unset=True) for name, group in groups.items() if group is not None}
    model = groups.get("model")
    if isinstance(model, ModelConfig) and model.name != DEFAULT:
        values["model"]["name"] = model.name
    return values


def model_name(preset: str | None, model: Mapping[str, Any]) -> str:
    """Return the name of the model in the parameters, or else in the preset, or else of the default model."""
    of_preset = presets().get(preset or "", {}).get("model", {}).get("name", DEFAULT)
    return str(model.get("name", of_preset))


def layered(preset: str | None, *layers: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Return a preset's settings, overridden by layers in their order; raise `PenumbraError` if it is unknown.

    The last layer that names a model selects the model. Settings in a layer for another model are kept if both models
    have them, such as the width of a DETR.
    """
    every = [{group: dict(values) for group, values in layer.items()} for layer in (preset_named(preset), *layers)]
    merged = {name: values for name, values in reduce(merge, every).items() if name not in ("needs", "features")}
    names = [DEFAULT]
    for layer in every:
        names.append(layer.get("model", {}).get("name", names[-1]))
    model: dict[str, Any] = {}
    for layer, name in zip(every, names[1:], strict=True):
        values = layer.get("model", {})
        if name != names[-1] and name in MODELS and names[-1] in MODELS:
            values = _shared(values, MODELS[name], MODELS[names[-1]])
        model = merge(model, values)
    return Settings.model_validate({**merged, "model": {**model, "name": names[-1]}})


def _shared(values: Mapping[str, Any], first: type[ModelConfig], second: type[ModelConfig]) -> dict[str, Any]:
    """Return the values of settings that two models inherit from the same class, and of unknown ones."""

    def of_both(group: Mapping[str, Any], one: dict[str, type], other: dict[str, type]) -> dict[str, Any]:
        return {name: value for name, value in group.items() if one.get(name) is other.get(name)}

    kept = of_both(values, declaring(first), declaring(second))
    losses = of_both(values.get("losses", {}), declaring(first.loss_fields()), declaring(second.loss_fields()))
    ablation = of_both(values.get("ablation", {}), first.ablations(), second.ablations())
    groups = {"losses": losses, "ablation": ablation}
    return {**kept, **{name: groups[name] for name in groups if name in values}}
