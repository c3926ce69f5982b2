"""Families of models, one file per family: configs, inputs, training and prediction.

A family is a `System` whose `models` are the configs of its models. To add one, add a file here and its class to
`SHIPPED`; another package names its family as an entry point of the group `penumbra.families` (docs/extending.md).
"""

from functools import cache
from importlib.metadata import entry_points
from typing import Any

from penumbra.tasks.grounding.configs import BaseSettings, ModelConfig
from penumbra.tasks.grounding.families.base import System
from penumbra.tasks.grounding.families.bm_detr import BMDETRSystem
from penumbra.tasks.grounding.families.detr import DETRSystem
from penumbra.tasks.grounding.families.mmn import MMNSystem
from penumbra.tasks.grounding.families.vdi import VDISystem

SHIPPED: tuple[type[System[Any]], ...] = (DETRSystem, BMDETRSystem, MMNSystem, VDISystem)
GROUP = "penumbra.families"


@cache
def families() -> dict[type[ModelConfig], type[System[Any]]]:
    """Return the family of each config, including those of other packages."""
    several = (*SHIPPED, *(point.load() for point in entry_points(group=GROUP)))
    return {model: family for family in several for model in family.models}


def system_of(settings: BaseSettings) -> System[Any]:
    """Return the family of the settings' model."""
    return families()[type(settings.model)](settings)
