"""Moment-DETR and QD-DETR, with SHINE's losses or without; and what BM-DETR shares with them."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar, cast

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from penumbra.models import moment_detr, qd_detr
from penumbra.models.grounding import GroundingModel
from penumbra.models.losses.settings import LossSettings
from penumbra.models.losses.targets import Targets
from penumbra.models.losses.total import compute_losses
from penumbra.models.outputs import Inputs, Outputs
from penumbra.models.postprocessing import rank_windows, snap_windows
from penumbra.models.settings import ModelSettings
from penumbra.tasks.grounding.batches.device_data import ENDPOINTS, DeviceData
from penumbra.tasks.grounding.batches.examples import Examples, Features
from penumbra.tasks.grounding.configs import ModelConfig, Ranking
from penumbra.tasks.grounding.families.base import HardNegativeLosses, HardNegativeModel, Prediction, System, autocast
from penumbra.tasks.grounding.metrics import ordering_metrics
from penumbra.tasks.stage import Parameters


class Objective(nn.Module):
    """A DETR and its losses, so that what several processes share sees which weights a loss really reaches."""

    def __init__(self, model: GroundingModel, losses: LossSettings, bf16: bool = False) -> None:
        super().__init__()
        self.model, self.losses, self.bf16 = model, losses, bf16

    def forward(self, batch: tuple[Inputs, Targets]) -> tuple[Tensor, dict[str, Tensor]]:
        """The total with gradient, and all terms without."""
        inputs, targets = batch
        with autocast(inputs.video.device, self.bf16):
            outputs = self.model(inputs, negative=self.losses.needs_negative)
        found = compute_losses(outputs, targets, self.losses)
        return found.total, found.terms


def predict(model: GroundingModel, data: DeviceData, ranking: Ranking, *, bf16: bool = False) -> list[Prediction]:
    """Predict every query, in the data's order; saliency is rounded to halves.

    Videos of a length share a batch, so that little is padded.
    """
    found: list[Prediction | None] = [None] * len(data)
    for rows, outputs in outputs_of(model, data, ranking.batch_size, data.inputs, bf16=bf16):
        ranked = rank_windows(outputs.spans[-1], outputs.scores, data.examples.duration[rows])
        windows = snap_windows(ranked, data.clip_length, ranking.longest) if ranking.snap else ranked
        saliency = outputs.saliency.half().float().cpu().numpy()  # the published files hold halves, ties and all
        lengths = data.videos.host_lengths[data.host["video"][rows.numpy()]]
        for place, row in enumerate(rows.tolist()):
            found[row] = Prediction(data.examples.qids[row], windows[place].numpy(), saliency[place, : lengths[place]])
    return [prediction for prediction in found if prediction is not None]


def saliency_inside(model: GroundingModel, data: DeviceData, batch_size: int) -> np.ndarray:
    """Mean saliency inside the moment [N, 5] under the positive, the hard negatives and the next query's text.

    NaN where a query lacks a hard negative, or a batch the next query.
    """
    result = np.full((len(data), 5), np.nan)
    gather = partial(data.inputs, hard=True)
    for rows, outputs in outputs_of(model, data, batch_size, gather, negative=True):
        inside = data.clips.gather(rows.to(data.device), outputs.saliency.shape[1])[0][..., 1]
        parts = [outputs.saliency[None]]
        if outputs.saliency_hard is not None:
            parts.append(outputs.saliency_hard)
        if outputs.saliency_negative is not None:
            parts.append(outputs.saliency_negative[None])
        means: Tensor = (torch.cat(parts).float() * inside).sum(-1) / inside.sum(-1)
        present = data.columns["hard_present"][:, rows.to(data.device)]
        means[1:4] = means[1:4].masked_fill(~present, torch.nan)
        result[rows.numpy(), : len(parts[0]) + 3 + (outputs.saliency_negative is not None)] = means.T.cpu().numpy()
    return result


def outputs_of(
    model: GroundingModel,
    data: DeviceData,
    size: int,
    gather: Callable[[Tensor], Inputs],
    *,
    bf16: bool = False,
    negative: bool = False,
) -> Iterator[tuple[Tensor, Outputs]]:
    """Rows of the data and what the model says of them in evaluation; `gather` gives the inputs of some rows."""
    order = np.argsort(data.videos.host_lengths[data.host["video"]], kind="stable")
    was_training = model.training
    model.eval()
    try:
        for first in range(0, len(order), size):
            rows = torch.from_numpy(order[first : first + size])
            with torch.no_grad(), autocast(data.device, bf16):
                outputs = model(gather(rows), negative=negative)
            yield rows, outputs
    finally:
        model.train(was_training)


class SaliencyLosses(Parameters):
    """How clips are ranked."""

    saliency: float = Field(1.0, ge=0, description="Weight of all saliency losses together.")
    pair_margin: float = Field(0.2, ge=0, description="Margin of the hinge of clip pairs.")


class DETRLosses(SaliencyLosses, HardNegativeLosses):
    """Which losses, with what weights; the defaults are the papers'."""

    variant: Literal["paper", "released"] = Field(
        "paper", description="'released' trains what SHINE's released criterion does: saliency alone, no localisation."
    )
    pair_hinge: bool | None = Field(None, description="Hinge of clip pairs; default: without shine.")
    coarse: float = Field(1.0, ge=0, description="Weight of the coarse ranking (with shine).")
    coarse_terms: tuple[Literal["intra", "inter"], ...] = Field(("intra", "inter"), description="Its terms.")
    coarse_margins: tuple[float, float] = Field((1.0, 2.0), description="Margins h1 and h2.")
    quotient: int = Field(8, ge=1, description="q: a moment of T clips is judged by its T/q best.")
    fine: float = Field(1.0, ge=0, description="Weight of the fine ranking (with shine).")
    fine_margins: tuple[float, float, float, float] = Field((0.25, 0.25, 0.25, 0.25), description="Its margins.")
    fine_terms: tuple[bool, bool, bool, bool] = Field((True, True, True, True), description="Which of its hinges.")
    ranking: Literal["relative", "absolute"] = Field("relative", description="Compared with the level before, or 1.")

    def settings(self, **of_model: Any) -> LossSettings:
        """The losses of a model; SHINE's intra term takes the place of the pair hinge (paper, 3.4)."""
        shine = self.shine
        chosen = self.model_dump(exclude={"shine"} if shine else {"shine", "coarse", "fine"})
        hinge = not shine if self.pair_hinge is None else self.pair_hinge
        return LossSettings(**{**chosen, "pair_hinge": hinge, **of_model})


class DETRConfig(ModelConfig):
    """A DETR: its sizes. The defaults are the papers'."""

    network: ClassVar[type[GroundingModel]]

    hidden: int = Field(256, ge=4, description="Width of the model.")
    heads: int = Field(8, ge=1, description="Attention heads.")
    feed_forward: int = Field(1024, ge=1, description="Width of the feed-forward layers.")
    encoder_layers: int = Field(2, ge=1, description="Encoder layers; QD-DETR has as many from text to video.")
    decoder_layers: int = Field(2, ge=1, description="Decoder layers.")
    queries: int = Field(10, ge=1, description="Moment queries.")
    projections: int = Field(2, ge=1, le=3, description="Layers of the input projections.")
    dropout: float = Field(0.1, ge=0, lt=1, description="Dropout inside the transformer.")
    input_dropout: float = Field(0.5, ge=0, lt=1, description="Dropout of the input projections.")
    text_positions: bool = Field(False, description="Learned positions of words.")

    @model_validator(mode="after")
    def _heads_divide(self) -> "DETRConfig":
        if self.hidden % self.heads or self.hidden % 4:
            raise ValueError("model.hidden must be a multiple of 4 and of model.heads")
        return self

    def sizes(self, video_dim: int, text_dim: int, longest_text: int, **more: Any) -> ModelSettings:
        """What the network is built from for inputs of these widths; `more` are a model's own."""
        shared = {name: getattr(self, name) for name in DETRConfig.model_fields if name not in ModelConfig.model_fields}
        return ModelSettings(video_dim=video_dim, text_dim=text_dim, longest_text=longest_text, **shared, **more)

    @property
    @abstractmethod
    def loss_settings(self) -> LossSettings:
        """The losses that a step adds up."""


class MomentDETRLosses(DETRLosses):
    """Moment-DETR's losses."""

    align: float = Field(0.0, ge=0, description="Weight of the contrastive alignment, where the model has one.")


class MomentDETRConfig(DETRConfig, HardNegativeModel):
    """Moment-DETR (Lei et al., NeurIPS 2021)."""

    network = moment_detr.MomentDETR

    name: Literal["moment_detr"] = Field("moment_detr", description="Which model.")
    alignment: int = Field(
        0, ge=0, description="Width of the published, optional alignment of moment queries and words; 0: without it."
    )
    losses: MomentDETRLosses = MomentDETRLosses()

    def sizes(self, video_dim: int, text_dim: int, longest_text: int, **more: Any) -> ModelSettings:
        """See `DETRConfig.sizes`."""
        return super().sizes(video_dim, text_dim, longest_text, align_dim=self.alignment, **more)

    @property
    def loss_settings(self) -> LossSettings:
        """SHINE brings the negative-pair loss to it (paper, 3.4)."""
        return self.losses.settings(negative_pair=self.losses.shine)


class QDDETRConfig(DETRConfig, HardNegativeModel):
    """QD-DETR (Moon et al., CVPR 2023); with SHINE's losses it is SHINE's model."""

    network = qd_detr.QDDETR

    name: Literal["qd_detr"] = Field("qd_detr", description="Which model.")
    text_attention: Literal["fixed", "official"] = Field(
        "fixed", description="'official' repeats the published code's mix-up of masks within a batch."
    )
    losses: DETRLosses = DETRLosses()

    def sizes(self, video_dim: int, text_dim: int, longest_text: int, **more: Any) -> ModelSettings:
        """See `DETRConfig.sizes`."""
        return super().sizes(video_dim, text_dim, longest_text, text_attention=self.text_attention, **more)

    @property
    def loss_settings(self) -> LossSettings:
        """With its own contrastive loss over clips' ranks."""
        return self.losses.settings(negative_pair=True, rank_contrastive=True)


ADETR = TypeVar("ADETR", bound=DETRConfig)


class DETRSystem(System[ADETR]):
    """Positives, the batch's negatives and hard negatives pass the encoder as one batch."""

    models: ClassVar[tuple[type[ModelConfig], ...]] = (QDDETRConfig, MomentDETRConfig)  # the default first

    @property
    def has_static_shapes(self) -> bool:
        """See `System.has_static_shapes`."""
        return self.settings.training.group_by_length

    def build(self, video_dim: int, text_dim: int) -> GroundingModel:
        """See `System.build`."""
        sizes = self.config.sizes(video_dim + ENDPOINTS, text_dim, self.settings.inputs.longest_text)
        return self.config.network(sizes)

    def widths(self, weights: Mapping[str, Tensor]) -> tuple[int, int]:
        """See `System.widths`."""
        video, text = (len(weights[f"{part}_projection.stages.0.norm.weight"]) for part in ("video", "text"))
        return video - ENDPOINTS, text

    def data(self, examples: Examples, videos: Features, texts: Features, device: torch.device) -> DeviceData:
        """See `System.data`."""
        training, hard = self.settings.training, self.config.loss_settings.needs_hard
        return DeviceData(
            examples,
            videos,
            texts,
            device,
            batch_size=training.batch_size,
            hard=hard,
            group_by_length=training.group_by_length,
        )

    def objective(self, model: nn.Module) -> Objective:
        """See `System.objective`."""
        return Objective(cast(GroundingModel, model), self.config.loss_settings, self.bf16)

    def predict(self, model: nn.Module, data: DeviceData) -> list[Prediction]:
        """See `System.predict`."""
        return predict(cast(GroundingModel, model), data, self.settings.ranking, bf16=self.bf16)

    def figures(self, model: nn.Module, data: DeviceData) -> dict[str, float]:
        """How often saliency inside the moment is in SHINE's order."""
        return ordering_metrics(saliency_inside(cast(GroundingModel, model), data, self.settings.ranking.batch_size))
