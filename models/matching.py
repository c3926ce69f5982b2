"""Which moment query answers for which window: the cheapest one-to-one assignment (Carion et al., DETR, ECCV 2020)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from penumbra.models.spans import generalised_iou, to_windows


@dataclass(frozen=True)
class MatchingCosts:
    """Weights of the three costs of an assignment."""

    span: float = 10.0
    giou: float = 1.0
    label: float = 4.0


def cost_matrix(logits: Tensor, spans: Tensor, targets: Tensor, costs: MatchingCosts) -> Tensor:
    """Cost [B, Q, W] of giving window w of a sample to moment query q, in float32 and without gradient.

    logits [B, Q, 2], spans [B, Q, 2] and targets [B, W, 2] as (centre, width). Samples are apart: computing the cost
    across samples, as the published code does, only to use its diagonal blocks gives the same.
    """
    with torch.no_grad():
        logits, spans = logits.float(), spans.float()
        foreground = logits.softmax(-1)[..., :1]
        distance = (spans[:, :, None] - targets[:, None]).abs().sum(-1)
        overlap = generalised_iou(to_windows(spans)[:, :, None], to_windows(targets)[:, None])
        return costs.span * distance - costs.giou * overlap - costs.label * foreground


def match(logits: Tensor, spans: Tensor, targets: Tensor, present: Tensor, costs: MatchingCosts) -> Tensor:
    """The query [B, W] that each window is given to; -1 for windows that are not `present` [B, W] or left over.

    Where no sample can have more than one window (W = 1) this is an argmin on the device, and nothing goes to the
    host; otherwise scipy solves each sample.
    """
    cost = cost_matrix(logits, spans, targets, costs)
    if targets.shape[1] == 1:
        return cost.argmin(1).masked_fill(~present, -1)
    return _assign(cost.cpu(), present.cpu()).to(targets.device)


def _assign(cost: Tensor, present: Tensor) -> Tensor:
    from scipy.optimize import linear_sum_assignment

    found = torch.full(present.shape, -1)
    for sample, windows in enumerate(present):
        places = windows.nonzero()[:, 0]
        queries, columns = linear_sum_assignment(cost[sample][:, places].numpy())
        found[sample, places[torch.from_numpy(columns)]] = torch.from_numpy(queries)
    return found
