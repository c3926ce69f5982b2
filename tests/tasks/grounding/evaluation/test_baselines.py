"""The baselines of an evaluation: constant windows."""

from typing import Any

import pytest

from penumbra.tasks.grounding.evaluation.baselines import fit

Rows = list[dict[str, Any]]


def query(number: int, duration: float, *windows: tuple[float, float]) -> dict[str, Any]:
    return {
        "qid": f"q{number}",
        "vid": f"v{number}",
        "query": f"text {number}",
        "duration": duration,
        "windows": [list(window) for window in windows],
        "novel": [],
        "split": "train",
    }


DURATIONS = (10.0, 20.0, 40.0, 80.0)
SHARES = [query(n, d, (0.25 * d, 0.5 * d)) for n, d in enumerate(DURATIONS)]
SECONDS = [query(n, d, (2.0, 8.0)) for n, d in enumerate(DURATIONS)]


def test_the_constant_window_is_relative_or_in_seconds() -> None:
    shares, seconds = fit(SHARES, {}, None), fit(SECONDS, {}, None)
    assert shares
    assert seconds
    assert (shares.relative, shares.window.tolist(), shares.mean_iou) == (True, [0.25, 0.5], 1.0)
    assert shares.of(60.0) == (15.0, 30.0)
    assert not seconds.relative
    assert seconds.of(60.0) == seconds.of(600.0) == pytest.approx((2.0, 8.0))
    assert seconds.of(5.0) == pytest.approx((2.0, 5.0))
    assert seconds.mean_iou == pytest.approx(1.0)


def test_true_windows_are_cut_and_the_best_of_several_counts() -> None:
    several = fit([query(0, 10.0, (0.0, 1.0), (5.0, 10.0)), query(1, 10.0, (5.0, 10.0))], {}, None)
    assert several
    assert several.of(10.0) == (5.0, 10.0)
    cut = fit([query(0, 10.0, (0.0, 8.0))], {}, 4.0)
    assert cut
    assert cut.of(10.0) == (0.0, 4.0)
    assert fit([query(0, 10.0)], {}, None) is None
    assert fit([], {}, None) is None


def test_a_frequent_verb_has_its_own_window() -> None:
    first, last = ([query(n, 10.0, window) for n in range(at, at + 30)] for at, window in ((0, (0, 5)), (100, (5, 10))))
    rare = query(200, 10.0, (9.0, 10.0))
    verbs = {row["qid"]: "open" for row in [*first, query(99, 10.0)]} | {row["qid"]: "close" for row in last}
    found = fit([*first, query(99, 10.0, (0, 5)), *last, rare], {**verbs, "q200": "sneeze"}, None)
    assert found
    assert found.of(10.0, "open") == found.of(10.0) == (0.0, 5.0)
    assert found.of(10.0, "close") == (5.0, 10.0)
    assert found.of(10.0, "sneeze") != (9.0, 10.0), "one query tells little"
    assert found.of(10.0, "never seen") == found.of(10.0)
