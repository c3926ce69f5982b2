"""BM-DETR: negative queries and temporal shifting in training, neither of them in prediction."""

from dataclasses import replace
from typing import cast

import numpy as np
import torch
from penumbra.models.grounding import GroundingModel
from penumbra.models.losses.probability import mean_over
from penumbra.models.outputs import Inputs
from penumbra.tasks.grounding.batches.background import BackgroundData
from penumbra.tasks.grounding.batches.examples import Examples
from penumbra.tasks.grounding.batches.features import Features
from penumbra.tasks.grounding.batches.shifting import Shifting
from penumbra.tasks.grounding.families.detr import DETR
from penumbra.tasks.grounding.families.prediction import Prediction, outputs_of, predict
from torch import Tensor, nn

FIGURES = ("probability inside", "probability outside", "joint probability inside", "joint probability outside")


class BackgroundAware(DETR):
    """Builds and trains as the DETR models do; its data, its figures and the end of a cut video are its own."""

    def data(self, examples: Examples, videos: Features, texts: Features, device: torch.device) -> BackgroundData:
        """See `System.data`. A video that is cut to its first clips ends there."""
        training, losses = self.settings.training, self.settings.losses
        end = self._end(videos.clip_length)
        if end is not None:
            examples = replace(examples, duration=examples.duration.clamp(max=end))
        return BackgroundData(
            examples, videos, texts, device, batch_size=training.batch_size, negatives=losses.negatives,
            lonely=losses.without_negative, shifting=Shifting(training.shift_below, training.shift_endpoints)
            if training.shifting else None, fixed_size=training.compiled != "no",
        )  # fmt: skip

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
