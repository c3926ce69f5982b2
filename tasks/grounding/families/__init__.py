"""Families of models, as training and prediction use them; one file a family."""

from penumbra.tasks.grounding.families.base import System
from penumbra.tasks.grounding.families.bm_detr import BackgroundAware
from penumbra.tasks.grounding.families.detr import DETR
from penumbra.tasks.grounding.families.mmn import MapSystem
from penumbra.tasks.grounding.families.vdi import InjectedSystem
from penumbra.tasks.grounding.training.settings import Settings

FAMILIES: dict[str, type[System]] = {
    "moment_detr": DETR, "qd_detr": DETR, "bm_detr": BackgroundAware, "mmn": MapSystem,
    "vdi": InjectedSystem,
}  # fmt: skip


def system_of(settings: Settings) -> System:
    """The family that the settings' model is of."""
    return FAMILIES[settings.model.name](settings)
