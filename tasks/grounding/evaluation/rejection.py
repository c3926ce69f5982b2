"""Stage `existence`: the existence that a run predicts for false sentences, and metrics of their rejection.

| subset | metric, in percent | what it is |
| --- | --- | --- |
| a kind of false sentences | AUROC | how often a true sentence has a higher existence than a false one |
| | AUROC of the text alone | the AUROC of a classifier that reads no video |
| | rejected | false sentences below the threshold, which is chosen on validation |
| near real | group score | pairs in which both sentences fit their own video better, and both videos their sentence |
| all | rejection accuracy | correct decisions, with equal weights of true and false sentences, and of the kinds |
| | R1@0.5 with rejection | the same, but a true sentence must also be found at an IoU of 0.5 |
| | calibration error | expected calibration error of existence, in ten bins (Guo et al., 2017) |

The group score is Winoground's (Thrush et al., CVPR 2022) and is 0 for a model that ignores the video. Every figure
except the AUROC of the text is a mean of scores per query, so that videos can be resampled as for all other figures.
The AUROC's score of a query comes from the placement values of its true and false sentence (DeLong et al., 1988), the
calibration error's from the signed errors of the bins.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.grounding.batches.inputs import newest_made_of
from penumbra.tasks.grounding.configs import Ranking
from penumbra.tasks.grounding.evaluation.calibration import (
    AREA,
    MOST_QUERIES,
    NEAR,
    Calibrator,
    drawn,
    false_sentences,
    read_calibrator,
)
from penumbra.tasks.grounding.evaluation.predictions import rows_of
from penumbra.tasks.grounding.evaluation.run_stage import Rows, RunStage
from penumbra.tasks.grounding.metrics import Floats, Split, compared_scores
from penumbra.tasks.grounding.runs import ALL, WITH_REJECTION
from penumbra.tasks.grounding.training.stage import run_name
from penumbra.tasks.negatives.judging import text_inputs

STAGE = "existence"
OF_TEXT, REJECTED, GROUP, SENTENCES = "AUROC of the text alone", "rejected", "group score", "sentences"
ACCURACY, ERROR = "rejection accuracy", "calibration error"
OF_KINDS = (SENTENCES, AREA, OF_TEXT, REJECTED, GROUP)
OF_ALL = ("R1@0.5", WITH_REJECTION, ACCURACY, ERROR)
BINS = 10  # bins of existence in the calibration error
STEPS = 50  # steps of the curve of recall against rejection
Scores = dict[tuple[str, str], Floats]  # [N], NaN for a query without such a sentence, by subset and metric


# -- the stage ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Existence(RunStage):
    """A run's existence of false sentences, for at most `MOST_QUERIES` queries of each split that it predicted."""

    name = STAGE
    version = 1
    unit = "sentence"
    by_workers = False
    may_be_empty = True
    inputs = staticmethod(text_inputs)  # they decide whether a sentence may be true of a video

    predictions: Artifact

    @property
    def parents(self) -> tuple[Artifact, ...]:
        texts = (self.sources.judging_texts,) if self.sources.judging_texts else ()
        return (*super().parents, *self.sources.judging, *texts)

    @cached_property
    def pieces(self) -> Sequence[str]:
        return list(dict.fromkeys(Store().table(self.predictions, ["split"])["split"].to_pylist()))

    def part(self, piece: str) -> Part:
        """Predict the existence of a split's false sentences; for near real ones also of the query in their video."""
        known = (row for row in self.loaded.of_split([piece]) if row["vid"] in self.loaded.videos.index)
        notes = Counter[str]()
        asked = list(false_sentences(drawn(known, MOST_QUERIES), self.loaded, notes))
        rows = [{**it.row, "qid": f"{n}", "query": it.sentence} for n, it in enumerate(asked)]
        rows += [
            {**it.other, "qid": f"{n} exchanged", "query": it.row["query"]} for n, it in enumerate(asked) if it.other
        ]
        ranking = Ranking.model_validate(Store().manifest(self.predictions).parameters["ranking"])
        predictions, rejected, _ = self.predict(rows, ranking)
        answers = {row["qid"]: row for row in rows_of(predictions, calibrator_of_predictions(self.predictions))}
        about = {"run": run_name(self.run[1], self.metrics.key), "split": piece}
        table = [
            about
            | {"qid": it.row["qid"], "kind": it.kind, "sentence": it.sentence}
            | {"other_qid": it.other["qid"] if it.other else None}
            | {"exchanged": answers.get(f"{n} exchanged", {}).get("existence")}
            | {name: answers[f"{n}"][name] for name in ("existence", "windows")}
            for n, it in enumerate(asked)
            if f"{n}" in answers
        ]
        own = [{**it, "qid": asked[int(it["qid"])].row["qid"]} for it in rejected if "exchanged" not in it["qid"]]
        return Part(table_of(STAGE, table), len(asked), len(table), own, notes)


def calibrator_of_predictions(predictions: Artifact) -> Calibrator | None:
    """Return the calibrator that computed the existence of predictions, or None."""
    [calibration] = [it for it in Store().manifest(predictions).parents if it.stage == "calibration"]
    return read_calibrator(calibration)[0]


def asked_by_split(predictions: Artifact) -> tuple[dict[str, Rows], float]:
    """Return the rows of `existence` for predictions by split (none if not calibrated), and the run's threshold."""
    calibrator, existence = calibrator_of_predictions(predictions), newest_made_of(predictions, STAGE)
    asked = Store().rows(existence) if calibrator and existence else ()
    return rows_by_split(asked), calibrator.threshold if calibrator else 0.0


def rows_by_split(rows: Iterable[dict[str, Any]]) -> dict[str, Rows]:
    by_split = defaultdict[str, Rows](list)
    for row in rows:
        by_split[row["split"]].append(row)
    return dict(by_split)


# -- figures -----------------------------------------------------------------------------------------------------------


def label(subset: str, metric: str) -> str:
    """Return the name of a figure, with its subset unless that is `all`."""
    return metric if subset == ALL else f"{metric}, {subset}"


def scores_of(split: Split, asked: Rows, threshold: float) -> Scores:
    """Return the scores of a split's queries for each figure; a figure is the mean over the queries with a score.

    `asked` are the false sentences of the split, rows of `existence`; those below `threshold` are rejected.
    """
    qids, hits = split.windows.qids, compared_scores(split)["R1@0.5"]  # 0 or 100
    true = {qid: row["existence"] for qid, row in split.predictions.items()}
    place = {qid: number for number, qid in enumerate(qids)}
    existence = np.array([true[qid] for qid in qids], np.float64)  # NaN without a calibration
    by_kind = defaultdict[str, Rows](list)
    for row in asked:
        if row["qid"] in place and row["existence"] is not None and np.isfinite(existence[place[row["qid"]]]):
            by_kind[row["kind"]].append(row)
    scores = defaultdict[tuple[str, str], Floats](lambda: np.full(len(qids), np.nan))
    judged = np.array(sorted({place[row["qid"]] for rows in by_kind.values() for row in rows}), np.int64)
    right, errors = np.zeros(len(qids)), [(judged, existence[judged], np.ones(len(judged)))]
    for kind, rows in by_kind.items():
        at = np.array([place[row["qid"]] for row in rows])
        false, own = np.array([row["existence"] for row in rows], np.float64), existence[at]
        sides = _placement(own, false), 1 - _placement(false, own)
        scores[kind, AREA][at] = 100 * (sides[0] + sides[1] - sides[0].mean())
        scores[kind, REJECTED][at] = 100.0 * (false < threshold)
        if kind == NEAR:
            others = np.array([true.get(row["other_qid"]) for row in rows], np.float64)
            exchanged = np.array([row["exchanged"] for row in rows], np.float64)
            both = (np.minimum(own, others) > np.maximum(false, exchanged)).astype(np.float64)
            known = np.isfinite(others + exchanged)
            scores[kind, GROUP][at[known]] = 100.0 * both[known]
        weight = len(judged) / len(rows) / len(by_kind)  # equal total weight of true and of false sentences
        right[at] += (false < threshold) * weight
        errors.append((at, false, np.full(len(at), weight)))
    if len(judged):
        accepted = existence[judged] >= threshold
        scores[ALL, WITH_REJECTION][judged] = 50 * right[judged] + 0.5 * hits[judged] * accepted
        scores[ALL, ACCURACY][judged] = 50 * (right[judged] + accepted)
        scores[ALL, ERROR][judged] = _calibration_errors(errors, len(qids))[judged]
    return dict(scores)


def _placement(values: Floats, others: Floats) -> Floats:
    """Return the placement value of each value [n]: the share of others [m] below it; equal ones count half."""
    ordered = np.sort(others)
    below, upto = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return np.asarray((below + upto) / (2 * len(ordered)), np.float64)


def _calibration_errors(groups: Sequence[tuple[np.ndarray, Floats, Floats]], count: int) -> Floats:
    """Return each query's share [count] of the calibration error, in percent.

    `groups` are the places, existence and weights of the true sentences, then of each kind of false sentences.
    """
    places, existence, weights = (np.concatenate(column) for column in zip(*groups, strict=True))
    true = np.arange(len(places)) < len(groups[0][0])
    excess = 50 * weights * (true - existence)
    bins = np.minimum((existence * BINS).astype(np.int64), BINS - 1)
    signs = np.sign(np.bincount(bins, excess, BINS))
    shares = np.zeros(count)
    np.add.at(shares, places, excess * signs[bins])
    return shares


def figures_of(scores: Scores) -> Iterator[tuple[str, str, float]]:
    """Yield subset, metric and value of each figure, and the number of sentences of each kind."""
    for (subset, metric), values in scores.items():
        yield subset, metric, float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")
        if metric == AREA:
            yield subset, SENTENCES, float(np.isfinite(values).sum())


def text_figures(asked: Rows, rows: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, float]]:
    """Yield subset, metric and value of the text's AUROC for each kind of false sentences.

    It is the blind AUC of negatives (`penumbra.tasks.negatives.quality.figures`); `rows` are the queries by qid.
    """
    from penumbra.tasks.data.resampling import Resamples
    from penumbra.tasks.negatives.quality.figures import blind_auc  # only here: it imports scipy

    for kind in dict.fromkeys(row["kind"] for row in asked):
        mine = [row for row in asked if row["kind"] == kind]
        names, videos = np.unique([rows[row["qid"]]["vid"] for row in mine], return_inverse=True)
        queries, sentences = [rows[row["qid"]]["query"] for row in mine], [row["sentence"] for row in mine]
        if area := blind_auc(queries, sentences, videos, Resamples(len(names), 0, 0)):
            yield kind, OF_TEXT, 100 * area.value


def recall_against_rejection(hits: Floats, true: Floats, false: Floats) -> list[tuple[float, float]]:
    """Return the points of a curve: % of false sentences [m] rejected, and % of queries [n] found and not rejected."""
    shares = np.linspace(0, 1, STEPS + 1)
    recalls = [float((hits * (true >= threshold)).mean()) for threshold in np.quantile(false, shares)]
    return list(zip((100 * shares).tolist(), recalls, strict=True))
