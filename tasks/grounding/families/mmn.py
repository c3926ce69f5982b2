"""MMN: sentences and candidate moments of whole videos, with hard negatives among the sentences or without."""

from collections.abc import Iterator, Mapping
from typing import cast

import numpy as np
import torch
from penumbra.models.losses.mmn import MMNLossSettings, mmn_losses
from penumbra.models.mmn import MMN, MapOutputs
from penumbra.models.moment_map import candidate_windows
from penumbra.models.postprocessing import suppress
from penumbra.tasks.grounding.batches.examples import Examples
from penumbra.tasks.grounding.batches.features import Features
from penumbra.tasks.grounding.batches.map_data import MapBatch, MapData
from penumbra.tasks.grounding.families.base import System
from penumbra.tasks.grounding.families.prediction import Prediction
from penumbra.tasks.grounding.families.step import autocast
from penumbra.tasks.grounding.metrics.ordering import ordering_metrics
from penumbra.tasks.grounding.training.settings import Settings
from torch import Tensor, nn


class MapObjective(nn.Module):
    """Model and losses as one module."""

    def __init__(self, model: MMN, losses: MMNLossSettings, bf16: bool = False) -> None:
        super().__init__()
        self.model, self.losses, self.bf16 = model, losses, bf16

    def forward(self, batch: MapBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The total with gradient, and all terms without."""
        with autocast(batch.inputs.video.device, self.bf16):
            outputs = self.model(batch.inputs)
        found = mmn_losses(outputs, batch.targets, self.losses, batch.late)
        return found.total, found.terms


class MapSystem(System):
    """MMN under given settings; `losses.shine` brings the hard negatives in."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.losses = settings.mutual.settings(hard=settings.losses.shine)

    def build(self, video_dim: int, text_dim: int) -> nn.Module:
        """See `System.build`."""
        return MMN(self.settings.map.settings(video_dim, text_dim))

    def widths(self, weights: Mapping[str, Tensor]) -> tuple[int, int]:
        """See `System.widths`."""
        return weights["clip_projection.weight"].shape[1], len(weights["sentences.norm.weight"])

    def data(self, examples: Examples, videos: Features, texts: Features, device: torch.device) -> MapData:
        """See `System.data`."""
        s = self.settings
        return MapData(
            examples, videos, texts, device, s.map, batch_size=s.training.batch_size,
            full_epochs=s.mutual.full_epochs, most_sentences=s.mutual.most_sentences, hard=self.losses.needs_hard,
            in_video=s.mutual.in_video,
        )  # fmt: skip

    def objective(self, model: nn.Module) -> nn.Module:
        """See `System.objective`."""
        return MapObjective(cast(MMN, model), self.losses, self.bf16)

    def predict(self, model: nn.Module, data: MapData) -> list[Prediction]:
        """See `System.predict`; saliency is the score of the one-clip moment that a clip lies in."""
        found: list[Prediction | None] = [None] * len(data)
        shape = self.settings.map
        for rows, index, outputs in _outputs(model, data, self.bf16):
            scores = outputs.fused(shape.power)
            windows = candidate_windows(data.cells, shape.clips, data.columns["duration"][index])
            ranked = torch.cat((windows, scores[..., None]), dim=-1)
            kept = suppress(ranked, shape.suppression, before=ranked.shape[1], after=shape.keep)
            single = scores[:, data.cells[:, 0] == data.cells[:, 1]].cpu().numpy()
            for row, best, saliency in zip(rows.tolist(), kept, single, strict=True):
                clips = int(data.videos.host_lengths[data.examples.video[row]])
                clip = ((np.arange(clips) + 0.5) * shape.clips / clips).astype(int)
                found[row] = Prediction(data.examples.qids[row], best.double().cpu().numpy(), saliency[clip])
        return [prediction for prediction in found if prediction is not None]

    def figures(self, model: nn.Module, data: MapData) -> dict[str, float]:
        """How often the score of the true moment is in SHINE's order: positive, hard negatives, another text."""
        result = np.full((len(data), 5), np.nan)
        for rows, index, outputs in _outputs(model, data, self.bf16, hard=True):
            targets = data.targets(index)
            best = targets.overlap.argmax(1, keepdim=True)
            there = data.columns["hard_present"][:, index]
            for level, (texts, known) in enumerate(_texts(outputs, targets.window_mask.any(1), there)):
                score = texts.fused(self.settings.map.power).gather(1, best)[:, 0]
                result[rows, level] = score.masked_fill(~known, torch.nan).cpu().numpy()
        return ordering_metrics(result)


def _texts(outputs: MapOutputs, known: Tensor, hard: Tensor) -> Iterator[tuple[MapOutputs, Tensor]]:
    """The videos under their sentences, the hard negatives, and a sentence of the next video; who has such a text."""
    yield outputs, known
    if outputs.hard_iou is not None and outputs.hard_contrast is not None:
        for iou, contrast, there in zip(outputs.hard_iou, outputs.hard_contrast, hard, strict=True):
            yield outputs.under(iou, contrast), known & there
    videos = len(outputs.cell_iou)
    if videos > 1:
        another = torch.searchsorted(outputs.video_of, (outputs.video_of + 1) % videos)
        yield outputs.under(outputs.sentence_iou[another], outputs.sentence_contrast[another]), known


def _outputs(
    model: nn.Module, data: MapData, bf16: bool, hard: bool = False
) -> Iterator[tuple[np.ndarray, Tensor, MapOutputs]]:
    """Queries' rows on the host and on the device, and what the model says; videos of a length share a batch."""
    order = np.argsort([data.videos.host_lengths[video] for video, _ in data.every], kind="stable")
    was_training = model.training
    model.eval()
    try:
        for first in range(0, len(order), data.batch_size):
            chosen = [data.every[n] for n in order[first : first + data.batch_size]]
            rows = [rows for _, rows in chosen]
            inputs, index = data.inputs([video for video, _ in chosen], rows, hard)
            with torch.no_grad(), autocast(data.device, bf16):
                outputs = model(inputs)
            yield np.concatenate(rows), index, outputs
    finally:
        model.train(was_training)
