"""`ablation`: the papers' tables, a grid of trainings over one data set each (`tasks/grounding/ablation/grids.yaml`).

penumbra ablation losses scenes
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, cast

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.flows.build_negatives import build_negatives
from penumbra.flows.extract_features import extract_features
from penumbra.flows.train_grounding import train_grounding
from penumbra.tasks.data.annotations import read_annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.features.clip import Clip
from penumbra.tasks.features.imports.importer import Imports
from penumbra.tasks.features.patches import encode_patches
from penumbra.tasks.features.text import NONE, Texts, encode_queries
from penumbra.tasks.features.video import Videos, videos_folder
from penumbra.tasks.grounding.ablation.grids import FEATURES, NEGATIVES, TRAINING, Plan, plan
from penumbra.tasks.grounding.ablation.results import Results, Run
from penumbra.tasks.grounding.ablation.tabulate import RowsFailedError, tabulate
from penumbra.tasks.grounding.evaluation.choice import sources_of_run
from penumbra.tasks.grounding.evaluation.figures import evaluate
from penumbra.tasks.grounding.evaluation.predictions import predict_model
from penumbra.tasks.grounding.map_settings import Injection, Map, Mutual
from penumbra.tasks.grounding.training.settings import Inputs, Losses, Model, Preset, Ranking, Training
from penumbra.tasks.negatives.filling import Filling
from penumbra.tasks.negatives.in_video_negatives import Pairing, pair
from penumbra.tasks.negatives.quality.judging import Judging
from penumbra.tasks.negatives.selection import Choosing
from penumbra.tasks.sample.scenes.videos import is_sample, render_scenes
from penumbra.tasks.text.embeddings import Encoding, embed
from penumbra.tasks.text.masks import Masking
from penumbra.tasks.text.tags import Tagging
from prefect import flow, get_run_logger
from pydantic import Field


@dataclass
class Materials:
    """Negatives and features of the rows, each made once for all rows that share it."""

    dataset: Dataset
    annotations: Artifact
    made: dict[str, Artifact] = field(default_factory=dict)

    def negatives(self, row: Plan) -> Artifact | None:
        """The row's negatives, where it trains on any: those named by key, if the row changes nothing about them."""
        if not row.settings.reads_negatives:
            return None
        key = row.settings.inputs.negatives
        if key and not row.row.changes.keys() & NEGATIVES.keys():
            return Store().with_key(self.dataset.name, "negatives", key)
        groups = row.of(NEGATIVES)
        return self._once(groups, lambda: build_negatives(self.dataset, **groups, judging=Judging(judge=False)))

    def inputs(self, row: Plan, negatives: Artifact | None) -> Inputs:
        """The keys of what the row is trained on: its own negatives, and features of just these and the queries."""
        key = negatives.key if negatives else None
        found: dict[str, Any] = {"negatives": key, "video_features": self._videos(row)}
        if row.settings.reads_in_video and not row.settings.inputs.in_video_negatives:
            found["in_video_negatives"] = self._once(row.of(("encoding", "pairing")), partial(self._pairs, row)).key
        if row.settings.patches_of and not row.settings.inputs.patch_features:
            found["patch_features"] = self._once(row.of(("clip", "videos")), partial(self._patches, row)).key
        if not row.settings.inputs.text_features:
            groups = row.of(("clip", "texts"))
            groups["texts"] = groups["texts"].model_copy(update={"negatives": key or NONE})
            found["text_features"] = self._once(groups, lambda: encode_queries(self.annotations, **groups)).key
        return row.settings.inputs.model_copy(update=found)

    def _pairs(self, row: Plan) -> Artifact:
        encoding, pairing = row.of(("encoding", "pairing")).values()
        return pair(self.annotations, embed(self.annotations, encoding), pairing)

    def _patches(self, row: Plan) -> Artifact:
        clip, videos = row.of(("clip", "videos")).values()
        if is_sample(self.dataset):
            render_scenes(str(videos_folder(self.dataset.name, videos)), videos.workers)
        return encode_patches(self.annotations, clip, videos)

    def _videos(self, row: Plan) -> tuple[str, ...]:
        """Those named by key or encoder; made where videos or imports are said, or none are there; else the newest."""
        inputs = row.settings.inputs
        if inputs.video_features or inputs.video_encoders:
            return inputs.video_features
        there = Store().find(self.dataset.name, "video_features")
        if there and not row.says("videos", "imports"):
            return (there[-1].key,)
        groups = row.of(FEATURES)
        groups["texts"] = groups["texts"].model_copy(update={"negatives": NONE})
        return (self._once(groups, lambda: extract_features(self.dataset, **groups)).key,)

    def _once(self, groups: dict[str, Any], make: Callable[[], Any]) -> Artifact:
        key = "\n".join(f"{name} {group.model_dump_json()}" for name, group in groups.items())
        if key not in self.made:
            self.made[key] = cast("Artifact", make())  # Prefect hands over the data of a flow's state
        return self.made[key]


@flow(name="ablation", flow_run_name="{name}: {dataset.name}")
def ablation(
    dataset: Dataset,
    name: str = "losses",
    rows: tuple[str, ...] = (),
    seeds: Annotated[int, Field(ge=1)] = 3,
    preset: Preset = None,
    tagging: Tagging = Tagging(),  # noqa: B008 (immutable defaults are what the form in the UI shows)
    masking: Masking = Masking(),  # noqa: B008
    filling: Filling = Filling(),  # noqa: B008
    encoding: Encoding = Encoding(),  # noqa: B008
    choosing: Choosing = Choosing(),  # noqa: B008
    pairing: Pairing = Pairing(),  # noqa: B008
    clip: Clip = Clip(),  # noqa: B008
    texts: Texts = Texts(),  # noqa: B008
    videos: Videos = Videos(),  # noqa: B008
    imports: Imports = Imports(),  # noqa: B008
    model: Model = Model(),  # noqa: B008
    losses: Losses = Losses(),  # noqa: B008
    training: Training = Training(),  # noqa: B008
    inputs: Inputs = Inputs(),  # noqa: B008
    ranking: Ranking = Ranking(),  # noqa: B008
    map: Map = Map(),  # noqa: A002, B008 (the group's name)
    mutual: Mutual = Mutual(),  # noqa: B008
    injection: Injection = Injection(),  # noqa: B008
) -> Artifact:
    """Build, train and judge every row of a grid with several seeds, and print one table."""
    said = {
        "tagging": tagging, "masking": masking, "filling": filling, "encoding": encoding, "choosing": choosing,
        "pairing": pairing, "clip": clip, "texts": texts, "videos": videos, "imports": imports, "model": model,
        "losses": losses, "training": training, "inputs": inputs, "ranking": ranking, "map": map, "mutual": mutual,
        "injection": injection,
    }  # fmt: skip
    grid, plans = plan(name, rows, dataset.name, preset, said)
    materials = Materials(dataset, read_annotations(dataset))
    results = Results(grid, seeds)
    for number, row in enumerate(plans, 1):
        place = f"row {number} of {len(plans)}"
        with told(results, row.row.label):
            results.add(row.row.label, run_row(row, materials, results, place))
        get_run_logger().info("after %s:\n%s", place, results.table())
    artifact: Artifact = tabulate(dataset.name, results)
    if results.failures:
        raise rows_failed(results, artifact)
    return artifact


def run_row(row: Plan, materials: Materials, results: Results, place: str) -> list[Run]:
    """Train and judge a row with every seed; what fails is told in the results, and the rest goes on."""
    label, first, runs = row.row.label, row.settings.training.seed, list[Run]()
    with told(results, label):
        negatives = materials.negatives(row)
        inputs = materials.inputs(row, negatives)
        for number in range(results.seeds):
            get_run_logger().info("%s, seed %d of %d: %s", place, number + 1, results.seeds, label)
            with told(results, f"{label}, seed {first + number}"):
                runs.append(train_and_judge(row, materials, negatives, inputs, first + number))
    return runs


def train_and_judge(row: Plan, materials: Materials, negatives: Artifact | None, inputs: Inputs, seed: int) -> Run:
    """One training, its predictions and its figures."""
    groups = row.of(TRAINING)
    groups |= {"training": groups["training"].model_copy(update={"seed": seed}), "inputs": inputs}
    metrics = train_grounding(materials.dataset, row.preset, **groups)
    # what the others judge by must not be the newest negatives, which change while the grid goes on
    sources = replace(sources_of_run(metrics, materials.annotations), negatives=negatives)
    predictions = predict_model(metrics, sources, None, ())
    return Run(row.row.label, seed, metrics, predictions, evaluate(metrics, predictions, sources))


@contextmanager
def told(results: Results, what: str) -> Iterator[None]:
    """Note what went wrong, whatever it was, and go on: hours of other trainings do not depend on it."""
    try:
        yield
    except Exception as error:
        reason = str(error) if isinstance(error, PenumbraError) else f"{type(error).__name__}: {error}"
        results.failures[what] = reason
        get_run_logger().error("%s failed: %s", what, reason)


def rows_failed(results: Results, artifact: Artifact) -> RowsFailedError:
    """What the flow ends with where something failed."""
    reasons = "; ".join(f"{what}: {reason}" for what, reason in results.failures.items())
    error = RowsFailedError(f"{len(results.failures)} failed ({reasons}); the rest is in {artifact.path}")
    error.artifact = artifact
    return error
