"""Stages `calibration` and `predictions`: a trained model's answers to queries, and how likely each moment is there.

The numbers of a family (`System.evidence`: the logit of an existence head, or else the highest saliency, the best
window's score, …) are the inputs of a logistic regression, which is fitted on the validation queries of the run: each
with its own video, which is true, and with sentences that are false of the video. So a model without a head has
`existence`, too. All true sentences together weigh as much as all false ones, and all kinds of false ones weigh the
same: a sentence of another video, the nearest real sentence of another video, and the generated negatives of each
level where the data set has them.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.markdown import counted
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.devices import device_of
from penumbra.tasks.features.errors import FeatureError
from penumbra.tasks.grounding.batches.examples import Loaded
from penumbra.tasks.grounding.batches.inputs import Sources, load, newest_made_of
from penumbra.tasks.grounding.configs import Choice, Ranking
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.base import HEAD, Prediction
from penumbra.tasks.grounding.metrics import EvaluationError, Flags, Floats
from penumbra.tasks.grounding.runs import METRICS
from penumbra.tasks.grounding.training.loop import keep_memory
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.grounding.training.stage import (
    chosen_run,
    load_run,
    name_of,
    require_checkpoints,
    run_name,
    settings_of,
    split_rows,
)
from penumbra.tasks.negatives.judging import TRUE_ELSEWHERE, OwnSentences, encode_once, text_inputs, vectors_of
from penumbra.tasks.negatives.providers.random import row_seed
from penumbra.tasks.stage import Stage, is_planned, logger, run, work_of

BIAS, THRESHOLD, AREA = "bias", "threshold", "AUROC"
TRUE, OTHER_VIDEO, NEAR, LEVEL = "true", "another video", "near real", "level"
MOST_QUERIES = 1_000  # validation queries at most: three numbers are fitted
POOL, TRIED = 2_000, 100  # queries among which near real sentences are looked for, and those that are tried for each
SEED, STRENGTH = 0, 1.0  # of the choice of other sentences; inverse of the regularisation
FOLDS = 5  # of the videos, for the AUROC of a calibration
SECONDS, QUERIES = "seconds of prediction", "queries predicted"  # measured, and kept in the manifest
Row = dict[str, Any]


@dataclass(frozen=True)
class Calibrator:
    """The fitted logistic regression: a weight for each number of evidence.

    A query whose existence is below `threshold`, the most accurate one on validation, is not in the video.
    """

    weights: Floats
    bias: float
    threshold: float = 0.5
    is_chance: bool = False  # its AUROC on validation cannot be told from 0.5

    def existence(self, evidence: Floats) -> Floats:
        """Return the existence [N] of queries from their evidence [N, n]."""
        logits: Floats = np.asarray(evidence, np.float64) @ self.weights + self.bias
        return 1 / (1 + np.exp(-np.clip(logits, -50, 50)))

    def is_there(self, existence: float) -> bool | None:
        """Return whether a moment of this existence is in the video; None if that would be a guess."""
        return None if self.is_chance else existence >= self.threshold


class Asked(NamedTuple):
    """A false sentence for the video of the query `row`, and its kind; a near real one is the query of `other`."""

    kind: str
    row: Row
    sentence: str
    other: Row | None = None


def drawn(rows: Iterable[Row], most: int) -> list[Row]:
    """Draw rows of `annotations`; the draw depends on their ids only."""
    return sorted(rows, key=lambda row: row_seed(SEED, row["qid"]))[:most]


def false_sentences(rows: Sequence[Row], loaded: Loaded, notes: Counter[str]) -> Iterator[Asked]:
    """Yield the false sentences of each row of `annotations` that have features.

    A sentence of another video is drawn from `rows`, or else from their split; a near real one is the nearest of the
    split. One that may be true of another moment of the video is left out, and counted in `notes`. The choice depends
    on the queries only, not on the run.
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
            yield Asked(OTHER_VIDEO, row, other)
        if nearest := near.get(row["qid"]):
            yield Asked(NEAR, row, nearest["query"], nearest)
        for kind, text in made[row["qid"]].items():
            if own.may_be_true(row["vid"], text):
                notes[f"{kind}: {TRUE_ELSEWHERE}"] += 1
            elif text in loaded.texts.index:
                yield Asked(kind, row, text)
            else:
                notes[f"{kind}: no features of the sentence"] += 1


def nearest_real(rows: Sequence[Row], pool: Sequence[Row], own: OwnSentences) -> Iterator[tuple[str, Row]]:
    """Yield the qid of each row, and the row of the nearest query of another video.

    Both queries must be false of the other's video, by text.
    """
    by_text = defaultdict[str, list[Row]](list)
    for row in pool:
        by_text[row["query"]].append(row)
    texts = sorted(by_text)
    vectors = vectors_of(texts) if texts else np.zeros((0, 1), np.float32)
    for row in rows:
        # rounded: the last bits depend on the machine and must not decide
        cosines = (vectors @ vectors_of([row["query"]])[0]).round(4)
        for place in np.argsort(-cosines, kind="stable")[:TRIED]:
            if cosines[place] > own.ceiling or own.may_be_true(row["vid"], texts[place]):
                continue
            others = (it for it in by_text[texts[place]] if not own.may_be_true(it["vid"], row["query"]))
            if other := next(others, None):
                yield row["qid"], other
                break


def balanced(kinds: Sequence[str]) -> Floats:
    """Return weights [N], with mean 1, of true sentences and those of each kind of false ones."""
    counts = Counter(kinds)
    share = {kind: 0.5 if kind == TRUE else 0.5 / (len(counts) - 1) for kind in counts}
    return np.array([share[kind] / counts[kind] for kind in kinds]) * len(kinds)


def best_threshold(existence: Floats, true: Flags, weights: Floats) -> float:
    """Return the threshold of the highest weighted accuracy: halfway between two values, the nearest to 0.5."""
    values = np.unique(existence)
    candidates = np.concatenate([[0.0], (values[1:] + values[:-1]) / 2, [1.0]])
    order = np.argsort(existence, kind="stable")
    signed = np.concatenate([[0.0], np.cumsum(np.where(true[order], -weights[order], weights[order]))])
    gain = signed[np.searchsorted(existence[order], candidates)]  # of rejecting all below the candidate
    best = candidates[gain >= gain.max() - 1e-9]
    return float(best[np.abs(best - 0.5).argmin()])


def fit(evidence: Floats, kinds: Sequence[str]) -> Calibrator:
    """Return the regression of evidence [N, n] of true sentences and false ones."""
    from sklearn.linear_model import LogisticRegression

    true, weights = np.array([kind == TRUE for kind in kinds]), balanced(kinds)
    mean, spread = evidence.mean(0), evidence.std(0)
    spread = np.where(spread > 0, spread, 1.0)
    model = LogisticRegression(C=STRENGTH, max_iter=1000).fit((evidence - mean) / spread, true, weights)
    slopes = model.coef_[0] / spread
    found = Calibrator(slopes, float(model.intercept_[0] - slopes @ mean))
    return replace(found, threshold=best_threshold(found.existence(evidence), true, weights))


def existence_by_others(evidence: Floats, kinds: Sequence[str], vids: Sequence[str]) -> Floats:
    """Return the existence [N] of each sentence by the regression of evidence [N, n] of other videos, in five folds.

    A regression judged by what it was fitted on tells pure noise apart. 0.5 where there are no other videos.
    """
    from sklearn.model_selection import GroupKFold

    existence, labels = np.full(len(vids), 0.5), np.array(kinds)
    folds = min(FOLDS, len(set(vids)))
    for known, judged in GroupKFold(folds).split(evidence, groups=vids) if folds > 1 else ():
        if len(set(labels[known] == TRUE)) == 2:
            existence[judged] = fit(evidence[known], labels[known].tolist()).existence(evidence[judged])
    return existence


@dataclass(frozen=True)
class RunStage(Stage):
    """A stage about a trained run, which reads what the run was trained on."""

    metrics: Artifact
    sources: Sources

    @property
    def parents(self) -> tuple[Artifact, ...]:
        return (*super().parents, *self.sources.parents)

    @cached_property
    def run(self) -> tuple[nn.Module, Settings]:
        """The best model of the run, and its settings."""
        keep_memory()
        return load_run(self.metrics)

    @cached_property
    def loaded(self) -> Loaded:
        return load(self.sources, self.run[1].inputs)

    def predict(self, rows: Sequence[Row], ranking: Ranking | None = None) -> tuple[list[Prediction], list[Row], float]:
        """Return predictions for rows of `annotations` with any text that has features, and the seconds that they took.

        Other rows are returned as rejected. `ranking` defaults to that of the run. Raise `FeatureError` if the model
        was trained on features of other widths.
        """
        (model, settings), loaded = self.run, self.loaded
        system = system_of(settings.model_copy(update={"ranking": ranking or settings.ranking}))
        examples = loaded.examples_of(rows, self.name)
        if not len(examples):
            return [], list(examples.rejected), 0.0
        widths, wanted = (loaded.videos.channels, loaded.texts.channels), system.widths(model.state_dict())
        if widths != wanted:
            raise FeatureError(
                f"the model was trained on video and text features of {wanted[0]} and {wanted[1]} channels, these have "
                f"{widths[0]} and {widths[1]}: name the encoders with inputs.video_features and inputs.text_features"
            )
        data = system.data(examples, device_of())
        model.to(device_of())
        started = time.perf_counter()
        predictions = system.predict(model, data)
        return predictions, list(examples.rejected), time.perf_counter() - started


@dataclass(frozen=True)
class Calibration(RunStage):
    """The calibration of a run's `existence`; empty, with the reason, if there is nothing to fit it on."""

    name = "calibration"
    version = 3
    may_be_empty = True
    pieces = (0,)

    @cached_property
    def evidence(self) -> tuple[str, ...]:
        return system_of(settings_of(work_of(self.metrics))).evidence

    def parameters(self) -> dict[str, Any]:
        return {"evidence": list(self.evidence)}

    def inputs(self) -> dict[str, str]:
        """Return the digests of what says whether a sentence may be true of a video."""
        return text_inputs()

    def part(self, piece: int) -> Part:
        from sklearn.metrics import roc_auc_score

        notes, name, key = Counter[str](), run_name(self.run[1], self.metrics.key), self.metrics.key
        rows = drawn(split_rows(self.loaded, self.run[1])[1], MOST_QUERIES)
        asked = [Asked(TRUE, row, row["query"]) for row in rows] + list(false_sentences(rows, self.loaded, notes))
        by_qid = {f"{number} {it.row['qid']}": it for number, it in enumerate(asked)}
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
        elif HEAD in self.evidence:  # the head is trained to be the log-odds
            table = {HEAD: 1.0, BIAS: 0.0, THRESHOLD: 0.5}
        else:
            reason = "no sentence is false of a validation video: all queries are alike, and there are no negatives"
            if not self.evidence:
                reason = "the model's family has no evidence of existence"
            elif TRUE not in kinds:
                reason = "the run has no validation query (training.validation) to calibrate existence on"
            rejected.append(rejection(key, self.name, reason, name))
        numbers = [{"run": name, "name": number, "value": value} for number, value in table.items()]
        kept = max(0, len(asked) - len(rejected))
        return Part(table_of(self.name, numbers), kept + len(rejected), kept, rejected, notes)


def read_calibrator(calibration: Artifact) -> tuple[Calibrator | None, str]:
    """Return a calibration, or None if there was nothing to fit it on; and a sentence that says what it is based on."""
    manifest = Store().manifest(calibration)
    values = dict(zip(*Store().table(calibration, ["name", "value"]).to_pydict().values(), strict=True))
    if not values:
        return None, f"existence is not calibrated: {next(reversed(manifest.rejected), 'no reason is known')}"
    names = manifest.parameters["evidence"]
    calibrator = Calibrator(np.array([values[name] for name in names]), values[BIAS], values[THRESHOLD])
    if AREA not in values:
        return calibrator, f"existence is that of the {HEAD}: there were no validation queries to calibrate it on"
    true = int(values[f"{TRUE} sentences"])
    false = sum(int(value) for name, value in values.items() if name.endswith(" sentences")) - true
    deviation = math.sqrt((true + false + 1) / (12 * true * false))  # of the AUROC at chance (Mann and Whitney, 1947)
    is_chance = values[AREA] < 0.5 + 2 * deviation
    below = f"not in the video below {values[THRESHOLD]:.2f}"
    answer = "every sentence gets windows, as that may be chance" if is_chance else below
    trained = "" if HEAD in names else "; no existence head was trained"
    # what rejects nothing is evaluated as rejecting nothing
    return replace(calibrator, is_chance=is_chance, threshold=0.0 if is_chance else calibrator.threshold), (
        f"existence is calibrated on {counted(true, 'validation query')} from {' and '.join(names)}{trained}: "
        f"AUROC {values[AREA]:.3f}, {answer}"
    )


def calibrator_of(metrics: Artifact) -> tuple[Calibrator | None, str]:
    """Return the newest calibration of a run, and what it is based on or why there is none."""
    if calibration := newest_made_of(metrics, Calibration.name):
        return read_calibrator(calibration)
    command = f"penumbra run evaluate-grounding {metrics.dataset} --param choice.run={metrics.key}"
    return None, f"existence is not calibrated, so that every sentence gets windows: {command} does it"


# -- stage `predictions` -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Predictions(RunStage):
    """The predictions of a run for every query of some splits, a part each; default: all but the training split."""

    name = "predictions"
    version = 2
    by_workers = False  # a GPU holds one model, and each worker would load all features again for seconds of work

    calibration: Artifact
    ranking: Ranking
    splits: tuple[str, ...]

    def parameters(self) -> dict[str, Any]:
        return {"ranking": self.ranking.model_dump(mode="json"), "splits": list(self.splits)}

    def determines(self) -> dict[str, Any]:
        return {**self.parameters(), "ranking": self.ranking.model_dump(mode="json", exclude_defaults=True)}

    @cached_property
    def pieces(self) -> Sequence[str]:
        """Return the splits; raise `EvaluationError` naming one that does not exist."""
        known = self.loaded.splits()
        unknown = set(self.splits) - set(known)
        if unknown:
            raise EvaluationError(f"no split {', '.join(sorted(unknown))}; there is: {', '.join(known)}")
        return list(self.splits) or [split for split in known if split != "train"]

    def part(self, piece: str) -> Part:
        predictions, rejected, seconds = self.predict(self.loaded.of_split([piece]), self.ranking)
        rows = rows_of(predictions, read_calibrator(self.calibration)[0])
        table = [{"run": run_name(self.run[1], self.metrics.key), "split": piece, **row} for row in rows]
        measured = {SECONDS: seconds, QUERIES: float(len(rows))}
        return Part(table_of(self.name, table), len(rows) + len(rejected), len(rows), rejected, measured=measured)


def existence_of(predictions: Sequence[Prediction], calibrator: Calibrator | None) -> list[float | None]:
    """Return the existence of each prediction, None without a calibrator."""
    if not calibrator or not predictions:
        return [None] * len(predictions)
    return list(calibrator.existence(np.array([one.evidence for one in predictions])).tolist())


def rows_of(predictions: Sequence[Prediction], calibrator: Calibrator | None) -> list[Row]:
    """Return rows of the table `predictions`."""
    return [
        {
            "qid": one.qid,
            "windows": [dict(zip(("start", "end", "score"), it, strict=True)) for it in one.windows.tolist()],
            "saliency": one.saliency.tolist(),
            "existence": existence,
        }
        for one, existence in zip(predictions, existence_of(predictions, calibrator), strict=True)
    ]


def runs_to_evaluate(dataset: str, choice: Choice) -> list[Artifact]:
    """Return the run that is chosen, or else all without predictions of these splits, or else the newest.

    The newest is last. Predictions of an older version, or with a calibration of one, do not count.
    """
    if choice.run is not None:
        return [chosen_run(dataset, choice.run)]
    store = Store()
    found, predicted = store.manifests(dataset, METRICS), set[str]()
    if not found:
        raise store.missing(dataset, METRICS)
    calibrated = {it.key for it in store.find(dataset, Calibration.name) if it.stage_version == Calibration.version}
    for made in store.find(dataset, Predictions.name):
        parents = {parent.key for parent in made.parents}
        same_splits = made.parameters.get("splits", []) == list(choice.splits)
        if made.stage_version == Predictions.version and parents & calibrated and same_splits:
            predicted |= parents
    runs, why = [it for it in found if it.key not in predicted], "without predictions so far"
    if not runs:
        runs = found[-1:]
        why = f"the newest run; each run has predictions (--param choice.run={name_of(found[-1])})"
    logger().info("evaluated: %s, %s", ", ".join(map(name_of, runs)), why)
    return [store.reference(manifest) for manifest in runs]


def predict_model(metrics: Artifact, sources: Sources, ranking: Ranking | None, splits: tuple[str, ...]) -> Artifact:
    """Predict the splits with a run, whose existence is calibrated first; `ranking` defaults to that of the run."""
    if not is_planned():
        require_checkpoints(metrics)  # also if the predictions exist: the figures need the model
    calibration = run(Calibration(metrics, sources))
    if not is_planned():
        logger().info("%s", read_calibrator(calibration)[1])
    return run(Predictions(metrics, sources, calibration, ranking or settings_of(work_of(metrics)).ranking, splits))


def sources_of_run(metrics: Artifact, annotations: Artifact, negatives: Artifact | None = None) -> Sources:
    """Return what the run was trained on, with the annotations given.

    A run that was trained on no negatives gets `negatives`, to measure whether its saliency is in their order.
    """
    parents = work_of(metrics).parents
    by_stage = {parent.stage: parent for parent in parents}
    videos, in_video = tuple(it for it in parents if it.stage == "video_features"), by_stage.get("in_video_negatives")
    others = by_stage.get("negatives", negatives), in_video, by_stage.get("visual_dynamic_queries")
    return Sources(annotations, by_stage["text_features"], videos, *others)
