"""A data set for models on a map of candidate moments: a sample is a video with all its sentences."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from penumbra.models.losses.candidates import MapTargets, candidate_overlap
from penumbra.models.mmn import MapInputs, MMNSettings
from penumbra.models.moment_map import candidate_cells
from penumbra.models.segments import segment_means
from penumbra.tasks.grounding.batches.device_data import Ragged
from penumbra.tasks.grounding.batches.examples import Examples
from penumbra.tasks.grounding.batches.features import Features


@dataclass
class MapBatch:
    """What a step takes; `late` says that the epochs of the full contrastive weight are over."""

    inputs: MapInputs
    targets: MapTargets
    late: bool


class MapData:
    """Queries by video, and their features, on one device. A batch is `batch_size` videos."""

    def __init__(
        self,
        examples: Examples,
        videos: Features,
        texts: Features,
        device: torch.device,
        sizes: MMNSettings,
        *,
        batch_size: int,
        full_epochs: int = 0,
        most_sentences: int | None = None,
        hard: bool = False,
        in_video: bool = False,
    ) -> None:
        self.examples, self.device, self.sizes, self.hard = examples, device, sizes, hard
        self.batch_size, self.full_epochs, self.most_sentences = batch_size, full_epochs, most_sentences
        self.videos = Ragged(videos.values, videos.offsets, device)
        self.texts = Ragged(texts.values, texts.offsets, device)
        self.cells = candidate_cells(sizes.clips, sizes.counts).to(device)
        windows, present = true_windows(examples)
        self.columns = {
            "windows": windows.to(device),
            "present": present.to(device),
            "duration": examples.duration.float().to(device),
            "text": examples.text.to(device),
            "hard": examples.hard.to(device),
            "hard_present": examples.hard_present.to(device),
        }
        listed = examples.in_video if in_video else None
        self.listed = None if listed is None else Ragged(listed, examples.in_video_offsets, device)
        self.host_text, self.host_hard = examples.text.numpy(), examples.hard.numpy()
        self.every = by_video(examples)
        known = present.any(1)
        self.taught = [(video, rows[known[rows].numpy()]) for video, rows in self.every]
        self.taught = [(video, rows) for video, rows in self.taught if len(rows)]
        self.chosen, self.late = [rows for _, rows in self.taught], False

    def __len__(self) -> int:
        """How many queries."""
        return len(self.examples)

    def batches(self, seed: int, epoch: int) -> list[Tensor]:
        """Numbers of the videos of each batch; the epoch's sentences of videos with too many are drawn as well."""
        generator = np.random.default_rng((seed, epoch))
        self.late = epoch >= self.full_epochs
        order = generator.permutation(len(self.taught))
        most = self.most_sentences
        self.chosen = [
            rows if most is None or len(rows) <= most else np.sort(generator.permutation(rows)[:most])
            for _, rows in self.taught
        ]
        return list(torch.split(torch.from_numpy(order), self.batch_size))

    def batch(self, rows: Tensor) -> MapBatch:
        """Videos `rows` with their sentences and the truth about these."""
        numbers = rows.tolist()
        videos, sentences = [self.taught[n][0] for n in numbers], [self.chosen[n] for n in numbers]
        inputs, index = self.inputs(videos, sentences, self.hard)
        return MapBatch(inputs, self.targets(index), self.late)

    def targets(self, index: Tensor) -> MapTargets:
        """The truth about the queries `index` [S]."""
        windows, present = self.columns["windows"][index], self.columns["present"][index]
        overlap = candidate_overlap(self.cells, self.sizes.clips, self.columns["duration"][index], windows, present)
        missing = self.columns["hard_present"][:, index] if self.hard else None
        return MapTargets(overlap, windows, present, self._negatives(index), missing)

    def _negatives(self, index: Tensor) -> Tensor | None:
        """Whether the text of the second query is listed as a negative of the first [S, S]; None where none are."""
        if self.listed is None:
            return None
        texts, there = self.listed.gather(index, int(self.listed.host_lengths.max(initial=1)))
        own = self.columns["text"][index]
        return ((texts[:, None] == own[:, None]) & there[:, None]).any(-1)

    def inputs(self, videos: list[int], sentences: list[np.ndarray], hard: bool = False) -> tuple[MapInputs, Tensor]:
        """Videos with their sentences as a model takes them, and the sentences' rows [S] on the device."""
        host = np.concatenate(sentences)
        index = torch.from_numpy(host).to(self.device, non_blocking=True)
        video_of = torch.from_numpy(np.repeat(np.arange(len(videos)), [len(rows) for rows in sentences]))
        words = self.texts.longest(self.host_text[host])
        if hard:
            words = max(words, self.texts.longest(self.host_hard[:, host]))
        hard_text = self.text(self.columns["hard"][:, index], words) if hard else (None, None)
        found = MapInputs(
            self.segments(videos),
            *self.text(self.columns["text"][index], words),
            video_of.to(self.device, non_blocking=True),
            *hard_text,
        )
        return found, index

    def text(self, rows: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Features, or token ids, of the texts `rows` [...] and their mask [..., longest]."""
        found, mask = self.texts.gather(rows, longest)
        return found.float() if found.is_floating_point() else found, mask

    def segments(self, videos: list[int]) -> Tensor:
        """Segment means [B, segments, channels] of unit clip features, as published."""
        longest = self.videos.longest(np.array(videos))
        index = torch.tensor(videos).to(self.device, non_blocking=True)
        clips = functional.normalize(self.videos.gather(index, longest)[0].float(), dim=-1)
        return segment_means(clips, self.videos.lengths[index], self.sizes.segments)


def true_windows(examples: Examples) -> tuple[Tensor, Tensor]:
    """Windows [N, W, 2] inside the video, and which are there [N, W]: one that is empty then is left out."""
    duration = examples.duration.float()[:, None, None]
    windows = examples.windows.clamp(min=0).minimum(duration)
    there = torch.arange(windows.shape[1]) < examples.window_count[:, None]
    return windows, there & (windows[..., 1] > windows[..., 0])


def by_video(examples: Examples) -> list[tuple[int, np.ndarray]]:
    """Each video's row of the features and its queries' rows, in the order of the queries."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for row, video in enumerate(examples.video.tolist()):
        found[video].append(row)
    return [(video, np.array(rows)) for video, rows in found.items()]
