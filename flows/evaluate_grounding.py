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
from penumbra.tasks.grounding.report import Judged, report_evaluation
from penumbra.tasks.grounding.training.stage import chosen_run


@named_flow(
    "evaluate-grounding", lambda dataset, choice, **_: f"evaluate {choice.run or 'the newest run'} {dataset.name}"
)
def evaluate_grounding(dataset: Dataset, choice: Choice = Choice(), ranking: Ranking | None = None) -> State[Artifact]:
    """Predict with the best epoch of a run and evaluate it; `ranking` defaults to that of the run."""
    annotations = read_annotations(dataset)
    runs = [chosen_run(dataset.name, run) for run in (choice.run, choice.beside)[: 2 if choice.beside else 1]]
    negatives, tags = Store().newest_if_any(dataset.name, "negatives"), newest_tags(annotations)
    sources = [sources_of_run(metrics, annotations, negatives, tags) for metrics in runs]
    judged = [judge(metrics, read, choice, ranking) for metrics, read in zip(runs, sources, strict=True)]
    return completed_state(judged[0].evaluation, report_evaluation(judged[0], judged[1:]))


def judge(metrics: Artifact, sources: Sources, choice: Choice, ranking: Ranking | None = None) -> Judged:
    """Predict with a run and evaluate it; this is the flow's DAG for one run."""
    predictions = predict_model(metrics, sources, ranking, choice.splits)
    return Judged(metrics, sources, predictions, evaluate(metrics, predictions, sources))
