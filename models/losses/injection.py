"""VDI's two losses (CVPR 2023): what is seen is put into the query's words for what does not stand still."""

import torch
from torch import Tensor
from torch.nn import functional

from penumbra.models.losses.targets import masked_mean


def context_loss(dynamic: Tensor, context: Tensor, split: Tensor) -> Tensor:
    """Visual context injection (Eq. 2): squared distance of dynamic queries [S, D] and visual contexts [S, D].

    Mean over the sentences that have both queries (`split` [S]).
    """
    return masked_mean((dynamic - context).square().sum(-1), split)


def dynamics_loss(dynamic: Tensor, motion: Tensor, video_of: Tensor, split: Tensor) -> Tensor:
    """Spatial dynamic injection (Eq. 5): dynamic queries [S, D] are as alike as the motion [B, D] of their videos.

    (cos of motions - cos of queries)^2 for every pair, over all n sentences that are `split` [S], mean over both. Pairs
    of one video are left out: its motion is the same under every sentence, which would make all its dynamics one.
    """
    queries = functional.normalize(dynamic, dim=-1)
    seen = functional.normalize(motion, dim=-1)[video_of]
    distance = (seen @ seen.T - queries @ queries.T).square()
    pairs = (video_of[:, None] != video_of) & split[:, None] & split
    count = split.sum().clamp(min=1)
    return torch.where(pairs, distance, 0).sum() / count**2
