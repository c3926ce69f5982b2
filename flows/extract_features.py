"""`extract-features`: CLIP features of a data set's videos and texts, or features that others have extracted.

penumbra run extract-features scenes
prefect deployment run extract-features/charades-cg
"""

from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.data.annotations import read_annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.features.clip import Clip
from penumbra.tasks.features.contract import Features, FeaturesParameters
from penumbra.tasks.features.imports.importer import Imports, import_features
from penumbra.tasks.features.patches import encode_patches
from penumbra.tasks.features.report import report_features
from penumbra.tasks.features.text import Texts, chosen_negatives, encode_queries
from penumbra.tasks.features.video import Videos, encode_videos
from penumbra.tasks.sample.scenes.videos import find_videos
from prefect import State, flow
from prefect.states import Completed


@flow(name="extract-features", flow_run_name="{dataset.name}")
def extract_features(
    dataset: Dataset, clip: Clip = Clip(), texts: Texts = Texts(), videos: Videos = Videos(),
    imports: Imports = Imports(),
) -> State[Features]:  # fmt: skip
    """Encode every distinct text and every clip of every video, or import the videos' features."""
    how = FeaturesParameters(clip=clip, texts=texts, videos=videos, imports=imports)
    made = features_of(dataset, chosen_negatives(dataset.name, texts), how)
    return Completed(message=made.outcome, data=made)  # Prefect hands the caller the data, and shows the message


def features_of(dataset: Dataset, negatives: Artifact | None, how: FeaturesParameters) -> Features:
    """The flow's DAG; the texts are those of the queries and of these negatives."""
    annotations, clip, videos = read_annotations(dataset), how.clip, how.videos
    texts = encode_queries(annotations, negatives, clip, how.texts)
    folder = find_videos(dataset, videos) if videos.patches or not how.imports.sources else None
    if how.imports.sources:
        features = import_features(annotations, how.imports, videos.clip_length)
    else:
        features = encode_videos(annotations, folder, clip, videos)
    patches = encode_patches(annotations, folder, clip, videos) if videos.patches else None
    outcome = report_features(annotations, texts, features)
    return Features(annotations, texts, features, patches, outcome)
