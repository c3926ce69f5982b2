"""MMN (Wang et al., AAAI 2022): sentences and candidate moments of whole videos, in two common spaces.

A sample is a video with all its sentences. With SHINE's negatives each sentence has its own hard negatives.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from penumbra.models.map_losses import EXISTENCE, MapTargets, MMNLosses, mmn_losses
from penumbra.models.mmn import (
    MMN,
    MapInputs,
    MapOutputs,
    MMNSettings,
    candidate_cells,
    candidate_overlap,
    candidate_windows,
    of_next_video,
    segment_means,
)
from penumbra.models.spans import suppress
from penumbra.tasks.grounding.batches.examples import LEVELS, Examples
from penumbra.tasks.grounding.configs import BaseSettings, ModelConfig
from penumbra.tasks.grounding.families.base import HEAD, HardNegativeModel, Objective, Prediction, System, evaluating


class MapConfig(HardNegativeModel):
    """The map of candidates and its convolutions; the defaults are those of Charades-STA."""

    options: ClassVar[type] = MMNSettings
    loss_options: ClassVar[type] = MMNLosses

    def key_parameters(self) -> dict[str, Any]:
        """See `ModelConfig.key_parameters`; earlier versions did not multiply the existence loss by `EXISTENCE`."""
        return super().key_parameters() | ({"existence_counts": EXISTENCE} if self.losses.existence else {})


class MMNConfig(MapConfig):
    """MMN (Wang et al., AAAI 2022)."""

    name: Literal["mmn"] = Field("mmn", description="Name of the model.")
    hidden: int = Field(512, ge=1, description="Width of clips and of the map.")


AnMMN = TypeVar("AnMMN", bound=MapConfig)


class MapData:
    """Queries by video, and their features, on one device. A batch is `batch_size` videos with their sentences."""

    def __init__(self, examples: Examples, device: torch.device, settings: BaseSettings) -> None:
        self.examples, self.device, self.batch_size = examples, device, settings.training.batch_size
        self.options, self.losses = settings.model.network_options, settings.model.loss_settings
        self.videos, self.texts = examples.videos.to(device), examples.texts.to(device)
        self.cells = candidate_cells(self.options.clips, self.options.counts).to(device)
        duration = examples.duration.float()
        windows = examples.windows.clamp(min=0).minimum(duration[:, None, None])  # cut at the end of the video
        present = torch.arange(windows.shape[1]) < examples.window_count[:, None]
        present = present & (windows[..., 1] > windows[..., 0])  # an empty window counts as absent
        self.rows_of_texts = torch.cat((examples.text[None], examples.hard))  # [4, N], the query and its hard negatives
        columns = {"windows": windows, "present": present, "duration": duration, "texts": self.rows_of_texts}
        self.columns = {name: column.to(device) for name, column in columns.items()}
        rows_of: defaultdict[int, list[int]] = defaultdict(list)
        for row, video in enumerate(examples.video.tolist()):
            rows_of[video].append(row)
        self.every = [(video, np.array(rows)) for video, rows in rows_of.items()]  # rows of each video
        known = present.any(1).numpy()
        self.labelled = [(video, rows[known[rows]]) for video, rows in self.every if known[rows].any()]
        self.late = False

    def __len__(self) -> int:
        return len(self.examples)

    def batches(self, seed: int, epoch: int) -> list[Tensor]:
        self.late = epoch >= self.losses.full_epochs
        order = np.random.default_rng((seed, epoch)).permutation(len(self.labelled))
        return list(torch.split(torch.from_numpy(order), self.batch_size))

    def batch(self, rows: Tensor) -> tuple[MapInputs, MapTargets]:
        videos, sentences = map(list, zip(*(self.labelled[n] for n in rows.tolist()), strict=True))
        inputs, index = self.inputs(videos, sentences, self.losses.shine)
        host = np.concatenate(sentences)
        hard_present = self.examples.hard_present[: LEVELS if self.losses.shine else 0, host]  # [levels, sentences]
        windows, present = self.columns["windows"][index], self.columns["present"][index]
        overlap = candidate_overlap(self.cells, self.options.clips, self.columns["duration"][index], windows, present)
        targets = MapTargets(overlap, windows, present, late=self.late)
        if self.losses.shine:
            targets.hard_present = hard_present.to(self.device, non_blocking=True)
        if self.losses.existence:
            following = host[of_next_video(inputs.video_of.cpu()).numpy()] if len(videos) > 1 else None
            false = self.examples.false_texts(host, following, hard_present)
            targets.false = false.to(self.device, non_blocking=True)
        return inputs, targets

    def inputs(self, videos: list[int], sentences: list[np.ndarray], hard: bool = False) -> tuple[MapInputs, Tensor]:
        """Return videos with their sentences as inputs, and the sentences' rows [sentences] on the device."""
        host, texts = np.concatenate(sentences), slice(None if hard else 1)
        index = torch.from_numpy(host).to(self.device, non_blocking=True)
        video_of = torch.from_numpy(np.repeat(np.arange(len(videos)), [len(rows) for rows in sentences]))
        words = self.texts.longest(self.rows_of_texts[texts, host].numpy())
        text = self.text(self.columns["texts"][texts][:, index], words)
        items = torch.tensor(videos).to(self.device, non_blocking=True)
        clips = self.videos.gather(items, self.videos.longest(np.array(videos)))[0].float()
        units = functional.normalize(clips, dim=-1)  # normalised before the means over segments, as published
        segments = segment_means(units, self.videos.lengths[items], self.options.segments)
        return MapInputs(segments, *text, video_of.to(self.device, non_blocking=True)), index

    def text(self, rows: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Return features, or token ids, of the texts `rows` [...] and their mask [..., longest]."""
        values, mask = self.texts.gather(rows, longest)
        return values.float() if values.is_floating_point() else values, mask


class MMNSystem(System[AnMMN]):
    models: ClassVar[tuple[type[ModelConfig], ...]] = (MMNConfig,)

    def build(self, video_dim: int, text_dim: int) -> nn.Module:
        widths = {"video_dim": video_dim, "text_dim": text_dim}
        return MMN(replace(self.config.network_options, **widths, existence=self.config.losses.existence > 0))

    def widths(self, weights: Mapping[str, Tensor]) -> tuple[int, int]:
        return weights["clip_projection.weight"].shape[1], len(weights["sentences.norm.weight"])

    def data(self, examples: Examples, device: torch.device) -> MapData:
        return MapData(examples, device, self.settings)

    def objective(self, model: nn.Module) -> nn.Module:
        return Objective(model, model.forward, partial(mmn_losses, settings=self.config.loss_settings), self.bf16)

    @property
    def evidence(self) -> tuple[str, ...]:
        return (HEAD,) if self.config.losses.existence else ("best cell's overlap", "best cell's cosine")

    def predict(self, model: nn.Module, data: MapData) -> list[Prediction]:
        """See `System.predict`; the saliency of a clip is the score of the one-clip moment at its position."""
        predictions: list[Prediction | None] = [None] * len(data)
        options = self.config.network_options
        order = np.argsort([data.videos.host_lengths[video] for video, _ in data.every], kind="stable")
        for first in range(0, len(order), data.batch_size):  # videos of similar length share a batch
            videos, rows = map(list, zip(*(data.every[n] for n in order[first : first + data.batch_size]), strict=True))
            inputs, index = data.inputs(videos, rows)
            with evaluating(model, data.device, self.bf16):
                outputs: MapOutputs = model(inputs)
            scores = outputs.fused(options.power)  # [sentences, candidates]
            candidates = candidate_windows(data.cells, options.clips, data.columns["duration"][index])
            ranked = torch.cat((candidates, scores[..., None]), dim=-1)
            kept = suppress(ranked, options.suppression, options.keep)
            single = scores[:, data.cells[:, 0] == data.cells[:, 1]].cpu().numpy()
            evidence = evidence_of(outputs, scores).double().cpu().numpy()
            for row, best, saliency, numbers in zip(index.tolist(), kept, single, evidence, strict=True):
                count = int(data.videos.host_lengths[data.examples.video[row]])
                clip = ((np.arange(count) + 0.5) * options.clips / count).astype(int)
                windows = best.double().cpu().numpy()
                predictions[row] = Prediction(data.examples.rows[row]["qid"], windows, saliency[clip], numbers)
        return [prediction for prediction in predictions if prediction is not None]


def evidence_of(outputs: MapOutputs, scores: Tensor) -> Tensor:
    """Return the numbers [sentences, n] named by `MMNSystem.evidence`; scores [sentences, candidates] are fused."""
    if outputs.existence is not None:
        return outputs.existence[0][:, None]
    best = scores.argmax(1, keepdim=True)
    return torch.cat((outputs.iou_logits().gather(1, best), outputs.contrast().gather(1, best)), dim=1)
