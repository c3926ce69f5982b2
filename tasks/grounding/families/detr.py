"""Moment-DETR and QD-DETR, with or without SHINE's losses, and the base classes that BM-DETR shares."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from penumbra.models.detr import QDDETR, GroundingModel, Inputs, MomentDETR, MomentDETRSettings, Outputs, QDDETRSettings
from penumbra.models.losses import MomentDETRLosses, QDDETRLosses, Targets, compute_losses
from penumbra.models.spans import rank_windows, snap_windows, to_spans
from penumbra.tasks.devices import device_of
from penumbra.tasks.grounding.batches.examples import Examples
from penumbra.tasks.grounding.configs import BaseSettings, ModelConfig
from penumbra.tasks.grounding.families.base import (
    HEAD,
    HardNegativeModel,
    LossConfig,
    Objective,
    Prediction,
    System,
    apart,
    evaluating,
)

ENDPOINTS = 2  # temporal endpoint channels of a clip
BATCHES_A_GROUP = 16  # batches sorted by length together; larger groups need less padding but are less random
MULTIPLE = 4  # of padded lengths in batches by length and on a GPU, for few shapes (`System.has_static_shapes`)
MOST_WINDOWS = 5  # windows per query in a batch; of more windows, five are drawn at random for each batch
AT_ONCE = 100  # queries per batch in prediction


class DETRConfig(ModelConfig):
    """A DETR; the defaults are the papers'."""

    network: ClassVar[type[GroundingModel]]

    hidden: int = Field(256, ge=4, description="Width of the model.")


class ShineDETRConfig(DETRConfig, HardNegativeModel):
    """A DETR that can be trained with SHINE's negatives. SHINE's released criterion does not train localisation."""

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


def endpoint_features(mask: Tensor) -> Tensor:
    """Return temporal endpoints [batch, clips, 2]: clip t of n begins at t/n and ends at t/n + 1/n; 0 for padding."""
    count = mask.sum(1, keepdim=True)
    start = torch.arange(mask.shape[1], device=mask.device) / count
    return torch.stack((start, start + 1 / count), dim=-1) * mask[..., None]


def draw_pairs(relevant: Tensor, mask: Tensor, extremes: Tensor) -> tuple[Tensor, Tensor]:
    """Return two pairs of clips for the saliency hinge: those inside [batch, 2] and those outside [batch, 2].

    If clips have scores (`extremes` [batch, 2] is not -1), the first pair is the highest and the lowest relevant clip,
    and the second a random relevant and a random irrelevant clip; otherwise both pairs are random, inside and outside.
    If the moment covers the video, both sides are the same clips, and the hinge has no gradient.
    """
    inside, outside = relevant & mask, mask & ~relevant
    noise = torch.rand(mask.shape, device=mask.device)
    high, low = _two_of(inside, noise), _two_of(outside, noise)
    some = outside.any(1, keepdim=True)
    drawn = torch.stack((high, torch.where(some, low, high)))  # [2, batch, 2]
    graded = extremes.T[..., None]  # [2, batch, 1]
    graded = torch.cat((graded, torch.where(some, drawn[..., :1], graded)), dim=-1)
    high, low = torch.where(extremes[:, :1] >= 0, graded, drawn)
    return high, low


def _two_of(flags: Tensor, noise: Tensor) -> Tensor:
    """Return two different random places [batch, 2] where a row's flags are True; a single place is repeated."""
    chosen = noise.masked_fill(~flags, -1.0).topk(min(2, flags.shape[1]), dim=1).indices
    first, second = chosen[:, :1], chosen[:, -1:]
    return torch.cat((first, torch.where(flags.sum(1, keepdim=True) > 1, second, first)), dim=1)


def epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    """Return the random order of the training queries in an epoch, which depends only on seed and epoch."""
    generator = torch.Generator().manual_seed((seed + 1) * 1_000_003 + epoch)
    return torch.randperm(count, generator=generator)


def length_groups(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """Return the batches of an epoch in random order; groups of `BATCHES_A_GROUP` batches are sorted by length."""
    batches: list[Tensor] = []
    for group in torch.split(epoch_order(len(lengths), seed, epoch), BATCHES_A_GROUP * batch_size):
        sorted_group = group[torch.from_numpy(lengths[group.numpy()].argsort(kind="stable"))]
        batches += torch.split(sorted_group, batch_size)
    return [batches[number] for number in epoch_order(len(batches), seed, epoch).tolist()]


class DeviceData:
    """Examples and their features on one device, in batches that are gathered and padded without a loop over samples.

    A batch holds `hard_levels` hard negatives per query, drawn at random if queries have more, lower levels first. With
    `hard_every` n, only every n-th batch of an epoch holds them, starting with the first.

    If the negative of a query is the next query of the batch, both are of different videos where possible. With
    `existence`, the targets name the texts of a batch that are false of the video.
    """

    def __init__(self, examples: Examples, device: torch.device, settings: BaseSettings) -> None:
        self.examples, self.device, self.clip_length = examples, device, examples.videos.clip_length
        self.batch_size, self.group_by_length = settings.training.batch_size, settings.training.group_by_length
        self.losses, self.negatives_apart = settings.model.loss_settings, settings.model.reads_batch_negatives
        self.longest = settings.ranking.longest or torch.inf  # seconds; predicted windows end here at the latest
        self.made = 0  # batches made in this epoch
        self.videos, self.texts = examples.videos.to(device), examples.texts.to(device)
        self.clips = examples.clips.to(device)
        names = ("video", "text", "windows", "window_count", "extremes")
        self.columns = {name: getattr(examples, name).to(device) for name in names}
        self.video = examples.video.numpy()  # of each query, on the CPU, so that no step waits for the device

    def __len__(self) -> int:
        return len(self.examples)

    def inputs(self, rows: Tensor, hard: Tensor | None = None) -> Inputs:
        """Return the model inputs of some rows; `hard` [levels, batch] are the texts of their hard negatives."""
        multiple = MULTIPLE if self.group_by_length or self.device.type == "cuda" else 1
        index = rows.to(self.device, non_blocking=True)
        longest = self.videos.longest(self.video[rows.numpy()], multiple)
        video, mask = self.videos.gather(self.columns["video"][index], longest)
        texts = self.examples.text[rows][None]
        texts = texts if hard is None else torch.cat((texts, hard))
        words = self.texts.longest(texts.numpy(), multiple)
        text, text_mask = self.texts.gather(texts.to(self.device, non_blocking=True), words)
        return Inputs(torch.cat((video.float(), endpoint_features(mask)), dim=-1), mask, text.float(), text_mask)

    def batches(self, seed: int, epoch: int) -> list[Tensor]:
        """Return the rows of each batch of an epoch, on the CPU; they depend only on seed and epoch."""
        self.made = 0
        if self.group_by_length:
            return length_groups(self.videos.host_lengths[self.video], self.batch_size, seed, epoch)
        return list(torch.split(epoch_order(len(self), seed, epoch), self.batch_size))

    def batch(self, rows: Tensor) -> tuple[Inputs, Targets]:
        """Return the model inputs and the ground truth of some rows."""
        rows = apart(rows, self.video) if self.negatives_apart else rows
        index, levels = rows.to(self.device, non_blocking=True), self.losses.hard_levels
        hard, present = self.examples.hard[:, rows], self.examples.hard_present[:, rows]  # [3, batch]
        if not levels or self.made % self.losses.hard_every:
            hard, present = hard[:0], present[:0]
        elif levels < len(hard):
            drawn = torch.rand(hard.shape).argsort(0)[:levels].sort(0).values
            hard, present = hard.gather(0, drawn), present.gather(0, drawn)
        self.made += 1
        inputs = self.inputs(rows, hard)
        mask = inputs.video_mask
        scores, relevant = self.clips.gather(index, mask.shape[1])[0].unbind(-1)
        high, low = draw_pairs(relevant > 0, mask, self.columns["extremes"][index])
        windows, window_mask = self._windows(index)
        seconds = mask.sum(1)[:, None] * self.clip_length
        spans = to_spans(windows / seconds[..., None])  # [batch, windows, 2]
        targets = Targets(spans, window_mask, scores, mask, high, low)
        if len(hard):
            targets.hard_present = present.to(self.device, non_blocking=True)
        if self.losses.existence:  # a batch of one has no next query
            following = np.roll(rows.numpy(), -1) if len(rows) > 1 else None
            false = self.examples.false_texts(rows.numpy(), following, present)
            targets.false = false.to(self.device, non_blocking=True)
        return inputs, targets

    def _windows(self, index: Tensor) -> tuple[Tensor, Tensor]:
        windows, count = self.columns["windows"][index], self.columns["window_count"][index]
        present = torch.arange(windows.shape[1], device=self.device) < count[:, None]
        if windows.shape[1] <= MOST_WINDOWS:
            return windows, present
        noise = torch.rand(present.shape, device=self.device).masked_fill(~present, -1.0)
        chosen = noise.topk(MOST_WINDOWS, dim=1).indices
        return windows.gather(1, chosen[..., None].expand(-1, -1, 2)), present.gather(1, chosen)


ADETR = TypeVar("ADETR", bound=DETRConfig)


class DETRSystem(System[ADETR]):
    """Family of the DETR models, which encode queries, negative queries and hard negatives as one batch."""

    models: ClassVar[tuple[type[ModelConfig], ...]] = (QDDETRConfig, MomentDETRConfig)  # the default first
    data_type: ClassVar[type[DeviceData]] = DeviceData

    @property
    def has_static_shapes(self) -> bool:
        return self.settings.training.group_by_length or device_of().type == "cuda"

    def build(self, video_dim: int, text_dim: int) -> GroundingModel:
        widths = {"video_dim": video_dim + ENDPOINTS, "text_dim": text_dim}
        others = {
            "longest_text": self.settings.inputs.longest_text,
            "existence": self.config.loss_settings.existence > 0,
        }
        return self.config.network(replace(self.config.network_options, **widths, **others))

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
        """See `System.predict`; saliency is rounded to float16, as in the published files."""
        predictions: list[Prediction | None] = [None] * len(data)
        for rows, outputs in outputs_of(model, data, data.inputs, bf16=self.bf16):
            scores = outputs.logits[-1].float().softmax(-1)[..., 0]  # [batch, queries], of the foreground
            ranked = rank_windows(outputs.spans[-1], scores, data.examples.duration[rows])
            windows = snap_windows(ranked, data.clip_length, data.longest) if self.settings.ranking.snap else ranked
            saliency = outputs.saliency.half().float().cpu().numpy()
            lengths = data.videos.host_lengths[data.video[rows.numpy()]]
            evidence = evidence_of(outputs, torch.from_numpy(lengths).to(data.device)).cpu().numpy()
            for place, row in enumerate(rows.tolist()):
                clips, qid = saliency[place, : lengths[place]], data.examples.rows[row]["qid"]
                predictions[row] = Prediction(qid, windows[place].numpy(), clips, evidence[place])
        return [prediction for prediction in predictions if prediction is not None]


def evidence_of(outputs: Outputs, lengths: Tensor) -> Tensor:
    """Return the numbers [batch, n] named by `DETRSystem.evidence`; `lengths` [batch] are the videos' clips.

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
    """Yield rows and their outputs; `gather` returns inputs. To reduce padding, rows are sorted by video length."""
    order = np.argsort(data.videos.host_lengths[data.video], kind="stable")
    for rows in torch.split(torch.from_numpy(order), AT_ONCE):
        with evaluating(model, data.device, bf16):
            outputs = model(gather(rows))
        yield rows, outputs
