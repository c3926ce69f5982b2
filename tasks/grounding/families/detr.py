"""Moment-DETR and QD-DETR, with SHINE's losses or without."""

from collections.abc import Mapping
from typing import cast

import torch
from penumbra.models.catalogue import build_model
from penumbra.models.grounding import GroundingModel
from penumbra.tasks.grounding.batches.device_data import ENDPOINTS, DeviceData
from penumbra.tasks.grounding.batches.examples import Examples
from penumbra.tasks.grounding.batches.features import Features
from penumbra.tasks.grounding.families.base import System
from penumbra.tasks.grounding.families.prediction import Prediction, predict, saliency_inside
from penumbra.tasks.grounding.families.step import Objective
from penumbra.tasks.grounding.metrics.ordering import ordering_metrics
from penumbra.tasks.grounding.training.settings import Settings
from torch import Tensor, nn


class DETR(System):
    """Positives, the batch's negatives and hard negatives pass the encoder as one batch."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.losses = settings.losses.settings(settings.model.name)

    def build(self, video_dim: int, text_dim: int) -> GroundingModel:
        """See `System.build`."""
        s = self.settings
        return build_model(s.model.name, s.model.settings(video_dim + ENDPOINTS, text_dim, s.inputs.longest_text))

    def widths(self, weights: Mapping[str, Tensor]) -> tuple[int, int]:
        """See `System.widths`."""
        video, text = (len(weights[f"{part}_projection.stages.0.norm.weight"]) for part in ("video", "text"))
        return video - ENDPOINTS, text

    def data(self, examples: Examples, videos: Features, texts: Features, device: torch.device) -> DeviceData:
        """See `System.data`."""
        training = self.settings.training
        return DeviceData(
            examples, videos, texts, device,
            batch_size=training.batch_size, hard=self.losses.needs_hard, fixed_size=training.compiled != "no",
        )  # fmt: skip

    def objective(self, model: nn.Module) -> Objective:
        """See `System.objective`."""
        return Objective(cast(GroundingModel, model), self.losses, self.bf16)

    def predict(self, model: nn.Module, data: DeviceData) -> list[Prediction]:
        """See `System.predict`."""
        return predict(cast(GroundingModel, model), data, self.settings.ranking, bf16=self.bf16)

    def figures(self, model: nn.Module, data: DeviceData) -> dict[str, float]:
        """How often saliency inside the moment is in SHINE's order."""
        return ordering_metrics(saliency_inside(cast(GroundingModel, model), data, self.settings.ranking.batch_size))
