"""Moment-DETR and QD-DETR, with SHINE's losses or without, and the base classes that BM-DETR shares."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from penumbra.models.grounding import GroundingModel, Inputs, Outputs
from penumbra.models.losses import MomentDETRLosses, QDDETRLosses, compute_losses
from penumbra.models.moment_detr import MomentDETR, MomentDETRSettings
from penumbra.models.qd_detr import QDDETR, QDDETRSettings
from penumbra.models.spans import rank_windows, snap_windows
from penumbra.tasks.devices import device_of
from penumbra.tasks.grounding.batches.device_data import ENDPOINTS, DeviceData
from penumbra.tasks.grounding.batches.examples import Examples
from penumbra.tasks.grounding.configs import ModelConfig
from penumbra.tasks.grounding.families.base import (
    HEAD,
    HardNegativeModel,
    LossConfig,
    Objective,
    Prediction,
    System,
    evaluating,
)


class DETRConfig(ModelConfig):
    """A DETR; the defaults are the papers'."""

    network: ClassVar[type[GroundingModel]]

    hidden: int = Field(256, ge=4, description="Width of the model.")


class ShineDETRConfig(DETRConfig, HardNegativeModel):
    """A DETR that SHINE's negatives can train. SHINE's released criterion trains saliency alone, no localisation."""

    as_published: Literal["paper", "released"] = Field(
        "paper", description="Follow the paper, or the authors' released code where it differs (docs/guides)."
    )
    losses: LossConfig = LossConfig()

    @property
    def reads_batch_negatives(self) -> bool:
        return bool(self.loss_settings.needs_negative)

    @property
    def published_changes(self) -> dict[str, Any]:
        return {"variant": "released"} if self.as_published == "released" and self.losses.shine else {}


class MomentDETRConfig(ShineDETRConfig):
    """Moment-DETR (Lei et al., NeurIPS 2021)."""

    network, options, loss_options = MomentDETR, MomentDETRSettings, MomentDETRLosses

    name: Literal["moment_detr"] = Field("moment_detr", description="Name of the model.")


class QDDETRConfig(ShineDETRConfig):
    """QD-DETR (Moon et al., CVPR 2023); with SHINE's losses it is SHINE's model."""

    network, options, loss_options = QDDETR, QDDETRSettings, QDDETRLosses

    name: Literal["qd_detr"] = Field("qd_detr", description="Name of the model.")

    @property
    def published_changes(self) -> dict[str, Any]:
        released = self.as_published == "released"
        return super().published_changes | ({"text_attention": "official"} if released else {})


AT_ONCE = 100  # queries that are predicted together
ADETR = TypeVar("ADETR", bound=DETRConfig)


class DETRSystem(System[ADETR]):
    """Family of the DETR models: positives, the batch's negatives and hard negatives are encoded as one batch."""

    models: ClassVar[tuple[type[ModelConfig], ...]] = (QDDETRConfig, MomentDETRConfig)  # the default first
    data_type: ClassVar[type[DeviceData]] = DeviceData

    @property
    def has_static_shapes(self) -> bool:
        return self.settings.training.group_by_length or device_of().type == "cuda"

    def build(self, video_dim: int, text_dim: int) -> GroundingModel:
        return self.config.network(
            replace(
                self.config.network_options,
                video_dim=video_dim + ENDPOINTS,
                text_dim=text_dim,
                longest_text=self.settings.inputs.longest_text,
                existence=self.config.loss_settings.existence > 0,
            )
        )

    def widths(self, weights: Mapping[str, Tensor]) -> tuple[int, int]:
        video, text = (len(weights[f"{part}_projection.stages.0.norm.weight"]) for part in ("video", "text"))
        return video - ENDPOINTS, text

    def data(self, examples: Examples, device: torch.device) -> DeviceData:
        return self.data_type(examples, device, self.settings)

    def objective(self, model: nn.Module) -> Objective:
        losses = self.config.loss_settings
        outputs = partial(model, negative=losses.needs_negative)
        return Objective(model, outputs, partial(compute_losses, settings=losses), self.bf16)

    @property
    def evidence(self) -> tuple[str, ...]:
        return (HEAD,) if self.config.loss_settings.existence else ("highest saliency", "best window")

    def predict(self, model: nn.Module, data: DeviceData) -> list[Prediction]:
        """See `System.predict`; saliency is rounded to float16, as the published files hold it."""
        predictions: list[Prediction | None] = [None] * len(data)
        for rows, outputs in outputs_of(model, data, data.inputs, bf16=self.bf16):
            ranked = rank_windows(outputs.spans[-1], outputs.scores, data.examples.duration[rows])
            windows = snap_windows(ranked, data.clip_length, data.longest) if self.settings.ranking.snap else ranked
            saliency = outputs.saliency.half().float().cpu().numpy()
            lengths = data.videos.host_lengths[data.video[rows.numpy()]]
            evidence = evidence_of(outputs, torch.from_numpy(lengths).to(data.device)).cpu().numpy()
            for place, row in enumerate(rows.tolist()):
                clips, qid = saliency[place, : lengths[place]], data.examples.rows[row]["qid"]
                predictions[row] = Prediction(qid, windows[place].numpy(), clips, evidence[place])
        return [prediction for prediction in predictions if prediction is not None]


def evidence_of(outputs: Outputs, lengths: Tensor) -> Tensor:
    """Return the numbers [batch, n] that `DETRSystem.evidence` names; `lengths` [batch] are those of the videos.

    Scores and probabilities are log-odds, which suit a logistic regression.
    """
    if outputs.existence is not None:
        return outputs.existence[0][:, None]
    padding = torch.arange(outputs.saliency.shape[1], device=lengths.device) >= lengths[:, None]
    foreground = outputs.logits[-1].float().diff(dim=-1)[..., 0].neg()  # [batch, queries]
    numbers = [outputs.saliency.float().masked_fill(padding, -torch.inf).amax(1), foreground.amax(1)]
    if outputs.probability is not None:  # 0 for padding
        numbers.append(outputs.probability.float().amax(1).logit(1e-6))
    return torch.stack(numbers, dim=1)


def outputs_of(
    model: nn.Module, data: DeviceData, gather: Callable[[Tensor], Inputs], *, bf16: bool = False
) -> Iterator[tuple[Tensor, Outputs]]:
    """Yield rows of the data and the model's outputs in evaluation; `gather` gives the inputs of some rows.

    Videos of a length share a batch, so that little is padded.
    """
    order = np.argsort(data.videos.host_lengths[data.video], kind="stable")
    for rows in torch.split(torch.from_numpy(order), AT_ONCE):
        with evaluating(model, data.device, bf16):
            outputs = model(gather(rows))
        yield rows, outputs
