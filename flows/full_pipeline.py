"""`full-pipeline`: everything for a data set, from its annotations as far as features.

penumbra run full-pipeline scenes
prefect deployment run full-pipeline/scenes
"""

from typing import cast

from prefect import flow

from artifacts.manifest import Artifact
from flows.build_negatives import build_negatives
from flows.extract_features import extract_features
from tasks.clip import Clip
from tasks.dataset import Dataset
from tasks.embeddings import Encoding
from tasks.fills import Filling
from tasks.imports.stage import Imports
from tasks.in_video_negatives import Pairing
from tasks.masks import Masking
from tasks.negatives import Choosing
from tasks.quality.judging import Judging
from tasks.tags import Tagging
from tasks.text_features import Texts
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
) -> Artifact:
    """Build the negatives, then extract the features of videos, queries and these negatives."""
    made = build_negatives(dataset, tagging, masking, filling, encoding, choosing, pairing, judging)
    negatives = cast("Artifact", made)  # Prefect hands over the data of the state
    if filling.dry_run:
        return negatives
    chosen = texts.model_copy(update={"negatives": negatives.key})
    return cast("Artifact", extract_features(dataset, clip, chosen, videos, imports))
