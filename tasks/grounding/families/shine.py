"""What models that take SHINE's hard negatives share (Cheng et al., ECCV 2024)."""

from typing import Any

from pydantic import Field

from penumbra.tasks.grounding.settings import ModelConfig
from penumbra.tasks.stage import Parameters


class HardNegativeLosses(Parameters):
    """Losses of a model that can be trained on hard negatives."""

    shine: bool = Field(False, description="SHINE's generated hard negatives, and what ranks them.")


class HardNegativeModel(ModelConfig):
    """A model with or without SHINE's negatives."""

    losses: HardNegativeLosses = HardNegativeLosses()

    @property
    def label(self) -> str:
        """See `ModelConfig.label`."""
        return f"{self.name}+shine" if self.losses.shine else self.name

    @property
    def reads_negatives(self) -> bool:
        """See `ModelConfig.reads_negatives`."""
        return self.losses.shine

    def on_hard_negatives(self, wanted: bool) -> dict[str, Any]:
        """See `ModelConfig.on_hard_negatives`."""
        return {"losses": {"shine": wanted}}
