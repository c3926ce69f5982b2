"""BM-DETR (Jung et al., WACV 2025): negative queries and temporal shifting in training, neither in prediction."""

from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from penumbra.models import bm_detr
from penumbra.models.grounding import GroundingModel
from penumbra.models.losses.probability import mean_over
from penumbra.models.losses.settings import LossSettings
from penumbra.models.losses.targets import Targets
from penumbra.models.matching import MatchingCosts
from penumbra.models.outputs import Inputs
from penumbra.models.settings import ModelSettings
from penumbra.models.spans import to_spans, to_windows
from penumbra.tasks.grounding.batches.device_data import ENDPOINTS, DeviceData, draw_pairs
from penumbra.tasks.grounding.batches.examples import Examples, Features
from penumbra.tasks.grounding.families.base import Prediction
from penumbra.tasks.grounding.families.detr import DETRConfig, DETRSystem, SaliencyLosses, outputs_of, predict


@dataclass(frozen=True)
class Shifting:
    """Which videos are shifted: those shorter than `below` seconds (None: all); and whether endpoints move along."""

    below: float | None = 60.0
    moves_endpoints: bool = False


NEARLY = 1e-4  # of a clip: so near to a clip's border is on it


def touched(spans: Tensor, length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First and last clip [B] that a window touches, and the window [B, 2] in clips, cut to them.

    spans [B, 2] as (centre, width), fractions of a video of `length` [B] clips.
    """
    start, end = (to_windows(spans) * length[:, None]).unbind(-1)
    first = (start + NEARLY).floor().long().clamp(min=0).minimum(length - 1)
    last = ((end - NEARLY).ceil().long() - 1).maximum(first).minimum(length - 1)
    return first, last, torch.stack((start.maximum(first), end.minimum(last + 1)), dim=-1)


def moved(first: Tensor, count: Tensor, begin: Tensor, length: Tensor, places: int) -> Tensor:
    """Where each clip of the shifted video comes from [B, places], if `count` clips from `first` on begin at `begin`.

    All [B]; `length` counts a video's clips, and padding stays where it is.
    """
    first, count, begin = first[:, None], count[:, None], begin[:, None]
    place = torch.arange(places, device=first.device).expand(len(first), -1)
    other = torch.where(place < begin, place, place - count)  # its number among the clips that stay
    other = torch.where(other < first, other, other + count)
    source = torch.where((place >= begin) & (place < begin + count), place - begin + first, other)
    return torch.where(place < length[:, None], source, place)


def shift(
    inputs: Inputs, targets: Targets, extremes: Tensor, clip_length: float, shifting: Shifting
) -> tuple[Inputs, Targets]:
    """The batch with its moments elsewhere. Queries with several windows or graded clips stay as they are.

    extremes [B, 2] are -1 where clips have no grades (`Examples`).
    """
    mask, length = targets.video_mask, targets.video_mask.sum(1)
    first, last, window = touched(targets.spans[:, 0], length)
    count = last - first + 1
    movable = (targets.span_mask.sum(1) == 1) & (extremes[:, 0] < 0) & (count < length)
    if shifting.below is not None:
        movable = movable & (length * clip_length < shifting.below)
    rest = length - count
    drawn = (torch.rand(len(length), device=length.device) * (rest + 1)).long().minimum(rest)
    begin = torch.where(movable, drawn, first)
    source = moved(first, count, begin, length, mask.shape[1])
    channels = inputs.video.shape[-1] - (0 if shifting.moves_endpoints else ENDPOINTS)
    features = inputs.video[..., :channels].gather(1, source[..., None].expand(-1, -1, channels))
    video = torch.cat((features, inputs.video[..., channels:]), dim=-1)
    window = to_spans((window + (begin - first)[:, None]) / length[:, None])
    spans = torch.where(movable[:, None, None], window[:, None], targets.spans)
    scores = torch.where(movable[:, None], _inside(targets, first, last).gather(1, source), targets.clip_scores)
    high, low = draw_pairs(scores > 0, mask, extremes)
    return replace(inputs, video=video), replace(
        targets, spans=spans, clip_scores=scores, high_clips=high, low_clips=low
    )


def _inside(targets: Targets, first: Tensor, last: Tensor) -> Tensor:
    """The moment's clips [B, Lv] among those that move: all of these where a window within one clip has none."""
    place = torch.arange(targets.clip_scores.shape[1], device=first.device)
    moving = (place >= first[:, None]) & (place <= last[:, None])
    inside = targets.inside & moving
    return torch.where(inside.any(1, keepdim=True), inside, moving).to(targets.clip_scores.dtype)


Negatives = Literal["in_video", "generated", "both", "none"]
MissingNegativePolicy = Literal["none", "other_video"]


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
        lonely: MissingNegativePolicy = "none",
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

    def batch(self, rows: Tensor) -> tuple[Inputs, Targets]:
        """Queries and their negatives beside the videos as they are and, where shifting is on, shifted."""
        inputs, targets = super().batch(rows)
        index = rows.to(self.device, non_blocking=True)
        inside = self.clips.gather(index, targets.video_mask.shape[1])[0][..., 1]
        targets = replace(targets, clip_scores=inside)  # where clips are graded, all relevant ones count alike
        if self.negatives != "none":
            inputs = self.with_negatives(inputs, rows, first=False)
        if self.shifting is None:
            return inputs, targets
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


def both(inputs: Inputs, targets: Targets, shifted: Inputs, shifted_targets: Targets) -> tuple[Inputs, Targets]:
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
    return stacked, (targets.beside(shifted_targets))


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
    without_negative: MissingNegativePolicy = Field(
        "none", description="A query that has no negative goes without, or takes another video's query."
    )

    def settings(self) -> LossSettings:
        """The losses that a step adds up: no auxiliary ones, and GIoU before L1."""
        costs = MatchingCosts(span=1.0, giou=8.0, label=8.0)
        chosen = self.model_dump(exclude={"negatives", "without_negative"})
        return LossSettings(costs.span, costs.giou, costs.label, costs=costs, auxiliary=False, **chosen)


class BMDETRConfig(DETRConfig):
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


class BMDETRSystem(DETRSystem[BMDETRConfig]):
    """Builds and trains as the DETR models do; its data, its figures and the end of a cut video are its own."""

    models = (BMDETRConfig,)
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
