"""`full-pipeline`: everything for a data set, from its annotations to the figures of a trained model.

penumbra run full-pipeline scenes
prefect deployment run full-pipeline/scenes
"""

from typing import cast

from prefect import flow

from artifacts.manifest import Artifact
from flows.build_negatives import build_negatives
from flows.evaluate_grounding import evaluate_grounding
from flows.extract_features import extract_features
from flows.train_grounding import train_grounding
from tasks.annotations import read_annotations
from tasks.clip import Clip
from tasks.dataset import Dataset
from tasks.embeddings import Encoding
from tasks.evaluation.choice import Choice
from tasks.fills import Filling
from tasks.imports.stage import Imports
from tasks.in_video_negatives import Pairing
from tasks.masks import Masking
from tasks.negatives import Choosing
from tasks.quality.judging import Judging
from tasks.tags import Tagging
from tasks.text_features import Texts, encode_queries
from tasks.training.map_settings import Injection, Map, Mutual
from tasks.training.settings import Inputs, Losses, Model, Preset, Ranking, Training
from tasks.video_features import Videos


@flow(name="full-pipeline", flow_run_name="{dataset.name}")
def full_pipeline(
    dataset: Dataset,
    tagging: Tagging = Tagging(),  # noqa: B008 (immutable defaults are what the form in the UI shows)
    masking: Masking = Masking(),  # noqa: B008
    filling: Filling = Filling(),  # noqa: B008
    encoding: Encoding = Encoding(),  # noqa: B008
    choosing: Choosing = Choosing(),  # noqa: B008
    pairing: Pairing = Pairing(),  # noqa: B008
    judging: Judging = Judging(),  # noqa: B008
    clip: Clip = Clip(),  # noqa: B008
    texts: Texts = Texts(),  # noqa: B008
    videos: Videos = Videos(),  # noqa: B008
    imports: Imports = Imports(),  # noqa: B008
    preset: Preset = None,
    model: Model = Model(),  # noqa: B008
    losses: Losses = Losses(),  # noqa: B008
    training: Training = Training(),  # noqa: B008
    inputs: Inputs = Inputs(),  # noqa: B008
    ranking: Ranking = Ranking(),  # noqa: B008
    map: Map = Map(),  # noqa: A002, B008 (the group's name)
    mutual: Mutual = Mutual(),  # noqa: B008
    injection: Injection = Injection(),  # noqa: B008
    choice: Choice = Choice(),  # noqa: B008
) -> Artifact:
    """Build the negatives, extract features of videos, queries and these negatives, train on them, and evaluate."""
    # Prefect hands over the data of a flow's state
    negatives = cast(
        "Artifact", build_negatives(dataset, tagging, masking, filling, encoding, choosing, pairing, judging)
    )
    if filling.dry_run:
        return negatives
    chosen = texts.model_copy(update={"negatives": negatives.key})
    video_features = cast("Artifact", extract_features(dataset, clip, chosen, videos, imports))
    text_features = encode_queries(read_annotations(dataset), clip, chosen)  # found, not made again
    made = {"negatives": negatives.key, "text_features": text_features.key, "video_features": (video_features.key,)}
    inputs = inputs.model_copy(update=made)
    metrics = train_grounding(dataset, preset, model, losses, training, inputs, ranking, map, mutual, injection)
    return evaluate_grounding(dataset, choice.model_copy(update={"run": metrics.key}))
