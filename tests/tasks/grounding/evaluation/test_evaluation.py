"""Evaluation: figures and baselines, cut videos, comparison of runs, order of saliency, and submission files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.official import main, read_lines, report
from penumbra.tasks.grounding import metrics
from penumbra.tasks.grounding.configs import Ranking
from penumbra.tasks.grounding.evaluation.figures import (
    constant_window,
    figures_of_split,
    judged_split,
    paired_bootstrap,
    too_few,
)
from penumbra.tasks.grounding.families.base import Prediction
from penumbra.tasks.grounding.metrics import EvaluationError, align, compared_scores
from penumbra.tasks.grounding.training.loop import validation_metrics
from penumbra.tasks.grounding.training.presets import Settings

PREDICTIONS = [
    {"qid": qid, "windows": [{"start": start, "end": start + 4.0, "score": 1.0}], "saliency": [0.1, 0.9]}
    for qid, start in (("a", 0.0), ("b", 6.0), ("c", 2.0))
]
ANNOTATIONS: dict[str, dict[str, Any]] = {
    "a": {"windows": [[0.0, 4.0]], "novel": [], "saliency": None, "duration": 4.0},
    "b": {"windows": [[2.0, 4.0]], "novel": [{"type": "v-n", "words": []}], "saliency": None, "duration": 9.0},
    "c": {"windows": [], "novel": [], "saliency": None, "duration": 9.0},  # hidden
}


def all_figures(predictions: list[dict[str, Any]], truth: dict[str, dict[str, Any]]) -> dict[tuple[str, str], float]:
    found = figures_of_split(judged_split(predictions, truth, None))
    return {(subset, metric): value for subset, metric, value in found}


def test_recall_precision_and_mean_iou_by_hand() -> None:
    """The golden figures hold them, too, where they are at hand."""
    predicted = {"a": np.array([[0.0, 4.0, 0.9], [0.0, 2.0, 0.8]]), "b": np.array([[1.0, 5.0, 0.7]])}
    windows = align(predicted, {"a": np.array([[0.0, 2.0]]), "b": np.array([[1.0, 6.0]])})
    precision = metrics.average_precision(windows, (0.5, 0.75, 0.95))
    np.testing.assert_allclose(precision, [[1.0, 0.5, 0.5], [1.0, 1.0, 0.0]])
    figures = metrics.means(metrics.retrieval_scores(windows))
    assert (figures["R1@0.5"], figures["R1@0.7"], figures["R5@0.7"]) == (100, 50, 100)
    assert figures["mIoU"] == pytest.approx(100 * (0.5 + 0.8) / 2)


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


def test_the_constant_window_is_relative_or_in_seconds() -> None:
    durations = (10.0, 20.0, 40.0, 80.0)
    shares = [query(n, duration, (0.25 * duration, 0.5 * duration)) for n, duration in enumerate(durations)]
    seconds = [query(n, duration, (2.0, 8.0)) for n, duration in enumerate(durations)]
    assert window(shares, 60.0) == (15.0, 30.0)
    assert window(seconds, 60.0) == window(seconds, 600.0) == pytest.approx((2.0, 8.0))
    assert window(seconds, 5.0) == pytest.approx((2.0, 5.0))


def test_true_windows_are_cut_and_the_best_of_several_counts() -> None:
    several = [query(0, 10.0, (0.0, 1.0), (5.0, 10.0)), query(1, 10.0, (5.0, 10.0))]
    assert window(several, 10.0) == (5.0, 10.0)
    assert window([query(0, 10.0, (0.0, 8.0))], 10.0, end=4.0) == (0.0, 4.0)
    assert constant_window([query(0, 10.0)], None) is None
    assert constant_window([], None) is None


def test_true_windows_end_where_a_video_is_cut() -> None:
    predicted = {"a": [[0, 6, 0.9]], "b": [[0, 8, 0.9]], "c": [[9, 12, 0.9]]}
    true = {"a": [[0.0, 12.0]], "b": [[8.0, 12.0], [4.0, 10.0]], "c": [[9.0, 12.0]]}
    windows = align(predicted, true)
    assert metrics.score_queries(windows.until(None)).iou.tolist() == [0.5, 0.4, 1.0]
    cut = windows.until(8)  # b's first window begins there, and c's only one later
    assert cut.qids == ("a", "b")
    assert metrics.score_queries(cut).iou.tolist() == [0.75, 0.5]
    assert metrics.average_precision(cut, (0.5, 0.75))[:, 0].tolist() == [1, 1]
    found = [Prediction(qid, np.array(rows, np.float64), np.zeros(1)) for qid, rows in predicted.items()]
    assert validation_metrics(found, true, Settings(ranking=Ranking(truth_ends=8)))["mIoU"] == 62.5


@pytest.mark.parametrize(
    ("predicted", "true", "said"),
    [
        ({"a": [[0, 1, 1]]}, {"a": [[0, 1]], "b": [[0, 1]]}, "no prediction for 1 query, the first is b"),
        ({"a": [[0, 1, 1]], "b": [[0, 1, 1]]}, {"a": [[0, 1]]}, "no truth for 1 query, the first is b"),
        ({"a": []}, {"a": [[0, 1]]}, "empty list of predictions"),
        ({"a": [[0, 1, 1]]}, {"a": []}, "empty list of windows"),
        ({"a": [[0, 1, float("nan")]]}, {"a": [[0, 1]]}, "hold a NaN"),
    ],
)
def test_queries_that_cannot_be_evaluated_are_named(predicted: Any, true: Any, said: str) -> None:
    with pytest.raises(EvaluationError, match=said):
        align(predicted, true)


def test_the_paired_bootstrap_finds_a_small_difference() -> None:
    generator = np.random.default_rng(0)
    first, videos = generator.random(2000), np.arange(2000)
    better = paired_bootstrap(first, first + 0.01 + 0.02 * generator.normal(size=2000), videos)
    assert better.low > 0
    assert better.p < 0.01
    assert better.mean == pytest.approx(0.01, abs=0.003)
    same = paired_bootstrap(first, generator.permutation(first), videos)
    assert same.low < 0 < same.high
    assert paired_bootstrap(first, first, videos).p == 1.0


def test_few_videos_give_no_interval_and_no_p() -> None:
    videos = [f"v{n % 19}" for n in range(380)]
    few = paired_bootstrap(np.zeros(380), np.ones(380), videos)
    assert few.cells() == ("+1.00", "–", "–")
    enough = paired_bootstrap(np.zeros(380), np.ones(380), [*videos[:-1], "v19"])
    assert enough.cells() == ("+1.00", "+1.00 … +1.00", "< 0.001")
    assert too_few({"test": 19, "word": 20}).startswith("test has 19 videos: with fewer than 20 videos")
    assert too_few({"word": 20}) == ""


def test_with_one_query_a_video_the_bootstrap_is_that_of_plain_resampling() -> None:
    generator = np.random.default_rng(1)
    first, second = generator.random(300) > 0.5, generator.random(300) > 0.4
    found = paired_bootstrap(first, second, [f"v{n:03}" for n in range(300)])
    change = second.astype(float) - first
    plain = change[generator.integers(0, 300, (4000, 300))].mean(1)
    np.testing.assert_allclose((found.low, found.high), np.percentile(plain, (2.5, 97.5)), atol=0.012)
    one = paired_bootstrap(np.zeros(4), np.array([1.0, 1.0, 1.0, -3.0]), ["a", "a", "a", "b"])
    assert (one.mean, one.low, one.high) == (0.0, -3.0, 1.0), "a video counts by its queries"


def test_the_order_of_saliency() -> None:
    nan = float("nan")
    found = metrics.ordering_metrics(np.array([[5, 4, 3, 2, 1], [5, 4, 4, 2, 3], [5, nan, 3, 2, 1.0], [5, 6, 3, 2, 1]]))
    assert found["ordering"] == pytest.approx(100 / 3)
    assert found["ordering positive > level 1"] == pytest.approx(200 / 3)
    assert found["ordering level 3 > random"] == 75
    assert metrics.ordering_metrics(np.full((2, 5), nan)) == {}


def test_a_submission_is_evaluated_and_bad_lines_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"qid": qid, "pred_relevant_windows": [[0.0, 2.0, 0.5]]} for qid in (17, "017")]
    truth = [{"qid": qid, "relevant_windows": [[0, 2]]} for qid in (17, "017")]
    figures = report(rows, truth, ["full", "long"])
    assert figures["full"]["MR-R1"]["0.5"] == 100.0
    assert figures["long"] == {"MR-mAP": {}, "MR-R1": {}}, "no query has such a window"
    for text in ("{", "[1]", "{}"):
        (tmp_path / "bad.jsonl").write_text(f"\n{text}\n")
        with pytest.raises(EvaluationError, match="line 2 is no JSON object with a qid"):
            read_lines(tmp_path / "bad.jsonl")
    with pytest.raises(SystemExit) as end:
        main([str(tmp_path / "none.jsonl"), str(tmp_path / "truth.jsonl")])
    assert end.value.code == 2
    assert "none.jsonl can't be read" in capsys.readouterr().err
