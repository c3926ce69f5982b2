"""`train-grounding`: train a grounding model on a data set whose features (and negatives) are there.

penumbra run train-grounding charades-cg-qd_detr-shine
"""

from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.data.annotations import read_annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.grounding.batches.inputs import sources_for
from penumbra.tasks.grounding.map_settings import Injection, Map, Mutual
from penumbra.tasks.grounding.report.pages import report_training
from penumbra.tasks.grounding.training.run import train_model
from penumbra.tasks.grounding.training.settings import Inputs, Losses, Model, Preset, Ranking, Training, with_preset
from penumbra.tasks.text.visual_dynamic_queries import newest_tags, split_queries
from prefect import flow


@flow(name="train-grounding", flow_run_name="{dataset.name}")
def train_grounding(
    dataset: Dataset,
    preset: Preset = None,
    model: Model = Model(),  # noqa: B008 (immutable defaults are what the form in the UI shows)
    losses: Losses = Losses(),  # noqa: B008
    training: Training = Training(),  # noqa: B008
    inputs: Inputs = Inputs(),  # noqa: B008
    ranking: Ranking = Ranking(),  # noqa: B008
    map: Map = Map(),  # noqa: A002, B008 (the group's name)
    mutual: Mutual = Mutual(),  # noqa: B008
    injection: Injection = Injection(),  # noqa: B008
) -> Artifact:
    """Any of the models, most of them alone or with SHINE's negatives; what is said beats the preset."""
    groups = {
        "model": model, "losses": losses, "training": training, "inputs": inputs, "ranking": ranking, "map": map,
        "mutual": mutual, "injection": injection,
    }  # fmt: skip
    settings = with_preset(preset, groups)
    annotations = read_annotations(dataset)
    if settings.reads_parts:
        split_queries(newest_tags(annotations))
    metrics = train_model(sources_for(annotations, settings), settings)
    report_training(metrics)
    return metrics
