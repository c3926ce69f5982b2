"""The settings of a run: the models that exist, the presets of the papers (presets.yaml), and how they are combined."""

import re
from collections.abc import Mapping, Sequence
from functools import cache, reduce
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union

import yaml
from pydantic import Field, GetJsonSchemaHandler, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from penumbra.artifacts.differences import flat
from penumbra.artifacts.errors import PenumbraError, what_there_is
from penumbra.tasks.data.dataset import Dataset, read_rows
from penumbra.tasks.features.extraction import FeaturesParameters
from penumbra.tasks.grounding.configs import NAMED_ARTIFACTS, BaseSettings, ModelConfig
from penumbra.tasks.grounding.families import families
from penumbra.tasks.grounding.families.detr import QDDETRConfig
from penumbra.tasks.stage import Parameters, logger, merge

PRESETS = Path(__file__).with_name("presets.yaml")
MODELS: dict[str, type[ModelConfig]] = {model.model_fields["name"].default: model for model in families()}
DEFAULT = QDDETRConfig.model_fields["name"].default
KEY = re.compile(r"[0-9a-f]{1,16}")
FEW, SMALL = 500, "small"  # training queries below which this preset is the default
WITH_ANY_MODEL = {"losses.shine"}  # settings that choose no model
REMOVED = {  # settings of older versions, which changed nothing that is still read
    "training": {"processes", "launch", "nodes", "node_rank", "rendezvous", "compiled", "device"},
    "model": {"fixed_target", "in_video", "most_sentences", "without_negative"},  # of training alone
    "inputs": {"patch_features"},
    "ranking": {"batch_size"},
}


def _with_name(values: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate a model whose name may be missing; such a name does not count as explicitly set."""
    if not isinstance(values, dict) or "name" in values:
        return validate(values)
    model = validate({"name": DEFAULT, **values})
    model.model_fields_set.discard("name")
    return model


class _OneChoice:
    """Writes all models and None as one list of choices, which the forms of both Prefect UIs can show."""

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

    def determines(self) -> dict[str, Any]:
        """Return the settings that enter the run's key: the model's name, and what differs from the defaults.

        So a new parameter at its default changes no key; if a default changes, the stage's version does. Named
        artifacts are left out because they are parents of the run; `log` and `device` because they do not
        change what is learned. Keys hold the names that parameters had first, so that no key ever changes.
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
        return {name: group for name, group in ({"model": self.model.determines()} | values).items() if group}

    @classmethod
    def of_manifest(cls, parameters: Mapping[str, Any]) -> "Settings":
        """Return the settings of a run of any version; raise `ValidationError` if they do not fit this one."""
        groups = {name: _without(values, REMOVED.get(name, set())) for name, values in parameters.items()}
        model, training, inputs = (groups.setdefault(name, {}) for name in ("model", "training", "inputs"))
        if (model.get("name"), model.get("as_published")) == ("bm_detr", "paper"):  # it meant "corrected" once
            model["as_published"] = "paper" if model["ablation"].get("weighted_decoder") else "corrected"
        drop, held_out = training.pop("learning_rate_drop", None), training.pop("held_out", None)
        if drop is not None and not training.get("milestones"):
            training["milestones"] = drop
        if held_out is not None and not training.get("validation"):
            training["validation"] = held_out
        encoders, text_encoder = inputs.pop("video_encoders", ()), inputs.pop("text_encoder", None)
        if encoders:
            inputs["video_features"] = encoders
        if text_encoder:
            inputs["text_features"] = text_encoder
        return cls.model_validate(groups)


def _without(values: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {
        name: _without(value, names) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if name not in names
    }


def non_default_settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a manifest that differ from the defaults, and the model's name, by their full names.

    All settings are returned if this version can't read them.
    """
    try:
        settings = Settings.of_manifest(parameters)
    except ValidationError:
        return dict(flat(parameters))
    others = settings.model_dump(mode="json", exclude={"model"}, exclude_defaults=True)
    return dict(flat({"model": settings.model.non_defaults(), **others}))


Preset = Annotated[
    str | None, Field(description="Settings of a paper, by name in tasks/grounding/training/presets.yaml.")
]


@cache
def presets() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the presets by name: for each group of parameters what differs from the defaults."""
    loaded: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(PRESETS.read_text(encoding="utf-8"))
    return loaded


def preset_named(name: str | None) -> dict[str, dict[str, Any]]:
    """Return the parameters of a preset, by group; raise `PenumbraError` if the name is unknown."""
    if name is not None and name not in presets():
        raise PenumbraError(f"no preset {name!r}: {what_there_is(name, list(presets()))}")
    return presets()[name] if name else {}


def preset_for(dataset: Dataset, preset: str | None, model: ModelConfig | None) -> str | None:
    """Return the preset, or `small` if there is none, no model is named, and training queries are few."""
    given = dict(flat(model.model_dump(exclude_unset=True))) if model else {}
    if preset is not None or given.keys() - WITH_ANY_MODEL or (model and model.name != DEFAULT):
        return preset
    files = dataset.split_files()
    number = sum(1 for _ in islice(read_rows(files["train"], "train"), FEW)) if "train" in files else FEW
    if number >= FEW:
        return None
    name = presets()[SMALL]["model"]["name"]
    logger().info(
        "%s training queries are fewer than %d: takes model %s (preset=%s); model.name=%s selects another",
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
    """Return the name of the model that parameters or else the preset name, or the default's."""
    of_preset = presets().get(preset or "", {}).get("model", {}).get("name", DEFAULT)
    return str(model.get("name", of_preset))


def layered(preset: str | None, *layers: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Return a preset's settings, overridden by layers in their order; raise `PenumbraError` if it is unknown."""
    every = [{group: dict(values) for group, values in layer.items()} for layer in (preset_named(preset), *layers)]
    merged = {name: values for name, values in reduce(merge, every).items() if name not in ("needs", "features")}
    return Settings.model_validate({**merged, "model": _merged_model([layer.get("model", {}) for layer in every])})


def _merged_model(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge layers of model parameters for the model that is named last.

    Parameters of a layer for another model are kept if both models share them: the width of one DETR is another's.
    """
    names = [DEFAULT]
    for layer in layers:
        names.append(layer.get("name", names[-1]))
    merged: dict[str, Any] = {}
    for layer, name in zip(layers, names[1:], strict=True):
        other = name != names[-1] and name in MODELS and names[-1] in MODELS
        merged = merge(merged, _shared(layer, MODELS[name], MODELS[names[-1]]) if other else dict(layer))
    return {**merged, "name": names[-1]}


def _shared(values: Mapping[str, Any], first: type[Parameters], second: type[Parameters]) -> dict[str, Any]:
    """Return the values of fields that two groups of parameters inherit from the same class."""

    def owner(group: type[Parameters], field: str) -> type:
        return next(kind for kind in group.__mro__ if field in vars(kind).get("__annotations__", {}))

    kept: dict[str, Any] = {}
    for name, value in values.items():
        fields = [group.model_fields.get(name) for group in (first, second)]
        if fields[0] is None:
            kept[name] = value  # a mistake, which validation reports
        elif name == "ablation" and issubclass(first, ModelConfig) and issubclass(second, ModelConfig):
            kept[name] = {n: v for n, v in value.items() if first.declaration_of(n) is second.declaration_of(n)}
        elif fields[1] is not None and isinstance(value, Mapping):
            kept[name] = _shared(value, fields[0].annotation, fields[1].annotation)  # type: ignore[arg-type]
        elif fields[1] is not None and owner(first, name) is owner(second, name):
            kept[name] = value
    return kept
