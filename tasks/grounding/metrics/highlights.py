"""Highlight detection (QVHighlights): average precision and Hit@1 of saliency against three annotators."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from penumbra.tasks.grounding.metrics.metric import Chosen, Figures, Metric, Split
from penumbra.tasks.grounding.metrics.windows import EvaluationError, Flags, Floats

CLIP_SECONDS = 2
LEVELS = {"Fair": 2, "Good": 3, "VeryGood": 4}  # lowest score of an annotator that counts


@dataclass(frozen=True)
class Saliency:
    """Saliency of N queries: predicted [N, L] (NaN beyond its end), scores [N, L, 3] and length [N] of the labels."""

    predicted: Floats
    scores: np.ndarray
    length: np.ndarray


def align_saliency(
    predicted: Sequence[Sequence[float]],
    durations: Sequence[float],
    clips: Sequence[Sequence[int]],
    scores: Sequence[Sequence[Sequence[int]]],
) -> Saliency:
    """Arrays of predicted saliency and of the annotators' scores (0 to 4) of the clips that they judged."""
    length = np.array([int(duration / CLIP_SECONDS) for duration in durations])
    longest = max(int(length.max(initial=0)), max(map(len, predicted), default=0))
    labels = np.zeros((len(length), longest, 3), dtype=np.int64)
    padded = np.full((len(length), longest), np.nan)
    for row, (saliency, places, given) in enumerate(zip(predicted, clips, scores, strict=True)):
        if not len(saliency):
            raise EvaluationError(f"query {row} has no saliency")
        padded[row, : len(saliency)] = saliency
        if len(places):
            labels[row, np.asarray(places)] = np.asarray(given)
    return Saliency(padded, labels, length)


def highlight_metrics(saliency: Saliency, rows: Chosen = slice(None)) -> dict[str, float]:
    """Mean average precision and Hit@1 in percent, unrounded, for each level."""
    found: dict[str, float] = {}
    for name, least in LEVELS.items():
        relevant = saliency.scores[rows] >= least
        precision = _average_precision(relevant, saliency.predicted[rows], saliency.length[rows])
        found[f"HL-{name}-mAP"] = 100 * float(precision.mean())
        found[f"HL-{name}-Hit1"] = 100 * float(_hit(relevant, saliency.predicted[rows], saliency.length[rows]).mean())
    return found


def _hit(relevant: np.ndarray, predicted: Floats, length: np.ndarray) -> Flags:
    """Whether any annotator calls the highest clip [N] relevant; a clip beyond the labels is none."""
    highest = np.nan_to_num(predicted, nan=-np.inf).argmax(1)
    by_any: Flags = np.asarray(relevant.any(2))
    found: Flags = by_any[np.arange(len(highest)), highest] & (highest < length)
    return found


def _average_precision(relevant: np.ndarray, predicted: Floats, length: np.ndarray) -> Floats:
    """Average precision [N, 3]; predictions are cut or filled with zeros to the labels' length.

    Precision is made never to fall with the threshold, and its mean taken over the thresholds at which recall
    changes, each once. All labels alike give 0 or 1.
    """
    inside = np.arange(predicted.shape[1]) < length[:, None]
    score = np.where(inside, np.nan_to_num(predicted, nan=0.0), -np.inf)
    order = np.argsort(-score, axis=1, kind="stable")
    score = np.take_along_axis(score, order, 1)
    relevant = np.take_along_axis(relevant & inside[..., None], order[..., None], 1)
    inside = np.take_along_axis(inside, order, 1)
    last = np.ones_like(inside)
    last[:, :-1] = score[:, :-1] != score[:, 1:]  # equal scores are one threshold
    edge = (last & inside)[..., None]
    true = relevant.cumsum(1)
    reached = np.maximum.accumulate(np.where(edge, true, 0), axis=1)
    before = np.concatenate([np.zeros_like(reached[:, :1]), reached[:, :-1]], axis=1)
    precision = np.where(edge, true / np.arange(1, true.shape[1] + 1)[:, None], 0.0)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    changes = edge & (true != before)
    positives = true[:, -1]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (envelope * changes).sum(1) / changes.sum(1)
    return np.where(positives == 0, 0.0, np.where(positives == length[:, None], 1.0, mean))


def highlights_of(split: Split) -> Figures:
    """The figures of all queries of a split; none where not every query is annotated with saliency."""
    truth = [split.annotations[qid] for qid in split.predictions]
    if not all(row["saliency"] for row in truth):
        return lambda _: {}
    saliency = align_saliency(
        [row["saliency"] for row in split.predictions.values()],
        [row["duration"] for row in truth],
        [[clip["clip"] for clip in row["saliency"]] for row in truth],
        [[clip["scores"] for clip in row["saliency"]] for row in truth],
    )
    return partial(highlight_metrics, saliency)


HIGHLIGHTS = Metric(figures=highlights_of, by_type=False)
