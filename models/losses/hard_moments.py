"""Hard negatives of MMN's sentences: SHINE's order (ECCV 2024) on its moments, and no moment that is theirs."""

import torch
from torch import Tensor
from torch.nn import functional

from penumbra.models.losses.targets import masked_mean


def hard_order(positives: Tensor, sentences: Tensor, hard: Tensor, present: Tensor | None, margin: float) -> Tensor:
    """Hinges between neighbours in: sentence > level 1 > level 2 > level 3, each cosine `margin` above the next.

    positives [S, K, C], sentences [S, C], hard [levels, S, C]. A hinge that needs a negative which a sentence does not
    have (`present` [levels, S]) is left out of the mean.
    """
    texts = torch.cat((sentences[None], hard))
    cosines = torch.einsum("skc,lsc->lsk", positives, texts)
    hinges = (margin + cosines[1:] - cosines[:-1]).relu().mean(-1)
    if present is None:
        return hinges.mean()
    both = present & torch.cat((torch.ones_like(present[:1]), present[:-1]))
    return masked_mean(hinges, both)


def hard_overlap(logits: Tensor, present: Tensor | None) -> Tensor:
    """Binary cross entropy of hard negatives' logits [levels, S, M] against an overlap of 0: no moment is theirs.

    A negative that a sentence does not have (`present` [levels, S]) is left out of the mean.
    """
    return masked_mean(functional.softplus(logits).mean(-1), present)
