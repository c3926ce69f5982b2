"""All that can be said of a training: the models that there are, and the papers' settings as presets."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union

import yaml
from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, ValidationError

from penumbra.artifacts.errors import PenumbraError, what_there_is
from penumbra.tasks.features.extraction import FeaturesParameters
from penumbra.tasks.grounding.configs import NAMED_ARTIFACTS, BaseSettings, ModelConfig
from penumbra.tasks.grounding.families import families
from penumbra.tasks.grounding.families.detr import QDDETRConfig
from penumbra.tasks.stage import Parameters, merge

PRESETS = Path(__file__).with_name("presets.yaml")
MODELS: dict[str, type[ModelConfig]] = {model.model_fields["name"].default: model for model in families()}
DEFAULT = QDDETRConfig.model_fields["name"].default


class SettingsError(PenumbraError):
    """There is no such preset, or a value that can't be trained with."""


def _named(said: Any) -> Any:
    """What was said of a model, with the default model's name where it has none."""
    return {"name": DEFAULT, **said} if isinstance(said, dict) else said


class _Forms:
    """Writes the models, or none of them, as one choice: so the forms of both Prefect UIs read them."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        models, none = handler(schema)["anyOf"]
        return {"anyOf": [*models["oneOf"], none]}


if TYPE_CHECKING:
    Model = ModelConfig
    OptionalModelConfig = ModelConfig | None
else:  # told apart by its name
    Model = Annotated[Union[tuple(MODELS.values())], Field(discriminator="name"), BeforeValidator(_named)]  # noqa: UP007 (of a tuple)
    OptionalModelConfig = Annotated[Model | None, _Forms]


class Settings(BaseSettings):
    """All groups together."""

    model: Model = QDDETRConfig()

    def with_seed(self, seed: int) -> "Settings":
        """The same with another seed."""
        return self.model_copy(update={"training": self.training.model_copy(update={"seed": seed})})

    def determines(self) -> dict[str, Any]:
        """What of the settings determines the run, for its key: the model's name, and what differs from the defaults.

        So a setting that is new, or another model's, changes no key; where a default changes, the stage's version does.
        Left out are, beside what artifacts tell better (`NAMED_ARTIFACTS`), where and how fast it is computed: device,
        processes and hosts, compilation, queries at once in prediction. They change rounding and the draws of dropout,
        as another seed would, and a run that was killed on one machine is to be found, and go on, on the next. So is
        who is told of it.
        """
        where = {"device", "processes", "launch", "nodes", "node_rank", "rendezvous", "compiled"}
        left_out = {"training": where | {"log"}, "inputs": NAMED_ARTIFACTS, "ranking": {"batch_size"}}
        found = self.model_dump(mode="json", exclude=left_out, exclude_defaults=True)
        return {group: values for group, values in merge(found, {"model": {"name": self.model.name}}).items() if values}


def non_default_settings(said: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's settings differs from the defaults, and its model, each under its whole name.

    Everything, where the settings are of a version that this one can't read.
    """
    try:
        settings = Settings.model_validate(said)
    except ValidationError:
        return dict(_flat(said))
    found = settings.model_dump(mode="json", exclude_defaults=True)
    return dict(_flat(merge({"model": {"name": settings.model.name}}, found)))


def _flat(groups: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in groups.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


Preset = Annotated[
    str | None, Field(description="Settings of a paper, by name in tasks/grounding/training/presets.yaml.")
]


@cache
def presets() -> dict[str, dict[str, dict[str, Any]]]:
    """The papers' settings by name: for each group what differs from the defaults."""
    found: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(PRESETS.read_text(encoding="utf-8"))
    return found


def preset_named(name: str | None) -> dict[str, dict[str, Any]]:
    """What a preset says, by group; nothing where none is named. Raises `SettingsError` naming an unknown one."""
    if name is not None and name not in presets():
        raise SettingsError(f"no preset {name!r}: {what_there_is(name, list(presets()))}")
    return presets()[name] if name else {}


def features_with_preset(name: str | None, said: FeaturesParameters | None) -> FeaturesParameters:
    """How features are made: what a preset says, with what was said explicitly on top."""
    layers = {"features": preset_named(name).get("features", {})}, explicitly_set({"features": said})
    return FeaturesParameters.model_validate(reduce(merge, layers).get("features", {}))


def with_preset(name: str | None, groups: Mapping[str, Parameters | None]) -> Settings:
    """Settings from a preset, with what was said explicitly on top; a preset is named after its data set and model.

    Raises `SettingsError` naming an unknown preset.
    """
    return layered(name, explicitly_set(groups))


def explicitly_set(groups: Mapping[str, Parameters | None]) -> dict[str, dict[str, Any]]:
    """What was said explicitly, by group. A model's name is, where it is not the default's: nobody gets it unasked."""
    said = {group: values.model_dump(exclude_unset=True) for group, values in groups.items() if values is not None}
    model = groups.get("model")
    if isinstance(model, ModelConfig) and model.name != DEFAULT:
        said["model"]["name"] = model.name
    return said


def model_name(preset: str | None, said: Mapping[str, Any]) -> str:
    """The name of the model that was said, or that a preset is for, or the default's."""
    named = presets().get(preset or "", {}).get("model", {}).get("name", DEFAULT)
    return str(said.get("name", named))


def layered(preset: str | None, *layers: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Settings from a preset and what was said since, by group, the later beating the earlier.

    Raises `SettingsError` naming an unknown preset.
    """
    every = [{group: dict(values) for group, values in layer.items()} for layer in (preset_named(preset), *layers)]
    merged = reduce(merge, every)
    for told_elsewhere in ("needs", "features"):
        merged.pop(told_elsewhere, None)
    return Settings.model_validate({**merged, "model": model_of([layer.get("model", {}) for layer in every])})


def model_of(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What was said of a model, layer by layer, for the model that was named last.

    Of what an earlier layer said of another model that is kept which both share: a DETR's width stays with a DETR.
    """
    names = [DEFAULT]
    for layer in layers:
        names.append(layer.get("name", names[-1]))
    found: dict[str, Any] = {}
    for layer, name in zip(layers, names[1:], strict=True):
        said = dict(layer)
        if name != names[-1] and name in MODELS and names[-1] in MODELS:
            said = shared(said, MODELS[name], MODELS[names[-1]])
        found = merge(found, said)
    return {**found, "name": names[-1]}


def shared(values: Mapping[str, Any], of: type[Parameters], to: type[Parameters]) -> dict[str, Any]:
    """Values for one group that mean the same in another: of fields that both have from one class."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name not in of.model_fields:
            found[name] = value  # a mistake, which the group tells
        elif name not in to.model_fields:
            continue
        elif isinstance(value, Mapping) and (inner := _groups(of, to, name)):
            found[name] = shared(value, *inner)
        elif _owner(of, name) is _owner(to, name):
            found[name] = value
    return found


def _groups(of: type[Parameters], to: type[Parameters], field: str) -> list[type[Parameters]]:
    """The groups that a field is in either, where it is one."""
    kinds = [group.model_fields[field].annotation for group in (of, to)]
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Parameters)]


def _owner(group: type[Parameters], field: str) -> type:
    """The class that a field is from."""
    return next(kind for kind in group.__mro__ if field in vars(kind).get("__annotations__", {}))
