"""MMN (Wang et al., AAAI 2022): sentences and candidate moments of whole videos, in two common spaces.

With SHINE's negatives each sentence stands among its own hard negatives.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeVar, cast

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from penumbra.models import mmn
from penumbra.models.losses.candidates import MapTargets, candidate_overlap
from penumbra.models.losses.mmn import MMNLossSettings, mmn_losses
from penumbra.models.mmn import MapInputs, MapOutputs, MMNSettings
from penumbra.models.moment_map import candidate_cells, candidate_windows
from penumbra.models.postprocessing import suppress
from penumbra.models.segments import segment_means
from penumbra.tasks.grounding.batches.device_data import Ragged
from penumbra.tasks.grounding.batches.examples import Examples, Features
from penumbra.tasks.grounding.configs import ModelConfig
from penumbra.tasks.grounding.families.base import HardNegativeLosses, HardNegativeModel, Prediction, System, autocast
from penumbra.tasks.grounding.metrics import ordering_metrics


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

    def batch(self, rows: Tensor) -> tuple[MapInputs, MapTargets]:
        """Videos `rows` with their sentences and the truth about these."""
        numbers = rows.tolist()
        videos, sentences = [self.taught[n][0] for n in numbers], [self.chosen[n] for n in numbers]
        inputs, index = self.inputs(videos, sentences, self.hard)
        return inputs, self.targets(index)

    def targets(self, index: Tensor) -> MapTargets:
        """The truth about the queries `index` [S]."""
        windows, present = self.columns["windows"][index], self.columns["present"][index]
        overlap = candidate_overlap(self.cells, self.sizes.clips, self.columns["duration"][index], windows, present)
        missing = self.columns["hard_present"][:, index] if self.hard else None
        return MapTargets(overlap, windows, present, self._negatives(index), missing, self.late)

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


class MMNLosses(HardNegativeLosses):
    """Overlap and mutual matching losses, and which sentences they see; the defaults are those of Charades-STA."""

    lowest: float = Field(
        0.5, ge=0, lt=1, description="Overlap with the truth from which a moment is worth more than 0."
    )
    highest: float = Field(1.0, gt=0, le=1, description="Overlap from which it is worth 1.")
    positives: int = Field(1, ge=1, description="Moments that count as a sentence's own: those of the most overlap.")
    negative_overlap: float = Field(0.5, ge=0, le=1, description="Moments of less overlap are negatives of a sentence.")
    removal_overlap: float = Field(
        0.5, ge=0, le=1, description="Sentences of a video whose windows overlap by so much are no negatives."
    )
    temperature_video: float = Field(0.1, gt=0, description="Of a moment among sentences.")
    temperature_sentence: float = Field(0.1, gt=0, description="Of a sentence among moments.")
    margin: float = Field(0.4, ge=0, description="By which a positive's cosine is lowered.")
    contrastive: float = Field(0.05, ge=0, description="Weight of both mutual losses.")
    late: float = Field(0.01, ge=0, description="What that weight is multiplied by after its first epochs.")
    full_epochs: int = Field(7, ge=0, description="Epochs of the full weight.")
    in_video: bool = Field(
        False, description="Sentences of the same video are negatives only where `in_video_negatives` lists them."
    )
    hard_order: float = Field(0.0, ge=0, description="Weight of SHINE's order of hard negatives (with shine).")
    hard_margin: float = Field(0.1, ge=0, description="Its margin.")
    hard_overlap: float = Field(
        0.0, ge=0, description="Weight of what hard negatives overlap with, which is to be no moment (with shine)."
    )
    most_sentences: int | None = Field(None, ge=1, description="Sentences of a video in a step, drawn each epoch.")

    @model_validator(mode="after")
    def _is_a_loss(self) -> "MMNLosses":
        self.settings()
        return self

    def settings(self) -> MMNLossSettings:
        """The losses; SHINE's negatives stand among the sentences that a moment is told from."""
        chosen = {name: getattr(self, name) for name in MMNLossSettings.__dataclass_fields__ if name != "hard"}
        return MMNLossSettings(
            hard=self.shine, **chosen if self.shine else chosen | {"hard_order": 0.0, "hard_overlap": 0.0}
        )


class MapConfig(HardNegativeModel):
    """The map of candidates, its convolutions, and how windows are made; the defaults are those of Charades-STA."""

    clips: int = Field(16, ge=2, description="Width of the map: clips that a video is seen as.")
    segments: int = Field(32, ge=2, description="Equal parts of a video that its features are averaged to.")
    pool: int = Field(2, ge=1, description="Segments that are averaged to a clip.")
    counts: tuple[int, ...] = Field(
        (15,), min_length=1, description="Steps to longer moments, each 1 clip longer, then 2, then 4, …"
    )
    kind: Literal["pool", "conv"] = Field("pool", description="How a moment's feature is made of its clips'.")
    proposal: int = Field(512, ge=1, description="Width of the convolutions over the map.")
    kernel: int = Field(5, ge=1, description="Kernel of the convolutions.")
    layers: int = Field(8, ge=1, description="How many convolutions.")
    joint: int = Field(256, ge=1, description="Width of the two spaces that sentences and moments share.")
    power: float = Field(0.5, ge=0, description="Share of the contrastive score in a moment's: its exponent.")
    suppression: float = Field(0.5, ge=0, le=1, description="A moment that overlaps a better one by more is dropped.")
    keep: int = Field(10, ge=1, description="Windows of a query.")

    losses: MMNLosses = MMNLosses()

    @model_validator(mode="after")
    def _is_a_map(self) -> "MapConfig":
        self.sizes(1, 1)
        if self.clips <= sum(count * 2**group for group, count in enumerate(self.counts)):
            raise ValueError(f"a map of {self.clips} clips is too narrow for steps {self.counts}")
        if (self.kernel - 1) * self.layers % 2:
            raise ValueError(f"{self.layers} layers of kernel {self.kernel} change the size of the map")
        return self

    def sizes(self, video_dim: int, text_dim: int, **more: Any) -> MMNSettings:
        """What the network is built from for features of these widths; `more` are a model's own."""
        names = "clips", "segments", "pool", "counts", "kind", "proposal", "kernel", "layers", "joint"
        return MMNSettings(video_dim, text_dim, **{name: getattr(self, name) for name in names}, **more)

    @property
    def loss_settings(self) -> MMNLossSettings:
        """See `MMNLosses.settings`."""
        return self.losses.settings()

    @property
    def reads_in_video(self) -> bool:
        """See `ModelConfig.reads_in_video`."""
        return self.losses.in_video


class MMNConfig(MapConfig):
    """MMN (Wang et al., AAAI 2022)."""

    name: Literal["mmn"] = Field("mmn", description="Which model.")
    hidden: int = Field(512, ge=1, description="Width of clips and of the map.")

    def sizes(self, video_dim: int, text_dim: int, **more: Any) -> MMNSettings:
        """See `MapConfig.sizes`."""
        return super().sizes(video_dim, text_dim, hidden=self.hidden, **more)


AnMMN = TypeVar("AnMMN", bound=MapConfig)


class MMNObjective(nn.Module):
    """Model and losses as one module."""

    def __init__(self, model: mmn.MMN, losses: MMNLossSettings, bf16: bool = False) -> None:
        super().__init__()
        self.model, self.losses, self.bf16 = model, losses, bf16

    def forward(self, batch: tuple[MapInputs, MapTargets]) -> tuple[Tensor, dict[str, Tensor]]:
        """The total with gradient, and all terms without."""
        inputs, targets = batch
        with autocast(inputs.video.device, self.bf16):
            outputs = self.model(inputs)
        found = mmn_losses(outputs, targets, self.losses)
        return found.total, found.terms


class MMNSystem(System[AnMMN]):
    """MMN under given settings; `losses.shine` brings the hard negatives in."""

    models: ClassVar[tuple[type[ModelConfig], ...]] = (MMNConfig,)

    def build(self, video_dim: int, text_dim: int) -> nn.Module:
        """See `System.build`."""
        return mmn.MMN(self.config.sizes(video_dim, text_dim))

    def widths(self, weights: Mapping[str, Tensor]) -> tuple[int, int]:
        """See `System.widths`."""
        return weights["clip_projection.weight"].shape[1], len(weights["sentences.norm.weight"])

    def data(self, examples: Examples, videos: Features, texts: Features, device: torch.device) -> MapData:
        """See `System.data`."""
        losses = self.config.losses
        return MapData(
            examples,
            videos,
            texts,
            device,
            self.config.sizes(videos.channels, texts.channels),
            batch_size=self.settings.training.batch_size,
            full_epochs=losses.full_epochs,
            most_sentences=losses.most_sentences,
            hard=self.config.loss_settings.needs_hard,
            in_video=losses.in_video,
        )

    def objective(self, model: nn.Module) -> nn.Module:
        """See `System.objective`."""
        return MMNObjective(cast(mmn.MMN, model), self.config.loss_settings, self.bf16)

    def predict(self, model: nn.Module, data: MapData) -> list[Prediction]:
        """See `System.predict`; saliency is the score of the one-clip moment that a clip lies in."""
        found: list[Prediction | None] = [None] * len(data)
        config = self.config
        for rows, index, outputs in _outputs(model, data, self.bf16):
            scores = outputs.fused(config.power)
            windows = candidate_windows(data.cells, config.clips, data.columns["duration"][index])
            ranked = torch.cat((windows, scores[..., None]), dim=-1)
            kept = suppress(ranked, config.suppression, before=ranked.shape[1], after=config.keep)
            single = scores[:, data.cells[:, 0] == data.cells[:, 1]].cpu().numpy()
            for row, best, saliency in zip(rows.tolist(), kept, single, strict=True):
                clips = int(data.videos.host_lengths[data.examples.video[row]])
                clip = ((np.arange(clips) + 0.5) * config.clips / clips).astype(int)
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
                score = texts.fused(self.config.power).gather(1, best)[:, 0]
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
