"""`evaluate-grounding`: predictions and all figures of a trained model, by split and by composition type.

penumbra run evaluate-grounding charades-cg
"""

from prefect import State

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.flows.named_flow import completed_state, named_flow
from penumbra.tasks.data.annotations import read_annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.grounding.batches.inputs import Sources, newest_tags
from penumbra.tasks.grounding.configs import Choice, Ranking
from penumbra.tasks.grounding.evaluation.figures import evaluate
from penumbra.tasks.grounding.evaluation.predictions import predict_model, sources_of_run
from penumbra.tasks.grounding.report import EvaluatedRun, report_evaluation
from penumbra.tasks.grounding.training.stage import chosen_run


@named_flow("evaluate-grounding")
def evaluate_grounding(dataset: Dataset, choice: Choice = Choice(), ranking: Ranking | None = None) -> State[Artifact]:
    """Predict with the best epoch of a run and evaluate it; `ranking` defaults to that of the run."""
    annotations, metrics = read_annotations(dataset), chosen_run(dataset.name, choice.run)
    negatives = Store().newest_if_any(dataset.name, "negatives")
    sources = sources_of_run(metrics, annotations, negatives, newest_tags(annotations))
    run = evaluate_run(metrics, sources, choice.splits, ranking)
    return completed_state(run.evaluation, report_evaluation(run))


def evaluate_run(
    metrics: Artifact, sources: Sources, splits: tuple[str, ...] = (), ranking: Ranking | None = None
) -> EvaluatedRun:
    """Predict with a run and evaluate it; this is the flow's DAG."""
    predictions = predict_model(metrics, sources, ranking, splits)
    return EvaluatedRun(metrics, sources, predictions, evaluate(metrics, predictions, sources))
