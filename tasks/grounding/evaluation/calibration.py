"""Stage `calibration`: the logistic regression that computes `existence`, also for models without an existence head.

Its inputs are the numbers of `System.evidence`: the logit of the existence head, or else the highest saliency, the
score of the best window, and so on. It is fitted on the run's validation videos with their own sentences, which are
true, and with false sentences of three kinds: a sentence of another video, the nearest real sentence of another video,
and, where the data set has them, the generated negatives of each level. The true sentences have half of the total
weight; the kinds of false sentences share the other half equally.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.markdown import counted
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.grounding.batches.examples import Loaded
from penumbra.tasks.grounding.batches.inputs import newest_made_of
from penumbra.tasks.grounding.evaluation.run_stage import RunStage
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.base import HEAD
from penumbra.tasks.grounding.metrics import Flags, Floats
from penumbra.tasks.grounding.training.stage import run_name, settings_of, split_rows
from penumbra.tasks.negatives.judging import TRUE_ELSEWHERE, OwnSentences, encode_once, text_inputs, vectors_of
from penumbra.tasks.negatives.providers.random import row_seed
from penumbra.tasks.stage import work_of

BIAS, THRESHOLD, AREA = "bias", "threshold", "AUROC"
TRUE, OTHER_VIDEO, NEAR, LEVEL = "true", "another video", "near real", "level"
MOST_QUERIES = 1_000  # highest number of validation queries, enough to fit three weights
POOL, TRIED = 2_000, 100  # queries that near real sentences are searched in, and candidates checked per query
SEED, STRENGTH = 0, 1.0  # seed of the random sentences; inverse of the regularisation strength (sklearn's C)
FOLDS = 5  # folds of the cross-validation over videos that gives the AUROC of a calibration
Row = dict[str, Any]


@dataclass(frozen=True)
class Calibrator:
    """The fitted logistic regression, with one weight per number of evidence.

    A moment is predicted to be in the video if its existence reaches `threshold`, the most accurate on validation.
    """

    weights: Floats
    bias: float
    threshold: float = 0.5
    is_chance: bool = False  # whether the AUROC on validation may be that of random guesses, 0.5

    def existence(self, evidence: Floats) -> Floats:
        """Return the existence [N] of queries from their evidence [N, n]."""
        logits: Floats = np.asarray(evidence, np.float64) @ self.weights + self.bias
        return 1 / (1 + np.exp(-np.clip(logits, -50, 50)))

    def is_there(self, existence: float) -> bool | None:
        """Return whether a moment with this existence is predicted to be in the video; None if `is_chance`."""
        return None if self.is_chance else existence >= self.threshold


class VideoSentence(NamedTuple):
    """A sentence and the video of the query `row`; a near real sentence is the query of `other`."""

    kind: str
    row: Row
    sentence: str
    other: Row | None = None


def drawn(rows: Iterable[Row], most: int) -> list[Row]:
    """Return at most `most` rows of `annotations`, drawn at random with a seed that depends only on their ids."""
    return sorted(rows, key=lambda row: row_seed(SEED, row["qid"]))[:most]


def false_sentences(rows: Sequence[Row], loaded: Loaded, notes: Counter[str]) -> Iterator[VideoSentence]:
    """Yield the false sentences with features for the video of each row of `annotations`.

    A sentence of another video is drawn from `rows`, or else from their split. A near real sentence comes from the
    split. Sentences that may be true of another moment are left out (`notes`). The choice does not depend on the run.
    """
    splits = {row["split"] for row in rows}
    of_split = [row for row in loaded.rows if row["split"] in splits and row["vid"] in loaded.videos.index]
    pools = [sorted({row["query"] for row in several} & loaded.texts.index.keys()) for several in (rows, of_split)]
    own = OwnSentences(loaded.rows)
    pool = drawn([row for row in of_split if row["query"] in loaded.texts.index], POOL)
    made = dict[str, dict[str, str]]()  # the negatives of each query by their kind
    for qid in (row["qid"] for row in rows):
        levels = {f"{LEVEL} {level}": text for level, text in loaded.negatives.get(qid, {}).items()}
        made[qid] = levels | loaded.judging.get(qid, {})
    compared = {text for texts in made.values() for text in texts.values()} | set(pools[0])
    compared |= {text for row in [*rows, *pool] for text in own.of_video[row["vid"]]}
    near = dict(nearest_real(rows, pool, own)) if encode_once(compared) else {}
    for row in rows:
        draws = np.random.default_rng(row_seed(SEED, row["qid"]))
        others = (pool[number] for pool in pools for number in draws.permutation(len(pool)))
        if other := next((text for text in others if not own.may_be_true(row["vid"], text)), None):
            yield VideoSentence(OTHER_VIDEO, row, other)
        if nearest := near.get(row["qid"]):
            yield VideoSentence(NEAR, row, nearest["query"], nearest)
        for kind, text in made[row["qid"]].items():
            if own.may_be_true(row["vid"], text):
                notes[f"{kind}: {TRUE_ELSEWHERE}"] += 1
            elif text in loaded.texts.index:
                yield VideoSentence(kind, row, text)
            else:
                notes[f"{kind}: no features of the sentence"] += 1


def nearest_real(rows: Sequence[Row], pool: Sequence[Row], own: OwnSentences) -> Iterator[tuple[str, Row]]:
    """Yield the qid of each row, and the row of `pool` with the nearest query of another video.

    Neither query may be true of the video of the other query, as judged by text (`OwnSentences.may_be_true`).
    """
    by_text = defaultdict[str, list[Row]](list)
    for row in pool:
        by_text[row["query"]].append(row)
    texts = sorted(by_text)
    vectors = vectors_of(texts) if texts else np.zeros((0, 1), np.float32)
    for row in rows:
        # rounded, so that the order does not depend on the machine
        cosines = (vectors @ vectors_of([row["query"]])[0]).round(4)
        for place in np.argsort(-cosines, kind="stable")[:TRIED]:
            if cosines[place] > own.ceiling or own.may_be_true(row["vid"], texts[place]):
                continue
            others = (it for it in by_text[texts[place]] if not own.may_be_true(it["vid"], row["query"]))
            if other := next(others, None):
                yield row["qid"], other
                break


def balanced(kinds: Sequence[str]) -> Floats:
    """Return weights [N] with mean 1: half for true sentences, half for false ones with equal shares per kind."""
    counts = Counter(kinds)
    share = {kind: 0.5 if kind == TRUE else 0.5 / (len(counts) - 1) for kind in counts}
    return np.array([share[kind] / counts[kind] for kind in kinds]) * len(kinds)


def best_threshold(existence: Floats, true: Flags, weights: Floats) -> float:
    """Return the threshold with the highest weighted accuracy, halfway between two values; of equals nearest to 0.5."""
    values = np.unique(existence)
    candidates = np.concatenate([[0.0], (values[1:] + values[:-1]) / 2, [1.0]])
    order = np.argsort(existence, kind="stable")
    signed = np.concatenate([[0.0], np.cumsum(np.where(true[order], -weights[order], weights[order]))])
    gain = signed[np.searchsorted(existence[order], candidates)]  # gain from rejecting all below the candidate
    best = candidates[gain >= gain.max() - 1e-9]
    return float(best[np.abs(best - 0.5).argmin()])


def fit(evidence: Floats, kinds: Sequence[str]) -> Calibrator:
    """Return the calibrator fitted on evidence [N, n] of true and false sentences."""
    from sklearn.linear_model import LogisticRegression

    true, weights = np.array([kind == TRUE for kind in kinds]), balanced(kinds)
    mean, spread = evidence.mean(0), evidence.std(0)
    spread = np.where(spread > 0, spread, 1.0)
    model = LogisticRegression(C=STRENGTH, max_iter=1000).fit((evidence - mean) / spread, true, weights)
    slopes = model.coef_[0] / spread
    found = Calibrator(slopes, float(model.intercept_[0] - slopes @ mean))
    return replace(found, threshold=best_threshold(found.existence(evidence), true, weights))


def existence_by_others(evidence: Floats, kinds: Sequence[str], vids: Sequence[str]) -> Floats:
    """Return the existence [N] of each sentence, cross-validated over videos in five folds; evidence [N, n].

    Without cross-validation even noise would give an AUROC above 0.5. Existence is 0.5 if there are no other videos.
    """
    from sklearn.model_selection import GroupKFold

    existence, labels = np.full(len(vids), 0.5), np.array(kinds)
    folds = min(FOLDS, len(set(vids)))
    for known, judged in GroupKFold(folds).split(evidence, groups=vids) if folds > 1 else ():
        if len(set(labels[known] == TRUE)) == 2:
            existence[judged] = fit(evidence[known], labels[known].tolist()).existence(evidence[judged])
    return existence


@dataclass(frozen=True)
class Calibration(RunStage):
    """The weights and threshold of a run's `Calibrator`; empty, with a reason, if there are no data to fit it on."""

    name = "calibration"
    version = 3
    may_be_empty = True
    pieces = (0,)
    inputs = staticmethod(text_inputs)  # they decide whether a sentence may be true of a video

    @cached_property
    def evidence(self) -> tuple[str, ...]:
        return system_of(settings_of(work_of(self.metrics))).evidence

    def parameters(self) -> dict[str, Any]:
        return {"evidence": list(self.evidence)}

    def part(self, piece: int) -> Part:
        from sklearn.metrics import roc_auc_score

        notes, name, key = Counter[str](), run_name(self.run[1], self.metrics.key), self.metrics.key
        rows = drawn(split_rows(self.loaded, self.run[1])[1], MOST_QUERIES)
        sentences = [*(VideoSentence(TRUE, it, it["query"]) for it in rows), *false_sentences(rows, self.loaded, notes)]
        by_qid = {f"{number} {it.row['qid']}": it for number, it in enumerate(sentences)}
        found, rejected, _ = self.predict([{**it.row, "qid": qid, "query": it.sentence} for qid, it in by_qid.items()])
        kinds, table = [by_qid[one.qid].kind for one in found], dict[str, float]()
        if self.evidence and len({kind == TRUE for kind in kinds}) == 2:
            evidence = np.stack([one.evidence for one in found]).astype(np.float64)
            fitted, vids = fit(evidence, kinds), [by_qid[one.qid].row["vid"] for one in found]
            existence = existence_by_others(evidence, kinds, vids)
            area = float(roc_auc_score([kind == TRUE for kind in kinds], existence, sample_weight=balanced(kinds)))
            table = dict(zip(self.evidence, fitted.weights.tolist(), strict=True))
            table |= {BIAS: fitted.bias, THRESHOLD: fitted.threshold, AREA: area}
            table |= {f"{kind} sentences": float(count) for kind, count in Counter(kinds).items()}
        elif HEAD in self.evidence:  # the head is trained to predict log-odds
            table = {HEAD: 1.0, BIAS: 0.0, THRESHOLD: 0.5}
        else:
            reason = "no false sentence for a validation video: all queries are alike, and there are no negatives"
            if not self.evidence:
                reason = "the model's family provides no evidence of existence"
            elif TRUE not in kinds:
                reason = "the run has no validation query (training.validation) to calibrate existence on"
            rejected.append(rejection(key, self.name, reason, name))
        numbers = [{"run": name, "name": number, "value": value} for number, value in table.items()]
        kept = max(0, len(sentences) - len(rejected))
        return Part(table_of(self.name, numbers), kept + len(rejected), kept, rejected, notes)


def read_calibrator(calibration: Artifact) -> tuple[Calibrator | None, str]:
    """Return the calibrator, None if the calibration is empty, and a sentence that describes it for users."""
    manifest = Store().manifest(calibration)
    values = dict(zip(*Store().table(calibration, ["name", "value"]).to_pydict().values(), strict=True))
    if not values:
        return None, f"existence is not calibrated: {next(reversed(manifest.rejected), 'the reason is unknown')}"
    names = manifest.parameters["evidence"]
    calibrator = Calibrator(np.array([values[name] for name in names]), values[BIAS], values[THRESHOLD])
    if AREA not in values:
        return calibrator, f"existence is predicted by the {HEAD}: there were no validation queries to calibrate it on"
    true = int(values[f"{TRUE} sentences"])
    false = sum(int(value) for name, value in values.items() if name.endswith(" sentences")) - true
    deviation = math.sqrt((true + false + 1) / (12 * true * false))  # of a random AUROC (Mann and Whitney, 1947)
    is_chance = values[AREA] < 0.5 + 2 * deviation
    below = f"not in the video below {values[THRESHOLD]:.2f}"
    answer = "every sentence gets windows, because this AUROC may be chance" if is_chance else below
    trained = "" if HEAD in names else "; no existence head was trained"
    # a threshold of 0 accepts every sentence, in evaluations too
    return replace(calibrator, is_chance=is_chance, threshold=0.0 if is_chance else calibrator.threshold), (
        f"existence is calibrated on {counted(true, 'validation query')} from {' and '.join(names)}{trained}: "
        f"AUROC {values[AREA]:.3f}, {answer}"
    )


def calibrator_of(metrics: Artifact) -> tuple[Calibrator | None, str]:
    """Return the newest calibrator of a run, or None, and a sentence that describes it or says why it is missing."""
    if calibration := newest_made_of(metrics, Calibration.name):
        return read_calibrator(calibration)
    command = f"penumbra run evaluate-grounding {metrics.dataset} --param choice.run={metrics.key}"
    return None, f"existence is not calibrated, so every sentence gets windows; to calibrate it: {command}"
