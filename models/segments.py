"""Any number of clips as a fixed number of segments, as MMN's loader averages them."""

import torch
from torch import Tensor


def segment_means(video: Tensor, lengths: Tensor, segments: int) -> Tensor:
    """Means [B, segments, channels] of equal parts of videos [B, Lv, channels] that have `lengths` [B] clips.

    Bounds are i/segments of the length, rounded half to even and at most the last clip, so that the last clip of a
    video with more clips than segments counts for nothing, as published. A segment without a clip is the clip where it
    begins: a video shorter than the map repeats its clips. The mean is a product with a matrix of shares.
    """
    parts = torch.arange(segments + 1, device=video.device, dtype=torch.float64) / segments
    bounds = (parts * lengths[:, None]).round().long().minimum(lengths[:, None] - 1)
    first, after = bounds[:, :-1], bounds[:, 1:].maximum(bounds[:, :-1] + 1)
    place = torch.arange(video.shape[1], device=video.device)
    inside = (place >= first[..., None]) & (place < after[..., None])
    return (inside / (after - first)[..., None]) @ video
