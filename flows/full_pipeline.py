"""`full-pipeline`: everything for a data set, from its annotations to the figures of a trained model.

penumbra run full-pipeline scenes
prefect deployment run full-pipeline/scenes
"""

from typing import Any, cast

from penumbra.artifacts.manifest import Artifact
from penumbra.flows.build_negatives import build_negatives
from penumbra.flows.evaluate_grounding import evaluate_grounding
from penumbra.flows.extract_features import extract_features
from penumbra.flows.train_grounding import train_grounding
from penumbra.tasks.data.annotations import read_annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.features.clip import Clip
from penumbra.tasks.features.imports.importer import Imports
from penumbra.tasks.features.patches import encode_patches
from penumbra.tasks.features.text import Texts, encode_queries
from penumbra.tasks.features.video import Videos
from penumbra.tasks.grounding.evaluation.choice import Choice
from penumbra.tasks.grounding.map_settings import Injection, Map, Mutual
from penumbra.tasks.grounding.training.settings import Inputs, Losses, Model, Preset, Ranking, Training, with_preset
from penumbra.tasks.negatives.filling import Filling
from penumbra.tasks.negatives.in_video_negatives import Pairing, pair
from penumbra.tasks.negatives.quality.judging import Judging
from penumbra.tasks.negatives.selection import Choosing
from penumbra.tasks.text.embeddings import Encoding, embed
from penumbra.tasks.text.masks import Masking
from penumbra.tasks.text.tags import Tagging
from prefect import flow


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
    groups: dict[str, Any] = {
        "model": model, "losses": losses, "training": training, "inputs": inputs, "ranking": ranking, "map": map,
        "mutual": mutual, "injection": injection,
    }  # fmt: skip
    if with_preset(preset, groups).patches_of:
        videos = videos.model_copy(update={"patches": True})
    # Prefect hands over the data of a flow's state
    negatives = cast(
        "Artifact", build_negatives(dataset, tagging, masking, filling, encoding, choosing, pairing, judging)
    )
    if filling.dry_run:
        return negatives
    chosen = texts.model_copy(update={"negatives": negatives.key})
    video_features = cast("Artifact", extract_features(dataset, clip, chosen, videos, imports))
    annotations = read_annotations(dataset)  # this and what follows are found, not made again
    made = {
        "negatives": negatives.key,
        "in_video_negatives": pair(annotations, embed(annotations, encoding), pairing).key,
        "text_features": encode_queries(annotations, clip, chosen).key,
        "video_features": (video_features.key,),
    }
    if videos.patches:
        made["patch_features"] = encode_patches(annotations, clip, videos).key
    groups["inputs"] = inputs.model_copy(update=made)
    metrics = train_grounding(dataset, preset, **groups)
    return evaluate_grounding(dataset, choice.model_copy(update={"run": metrics.key}))
