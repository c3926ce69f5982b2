"""Zero-shot retrieval: which of all held-out sentences a moment's clips find."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from workshop.tiny_clip.clips import Moment
from workshop.tiny_clip.model import to_pixels

MOMENTS_AT_ONCE = 32


@torch.inference_mode()
def embed_moments(
    model: Any, tokenizer: Any, several: Sequence[Moment], texts: Sequence[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors of moments (mean of their clips') and of sentences, each (moments, dimension)."""
    images = []
    for start in range(0, len(several), MOMENTS_AT_ONCE):
        some = np.stack([moment.pictures for moment in several[start : start + MOMENTS_AT_ONCE]])
        vectors = model.get_image_features(to_pixels(some).flatten(0, 1)).pooler_output
        images.append(functional.normalize(vectors, dim=-1).view(len(some), -1, vectors.shape[-1]).mean(1))
    tokens = tokenizer(list(texts), padding=True, return_tensors="pt")
    encoded = model.get_text_features(**tokens).pooler_output
    return functional.normalize(torch.cat(images), dim=-1), functional.normalize(encoded, dim=-1)


def retrieval(images: torch.Tensor, texts: torch.Tensor, sentences: Sequence[str]) -> dict[str, float]:
    """R@1 and R@5 in per cent, moment → sentence and back, among all moments, with chance beside them.

    A sentence that is equal to the right one is right as well.
    """
    scores = (images @ texts.T).numpy()
    right = np.array([[a == b for b in sentences] for a in sentences])
    figures: dict[str, float] = {"moments": len(sentences)}
    for name, table, correct in (("moment_to_sentence", scores, right), ("sentence_to_moment", scores.T, right.T)):
        order = np.argsort(-table, axis=1, kind="stable")
        for depth in (1, 5):
            hits = [correct[row, order[row, :depth]].any() for row in range(len(order))]
            figures[f"{name}_r{depth}"] = round(100 * float(np.mean(hits)), 2)
    share = right.sum(1) / len(right)
    figures |= {f"chance_r{depth}": round(100 * float(np.mean(1 - (1 - share) ** depth)), 2) for depth in (1, 5)}
    return figures
