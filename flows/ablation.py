"""`ablation`: train a grid of the papers' tables (`tasks/grounding/ablation_grids.yaml`) on one data set.

penumbra ablation losses scenes
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from pydantic import Field

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.markdown import counted
from penumbra.artifacts.store import Store
from penumbra.flows.build_negatives import negatives_of, queries_of
from penumbra.flows.evaluate_grounding import evaluate_run
from penumbra.flows.extract_features import features_of
from penumbra.flows.registry import Outcome, named_flow
from penumbra.flows.train_grounding import train, with_parts
from penumbra.tasks.data.annotations import TRAINING, read_annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.features.extraction import FeaturesParameters
from penumbra.tasks.grounding.ablation import NEGATIVES, Results, RowPlan, plan, tabulate
from penumbra.tasks.grounding.batches.inputs import Sources, named_sources, newest_of_encoder
from penumbra.tasks.grounding.configs import InputConfig, Ranking, Training
from penumbra.tasks.grounding.evaluation.predictions import sources_of_run
from penumbra.tasks.grounding.report import EvaluatedRun
from penumbra.tasks.grounding.runs import RunError
from penumbra.tasks.grounding.training.presets import OptionalModelConfig, Preset
from penumbra.tasks.grounding.training.stage import settings_for_clips
from penumbra.tasks.negatives.parameters import Negatives, NegativesParameters
from penumbra.tasks.parameter_group import merge
from penumbra.tasks.progress import logger
from penumbra.tasks.stage import is_planned


@named_flow("ablation")
def ablation(
    dataset: Dataset,
    name: str = "losses",
    rows: tuple[str, ...] = (),
    seeds: Annotated[int, Field(ge=1, le=100)] = 3,
    preset: Preset = None,
    negatives: NegativesParameters | None = None,
    features: FeaturesParameters | None = None,
    model: OptionalModelConfig = None,
    training: Training | None = None,
    inputs: InputConfig | None = None,
    ranking: Ranking | None = None,
) -> Outcome[Artifact]:
    """Build, train and evaluate every row of a grid with several seeds, and print one table."""
    settings = {"model": model, "training": training, "inputs": inputs, "ranking": ranking}
    grid, plans = plan(name, rows, dataset.name, preset, {**dict(negatives or {}), **dict(features or {}), **settings})
    materials, results = Materials(dataset), Results(grid, seeds)
    for provider in grid.judged_by if plans else ():
        with failures_noted(results, f"false sentences by {provider}"):
            materials.judge(provider, plans[0])
    for number, row in enumerate(plans, 1):
        label, place = row.row.label, f"row {number} of {len(plans)}"
        with failures_noted(results, label):
            results.add(label, run_row(row, materials, results, place))
            if not is_planned():
                logger().info("after %s:\n%s", place, results.table())
    artifact = tabulate(dataset.name, results)
    if results.failures:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in results.failures.items())
        raise RunError(f"{len(results.failures)} failed ({reasons}); the rest is in {artifact.path}")
    return artifact, f"{grid.title}: {counted(len(results.runs), 'training')}"


class Materials:
    """The inputs of the trainings, each made once for all rows that share it."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.built = dataset, dict[str, Negatives]()
        extracted = Store().find(dataset.name, "video_features")
        self.newest = Store().reference(extracted[-1]) if extracted else None

    def negatives(self, parameters: NegativesParameters) -> Negatives:
        key = parameters.model_dump_json()
        self.built[key] = self.built.get(key) or negatives_of(self.dataset, parameters)
        return self.built[key]

    def judge(self, provider: str, row: RowPlan) -> None:
        """Build a provider's negatives of all splits but `train`: the false sentences of evaluations."""
        annotations = read_annotations(self.dataset)
        if is_planned() and not Store().has(annotations):
            return
        every = dict.fromkeys(row["split"] for row in Store().rows(annotations, ["split"]))
        splits = [split for split in every if (split,) != TRAINING]
        judging = {"sourcing": {"source": "fills", "splits": splits}, "filling": {"providers": [provider]}}
        self.negatives(NegativesParameters.model_validate(merge(row.negatives.model_dump(mode="json"), judging)))

    def sources(self, row: RowPlan) -> Sources:
        """Return the inputs of a row.

        Its video features are those that its `inputs` name, else those that its parameters describe, else the newest.
        """
        settings = row.settings
        queries = queries_of(self.dataset, row.negatives)
        named, negatives = named_sources(queries.annotations, settings.inputs), None
        if "negatives" in settings.model.reads:
            negatives = None if row.row.changes.keys() & NEGATIVES else named.get("negatives")
            negatives = negatives or self.negatives(row.negatives).negatives
        wanted, newest = row.features, self.newest
        if encoder := settings.model.frames_of:
            clip = wanted.clip.model_copy(update={"encoder": encoder})
            wanted = FeaturesParameters(clip=clip, texts=wanted.texts, videos=wanted.videos)
            newest = newest_of_encoder(self.dataset.name, "video_features", encoder)
        extracted = any(getattr(wanted, name).model_fields_set for name in ("videos", "imports", "simulation"))
        videos = named.get("video_features") or ((newest,) if newest and not extracted else ())
        wanted = wanted.with_patches("patch_features" in settings.model.reads)
        features = features_of(self.dataset, negatives, wanted, named.get("text_features"), videos)
        in_video = named.get("in_video_negatives", queries.in_video_negatives)
        in_video = queries.in_video_negatives if "pairing" in row.row.changes else in_video
        inputs = features.text_features, features.video_features, negatives, in_video
        return Sources(queries.annotations, *inputs, None, features.patch_features, queries.tags)


def run_row(row: RowPlan, materials: Materials, results: Results, place: str) -> dict[int, EvaluatedRun]:
    """Make a row's inputs, train and evaluate it with every seed; if a seed fails, the others continue."""
    runs, label = dict[int, EvaluatedRun](), row.row.label
    sources = with_parts(materials.sources(row), row.settings)
    fitted = settings_for_clips(sources, row.settings, row.preset)
    for number in range(results.seeds):
        settings = fitted.with_seed(row.settings.training.seed + number)
        seed = settings.training.seed
        logger().info("%s, seed %d of %d: %s", place, number + 1, results.seeds, label)
        with failures_noted(results, f"{label}, seed {seed}"):
            metrics, _ = train(sources, settings, None)
            runs[seed] = evaluate_run(metrics, sources_of_run(metrics, sources.annotations))
    return runs


@contextmanager
def failures_noted(results: Results, label: str) -> Iterator[None]:
    """Note any exception in the results and continue: other trainings do not depend on it."""
    try:
        yield
    except Exception as error:
        reason = str(error) if isinstance(error, PenumbraError) else f"{type(error).__name__}: {error}"
        results.failures[label] = reason
        logger().error("%s failed: %s", label, reason)
