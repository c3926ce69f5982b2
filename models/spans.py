"""Spans and windows of a video, their overlap, and the ranking of windows as in the published inference code.

A span is (centre, width), a window [start, end], both as fractions of the video unless a docstring says seconds.
"""

import torch
from torch import Tensor

SMALLEST = 1e-3  # smallest fraction in the inverse sigmoid of all DETR models


def to_windows(spans: Tensor) -> Tensor:
    """Return [start, end] [..., 2] of spans (centre, width) [..., 2]."""
    centre, width = spans.unbind(-1)
    return torch.stack((centre - 0.5 * width, centre + 0.5 * width), dim=-1)


def to_spans(windows: Tensor) -> Tensor:
    """Return (centre, width) [..., 2] of windows [start, end] [..., 2]."""
    start, end = windows.unbind(-1)
    return torch.stack((0.5 * (start + end), end - start), dim=-1)


def iou(first: Tensor, second: Tensor) -> Tensor:
    """Return the intersection over union of windows [..., 2], broadcast against each other."""
    inter, union, _ = _overlap(first, second)
    return inter / union


def hull_iou(first: Tensor, second: Tensor) -> Tensor:
    """Return the intersection over the hull of windows [..., 2]: the IoU if they overlap, 0 if the hull is empty."""
    inter, _, hull = _overlap(first, second)
    return torch.where(hull == 0, 0.0, inter / hull)


def generalised_iou(first: Tensor, second: Tensor) -> Tensor:
    """Return the GIoU of windows [..., 2]: IoU - (hull - union) / hull (Rezatofighi et al., CVPR 2019)."""
    inter, union, hull = _overlap(first, second)
    return inter / union - (hull - union) / hull


def _overlap(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the lengths of intersection, union and hull."""
    inter = (first[..., 1].minimum(second[..., 1]) - first[..., 0].maximum(second[..., 0])).clamp(min=0)
    union = (first[..., 1] - first[..., 0]) + (second[..., 1] - second[..., 0]) - inter
    return inter, union, first[..., 1].maximum(second[..., 1]) - first[..., 0].minimum(second[..., 0])


def inverse_sigmoid(fraction: Tensor) -> Tensor:
    """Return the logit of a fraction, which is clamped to at least 0.001 away from 0 and 1."""
    fraction = fraction.clamp(0, 1)
    return (fraction.clamp(min=SMALLEST) / (1 - fraction).clamp(min=SMALLEST)).log()


# -- ranked windows in seconds ----------------------------------------------------------------------------------------


def rank_windows(spans: Tensor, scores: Tensor, durations: Tensor) -> Tensor:
    """Return rows (start s, end s, score) [batch, queries, 3], best first, in float64 with four decimals.

    spans [batch, queries, 2] are multiplied by the durations [batch]. (As published, training targets are fractions of
    the length of all clips, which may be longer.) Equal scores keep the order of the moment queries.
    """
    windows = to_windows(spans.float()) * durations.to(spans.device, torch.float32)[:, None, None]
    rows = torch.cat((windows, scores.float()[..., None]), dim=-1)  # [batch, queries, 3]
    order = scores.float().argsort(dim=1, descending=True, stable=True)
    return _four_decimals(rows.gather(1, order[..., None].expand(-1, -1, 3)).double().cpu())


def snap_windows(ranked: Tensor, clip_length: float, longest: float) -> Tensor:
    """Return rows [batch, queries, 3] clamped to [0, longest] seconds and rounded to clips, half to even."""
    windows, scores = ranked[..., :2].float(), ranked[..., 2:]
    windows = (windows.clamp(0, longest) / clip_length).round() * clip_length
    return torch.cat((windows.double(), _four_decimals(scores.float().double())), dim=-1)


def suppress(ranked: Tensor, threshold: float, keep: int = 10) -> list[Tensor]:
    """Return the rows [at most `keep`, 3] of each query after greedy temporal non-maximum suppression.

    A row is dropped if its `hull_iou` with a kept row is above the threshold. As in MMN's published code, rows are
    sorted by score with torch's default sort, which is not stable.
    """
    order = ranked[..., 2].argsort(dim=1, descending=True)
    rows = ranked.gather(1, order[..., None].expand(-1, -1, 3))
    left = torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device)
    chosen = torch.zeros_like(left)
    for _ in range(min(keep, rows.shape[1])):
        next_row = left & (left.cumsum(1) == 1)  # the first row left of each query
        best = (rows * next_row[..., None]).sum(1, keepdim=True)  # [batch, 1, 3]
        chosen |= next_row
        left &= ~next_row & (hull_iou(best[..., :2], rows[..., :2]) <= threshold)
    return [kept[flags] for kept, flags in zip(rows, chosen, strict=True)]


def _four_decimals(values: Tensor) -> Tensor:
    """Round every number as "%.4f" prints it; rounding by multiplication differs in the last bit."""
    printed = [float(f"{value:.4f}") for value in values.flatten().tolist()]
    return torch.tensor(printed, dtype=torch.float64).view(values.shape)
