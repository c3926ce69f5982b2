"""Metrics in figures and comparisons."""

from typing import Any

import numpy as np
import pytest

from penumbra.tasks.grounding.evaluation.figures import constant_window, figures_of_split, judged_split
from penumbra.tasks.grounding.metrics import compared_scores

PREDICTIONS = [
    {"qid": qid, "windows": [{"start": start, "end": start + 4.0, "score": 1.0}], "saliency": [0.1, 0.9]}
    for qid, start in (("a", 0.0), ("b", 6.0), ("c", 2.0))
]
ANNOTATIONS: dict[str, dict[str, Any]] = {
    "a": {"windows": [[0.0, 4.0]], "novel": [], "saliency": None, "duration": 4.0},
    "b": {"windows": [[2.0, 4.0]], "novel": [{"type": "v-n", "words": []}], "saliency": None, "duration": 9.0},
    "c": {"windows": [], "novel": [], "saliency": None, "duration": 9.0},  # hidden
}
DURATIONS = (10.0, 20.0, 40.0, 80.0)


def all_figures(predictions: list[dict[str, Any]], truth: dict[str, dict[str, Any]]) -> dict[tuple[str, str], float]:
    found = figures_of_split(judged_split(predictions, truth, None))
    return {(subset, metric): value for subset, metric, value in found}


def test_compared_scores_have_the_figures_as_their_means() -> None:
    values = all_figures(PREDICTIONS, ANNOTATIONS)
    scores = compared_scores(judged_split(PREDICTIONS, ANNOTATIONS, None))
    assert list(scores) == ["R1@0.5", "R1@0.7", "mIoU", "mAP"]
    assert {name: own.mean() for name, own in scores.items()} == pytest.approx({it: values["all", it] for it in scores})


def test_highlights_need_labels_of_every_query() -> None:
    saliency = [{"clip": 0, "scores": [0, 0, 0]}, {"clip": 1, "scores": [4, 4, 4]}]
    labelled = {qid: row | {"saliency": saliency} for qid, row in ANNOTATIONS.items()}
    added = all_figures(PREDICTIONS, labelled).keys() - all_figures(PREDICTIONS, ANNOTATIONS).keys()
    levels = ("Fair", "Good", "VeryGood")
    assert added == {("all", f"HL-{level}-{kind}") for level in levels for kind in ("mAP", "Hit1")}


@pytest.mark.parametrize("seconds", [0.5, 1.0, 2.0, 4.0])
def test_highlights_are_judged_by_clips_of_two_seconds_whatever_the_features_are(seconds: float) -> None:
    judged = [{"clip": clip, "scores": [4 * (clip in (4, 5))] * 3} for clip in range(8)]
    truth = {"q": {"windows": [[8.0, 12.0]], "novel": [], "saliency": judged, "duration": 16.0}}
    saliency = [float(8 < middle < 12) for middle in (np.arange(16 / seconds) + 0.5) * seconds]
    predicted = [{"qid": "q", "windows": [{"start": 8.0, "end": 12.0, "score": 1.0}], "saliency": saliency}]
    values = all_figures(predicted, truth)
    assert values["all", "HL-VeryGood-mAP"] == values["all", "HL-VeryGood-Hit1"] == 100


def query(number: int, duration: float, *windows: tuple[float, float]) -> dict[str, Any]:
    return {"qid": f"q{number}", "duration": duration, "windows": [list(window) for window in windows]}


def window(queries: list[dict[str, Any]], duration: float, end: float | None = None) -> tuple[float, float]:
    found = constant_window(queries, end)
    return found(duration)["start"], found(duration)["end"]


SHARES = [query(n, d, (0.25 * d, 0.5 * d)) for n, d in enumerate(DURATIONS)]
SECONDS = [query(n, d, (2.0, 8.0)) for n, d in enumerate(DURATIONS)]


def test_the_constant_window_is_relative_or_in_seconds() -> None:
    assert window(SHARES, 60.0) == (15.0, 30.0)
    assert window(SECONDS, 60.0) == window(SECONDS, 600.0) == pytest.approx((2.0, 8.0))
    assert window(SECONDS, 5.0) == pytest.approx((2.0, 5.0))


def test_true_windows_are_cut_and_the_best_of_several_counts() -> None:
    several = [query(0, 10.0, (0.0, 1.0), (5.0, 10.0)), query(1, 10.0, (5.0, 10.0))]
    assert window(several, 10.0) == (5.0, 10.0)
    assert window([query(0, 10.0, (0.0, 8.0))], 10.0, end=4.0) == (0.0, 4.0)
    assert constant_window([query(0, 10.0)], None) is None
    assert constant_window([], None) is None
