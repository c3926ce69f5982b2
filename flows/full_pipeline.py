"""`full-pipeline`: everything for a data set, from its annotations to the figures of a trained model.

penumbra run full-pipeline scenes
prefect deployment run full-pipeline/scenes
"""

from penumbra.artifacts.manifest import Artifact
from penumbra.flows.build_negatives import negatives_of
from penumbra.flows.evaluate_grounding import evaluate_run
from penumbra.flows.extract_features import features_of
from penumbra.flows.registry import Outcome, named_flow
from penumbra.flows.train_grounding import train
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.engines import EngineName, use_engine
from penumbra.tasks.features.extraction import FeaturesParameters
from penumbra.tasks.grounding.batches.inputs import Sources
from penumbra.tasks.grounding.configs import InputConfig, Ranking, Training
from penumbra.tasks.grounding.evaluation.predictions import sources_of_run
from penumbra.tasks.grounding.report import report_evaluation
from penumbra.tasks.grounding.training.presets import (
    OptionalModelConfig,
    Preset,
    features_with_preset,
    preset_for,
    with_preset,
)
from penumbra.tasks.negatives.parameters import NegativesParameters
from penumbra.tasks.stage import plan_if


@named_flow("full-pipeline")
def full_pipeline(
    dataset: Dataset,
    negatives: NegativesParameters = NegativesParameters(),
    features: FeaturesParameters | None = None,
    preset: Preset = None,
    model: OptionalModelConfig = None,
    training: Training | None = None,
    inputs: InputConfig | None = None,
    ranking: Ranking | None = None,
    engine: EngineName = None,
) -> Outcome[Artifact]:
    """Build the negatives, extract features of videos, queries and these negatives, train on them, and evaluate."""
    preset = preset_for(dataset, preset, model)
    settings = with_preset(preset, {"model": model, "training": training, "inputs": inputs, "ranking": ranking})
    extraction = features_with_preset(preset, features).with_patches("patch_features" in settings.model.reads)
    with use_engine(engine):
        built = negatives_of(dataset, negatives)
        with plan_if(negatives.filling.dry_run):
            extracted = features_of(dataset, built.negatives, extraction)
            sources = Sources(
                built.annotations,
                extracted.text_features,
                extracted.video_features,
                built.negatives,
                built.in_video_negatives,
                patch_features=extracted.patch_features,
                tags=built.tags,
            )
            metrics, trained = train(sources, settings, preset)
            run = evaluate_run(metrics, sources_of_run(metrics, built.annotations, built.negatives))
            outcome = report_evaluation(run, "full-pipeline", (built.outcome, extracted.outcome, trained))
    return run.evaluation, "; ".join(filter(None, (outcome, built.outcome)))
