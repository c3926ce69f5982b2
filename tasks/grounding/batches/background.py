"""What BM-DETR trains on: each query beside a negative one drawn anew for every batch, and its video shifted.

A batch never holds two queries of one video, so that a text of the batch is no description of another sample's video.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from penumbra.models.losses.targets import Targets
from penumbra.models.outputs import Inputs
from penumbra.tasks.grounding.batches.device_data import Batch, DeviceData
from penumbra.tasks.grounding.batches.examples import Examples
from penumbra.tasks.grounding.batches.features import Features
from penumbra.tasks.grounding.batches.shifting import Shifting, shift

Negatives = Literal["in_video", "generated", "both", "none"]
Lonely = Literal["none", "other_video"]


def negative_pools(examples: Examples, kind: Negatives) -> tuple[Tensor, Tensor]:
    """Rows of the texts that may be each query's negative, one query after the other, and their offsets [N + 1]."""
    number = torch.arange(len(examples))
    owners, rows = [number[:0]], [number[:0]]
    if kind in ("in_video", "both"):
        owners.append(number.repeat_interleave(examples.in_video_offsets.diff()))
        rows.append(examples.in_video)
    if kind in ("generated", "both"):
        present = examples.hard_present.T
        owners.append(present.nonzero()[:, 0])
        rows.append(examples.hard.T[present])
    owner = torch.cat(owners)
    counts = torch.bincount(owner, minlength=len(examples))
    offsets = torch.cat((torch.zeros(1, dtype=torch.long), counts.cumsum(0)))
    return torch.cat(rows)[owner.argsort(stable=True)], offsets


def distinct_videos(video: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """The rows of each batch of an epoch: every query once, no two of a video together, sizes apart by at most one.

    Queries are laid out video after video, in random order, and dealt out like cards to as many batches as are
    needed: by their number, or by the video with the most queries. (The published code drops a drawn query whose video
    is in the batch already.)
    """
    if not len(video):
        return []
    draws = np.random.default_rng([seed, epoch])
    shuffled = draws.permutation(len(video))
    _, group, sizes = np.unique(video, return_inverse=True, return_counts=True)
    laid_out = shuffled[draws.permutation(len(sizes))[group[shuffled]].argsort(kind="stable")]
    count = max(-(-len(video) // batch_size), int(sizes.max()))
    return [torch.from_numpy(laid_out[place::count]) for place in draws.permutation(count)]


class BackgroundData(DeviceData):
    """Training queries of BM-DETR on one device. `lonely` is what a query without a negative of its own gets."""

    def __init__(
        self,
        examples: Examples,
        videos: Features,
        texts: Features,
        device: torch.device,
        *,
        batch_size: int,
        negatives: Negatives,
        lonely: Lonely = "none",
        shifting: Shifting | None = None,
        fixed_size: bool = False,
    ) -> None:
        super().__init__(examples, videos, texts, device, batch_size=batch_size, fixed_size=fixed_size)
        self.negatives, self.lonely, self.shifting = negatives, lonely, shifting
        rows, offsets = negative_pools(examples, negatives)
        self.pool = torch.cat((rows, rows.new_zeros(1))).to(device)  # never empty
        self.pool_starts, self.pool_sizes = offsets[:-1].to(device), offsets.diff().to(device)
        lengths = np.append(self.texts.host_lengths[rows.numpy()], 0)
        ends = np.minimum(offsets[:-1].numpy(), len(rows))
        longest = np.maximum.reduceat(lengths, ends) if len(ends) else lengths
        self.pool_longest = np.where(offsets.diff().numpy() > 0, longest, 1)
        if self.fixed:
            self.fixed = self.fixed[0], max(self.fixed[1], int(self.pool_longest.max()))

    def batches(self, seed: int, epoch: int) -> list[Tensor]:
        """See `distinct_videos`."""
        return distinct_videos(self.host["video"], self.batch_size, seed, epoch)

    def batch(self, rows: Tensor) -> Batch:
        """Queries and their negatives beside the videos as they are and, where shifting is on, shifted."""
        found = super().batch(rows)
        index = rows.to(self.device, non_blocking=True)
        inside = self.clips.gather(index, found.targets.video_mask.shape[1])[0][..., 1]
        targets = replace(found.targets, clip_scores=inside)  # where clips are graded, all relevant ones count alike
        inputs = found.inputs
        if self.negatives != "none":
            inputs = self.with_negatives(inputs, rows, first=False)
        if self.shifting is None:
            return Batch(inputs, targets)
        return both(
            inputs, targets, *shift(inputs, targets, self.columns["extremes"][index], self.clip_length, self.shifting)
        )

    def with_negatives(self, inputs: Inputs, rows: Tensor, first: bool) -> Inputs:
        """A negative drawn for each query, or the first it has; a query that has none gets a text without a token."""
        index = rows.to(self.device, non_blocking=True)
        size = self.pool_sizes[index]
        share = torch.zeros(len(rows), device=self.device) if first else torch.rand(len(rows), device=self.device)
        chosen = (share * size).long().minimum((size - 1).clamp(min=0))
        places = (self.pool_starts[index] + chosen).clamp(max=len(self.pool) - 1)
        longest = self.fixed[1] if self.fixed else int(self.pool_longest[rows.numpy()].max())
        text, mask = self.texts.gather(self.pool[places], longest)
        text, mask = text.float(), mask & (size > 0)[:, None]
        if self.lonely == "other_video" and not first and len(rows) > 1:
            text, mask = _filled(text, mask, inputs.text.roll(-1, 0), inputs.text_mask.roll(-1, 0))
        return replace(inputs, hard_text=text[None], hard_mask=mask[None])


def _filled(text: Tensor, mask: Tensor, other: Tensor, other_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Texts [B, L, channels] and masks; those without a token are replaced by another's."""
    longest = max(text.shape[1], other.shape[1])
    text, other = (torch.nn.functional.pad(x, (0, 0, 0, longest - x.shape[1])) for x in (text, other))
    mask, other_mask = (torch.nn.functional.pad(x, (0, longest - x.shape[1])) for x in (mask, other_mask))
    lonely = ~mask.any(1)
    return torch.where(lonely[:, None, None], other, text), torch.where(lonely[:, None], other_mask, mask)


def both(inputs: Inputs, targets: Targets, shifted: Inputs, shifted_targets: Targets) -> Batch:
    """Two branches as one batch: they share texts."""
    hard_text, hard_mask = inputs.hard_text, inputs.hard_mask
    stacked = Inputs(
        torch.cat((inputs.video, shifted.video)),
        inputs.video_mask.repeat(2, 1),
        inputs.text.repeat(2, 1, 1),
        inputs.text_mask.repeat(2, 1),
        None if hard_text is None else hard_text.repeat(1, 2, 1, 1),
        None if hard_mask is None else hard_mask.repeat(1, 2, 1),
    )
    return Batch(stacked, targets.beside(shifted_targets))
