"""Metrics of this package and of others in figures, tables and comparisons."""

import sys
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penumbra.tasks.grounding import metrics as registry
from penumbra.tasks.grounding.evaluation import figures
from penumbra.tasks.grounding.evaluation.figures import figures_of_split, judged_split, results
from penumbra.tasks.grounding.metrics import Metric, Scores, Split, all_metrics, compared_scores

PREDICTIONS = [
    {"qid": qid, "windows": [{"start": start, "end": start + 4.0, "score": 1.0}], "saliency": [0.1, 0.9]}
    for qid, start in (("a", 0.0), ("b", 6.0), ("c", 2.0))
]
ANNOTATIONS: dict[str, dict[str, Any]] = {
    "a": {"windows": [[0.0, 4.0]], "novel": [], "saliency": None, "duration": 4.0},
    "b": {"windows": [[2.0, 4.0]], "novel": [{"type": "v-n", "words": []}], "saliency": None, "duration": 9.0},
    "c": {"windows": [], "novel": [], "saliency": None, "duration": 9.0},  # hidden
}


def late_start(split: Split) -> Scores:
    """Seconds [N] by which the first window begins after the first true one."""
    return {"late start, s": split.windows.predicted[:, 0, 0] - split.windows.truth[:, 0, 0]}


LATE_START = Metric(late_start, shown=("late start, s",), compared=("late start, s",))


def test_a_metric_of_another_package_is_in_figures_tables_and_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "other_package", SimpleNamespace(LATE_START=LATE_START))
    point = EntryPoint("late", "other_package:LATE_START", "penumbra.metrics")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    monkeypatch.setattr(registry, "all_metrics", all_metrics.__wrapped__)
    monkeypatch.setattr(figures, "all_metrics", all_metrics.__wrapped__)
    rows = [
        {"split": "test", "subset": subset, "metric": metric, "value": value}
        for subset, metric, value in figures_of_split(PREDICTIONS, ANNOTATIONS, None)
    ]
    values = {(row["subset"], row["metric"]): row["value"] for row in rows}
    assert (values["all", "late start, s"], values["v-n", "late start, s"]) == (2, 4)
    header, lines = results(rows)
    assert header[-1] == "late start, s"
    assert [line[-1] for line in lines] == ["2.00", "4.00"]
    scores = compared_scores(judged_split(PREDICTIONS, ANNOTATIONS, None))
    np.testing.assert_array_equal(scores["late start, s"], [0, 4])


def test_compared_scores_have_the_figures_as_their_means() -> None:
    by_name = {
        name: value for subset, name, value in figures_of_split(PREDICTIONS, ANNOTATIONS, None) if subset == "all"
    }
    scores = compared_scores(judged_split(PREDICTIONS, ANNOTATIONS, None))
    assert list(scores) == ["R1@0.5", "R1@0.7", "mIoU", "mAP"]
    for name, values in scores.items():
        assert values.mean() == pytest.approx(by_name[name])


def test_highlights_need_labels_of_every_query() -> None:
    labelled = {
        qid: row | {"saliency": [{"clip": 0, "scores": [0, 0, 0]}, {"clip": 1, "scores": [4, 4, 4]}]}
        for qid, row in ANNOTATIONS.items()
    }
    both = [{name for _, name, _ in figures_of_split(PREDICTIONS, truth, None)} for truth in (ANNOTATIONS, labelled)]
    assert both[1] - both[0] == {
        f"HL-{level}-{kind}" for level in ("Fair", "Good", "VeryGood") for kind in ("mAP", "Hit1")
    }
