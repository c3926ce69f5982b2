"""`evaluate-grounding`: predictions and all figures of a trained model, by split and by composition type.

penumbra run evaluate-grounding charades-cg

Without `choice.run`, it evaluates all runs of the data set that have no predictions yet.
"""

from dataclasses import replace

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.flows.registry import Outcome, named_flow
from penumbra.tasks.data.annotations import read_annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.features.text import judging_texts
from penumbra.tasks.grounding.batches.inputs import Sources, judging_negatives
from penumbra.tasks.grounding.configs import Ranking, RunChoice
from penumbra.tasks.grounding.evaluation.figures import evaluate
from penumbra.tasks.grounding.evaluation.predictions import predict_model, runs_to_evaluate, sources_of_run
from penumbra.tasks.grounding.evaluation.rejection import Existence
from penumbra.tasks.grounding.report import EvaluatedRun, report_evaluation
from penumbra.tasks.progress import logger
from penumbra.tasks.stage import is_planned, run


@named_flow("evaluate-grounding")
def evaluate_grounding(
    dataset: Dataset, choice: RunChoice = RunChoice(), ranking: Ranking | None = None
) -> Outcome[Artifact]:
    """Predict with the best epoch of each run and evaluate it; `ranking` defaults to the run's settings."""
    annotations = read_annotations(dataset)
    negatives = Store().newest_if_any(dataset.name, "negatives")
    evaluated, outcomes = list[EvaluatedRun](), list[str | None]()
    *others, newest = runs_to_evaluate(dataset.name, choice)
    for metrics in (*others, newest):
        try:
            sources = sources_of_run(metrics, annotations, negatives)
            evaluated.append(evaluate_run(metrics, sources, choice.splits, ranking))
        except PenumbraError as error:  # if an old run can't be used, the others are still evaluated
            if metrics is newest:
                raise
            logger().warning("not evaluated: %s", error)
            continue
        outcomes.append(report_evaluation(evaluated[-1]))
    return evaluated[-1].evaluation, "; ".join(filter(None, outcomes))


def evaluate_run(
    metrics: Artifact, sources: Sources, splits: tuple[str, ...] = (), ranking: Ranking | None = None
) -> EvaluatedRun:
    """Predict with a run, also for the false sentences that exist, and evaluate it; this is the flow's DAG."""
    predictions = predict_model(metrics, sources, ranking, splits)
    judging = judging_negatives(sources.annotations)
    if not judging and not is_planned():
        logger().info(
            "the only false sentences are sentences of other videos: build-negatives with sourcing.splits=[test] "
            "adds hard negatives of test queries"
        )
    texts = judging_texts(sources.annotations, sources.text_features, judging)
    asked = replace(sources, judging=judging, judging_texts=texts)
    existence = run(Existence(metrics, asked, predictions))
    return EvaluatedRun(metrics, predictions, evaluate(metrics, predictions, existence, sources))
