"""Stage `calibration`: from what a model says of a query to how likely the query's moment is in the video at all.

The numbers of a family (`System.evidence`: the logit of an existence head, or else the highest saliency, the best
window's score, …) are the inputs of a logistic regression, which is fitted on the validation queries of the run: each
with its own video, which is true, and with sentences that are false of the video. So a run that was trained before
there were heads has `existence`, too. True and false sentences weigh as much as each other in all, and so do the kinds
of false ones: a sentence of another video, and the generated negatives of each level where the data set has them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import nn

from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.devices import device_of
from penumbra.tasks.features.errors import FeatureError
from penumbra.tasks.grounding.batches.inputs import Loaded, Sources, load
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.base import HEAD, Prediction, System
from penumbra.tasks.grounding.metrics import Flags, Floats
from penumbra.tasks.grounding.training.stage import load_run, run_name, settings_of, split_rows
from penumbra.tasks.negatives.checks import normal_form
from penumbra.tasks.negatives.providers.random import row_seed
from penumbra.tasks.stage import Stage, work_of

STAGE = "calibration"
BIAS, THRESHOLD, AREA = "bias", "threshold", "AUROC"
TRUE, OTHER_VIDEO, LEVEL = "true", "another video", "level"
QUERIES = 1_000  # validation queries at most: three numbers are fitted
SEED, STRENGTH = 0, 1.0  # of the choice of other sentences; inverse of the regularisation
Row = dict[str, Any]


@dataclass(frozen=True)
class Calibrator:
    """The fitted logistic regression: a weight for each number of evidence.

    A query whose existence is below `threshold`, the most accurate one on validation, is not in the video.
    """

    evidence: tuple[str, ...]
    weights: Floats
    bias: float
    threshold: float

    def existence(self, evidence: Floats) -> Floats:
        """Return the existence [N] of queries from their evidence [N, n]."""
        logits: Floats = np.asarray(evidence, np.float64) @ self.weights + self.bias
        return 1 / (1 + np.exp(-np.clip(logits, -50, 50)))

    def of(self, predictions: Sequence[Prediction]) -> list[float]:
        """Return the existence of each prediction."""
        evidence = np.array([one.evidence for one in predictions]).reshape(len(predictions), -1)
        return list(self.existence(evidence).tolist())


def false_sentences(rows: Sequence[Row], loaded: Loaded) -> Iterator[tuple[str, Row]]:
    """Yield the kind of each false sentence, and the row of `annotations` with it in place of the query.

    A sentence of another video is drawn from `rows`, or else from their split; one that the video has itself, in any
    case or with other punctuation, is not false of it. The choice depends on the qids only, not on the run.
    """
    own = defaultdict[str, set[str]](set)
    for row in loaded.rows:
        own[row["vid"]].add(normal_form(row["query"]))
    splits = {row["split"] for row in rows}
    pools = [sorted({row["query"] for row in several if row["split"] in splits}) for several in (rows, loaded.rows)]
    for row in rows:
        draws = np.random.default_rng(row_seed(SEED, row["qid"]))
        drawn = (pool[number] for pool in pools for number in draws.permutation(len(pool)))
        other = next((text for text in drawn if normal_form(text) not in own[row["vid"]]), None)
        texts = {OTHER_VIDEO: other} if other else {}
        texts |= {f"{LEVEL} {level}": text for level, text in loaded.negatives.get(row["qid"], {}).items()}
        for kind, text in texts.items():
            if normal_form(text) not in own[row["vid"]]:
                yield kind, {**row, "query": text}


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


def fit(names: tuple[str, ...], evidence: Floats, kinds: Sequence[str]) -> Calibrator:
    """Return the regression of evidence [N, n] of true sentences and false ones."""
    from sklearn.linear_model import LogisticRegression

    true, weights = np.array([kind == TRUE for kind in kinds]), balanced(kinds)
    mean, spread = evidence.mean(0), evidence.std(0)
    spread = np.where(spread > 0, spread, 1.0)
    model = LogisticRegression(C=STRENGTH, max_iter=1000).fit((evidence - mean) / spread, true, weights)
    slopes = model.coef_[0] / spread
    found = Calibrator(names, slopes, float(model.intercept_[0] - slopes @ mean), 0.5)
    threshold = best_threshold(found.existence(evidence), true, weights)
    return Calibrator(names, slopes, found.bias, threshold)


def check_widths(loaded: Loaded, model: nn.Module, system: System[Any]) -> None:
    """Raise `FeatureError` if a model was trained on features of other widths."""
    widths, wanted = (loaded.videos.channels, loaded.texts.channels), system.widths(model.state_dict())
    if widths != wanted:
        raise FeatureError(
            f"the model was trained on video and text features of {wanted[0]} and {wanted[1]} channels, these have "
            f"{widths[0]} and {widths[1]}: name the encoders with inputs.video_features and inputs.text_features"
        )


@dataclass(frozen=True)
class Calibration(Stage):
    """The calibration of a run's `existence`; empty, with the reason, if there is nothing to fit it on."""

    name = STAGE
    version = 1
    may_be_empty = True
    pieces = (0,)

    metrics: Artifact
    sources: Sources

    @property
    def parents(self) -> tuple[Artifact, ...]:
        """Return the run, and what its validation queries are predicted from."""
        return (self.metrics, *self.sources.parents)

    @cached_property
    def evidence(self) -> tuple[str, ...]:
        """The names of the numbers that the family has."""
        return system_of(settings_of(work_of(self.metrics))).evidence

    def parameters(self) -> dict[str, Any]:
        """Return what existence is computed from."""
        return {"evidence": list(self.evidence)}

    def part(self, piece: int) -> Part:
        """Fit the regression, and return its numbers."""
        model, settings = load_run(self.metrics)
        system, loaded = system_of(settings), load(self.sources, settings.inputs)
        name, key = run_name(settings, self.metrics.key), self.metrics.key
        rows = sorted(split_rows(loaded, settings)[1], key=lambda row: row_seed(SEED, row["qid"]))[:QUERIES]
        false = [it for it in false_sentences(rows, loaded) if it[1]["query"] in loaded.texts.index]
        asked = [(TRUE, row) for row in rows] + false
        kinds = {f"{number} {row['qid']}": kind for number, (kind, row) in enumerate(asked)}
        renamed = [{**row, "qid": qid} for qid, (_, row) in zip(kinds, asked, strict=True)]
        examples = loaded.examples_of(renamed, STAGE)
        device = device_of()
        found = []
        if len(examples) and self.evidence:
            check_widths(loaded, model, system)
            found = system.predict(model.to(device), system.data(examples, loaded.videos, loaded.texts, device))
        known, table = [kinds[one.qid] for one in found], dict[str, float]()
        rejected = list(examples.rejected)
        if len({kind == TRUE for kind in known}) == 2:
            evidence = np.stack([one.evidence for one in found]).astype(np.float64)
            fitted = fit(self.evidence, evidence, known)
            table = dict(zip(self.evidence, fitted.weights.tolist(), strict=True))
            table |= {BIAS: fitted.bias, THRESHOLD: fitted.threshold, AREA: _area(fitted, evidence, known)}
            table |= {f"{kind} sentences": float(count) for kind, count in Counter(known).items()}
        elif HEAD in self.evidence:  # the head is trained to be the log-odds
            table = {HEAD: 1.0, BIAS: 0.0, THRESHOLD: 0.5}
        else:
            rejected.append(rejection(key, STAGE, reason_of(bool(self.evidence), known), name))
        numbers = [{"run": name, "name": number, "value": value} for number, value in table.items()]
        kept = max(0, len(asked) - len(rejected))
        return Part(table_of(STAGE, numbers), kept + len(rejected), kept, rejected)


def reason_of(has_evidence: bool, kinds: Sequence[str]) -> str:
    """Return why there is nothing to fit existence on."""
    if not has_evidence:
        return "the model's family has no evidence of existence"
    if TRUE not in kinds:
        return "the run has no validation query (training.validation) to calibrate existence on"
    return "no sentence is false of a validation video: all queries are alike, and there are no negatives"


def _area(fitted: Calibrator, evidence: Floats, kinds: Sequence[str]) -> float:
    from sklearn.metrics import roc_auc_score

    true = [kind == TRUE for kind in kinds]
    return float(roc_auc_score(true, fitted.existence(evidence), sample_weight=balanced(kinds)))


def read_calibrator(calibration: Artifact) -> Calibrator | None:
    """Return a calibration; None if there was nothing to fit it on."""
    store = Store()
    values = dict(zip(*store.table(calibration, ["name", "value"]).to_pydict().values(), strict=True))
    if not values:
        return None
    names = tuple(store.manifest(calibration).parameters["evidence"])
    weights = np.array([values[name] for name in names])
    return Calibrator(names, weights, values[BIAS], values[THRESHOLD])


def calibrator_of(metrics: Artifact) -> tuple[Calibrator | None, str]:
    """Return the newest calibration of a run, or the reason why there is none."""
    store = Store()
    for manifest in reversed(store.find(metrics.dataset, STAGE)):
        if metrics.key in {parent.key for parent in manifest.parents if parent.stage == metrics.stage}:
            calibration = store.reference(manifest)
            calibrator = read_calibrator(calibration)
            return calibrator, "" if calibrator else calibration_in_words(calibration)
    command = f"penumbra run evaluate-grounding {metrics.dataset} --param choice.run={metrics.key}"
    return None, f"existence is not calibrated, so that every sentence gets windows: {command} does it"


def calibration_in_words(calibration: Artifact) -> str:
    """Return what existence is computed from, or why there is none."""
    store = Store()
    manifest = store.manifest(calibration)
    values = dict(zip(*store.table(calibration, ["name", "value"]).to_pydict().values(), strict=True))
    if not values:
        return f"existence is not calibrated: {next(reversed(manifest.rejected), 'no reason is known')}"
    names = manifest.parameters["evidence"]
    trained = "" if HEAD in names else "; no existence head was trained"
    if AREA not in values:
        return f"existence is that of the {HEAD}: there were no validation queries to calibrate it on"
    return (
        f"existence is calibrated on validation from {' and '.join(names)}{trained}: AUROC {values[AREA]:.3f}, "
        f"not in the video below {values[THRESHOLD]:.2f}"
    )
