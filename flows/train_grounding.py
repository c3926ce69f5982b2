"""`train-grounding`: train a grounding model on the features (and negatives) of a data set.

penumbra run train-grounding charades-cg --param model.losses.shine=true
"""

from dataclasses import replace

from penumbra.artifacts.manifest import Artifact
from penumbra.flows.registry import Outcome, named_flow
from penumbra.tasks.data.annotations import read_annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.grounding.batches.inputs import Sources, find_sources
from penumbra.tasks.grounding.configs import InputConfig, Ranking, Training
from penumbra.tasks.grounding.report import report_training
from penumbra.tasks.grounding.training.presets import OptionalModelConfig, Preset, Settings, preset_for, with_preset
from penumbra.tasks.grounding.training.stage import settings_for_clips, train_model
from penumbra.tasks.stage import run
from penumbra.tasks.text.visual_dynamic_queries import VisualDynamicQueries


@named_flow("train-grounding")
def train_grounding(
    dataset: Dataset,
    preset: Preset = None,
    model: OptionalModelConfig = None,
    training: Training | None = None,
    inputs: InputConfig | None = None,
    ranking: Ranking | None = None,
) -> Outcome[Artifact]:
    """Train a model, with or without SHINE's negatives; explicit parameters override the preset."""
    preset = preset_for(dataset, preset, model)
    settings = with_preset(preset, {"model": model, "training": training, "inputs": inputs, "ranking": ranking})
    return train(find_sources(read_annotations(dataset), settings), settings, preset)


def train(sources: Sources, settings: Settings, preset: str | None) -> Outcome[Artifact]:
    """Train a model; return the run's metrics and its outcome. This is the flow's DAG."""
    settings = settings_for_clips(sources, settings, preset)
    metrics = train_model(with_parts(sources, settings), settings)
    return metrics, report_training(metrics)


def with_parts(sources: Sources, settings: Settings) -> Sources:
    """Add the queries' static and dynamic parts if the model reads them."""
    if "visual_dynamic_queries" not in settings.model.reads or not sources.tags:
        return sources
    return replace(sources, visual_dynamic_queries=run(VisualDynamicQueries(sources.tags)))
