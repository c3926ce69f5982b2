"""A data set on the device: features in one tensor, batches gathered and padded without a loop over samples."""

import numpy as np
import torch
from torch import Tensor

from penumbra.models.grounding import Inputs
from penumbra.models.losses import Targets
from penumbra.models.spans import to_spans
from penumbra.tasks.grounding.batches.examples import Examples
from penumbra.tasks.grounding.configs import BaseSettings

ENDPOINTS = 2  # channels of a clip in addition to its features
BATCHES_A_GROUP = 16  # that are sorted by length together; more of them need less padding and are mixed less
MULTIPLE = 4  # of clips and of words: batches by length, and a GPU's, then have few shapes (`System.has_static_shapes`)
MOST_WINDOWS = 5  # of a query with more, five are drawn anew for each batch


def endpoint_features(mask: Tensor) -> Tensor:
    """Return temporal endpoints [batch, clips, 2]: clip t of n begins at t/n and ends at t/n + 1/n; 0 for padding."""
    count = mask.sum(1, keepdim=True)
    start = torch.arange(mask.shape[1], device=mask.device) / count
    return torch.stack((start, start + 1 / count), dim=-1) * mask[..., None]


def draw_pairs(relevant: Tensor, mask: Tensor, extremes: Tensor) -> tuple[Tensor, Tensor]:
    """Return two pairs of clips for the saliency hinge: those inside [batch, 2] and those outside [batch, 2].

    If clips have scores (`extremes` [batch, 2] is not -1) the first pair is the highest and the lowest relevant clip
    and the second a random relevant and a random irrelevant clip; otherwise both pairs are random, inside and outside.
    A moment that covers the video has no clip outside: both sides are then the same clips, which teaches nothing.
    """
    inside, outside = relevant & mask, mask & ~relevant
    noise = torch.rand(mask.shape, device=mask.device)
    high, low = _two_of(inside, noise), _two_of(outside, noise)
    some = outside.any(1, keepdim=True)
    low = torch.where(some, low, high)
    graded = extremes[:, :1] >= 0
    graded_high = torch.cat((extremes[:, :1], torch.where(some, high[:, :1], extremes[:, :1])), dim=1)
    graded_low = torch.cat((extremes[:, 1:], torch.where(some, low[:, :1], extremes[:, 1:])), dim=1)
    return torch.where(graded, graded_high, high), torch.where(graded, graded_low, low)


def _two_of(flags: Tensor, noise: Tensor) -> Tensor:
    """Return two distinct random places [batch, 2] of each row's flags; the only one twice if there is one."""
    chosen = noise.masked_fill(~flags, -1.0).topk(min(2, flags.shape[1]), dim=1).indices
    first, second = chosen[:, :1], chosen[:, -1:]
    return torch.cat((first, torch.where(flags.sum(1, keepdim=True) > 1, second, first)), dim=1)


def epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    """Return the order of the training queries in an epoch, as a function of seed and epoch."""
    generator = torch.Generator().manual_seed((seed + 1) * 1_000_003 + epoch)
    return torch.randperm(count, generator=generator)


def length_groups(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """Return an epoch's batches, in random order, cut from groups of `BATCHES_A_GROUP` batches sorted by length."""
    batches: list[Tensor] = []
    for group in torch.split(epoch_order(len(lengths), seed, epoch), BATCHES_A_GROUP * batch_size):
        sorted_group = group[torch.from_numpy(lengths[group.numpy()].argsort(kind="stable"))]
        batches += torch.split(sorted_group, batch_size)
    return [batches[number] for number in epoch_order(len(batches), seed, epoch).tolist()]


def apart(rows: Tensor, video: np.ndarray) -> Tensor:
    """Return the rows of a batch in an order in which, if possible, no row is followed by one of the same video.

    The negative of a query is the next query of the batch; that of the last query is the first one
    (`GroundingModel.project`). `video` is the video of every query.
    """
    videos = video[rows.numpy()]
    if (videos != np.roll(videos, -1)).all():
        return rows
    _, number, counts = np.unique(videos, return_inverse=True, return_counts=True)
    by_video = np.lexsort((number, -counts[number]))  # the video with the most queries first
    places = np.concatenate((np.arange(0, len(rows), 2), np.arange(1, len(rows), 2)))
    return rows[torch.from_numpy(by_video[places.argsort()])]


class DeviceData:
    """Examples and their features on one device, in the batches that the losses of the settings read.

    A batch holds `hard_levels` hard negatives of each query. If these are fewer than there are, a batch draws them,
    lower levels first. With `hard_every` n the first batch of an epoch has them, and each n-th one after it.

    If a query's negative is the next query of its batch, both are of different videos where the batch allows it. With
    `existence`, targets say which texts of a step are false of the video.
    """

    def __init__(self, examples: Examples, device: torch.device, settings: BaseSettings) -> None:
        self.examples, self.device, self.clip_length = examples, device, examples.videos.clip_length
        self.batch_size, self.group_by_length = settings.training.batch_size, settings.training.group_by_length
        self.losses, self.negatives_apart = settings.model.loss_settings, settings.model.reads_batch_negatives
        self.longest = settings.ranking.longest or torch.inf  # seconds; predicted windows end here at the latest
        self.made = 0  # batches of this epoch
        self.videos, self.texts, self.clips = (
            it.to(device) for it in (examples.videos, examples.texts, examples.clips)
        )
        names = ("video", "text", "windows", "window_count", "extremes")
        self.columns = {name: getattr(examples, name).to(device) for name in names}
        self.video = examples.video.numpy()  # of each query, known without waiting for the device

    def __len__(self) -> int:
        return len(self.examples)

    def inputs(self, rows: Tensor, hard: Tensor | None = None) -> Inputs:
        """Return what the model reads of some rows, with the texts [levels, batch] of their hard negatives."""
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
        """Return the rows of each batch of an epoch, on the CPU, as a function of both numbers."""
        self.made = 0
        if self.group_by_length:
            return length_groups(self.videos.host_lengths[self.video], self.batch_size, seed, epoch)
        return list(torch.split(epoch_order(len(self), seed, epoch), self.batch_size))

    def batch(self, rows: Tensor) -> tuple[Inputs, Targets]:
        """Return what the model reads of some rows, and their ground truth."""
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
        if self.losses.existence:  # of a batch of one no query is the next
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
