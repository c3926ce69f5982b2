"""The losses of a base model, with whatever a test changes about them."""

from dataclasses import replace
from typing import Any

from penumbra.models.loss_settings import LossSettings
from penumbra.tasks.grounding.families.detr import DETRConfig
from penumbra.tasks.grounding.training.presets import MODELS


def losses_of(model: str, shine: bool = False, **changes: Any) -> LossSettings:
    chosen = MODELS[model].model_validate({"losses": {"shine": True} if shine else {}})
    assert isinstance(chosen, DETRConfig)
    return replace(chosen.loss_settings, **changes)
