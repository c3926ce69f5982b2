"""BM-DETR's temporal shifting (WACV 2025, section 3.4): a moment is cut out of its video and put in elsewhere.

Four things differ from the published code, on purpose. Its labels are clip numbers that are then read as seconds: right
at a clip length of 1 s but for the last clip, which is lost, and wrong at any other; here all clips that the window
touches move, and the window with them. Its moment never comes last; here every place is as likely. A moment that covers
the whole video makes it crash; here it stays. And it moves the temporal endpoint channels with the features, so that a
clip still says where it was; here they belong to the place, unless `moves_endpoints` is set.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from penumbra.models.losses.targets import Targets
from penumbra.models.outputs import Inputs
from penumbra.models.spans import to_spans, to_windows
from penumbra.tasks.grounding.batches.device_data import ENDPOINTS, draw_pairs


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
