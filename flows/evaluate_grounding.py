"""`evaluate-grounding`: predictions and all figures of a trained model, by split and by composition type.

penumbra run evaluate-grounding charades-cg
"""

from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.data.annotations import read_annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.grounding.evaluation.choice import Choice, chosen_run, sources_of_run
from penumbra.tasks.grounding.evaluation.figures import evaluate
from penumbra.tasks.grounding.evaluation.predictions import predict_model
from penumbra.tasks.grounding.report.pages import Judged, report_evaluation
from prefect import flow


@flow(name="evaluate-grounding", flow_run_name="{dataset.name}")
def evaluate_grounding(dataset: Dataset, choice: Choice = Choice()) -> Artifact:  # noqa: B008 (immutable)
    """Predict with the best epoch of a run, judge it as the field does, and show it, beside another where asked."""
    annotations = read_annotations(dataset)
    judged = judge(annotations, choice.run, choice)
    beside = [judge(annotations, choice.beside, choice)] if choice.beside else []
    report_evaluation(judged, beside)
    return judged.evaluation


def judge(annotations: Artifact, run: str | None, choice: Choice) -> Judged:
    """Predict and evaluate with one run."""
    metrics = chosen_run(annotations.dataset, run)
    sources = sources_of_run(metrics, annotations)
    predictions = predict_model(metrics, sources, choice.ranking, choice.splits)
    return Judged(metrics, sources, predictions, evaluate(metrics, predictions, sources))
