"""Blind AUC: how well a classifier that sees only the text tells negatives from the queries they are made of.

The figure of the specification is `words`: TF-IDF over 1- and 2-grams (min_df = 2, sublinear), logistic regression
(C = 3), five folds grouped by video, mean ROC AUC. The others are there because a choice that beats the one
classifier it was fitted against is not enough.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penumbra.tasks.data.resampling import Curve, Floats, Ids

FOLDS = 5
INVERSE_REGULARISATION = 3.0  # C of the logistic regressions
STEPS = 1000
CLASSIFIERS = ("words", "characters", "sentences", "gru")
Predict = Callable[[Ids, Ids], Floats]  # training and test rows → scores of the test rows


@dataclass(frozen=True)
class Verdict:
    """Held-out scores of every text: the positives' first (label 1), then the negatives' (label 0)."""

    labels: Ids
    scores: Floats
    folds: Ids
    videos: Ids

    @property
    def auc(self) -> float:
        """Mean ROC AUC of the folds."""
        alike = np.ones(self.videos.max() + 1)
        parts = [self.folds == fold for fold in np.unique(self.folds)]
        return float(np.mean([Curve(self.videos[p], self.labels[p], self.scores[p]).area(alike) for p in parts]))


def judge(
    positives: Sequence[str],
    negatives: Sequence[str],
    videos: Sequence[int] | Ids,
    classifier: str = "words",
    vectors: NDArray[np.float32] | None = None,
    seed: int = 0,
) -> Verdict | None:
    """Score every text by a classifier that was fitted on other videos; None where there are too few videos or words.

    `negatives[i]` belongs to `positives[i]` and to the video `videos[i]`. `sentences` needs `vectors`
    (2 × len(positives), dimension), the positives' first. Every classifier is deterministic; `seed` is the GRU's.
    """
    texts = [*positives, *negatives]
    labels = np.repeat(np.array([1, 0]), len(positives))
    groups = np.tile(np.asarray(videos, dtype=np.int64), 2)
    if len(np.unique(groups)) < FOLDS:
        return None
    try:
        predict = _predictor(classifier, texts, labels, vectors, seed)
        scores, folds = np.empty(len(texts)), np.empty(len(texts), dtype=np.int64)
        for fold, (train, test) in enumerate(_folds(groups)):
            scores[test], folds[test] = predict(train, test), fold
    except ValueError:  # no word occurs twice
        return None
    return Verdict(labels, scores, folds, groups)


def _folds(groups: Ids) -> Any:
    from sklearn.model_selection import GroupKFold

    return GroupKFold(FOLDS).split(groups, groups=groups)


def _predictor(
    classifier: str, texts: list[str], labels: Ids, vectors: NDArray[np.float32] | None, seed: int
) -> Predict:
    if classifier == "gru":
        from penumbra.tasks.negatives.quality.gru import recurrent

        return recurrent(texts, labels, seed)
    if classifier == "sentences":
        if vectors is None:
            raise TypeError("the classifier of sentences needs the texts' vectors")
        return _regression(lambda train: vectors, labels)
    return _regression(_weighted(_counts(classifier, texts)), labels)


def _counts(classifier: str, texts: list[str]) -> Any:
    """How often each text has each n-gram, counted once for all folds."""
    from sklearn.feature_extraction.text import CountVectorizer

    if classifier == "characters":
        return CountVectorizer(analyzer="char_wb", ngram_range=(2, 4)).fit_transform(texts)
    return CountVectorizer(ngram_range=(1, 2)).fit_transform(texts)


def _weighted(counts: Any) -> Callable[[Ids], Any]:
    """TF-IDF of all texts by the training rows alone: what `TfidfVectorizer` fitted to them gives."""
    from sklearn.feature_extraction.text import TfidfTransformer

    def features(train: Ids) -> Any:
        known = counts[:, np.flatnonzero(counts[train].getnnz(axis=0) >= 2)]
        if not known.shape[1]:
            raise ValueError("no n-gram occurs in two texts")
        return TfidfTransformer(sublinear_tf=True).fit(known[train]).transform(known)

    return features


def _regression(features: Callable[[Ids], Any], labels: Ids) -> Predict:
    from sklearn.linear_model import LogisticRegression

    def predict(train: Ids, test: Ids) -> Floats:
        matrix = features(train)
        model = LogisticRegression(C=INVERSE_REGULARISATION, max_iter=STEPS).fit(matrix[train], labels[train])
        scores: Floats = model.decision_function(matrix[test])
        return scores

    return predict
