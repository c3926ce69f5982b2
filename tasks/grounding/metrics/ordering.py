"""The figure that SHINE is about: saliency inside the moment is to fall from the positive to the random text."""

import numpy as np

from penumbra.tasks.grounding.metrics.windows import Floats

NAMES = ("positive", "level 1", "level 2", "level 3", "random")


def ordering_metrics(saliency: Floats) -> dict[str, float]:
    """How often, in percent, mean saliency inside the moment is in the right order.

    saliency [N, 5] under the positive, the three hard negatives and a random text; NaN where a query has no such
    text, which leaves out the pairs that need it. "ordering" asks for all four pairs at once.
    """
    falls = saliency[:, :-1] > saliency[:, 1:]
    there = ~np.isnan(saliency)
    pairs = there[:, :-1] & there[:, 1:]
    found: dict[str, float] = {}
    for index in range(saliency.shape[1] - 1):
        if pairs[:, index].any():
            name = f"ordering {NAMES[index]} > {NAMES[index + 1]}"
            found[name] = 100 * float(falls[pairs[:, index], index].mean())
    whole = there.all(1)
    if whole.any():
        found["ordering"] = 100 * float(falls[whole].all(1).mean())
    return found
