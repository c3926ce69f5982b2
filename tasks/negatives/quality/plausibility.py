"""How much negatives read like human text: 0 as random words do, 1 as the originals do.

`(LM(negatives) − LM(random fills of the same masks)) / (LM(originals) − LM(random fills))`, LM being the mean
log-probability a token under an interpolated Kneser-Ney trigram model (discount 0.75) of human sentences that the
filler did not draw from.

| metric | the mean is taken | random fills are words of |
| --- | --- | --- |
| `plausibility` | of each sentence, then of the sentences | the slot's class and tag, as `random` draws them |
| `plausibility.by_token` | of all tokens alike | the same |
| `plausibility.any_words` | of each sentence, then of the sentences | the whole training split: a lower zero |

On Charades-CG the second and third are higher than the first by 0.01 to 0.05.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from penumbra.tasks.negatives.providers.language_model import KneserNey
from penumbra.tasks.negatives.quality.texts import words_of

Floats = NDArray[np.float64]


def language_model(sentences: Iterable[str]) -> KneserNey:
    """The trigram model of these sentences."""
    return KneserNey.of(words_of(sentence) for sentence in sentences)


def log_probabilities(model: KneserNey, texts: Sequence[str]) -> tuple[Floats, Floats]:
    """Each text's natural log-probability, its end included, and its number of tokens, likewise."""
    return model.log_probabilities([words_of(text) for text in texts])


def plausibility(sums: Floats) -> Floats:
    """The figure from sums (…, 6): log-probability and tokens of negatives, of random fills and of originals."""
    negatives, randoms, originals = (sums[..., i] / sums[..., i + 1] for i in (0, 2, 4))
    figure: Floats = (negatives - randoms) / (originals - randoms)
    return figure
