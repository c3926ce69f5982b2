"""`train-grounding`: train a grounding model on a data set whose features (and negatives) are there.

penumbra run train-grounding charades-cg-qd_detr-shine
"""

from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.data.annotations import read_annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.grounding.batches.inputs import sources_for
from penumbra.tasks.grounding.families.detr import QDDETR
from penumbra.tasks.grounding.report.pages import report_training
from penumbra.tasks.grounding.settings import Inputs, Ranking, Training
from penumbra.tasks.grounding.training.run import train_model
from penumbra.tasks.grounding.training.settings import Model, Preset, with_preset
from penumbra.tasks.text.visual_dynamic_queries import newest_tags, split_queries
from prefect import flow


@flow(name="train-grounding", flow_run_name="{dataset.name}")
def train_grounding(
    dataset: Dataset,
    preset: Preset = None,
    model: Model = QDDETR(),  # noqa: B008 (immutable defaults are what the form in the UI shows)
    training: Training = Training(),  # noqa: B008
    inputs: Inputs = Inputs(),  # noqa: B008
    ranking: Ranking = Ranking(),  # noqa: B008
) -> Artifact:
    """Any of the models, most of them alone or with SHINE's negatives; what is said beats the preset."""
    settings = with_preset(preset, {"model": model, "training": training, "inputs": inputs, "ranking": ranking})
    annotations = read_annotations(dataset)
    if settings.model.reads_parts:
        split_queries(newest_tags(annotations))
    metrics = train_model(sources_for(annotations, settings), settings)
    report_training(metrics)
    return metrics
