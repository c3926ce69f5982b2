"""Matching of moment queries with true windows (Carion et al., DETR, ECCV 2020, section 3.1)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from penumbra.models.spans import generalised_iou, to_windows


@dataclass(frozen=True)
class MatchingCosts:
    """Weights of the matching costs: L1 distance, negative GIoU, and negative foreground probability."""

    span: float = 10.0
    giou: float = 1.0
    label: float = 4.0


def cost_matrix(logits: Tensor, spans: Tensor, targets: Tensor, costs: MatchingCosts) -> Tensor:
    """Return the cost [batch, queries, windows] of matching each moment query with each window, without gradient.

    logits and spans [batch, queries, 2], targets [batch, windows, 2] as (centre, width). The published code also
    computes costs between samples and ignores them.
    """
    with torch.no_grad():
        logits, spans = logits.float(), spans.float()
        foreground = logits.softmax(-1)[..., :1]  # [batch, queries, 1]
        distance = (spans[:, :, None] - targets[:, None]).abs().sum(-1)  # [batch, queries, windows]
        overlap = generalised_iou(to_windows(spans)[:, :, None], to_windows(targets)[:, None])
        return costs.span * distance - costs.giou * overlap - costs.label * foreground


def match(logits: Tensor, spans: Tensor, targets: Tensor, present: Tensor, costs: MatchingCosts) -> Tensor:
    """Return the index [batch, windows] of the moment query that each window is matched with, at the lowest total cost.

    The index is -1 if a window is padding (not `present` [batch, windows]) or is left over, because there are fewer
    moment queries. One window per sample is matched by an argmin on the device, several by scipy on the host.
    """
    from scipy.optimize import linear_sum_assignment

    cost = cost_matrix(logits, spans, targets, costs)
    if targets.shape[1] == 1:
        return cost.argmin(1).masked_fill(~present, -1)
    cost, assigned = cost.cpu(), torch.full(present.shape, -1)
    for sample, windows in enumerate(present.cpu()):
        places = windows.nonzero()[:, 0]
        queries, columns = linear_sum_assignment(cost[sample][:, places].numpy())
        assigned[sample, places[torch.from_numpy(columns)]] = torch.from_numpy(queries)
    return assigned.to(targets.device)
