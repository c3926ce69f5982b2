"""Foreground or background: the class loss over all moment queries."""

import torch
from torch import Tensor
from torch.nn import functional


def _foreground(assigned: Tensor, queries: int) -> Tensor:
    """Which of the queries [B, Q] are matched by `assigned` [B, W]."""
    index = assigned.where(assigned >= 0, queries)  # what is not matched falls into a column that is cut off
    flags = torch.zeros(assigned.shape[0], queries + 1, dtype=torch.bool, device=assigned.device)
    return flags.scatter(1, index, True)[:, :queries]


def label_loss(logits: Tensor, assigned: Tensor, background_weight: float) -> Tensor:
    """Weighted cross entropy, averaged over all B·Q queries and not divided by the sum of the weights, as published.

    logits [B, Q, 2]: class 0 is foreground, class 1 background with the lesser weight.
    """
    foreground = _foreground(assigned, logits.shape[1])
    label = (~foreground).long()
    entropy = functional.cross_entropy(logits.float().flatten(0, 1), label.flatten(), reduction="none")
    weight = torch.where(foreground, 1.0, background_weight).flatten()
    return (entropy * weight).mean()


def class_error(logits: Tensor, assigned: Tensor) -> Tensor:
    """Percentage of matched queries that are called background: to look at, not to train on."""
    foreground = _foreground(assigned, logits.shape[1])
    right = (logits.argmax(-1) == 0) & foreground
    return 100 - 100 * right.sum() / foreground.sum().clamp(min=1)
