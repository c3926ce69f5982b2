"""BM-DETR (Jung et al., WACV 2025): negative queries and temporal shifting in training, neither in prediction."""

from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from penumbra.models import bm_detr
from penumbra.models.grounding import GroundingModel
from penumbra.models.losses.probability import mean_over
from penumbra.models.losses.settings import LossSettings
from penumbra.models.matching import MatchingCosts
from penumbra.models.outputs import Inputs
from penumbra.models.settings import ModelSettings
from penumbra.tasks.grounding.batches.background import BackgroundData, Lonely, Negatives
from penumbra.tasks.grounding.batches.examples import Examples
from penumbra.tasks.grounding.batches.features import Features
from penumbra.tasks.grounding.batches.shifting import Shifting
from penumbra.tasks.grounding.families.base import Prediction
from penumbra.tasks.grounding.families.detr import DETRConfig, DETRSystem, SaliencyLosses
from penumbra.tasks.grounding.families.detr_prediction import outputs_of, predict

FIGURES = ("probability inside", "probability outside", "joint probability inside", "joint probability outside")


class BMDETRLosses(SaliencyLosses):
    """Which losses, with what weights, and which negatives they take; the defaults are the paper's."""

    saliency: float = Field(4.0, ge=0, description="Weight of the frame margin loss.")
    pair_hinge: bool = Field(True, description="The frame margin loss: a hinge of clip pairs.")
    probability: float = Field(2.0, ge=0, description="Weight of the frame probability loss.")
    semantic: float = Field(1.0, ge=0, description="Weight of the semantic alignment.")
    class_error: float = Field(0.0, ge=0, description="1 adds the class error to the total, as published.")
    negatives: Negatives = Field(
        "in_video", description="Queries of other moments of the video, generated hard negatives, or either."
    )
    without_negative: Lonely = Field(
        "none", description="A query that has no negative goes without, or takes another video's query."
    )

    def settings(self) -> LossSettings:
        """The losses that a step adds up: no auxiliary ones, and GIoU before L1."""
        costs = MatchingCosts(span=1.0, giou=8.0, label=8.0)
        chosen = self.model_dump(exclude={"negatives", "without_negative"})
        return LossSettings(costs.span, costs.giou, costs.label, costs=costs, auxiliary=False, **chosen)


class BMDETR(DETRConfig):
    """BM-DETR, and what of it is left out, as in its Table 7."""

    network = bm_detr.BMDETR

    name: Literal["bm_detr"] = Field("bm_detr", description="Which model.")
    frame_matcher: bool = Field(True, description="Clips weighted by how probably they fit the query.")
    learnable_spans: bool = Field(True, description="Moment queries are anchors; otherwise plain vectors.")
    alignment: int = Field(256, ge=0, description="Width of the semantic alignment; 0: without it.")
    frame_weights: Literal["fixed", "official"] = Field(
        "fixed", description="'official' gives padding a share of the clips' weights, as published."
    )
    shifting: bool = Field(False, description="A second branch whose moments are moved within their videos.")
    shift_below: float | None = Field(60.0, gt=0, description="Only in videos shorter than so many seconds.")
    shift_endpoints: bool = Field(False, description="Temporal endpoints move with the clips, as published.")
    losses: BMDETRLosses = BMDETRLosses()

    def sizes(self, video_dim: int, text_dim: int, longest_text: int, **more: Any) -> ModelSettings:
        """See `DETRConfig.sizes`."""
        own = {name: getattr(self, name) for name in ("frame_matcher", "learnable_spans", "frame_weights")}
        return super().sizes(video_dim, text_dim, longest_text, align_dim=self.alignment, **own, **more)

    @property
    def loss_settings(self) -> LossSettings:
        """See `BMDETRLosses.settings`."""
        return self.losses.settings()

    @property
    def moves(self) -> Shifting | None:
        """Which moments are moved, and how; None: none."""
        return Shifting(self.shift_below, self.shift_endpoints) if self.shifting else None

    @property
    def reads_negatives(self) -> bool:
        """See `ModelConfig.reads_negatives`."""
        return self.losses.negatives in ("generated", "both")

    def on_hard_negatives(self, wanted: bool) -> dict[str, Any]:
        """See `ModelConfig.on_hard_negatives`: beside queries of the same video, its own negatives, or without."""
        return {"losses": {"negatives": "both" if wanted else "in_video"}}

    @property
    def reads_in_video(self) -> bool:
        """See `ModelConfig.reads_in_video`."""
        return self.losses.negatives in ("in_video", "both")


class BMDETRSystem(DETRSystem[BMDETR]):
    """Builds and trains as the DETR models do; its data, its figures and the end of a cut video are its own."""

    models = (BMDETR,)
    has_static_shapes = False  # what share a batch are different videos, not videos of like length

    def data(self, examples: Examples, videos: Features, texts: Features, device: torch.device) -> BackgroundData:
        """See `System.data`. A video that is cut to its first clips ends there."""
        training, losses = self.settings.training, self.config.losses
        end = self._end(videos.clip_length)
        if end is not None:
            examples = replace(examples, duration=examples.duration.clamp(max=end))
        return BackgroundData(
            examples,
            videos,
            texts,
            device,
            batch_size=training.batch_size,
            negatives=losses.negatives,
            lonely=losses.without_negative,
            shifting=self.config.moves,
            fixed_size=training.compiled != "no",
        )

    def predict(self, model: nn.Module, data: BackgroundData) -> list[Prediction]:  # type: ignore[override]
        """See `System.predict`. No window ends after the last clip that a video may have."""
        ranking, end = self.settings.ranking, self._end(data.clip_length)
        if end is not None:
            ranking = ranking.model_copy(update={"longest": min(ranking.longest or end, end)})
        return predict(cast(GroundingModel, model), data, ranking, bf16=self.bf16)

    def figures(self, model: nn.Module, data: BackgroundData) -> dict[str, float]:  # type: ignore[override]
        """The paper's Table 9: mean probability of clips in and out of the moment, without and with a negative.

        Over queries that have a negative (the first of theirs); empty for a model without the frame matcher.
        """
        found = probabilities(cast(GroundingModel, model), data, self.settings.ranking.batch_size)
        if not len(found):
            return {}
        means: list[float] = found.mean(0).tolist()
        return {**dict(zip(FIGURES, means, strict=True)), "queries with a negative": float(len(found))}

    def _end(self, clip_length: float) -> float | None:
        """Seconds that a video may have."""
        clips = self.settings.inputs.longest_video
        return None if clips is None else clips * clip_length


def probabilities(model: GroundingModel, data: BackgroundData, batch_size: int) -> np.ndarray:
    """Mean probability inside and outside the moment [n, 4], without and with a negative, of queries that have one."""

    def with_negatives(rows: Tensor) -> Inputs:
        return data.with_negatives(data.inputs(rows), rows, first=True)

    columns = []
    for gather in (data.inputs, with_negatives):
        rows = [torch.zeros(0, 2)]
        for batch, outputs in outputs_of(model, data, batch_size, gather):
            if outputs.probability is not None:
                index = batch.to(data.device)
                flags, mask = data.clips.gather(index, outputs.probability.shape[1])
                inside = flags[..., 1] > 0
                means = [mean_over(outputs.probability, clips) for clips in (inside, mask & ~inside)]
                rows.append(torch.stack(means, dim=1)[data.pool_sizes[index] > 0].cpu())
        columns.append(torch.cat(rows))
    return torch.cat(columns, dim=1).double().numpy()
