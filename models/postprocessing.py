"""From a model's heads to ranked windows in seconds, as the published inference does it."""

import torch
from torch import Tensor

from penumbra.models.spans import hull_iou, to_windows


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
    """Greedy temporal non-maximum suppression of rows [B, n, 3]: those that stay, [at most `after`, 3] a query.

    Of `before` rows by score those are dropped whose intersection with a kept one, over their hull, is above the
    threshold. All queries take their next row together. Equal scores stay as torch's default sort leaves them, as in
    MMN's published code; that sort is not stable.
    """
    rows = ranked[:, :before]
    order = rows[..., 2].argsort(dim=1, descending=True)
    rows = rows.gather(1, order[..., None].expand(-1, -1, 3))
    left = torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device)
    chosen = torch.zeros_like(left)
    for _ in range(min(after, rows.shape[1])):
        next_row = left & (left.cumsum(1) == 1)
        best = (rows * next_row[..., None]).sum(1, keepdim=True)
        chosen |= next_row
        left &= ~next_row & (hull_iou(best[..., :2], rows[..., :2]) <= threshold)
    return [kept[flags] for kept, flags in zip(rows, chosen, strict=True)]


def _four_decimals(values: Tensor) -> Tensor:
    """Every number as "%.4f" prints it: rounding by multiplication is not the same in the last bit."""
    printed = [float(f"{value:.4f}") for value in values.flatten().tolist()]
    return torch.tensor(printed, dtype=torch.float64).view(values.shape)
