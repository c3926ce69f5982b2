"""BM-DETR's temporal shifting (WACV 2025, section 3.4): a moment is cut out of its video and put in elsewhere.

Four things differ from the published code, on purpose. Its labels are clip numbers that are then read as seconds: right
at a clip length of 1 s but for the last clip, which is lost, and wrong at any other; here the new window is exactly the
clips that moved, in seconds. Its moment never comes last; here every place is as likely. A moment that covers the whole
video makes it crash; here it stays. And it moves the temporal endpoint channels with the features, so that a clip still
says where it was; here they belong to the place, unless `moves_endpoints` is set.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from models.losses.targets import Targets
from models.outputs import Inputs
from models.spans import to_spans
from tasks.training.device_data import ENDPOINTS, draw_pairs


@dataclass(frozen=True)
class Shifting:
    """Which videos are shifted: those shorter than `below` seconds (None: all); and whether endpoints move along."""

    below: float | None = 60.0
    moves_endpoints: bool = False


def moved(relevant: Tensor, movable: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Where each clip of the shifted video comes from [B, Lv], and the clip [B] at which the moment now begins.

    relevant [B, Lv] are the clips of the moment, one run; length [B] counts a video's clips. What is not `movable` [B]
    stays.
    """
    count, first = relevant.sum(1), relevant.int().argmax(1)
    rest = (length - count).clamp(min=0)
    drawn = (torch.rand(len(relevant), device=relevant.device) * (rest + 1)).long().minimum(rest)
    begin = torch.where(movable, drawn, first)[:, None]
    place = torch.arange(relevant.shape[1], device=relevant.device).expand(relevant.shape)
    first, count = first[:, None], count[:, None]
    other = torch.where(place < begin, place, place - count)  # its number among the clips that stay
    other = torch.where(other < first, other, other + count)
    source = torch.where((place >= begin) & (place < begin + count), place - begin + first, other)
    return torch.where(movable[:, None] & (place < length[:, None]), source, place), begin[:, 0]


def shift(
    inputs: Inputs, targets: Targets, extremes: Tensor, clip_length: float, shifting: Shifting
) -> tuple[Inputs, Targets]:
    """The batch with its moments elsewhere. Queries with several windows or graded clips stay as they are.

    extremes [B, 2] are -1 where clips have no grades (`Examples`).
    """
    mask, relevant = targets.video_mask, targets.inside
    length, count = mask.sum(1), relevant.sum(1)
    movable = (targets.span_mask.sum(1) == 1) & (extremes[:, 0] < 0) & (count > 0) & (count < length)
    if shifting.below is not None:
        movable = movable & (length * clip_length < shifting.below)
    source, begin = moved(relevant, movable, length)
    channels = inputs.video.shape[-1] - (0 if shifting.moves_endpoints else ENDPOINTS)
    features = inputs.video[..., :channels].gather(1, source[..., None].expand(-1, -1, channels))
    video = torch.cat((features, inputs.video[..., channels:]), dim=-1)
    scores = targets.clip_scores.gather(1, source)
    window = to_spans(torch.stack((begin, begin + count), dim=-1) / length[:, None])
    spans = torch.where(movable[:, None, None], window[:, None], targets.spans)
    high, low = draw_pairs(scores > 0, mask, extremes)
    return replace(inputs, video=video), replace(
        targets, spans=spans, clip_scores=scores, high_clips=high, low_clips=low
    )
