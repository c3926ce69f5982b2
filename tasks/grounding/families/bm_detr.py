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
NEARLY = 1e-4  # clips; a time that is nearer to a clip's border counts as on it


class BMDETRLossConfig(ExistenceConfig):
    """Which negative queries BM-DETR's losses take, and the existence head."""

    negatives: Literal["in_video", "generated", "both", "none"] = Field(
        "in_video", description="Queries of other moments of the video, generated hard negatives, both, or none."
    )


class BMDETRConfig(DETRConfig):
    """BM-DETR (Jung et al., WACV 2025)."""

    network, options, loss_options = BMDETR, BMDETRSettings, BMDETRLosses

    name: Literal["bm_detr"] = Field("bm_detr", description="Name of the model.")
    as_published: Literal["corrected", "paper", "released"] = Field(
        "corrected",
        description="The authors' released code without its faults, or as it is; or the paper, whose decoder sees "
        "weighted clips.",
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
        """See `ModelConfig.on_hard_negatives`; without them, `negatives` are other queries of the same video."""
        return {"losses": {"negatives": "both" if wanted else "in_video"}}


def distinct_videos(video: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """Return the rows of each batch of an epoch: every query once, no two of a video in a batch, sizes nearly equal.

    Queries are ordered by video, at random, and dealt out in turn to as many batches as their number, or the video with
    the most queries, needs. (The published code drops a drawn query whose video is in the batch already.)
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
    """Queries of BM-DETR on one device. A batch never holds two queries of one video, and a cut video ends there."""

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
        """See `DeviceData.batch`; with temporal shifting the targets are a pair: of videos, then of shifted ones."""
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
        """Return inputs with a negative drawn for each query, or its first, and which of them [batch] are generated.

        A generated negative has no moment in the video, another query of the video has. A query without negatives gets
        no token.
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
        """Return the paper's Table 9: mean probability of clips in and out of the moment, without and with a negative.

        The means are over queries that have a negative (their first); empty without the frame matcher.
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


# -- temporal shifting (section 3.4): a moment is cut out of its video and put in elsewhere ---------------------------
#
# Four things differ from the published code, on purpose. Its labels are clip numbers that are then read as seconds:
# right at a clip length of 1 s but for the last clip, which is lost, and wrong at any other; here all clips that the
# window touches move, and the window with them. Its moment never comes last; here every place is as likely. A moment
# that covers the whole video makes it crash; here it stays. And it moves the temporal endpoint channels with the
# features, so that a clip still says where it was; here they belong to the place, unless `shift_endpoints` is set.


def touched(spans: Tensor, length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first and last clip [batch] that a window touches, and the window [batch, 2] in clips, cut to them.

    spans [batch, 2] as (centre, width), fractions of a video of `length` [batch] clips.
    """
    start, end = (to_windows(spans) * length[:, None]).unbind(-1)
    first = (start + NEARLY).floor().long().clamp(min=0).minimum(length - 1)
    last = ((end - NEARLY).ceil().long() - 1).maximum(first).minimum(length - 1)
    return first, last, torch.stack((start.maximum(first), end.minimum(last + 1)), dim=-1)


def moved(first: Tensor, count: Tensor, begin: Tensor, length: Tensor, places: int) -> Tensor:
    """Return the source [batch, places] of each clip of the shifted video: `count` clips from `first` move to `begin`.

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
    """Return the batch with its moments moved. Queries with several windows or graded clips stay as they are.

    extremes [batch, 2] are -1 if clips have no grades (`Examples`).
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
