"""How well a run tells true sentences from false ones: which are asked, and each figure by hand."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from penumbra.tasks.grounding.batches.examples import Loaded, together
from penumbra.tasks.grounding.evaluation import rejection
from penumbra.tasks.grounding.evaluation.calibration import (
    NEAR,
    OTHER_VIDEO,
    TRUE,
    balanced,
    existence_by_others,
    false_sentences,
    fit,
)
from penumbra.tasks.grounding.evaluation.figures import paired_bootstrap
from penumbra.tasks.grounding.evaluation.rejection import ACCURACY, ERROR, GROUP, OF_TEXT, REJECTED
from penumbra.tasks.grounding.metrics import Split, Windows
from penumbra.tasks.grounding.runs import ALL, WITH_REJECTION
from penumbra.tasks.negatives.judging import TRUE_ELSEWHERE
from tests.grounding_data import features

ACTIONS = ("opens the door", "closes the window", "eats a sandwich", "pours some milk", "plays the guitar")
Rows = list[dict[str, Any]]


def annotated(*queries: str) -> Rows:
    usual = {"split": "test", "duration": 8.0, "windows": [[0.0, 4.0]], "saliency": None}
    return [{"qid": f"q{n}", "vid": f"v{n}", "query": text, **usual} for n, text in enumerate(queries)]


def loaded(rows: Rows, judging: dict[str, dict[str, str]], *others: str) -> Loaded:
    vids, texts = sorted({row["vid"] for row in rows}), sorted({row["query"] for row in rows} | set(others))
    videos, words = features(vids, [4] * len(vids), 1, 2.0), features(texts, [3] * len(texts), 2)
    return Loaded(videos, words, rows, {}, judging=judging)


def test_false_sentences_are_of_other_videos_near_ones_and_those_to_judge_by() -> None:
    rows = annotated(*(f"a {who} {action}." for who in ("man", "woman") for action in ACTIONS))
    judging = {"q0": {"level 1 by corpus": "a man opens the window.", "another domain": "a hawk hunts a hare."}}
    judging["q1"] = {"level 1 by corpus": "a person closes windows.", "another domain": "nobody has features of this"}
    notes = Counter[str]()
    found = list(false_sentences(rows, loaded(rows, judging, "a man opens the window.", "a hawk hunts a hare."), notes))
    own = {row["vid"]: row["query"] for row in rows}
    assert all(it.sentence != own[it.row["vid"]] for it in found)
    assert Counter(it.kind for it in found) == {OTHER_VIDEO: 10, NEAR: 10, "level 1 by corpus": 1, "another domain": 1}
    assert notes == {f"level 1 by corpus: {TRUE_ELSEWHERE}": 1, "another domain: no features of the sentence": 1}
    near = {it.row["query"]: it for it in found if it.kind == NEAR}
    assert "door" in near["a man opens the door."].sentence or "opens" in near["a man opens the door."].sentence
    for it in near.values():
        assert it.other
        assert own[it.other["vid"]] == it.sentence
    first, second = (list(false_sentences(rows, loaded(rows, {}), Counter())) for _ in range(2))
    assert first == second


def test_a_data_set_whose_queries_are_all_alike_has_none() -> None:
    rows = annotated(*["a man opens the door."] * 4, "The man opened a door")
    assert list(false_sentences(rows, loaded(rows, {}), Counter())) == []


def asked(kind: str, existence: np.ndarray, exchanged: np.ndarray | None = None) -> Rows:
    count = len(existence)
    rows = []
    for n, value in enumerate(existence.tolist()):
        row = {"split": "test", "qid": f"q{n}", "kind": kind, "sentence": f"{kind} {n % 7}", "existence": value}
        other = f"q{(n + 1) % count}" if kind == NEAR else None
        rows.append({**row, "other_qid": other, "exchanged": None if exchanged is None else exchanged[n]})
    return rows


def judged(existence: np.ndarray, hits: np.ndarray | None = None) -> Split:
    """A split whose first windows are all right, or those of `hits` (0 or 1); nan: no existence."""
    hits = np.ones(len(existence)) if hits is None else hits
    qids = tuple(f"q{n}" for n in range(len(existence)))
    predicted = np.stack([np.zeros(len(qids)), hits, hits], axis=1)[:, None]
    windows = Windows(qids, predicted, np.tile([0.0, 1.0], (len(qids), 1, 1)))
    known = [None if np.isnan(value) else value for value in existence.tolist()]
    return Split(windows, {qid: {"existence": value} for qid, value in zip(qids, known, strict=True)}, {})


def figures(scores: Any) -> dict[tuple[str, str], float]:
    return {(subset, metric): value for subset, metric, value in rejection.figures_of(scores)}


def test_every_figure_by_hand() -> None:
    draws = np.random.default_rng(0)
    true, other, near, exchanged = np.round(draws.random((4, 400)), 2)
    true = np.minimum(1, true + 0.2)
    hits = (draws.random(400) < 0.6).astype(float)
    rows = [*asked(OTHER_VIDEO, other), *asked(NEAR, near[:100], exchanged)]
    scores = rejection.scores_of(judged(true, hits), rows, 0.5)
    found = figures(scores)
    for kind, false, own in ((OTHER_VIDEO, other, true), (NEAR, near[:100], true[:100])):
        expected = roc_auc_score(np.repeat([1, 0], len(false)), np.concatenate([own, false]))
        assert found[kind, "AUROC"] == pytest.approx(100 * expected)
        assert found[kind, "sentences"] == len(false)
        assert found[kind, REJECTED] == pytest.approx(100 * (false < 0.5).mean())
    rejected = ((other < 0.5).mean() + (near[:100] < 0.5).mean()) / 2
    assert found[ALL, ACCURACY] == pytest.approx(50 * ((true >= 0.5).mean() + rejected))
    assert found[ALL, WITH_REJECTION] == pytest.approx(50 * (((true >= 0.5) * hits).mean() + rejected))
    others = np.roll(true[:100], -1)
    both = np.minimum(true[:100], others) > np.maximum(near[:100], exchanged[:100])
    assert found[NEAR, GROUP] == pytest.approx(100 * both.mean())
    every = np.concatenate([true, other, near[:100]])
    weights = balanced(["true"] * 400 + ["a"] * 400 + ["b"] * 100) / len(every)
    bins, label = np.minimum((every * 10).astype(int), 9), np.arange(len(every)) < 400
    error = sum(abs((weights * (label - every))[bins == number].sum()) for number in range(10))
    assert found[ALL, ERROR] == pytest.approx(100 * error)
    assert np.isnan(scores[NEAR, "AUROC"][100:]).all()
    difference = paired_bootstrap(scores[NEAR, "AUROC"] - 1, scores[NEAR, "AUROC"], [f"v{n}" for n in range(400)])
    assert (difference.videos, round(difference.mean, 6)) == (100, 1)


def test_resampled_scores_have_the_spread_of_an_auroc() -> None:
    draws = np.random.default_rng(1)
    areas = []
    for _ in range(300):
        true, false = draws.beta(4, 3, 80), draws.beta(3, 3, 80)
        areas.append(roc_auc_score(np.repeat([1, 0], 80), np.concatenate([true, false])))
    scores = rejection.scores_of(judged(true), asked("x", false), 0.5)["x", "AUROC"]
    estimated = scores.std() / 80**0.5
    assert estimated == pytest.approx(100 * np.std(areas), rel=0.3)


def test_a_model_that_never_looks_at_the_video_has_no_group_score() -> None:
    of_text = np.random.default_rng(0).random(50)
    rows = asked(NEAR, np.roll(of_text, -1), of_text)
    assert figures(rejection.scores_of(judged(of_text), rows, 0.5))[NEAR, GROUP] == 0


def test_without_a_calibration_there_is_no_figure() -> None:
    rows = [{**row, "existence": None} for row in asked(OTHER_VIDEO, np.zeros(3))]
    assert rejection.scores_of(judged(np.full(2, np.nan)), rows, 0.0) == {}
    assert rejection.scores_of(judged(np.array([0.5])), [], 0.5) == {}


def test_a_classifier_of_the_text_alone_finds_what_a_kind_gives_away() -> None:
    rows = {row["qid"]: row for row in annotated(*(f"a man {ACTIONS[n % 5]}." for n in range(60)))}
    shown = {"real": [rows[f"q{(n + 1) % 60}"]["query"] for n in range(60)], "made": ["a stone sings a stone."] * 60}
    sentences = [{"qid": f"q{n}", "kind": kind, "sentence": of[n]} for kind, of in shown.items() for n in range(60)]
    found = {kind: value for kind, metric, value in rejection.text_figures(sentences, rows) if metric == OF_TEXT}
    assert found["made"] > 99
    assert found["real"] < 70
    assert list(rejection.text_figures(sentences[:3], rows)) == []


def test_texts_of_two_sources_are_together() -> None:
    first, second = features(["a", "b"], [2, 3], 1), features(["b", "c"], [4, 5], 2)
    found = together(first, second)
    assert {name: int(found.lengths[row]) for name, row in found.index.items()} == {"a": 2, "b": 3, "c": 5}
    assert (found.values[9:] == second.values[4:]).all()


def test_recall_falls_as_more_is_rejected() -> None:
    hits, true, false = np.array([100.0, 0, 100]), np.array([0.9, 0.8, 0.2]), np.linspace(0, 0.85, 18)
    points = rejection.recall_against_rejection(hits, true, false)
    assert points[0] == (0.0, pytest.approx(200 / 3))
    assert points[-1] == (100.0, pytest.approx(100 / 3))
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)


def test_noise_is_not_told_apart_by_a_calibration_that_is_judged_on_other_videos() -> None:
    draws = np.random.default_rng(0)
    kinds, vids = [TRUE, NEAR] * 200, [f"v{number // 8}" for number in range(400)]
    noise, fitted, judged = draws.normal(size=(50, 400, 3)), list[float](), list[float]()
    for evidence in noise:
        fitted.append(area(fit(evidence, kinds).existence(evidence), kinds))
        judged.append(area(existence_by_others(evidence, kinds, vids), kinds))
    assert np.mean(fitted) > 0.53
    assert np.mean(judged) < 0.51
    useful = noise[0] + np.where(np.array(kinds) == TRUE, 2.0, 0.0)[:, None]
    assert area(existence_by_others(useful, kinds, vids), kinds) > 0.95
    assert set(existence_by_others(useful, kinds, ["v"] * 400)) == {0.5}


def area(existence: np.ndarray, kinds: list[str]) -> float:
    return float(roc_auc_score([kind == TRUE for kind in kinds], existence))
