"""Families of models, as training and prediction use them; one file a family."""

from tasks.training.settings import Settings
from tasks.training.systems.base import System
from tasks.training.systems.bm_detr import BackgroundAware
from tasks.training.systems.detr import DETR
from tasks.training.systems.mmn import MapSystem
from tasks.training.systems.vdi import InjectedSystem

FAMILIES: dict[str, type[System]] = {
    "moment_detr": DETR, "qd_detr": DETR, "bm_detr": BackgroundAware, "mmn": MapSystem,
    "vdi": InjectedSystem,
}  # fmt: skip


def system_of(settings: Settings) -> System:
    """The family that the settings' model is of."""
    return FAMILIES[settings.model.name](settings)
