"""BM-DETR (Jung et al., WACV 2025): negative queries and temporal shifting in training, neither in prediction."""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from penumbra.models.bm_detr import BMDETR, BMDETRLosses, BMDETRSettings
from penumbra.models.detr import Inputs
from penumbra.models.losses import Targets, masked_mean
from penumbra.models.spans import to_spans, to_windows
from penumbra.tasks.grounding.batches.examples import Examples
from penumbra.tasks.grounding.configs import BaseSettings
from penumbra.tasks.grounding.families.base import HEAD, ExistenceConfig
from penumbra.tasks.grounding.families.detr import ENDPOINTS, DETRConfig, DETRSystem, DeviceData, draw_pairs, outputs_of

FIGURES = ("probability inside", "probability outside", "joint probability inside", "joint probability outside")
NEARLY = 1e-4  # tolerance in clips: a time that is closer to the border of a clip counts as on the border


class BMDETRLossConfig(ExistenceConfig):
    """The negative queries of BM-DETR's losses, and the existence head."""

    negatives: Literal["in_video", "generated", "both", "none"] = Field(
        "in_video", description="Queries of other moments of the video, generated hard negatives, both, or none."
    )


class BMDETRConfig(DETRConfig):
    """BM-DETR (Jung et al., WACV 2025)."""

    network, options, loss_options = BMDETR, BMDETRSettings, BMDETRLosses

    name: Literal["bm_detr"] = Field("bm_detr", description="Name of the model.")
    as_published: Literal["corrected", "paper", "released"] = Field(
        "corrected",
        description="The authors' released code with its faults corrected, or unchanged; or the paper, whose decoder "
        "reads weighted clips.",
    )
    losses: BMDETRLossConfig = BMDETRLossConfig()

    @property
    def published_changes(self) -> dict[str, Any]:
        if self.as_published == "released":
            return {"frame_weights": "official", "shift_endpoints": True, "class_error": 1.0}
        return {"weighted_decoder": True} if self.as_published == "paper" else {}

    @property
    def reads(self) -> set[str]:
        kinds = {"in_video": {"in_video_negatives"}, "generated": {"negatives"}, "none": set[str]()}
        return kinds.get(self.losses.negatives, {"in_video_negatives", "negatives"})

    def on_hard_negatives(self, wanted: bool) -> dict[str, Any]:
        """See `ModelConfig.on_hard_negatives`; False selects only other queries of the same video."""
        return {"losses": {"negatives": "both" if wanted else "in_video"}}


def distinct_videos(video: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """Return the rows of each batch of an epoch: each query once, each video at most once per batch, similar sizes.

    Queries are sorted by video, in random order, and assigned to the batches in turn; there are at least as many
    batches as queries of any video. (The published code instead drops a query whose video is already in the batch.)
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
    """Queries of BM-DETR on one device, in batches without two queries of one video; durations end with the cut."""

    def __init__(self, examples: Examples, device: torch.device, settings: BaseSettings) -> None:
        clips = settings.inputs.longest_video
        end = torch.inf if clips is None else clips * examples.videos.clip_length  # of a video that is cut
        super().__init__(replace(examples, duration=examples.duration.clamp(max=end)), device, settings)
        self.longest = min(self.longest, end)
        self.options, self.group_by_length = settings.model.network_options, False
        self.negatives = negatives = self.losses.negatives
        hard = zip(examples.hard.T, examples.hard_present.T, strict=True)
        generated = [it[present].tolist() if negatives in ("generated", "both") else [] for it, present in hard]
        inside = [others if negatives in ("in_video", "both") else [] for others in examples.in_video]
        several = [[*others, *made] for others, made in zip(inside, generated, strict=True)]
        most = max([1, *map(len, several)])
        filled = [(it + [own] * most)[:most] for it, own in zip(several, examples.text.tolist(), strict=True)]
        self.pool = torch.tensor(filled, dtype=torch.long).view(-1, most)  # [N, most], texts of each query's negatives
        counts = {"negatives": torch.tensor([*map(len, several)]), "inside": torch.tensor([*map(len, inside)])}
        self.columns |= {name: it.to(device) for name, it in {"pool": self.pool, **counts}.items()}

    def batches(self, seed: int, epoch: int) -> list[Tensor]:
        return distinct_videos(self.video, self.batch_size, seed, epoch)

    def batch(self, rows: Tensor) -> tuple[Inputs, Any]:
        """See `DeviceData.batch`; with temporal shifting, targets are a pair: of the videos, of the shifted videos."""
        inputs, targets = super().batch(rows)
        index = rows.to(self.device, non_blocking=True)
        inside = self.clips.gather(index, targets.video_mask.shape[1])[0][..., 1]
        targets = replace(targets, clip_scores=inside)  # all relevant clips count alike, graded or not
        if self.negatives != "none":
            inputs, false = self.with_negatives(inputs, rows, first=False)
            if targets.false is not None:
                targets = replace(targets, false=torch.cat((targets.false, false[None])))
        if not self.options.shifting:
            return inputs, targets
        extremes = self.columns["extremes"][index]
        shifted, shifted_targets = shift(inputs, targets, extremes, self.clip_length, self.options)
        video, mask = torch.cat((inputs.video, shifted.video)), inputs.video_mask.repeat(2, 1)
        both = Inputs(video, mask, inputs.text.repeat(1, 2, 1, 1), inputs.text_mask.repeat(1, 2, 1))
        return both, (targets, shifted_targets)

    def with_negatives(self, inputs: Inputs, rows: Tensor, first: bool) -> tuple[Inputs, Tensor]:
        """Return inputs with a random negative of each query, or its first, and a mask [batch] of generated ones.

        Generated negatives are false of the video, other queries of the video are true. Queries without negatives get
        an empty text.
        """
        index = rows.to(self.device, non_blocking=True)
        size = self.columns["negatives"][index]
        share = torch.zeros(len(rows), device=self.device) if first else torch.rand(len(rows), device=self.device)
        chosen = (share * size).long().minimum((size - 1).clamp(min=0))
        texts = torch.stack((self.columns["text"][index], self.columns["pool"][index, chosen]))
        words = max(inputs.text.shape[2], self.texts.longest(self.pool[rows].numpy()))
        text, mask = self.texts.gather(texts, words)
        mask[1] &= (size > 0)[:, None]
        generated = (chosen >= self.columns["inside"][index]) & (size > 0)
        return replace(inputs, text=text.float(), text_mask=mask), generated


class BMDETRSystem(DETRSystem[BMDETRConfig]):
    """Family of BM-DETR, with its own data and figures."""

    models = (BMDETRConfig,)
    data_type = BackgroundData
    has_static_shapes = False  # a batch holds different videos, not videos of like length

    @property
    def evidence(self) -> tuple[str, ...]:
        names, matched = super().evidence, self.config.network_options.frame_matcher
        return (*names, "highest probability") if matched and HEAD not in names else names

    def figures(self, model: nn.Module, data: BackgroundData) -> dict[str, float]:
        """Return the paper's Table 9: mean probability of clips inside and outside, without and with a negative.

        The means are over queries with a negative, of which the first is used; empty without the frame matcher.
        """

        def with_negatives(rows: Tensor) -> Inputs:
            return data.with_negatives(data.inputs(rows), rows, first=True)[0]

        known, means = data.columns["negatives"] > 0, list[float]()
        if not known.any():
            return {}
        for gather in (data.inputs, with_negatives):
            several = []
            for rows, outputs in outputs_of(model, data, gather):
                if outputs.probability is None:
                    return {}
                index = rows.to(data.device)
                flags, mask = data.clips.gather(index, outputs.probability.shape[1])
                inside = flags[..., 1] > 0
                sides = [masked_mean(outputs.probability, clips, 1) for clips in (inside, mask & ~inside)]
                several.append(torch.stack(sides, dim=1)[known[index]])
            means += torch.cat(several).double().mean(0).tolist()
        return {**dict(zip(FIGURES, means, strict=True)), "queries with a negative": float(known.sum())}


# -- temporal shifting (section 3.4): a moment is cut out of its video and inserted elsewhere -------------------------
#
# Four differences from the published code are intended. It reads clip numbers as seconds, which loses the last clip
# at a clip length of 1 s and is wrong at other lengths; here all clips that the window touches move with the window.
# It never moves a moment to the end; here all places have the same probability. It crashes if a moment covers the
# whole video; here such a moment stays. It moves the temporal endpoint channels with the features, so that a clip
# keeps its old position; here the channels stay in place unless `shift_endpoints` is set.


def touched(spans: Tensor, length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first and last clip [batch] that a window touches, and the window [batch, 2] in clips, cut to these.

    spans [batch, 2] as (centre, width), fractions of a video of `length` [batch] clips.
    """
    start, end = (to_windows(spans) * length[:, None]).unbind(-1)
    first = (start + NEARLY).floor().long().clamp(min=0).minimum(length - 1)
    last = ((end - NEARLY).ceil().long() - 1).maximum(first).minimum(length - 1)
    return first, last, torch.stack((start.maximum(first), end.minimum(last + 1)), dim=-1)


def moved(first: Tensor, count: Tensor, begin: Tensor, length: Tensor, places: int) -> Tensor:
    """Return the source [batch, places] of each clip of the shifted video: `count` clips at `first` move to `begin`.

    All arguments are [batch]; `length` is the number of a video's clips, and padding stays in place.
    """
    first, count, begin = first[:, None], count[:, None], begin[:, None]
    place = torch.arange(places, device=first.device).expand(len(first), -1)
    other = torch.where(place < begin, place, place - count)  # number among the clips that stay
    other = torch.where(other < first, other, other + count)
    source = torch.where((place >= begin) & (place < begin + count), place - begin + first, other)
    return torch.where(place < length[:, None], source, place)


def shift(
    inputs: Inputs, targets: Targets, extremes: Tensor, clip_length: float, options: BMDETRSettings
) -> tuple[Inputs, Targets]:
    """Return the batch with moved moments. Queries with several windows or scored clips are not changed.

    extremes [batch, 2] are -1 if clips have no scores (`Examples`).
    """
    mask, length = targets.video_mask, targets.video_mask.sum(1)
    first, last, window = touched(targets.spans[:, 0], length)
    count = last - first + 1
    movable = (targets.span_mask.sum(1) == 1) & (extremes[:, 0] < 0) & (count < length)
    if options.shift_below is not None:
        movable = movable & (length * clip_length < options.shift_below)
    rest = length - count
    drawn = (torch.rand(len(length), device=length.device) * (rest + 1)).long().minimum(rest)
    begin = torch.where(movable, drawn, first)
    source = moved(first, count, begin, length, mask.shape[1])
    channels = inputs.video.shape[-1] - (0 if options.shift_endpoints else ENDPOINTS)
    features = inputs.video[..., :channels].gather(1, source[..., None].expand(-1, -1, channels))
    video = torch.cat((features, inputs.video[..., channels:]), dim=-1)
    window = to_spans((window + (begin - first)[:, None]) / length[:, None])
    spans = torch.where(movable[:, None, None], window[:, None], targets.spans)
    place = torch.arange(mask.shape[1], device=mask.device)
    moving = (place >= first[:, None]) & (place <= last[:, None])
    inside = targets.inside & moving
    inside = torch.where(inside.any(1, keepdim=True), inside, moving)  # a short window may have no clip of its own
    scores = torch.where(movable[:, None], inside.to(targets.clip_scores.dtype).gather(1, source), targets.clip_scores)
    high, low = draw_pairs(scores > 0, mask, extremes)
    targets = replace(targets, spans=spans, clip_scores=scores, high_clips=high, low_clips=low)
    return replace(inputs, video=video), targets
