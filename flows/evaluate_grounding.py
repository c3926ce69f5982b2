"""`evaluate-grounding`: predictions and all figures of a trained model, by split and by composition type.

penumbra run evaluate-grounding charades-cg
"""

from prefect import flow

from artifacts.manifest import Artifact
from tasks.annotations import read_annotations
from tasks.dataset import Dataset
from tasks.evaluation.choice import Choice, chosen_run, sources_of_run
from tasks.evaluation.predictions import predict_model
from tasks.evaluation.stage import evaluate


@flow(name="evaluate-grounding", flow_run_name="{dataset.name}")
def evaluate_grounding(dataset: Dataset, choice: Choice = Choice()) -> Artifact:  # noqa: B008 (immutable)
    """Predict with the best epoch of a run, and judge it as the field does."""
    annotations = read_annotations(dataset)
    metrics = chosen_run(dataset.name, choice.run)
    sources = sources_of_run(metrics, annotations)
    predictions = predict_model(metrics, sources, choice.ranking, choice.splits)
    return evaluate(metrics, predictions, sources)
