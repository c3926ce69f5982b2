"""SHINE's fine ranking (ECCV 2024, Eq. 3 and 4): truth, positive, hard negatives and a random one in order."""

from typing import Literal

import torch
from torch import Tensor

from penumbra.models.losses.targets import Targets, masked_mean

Ranking = Literal["relative", "absolute"]


def divergence(reference: Tensor, saliency: Tensor, mask: Tensor) -> Tensor:
    """d(y, s) = -(1/T) sum_t y_t log s_t (Eq. 3) [..., B] over the valid clips; y has no gradient.

    The paper takes the logarithm of s itself, which a saliency score does not allow (it may be negative), and says
    nothing of gradients. As in the authors' code s goes through a sigmoid, 1e-9 is added, and y is detached.
    """
    log_share = (saliency.float().sigmoid() + 1e-9).log()
    return -(reference.detach() * log_share * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def fine_terms(
    saliency: Tensor,
    hard: Tensor,
    negative: Tensor | None,
    targets: Targets,
    margins: tuple[float, ...],
    ranking: Ranking,
) -> list[Tensor]:
    """The hinges of Eq. 4, one a neighbouring pair: (Y, Sp) < (Sp, S1) < (Sp, S2) < (Sp, S3) < (Sp, Sn).

    saliency and negative [B, Lv], hard [K, B, Lv]. "relative" compares each level with the one before it, as in the
    paper; "absolute" compares every level with level 1, as in its supplement. A hinge that needs a hard negative
    that a query does not have, or a negative that the batch does not have, is left out of the mean.
    """
    mask = targets.video_mask
    truth = divergence((targets.clip_scores > 0).float(), saliency, mask)
    share = saliency.float().sigmoid()
    levels = list(divergence(share, hard, mask))
    present = list(targets.hard_present) if targets.hard_present is not None else [None] * len(levels)
    if negative is not None:
        levels.append(divergence(share, negative, mask))
        present.append(None if targets.hard_present is None else torch.ones_like(targets.hard_present[0]))
    terms = [masked_mean((margins[0] + truth - levels[0]).relu(), present[0])]
    for index in range(1, len(levels)):
        anchor = index - 1 if ranking == "relative" else 0
        both = None if present[index] is None else present[index] & present[anchor]  # type: ignore[operator]
        terms.append(masked_mean((margins[index] + levels[anchor] - levels[index]).relu(), both))
    return terms
