"""From a model's heads to ranked windows in seconds, as the published inference does it."""

import torch
from torch import Tensor

from models.spans import to_windows


def rank_windows(spans: Tensor, scores: Tensor, durations: Tensor) -> Tensor:
    """Rows (start s, end s, score) [B, Q, 3], best first, in float64 with four decimals.

    spans [B, Q, 2] are fractions of the duration [B] (the labels are fractions of all clips, which may be a little
    longer: the published models differ there too). Equal scores keep the order of the moment queries.
    """
    windows = to_windows(spans.float()) * durations.to(spans.device, torch.float32)[:, None, None]
    rows = torch.cat((windows, scores.float()[..., None]), dim=-1)
    order = scores.float().argsort(dim=1, descending=True, stable=True)
    return _four_decimals(rows.gather(1, order[..., None].expand(-1, -1, 3)).double().cpu())


def snap_windows(ranked: Tensor, clip_length: float, longest: float | None) -> Tensor:
    """Windows [B, Q, 3] clamped to [0, longest] seconds (None: any) and rounded to clips, half to even, in float32."""
    windows, scores = ranked[..., :2].float(), ranked[..., 2:]
    windows = (windows.clamp(0, longest) / clip_length).round() * clip_length
    return torch.cat((windows.double(), _four_decimals(scores.float().double())), dim=-1)


def suppress(ranked: Tensor, threshold: float, before: int = 10, after: int = 10) -> list[Tensor]:
    """Greedy temporal non-maximum suppression: rows [n, 3] of each query, off in every recipe.

    Of `before` rows by score those are dropped whose intersection with a kept one, over their hull, is above the
    threshold; at most `after` stay.
    """
    kept = []
    for rows in ranked[:, :before]:
        left = rows[rows[:, 2].argsort(descending=True, stable=True)]
        chosen: list[Tensor] = []
        while len(left) and len(chosen) < after:
            best, left = left[0], left[1:]
            chosen.append(best)
            left = left[_hull_overlap(best, left) <= threshold]
        kept.append(torch.stack(chosen) if chosen else rows)
    return kept


def _hull_overlap(window: Tensor, others: Tensor) -> Tensor:
    inter = (others[:, 1].minimum(window[1]) - others[:, 0].maximum(window[0])).clamp(min=0)
    hull = others[:, 1].maximum(window[1]) - others[:, 0].minimum(window[0])
    return torch.where(hull == 0, 0.0, inter / hull)


def _four_decimals(values: Tensor) -> Tensor:
    """Every number as "%.4f" prints it: rounding by multiplication is not the same in the last bit."""
    printed = [float(f"{value:.4f}") for value in values.flatten().tolist()]
    return torch.tensor(printed, dtype=torch.float64).view(values.shape)
