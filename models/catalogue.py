"""The models by the names that users type."""

from penumbra.models.bm_detr import BMDETR
from penumbra.models.grounding import GroundingModel
from penumbra.models.moment_detr import MomentDETR
from penumbra.models.qd_detr import QDDETR
from penumbra.models.settings import ModelSettings

MODELS: dict[str, type[GroundingModel]] = {"moment_detr": MomentDETR, "qd_detr": QDDETR, "bm_detr": BMDETR}


def build_model(name: str, settings: ModelSettings) -> GroundingModel:
    """A model with fresh weights; raises ValueError naming an unknown one."""
    if name not in MODELS:
        raise ValueError(f"no model {name!r}; there is: {', '.join(MODELS)}")
    return MODELS[name](settings)
