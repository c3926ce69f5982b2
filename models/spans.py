"""Spans of a video: (centre, width) and [start, end] as fractions of its length, and their overlap."""

from torch import Tensor, stack, where

SMALLEST = 1e-3  # of the inverse sigmoid, everywhere in the DETR family


def to_windows(spans: Tensor) -> Tensor:
    """(centre, width) [..., 2] to [start, end] [..., 2]."""
    centre, width = spans.unbind(-1)
    return stack((centre - 0.5 * width, centre + 0.5 * width), dim=-1)


def to_spans(windows: Tensor) -> Tensor:
    """[start, end] [..., 2] to (centre, width) [..., 2]."""
    start, end = windows.unbind(-1)
    return stack((0.5 * (start + end), end - start), dim=-1)


def iou(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of windows [..., 2], broadcast against each other."""
    return _overlap(first, second)[0]


def hull_iou(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over the hull of windows [..., 2], which is their IoU where they meet; 0 where the hull is empty."""
    inter = (first[..., 1].minimum(second[..., 1]) - first[..., 0].maximum(second[..., 0])).clamp(min=0)
    hull = first[..., 1].maximum(second[..., 1]) - first[..., 0].minimum(second[..., 0])
    return where(hull == 0, 0.0, inter / hull)


def generalised_iou(first: Tensor, second: Tensor) -> Tensor:
    """IoU less the share of the hull that neither window covers (Rezatofighi et al., CVPR 2019), in one dimension."""
    overlap, union = _overlap(first, second)
    hull = first[..., 1].maximum(second[..., 1]) - first[..., 0].minimum(second[..., 0])
    return overlap - (hull - union) / hull


def _overlap(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    inter = (first[..., 1].minimum(second[..., 1]) - first[..., 0].maximum(second[..., 0])).clamp(min=0)
    union = (first[..., 1] - first[..., 0]) + (second[..., 1] - second[..., 0]) - inter
    return inter / union, union


def inverse_sigmoid(fraction: Tensor) -> Tensor:
    """The logit of a fraction, which is kept 0.001 away from 0 and 1."""
    fraction = fraction.clamp(0, 1)
    return (fraction.clamp(min=SMALLEST) / (1 - fraction).clamp(min=SMALLEST)).log()
