"""`extract-features`: CLIP features of a data set's videos and texts, or features that others have extracted.

penumbra run extract-features scenes
prefect deployment run extract-features/charades-cg
"""

from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.data.annotations import read_annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.features.clip import Clip
from penumbra.tasks.features.imports.importer import Imports, import_features
from penumbra.tasks.features.patches import encode_patches
from penumbra.tasks.features.report import report_features
from penumbra.tasks.features.text import Texts, encode_queries
from penumbra.tasks.features.video import Videos, encode_videos, videos_folder
from penumbra.tasks.sample.scenes.videos import is_sample, render_scenes
from prefect import State, flow
from prefect.states import Completed


@flow(name="extract-features", flow_run_name="{dataset.name}")
def extract_features(
    dataset: Dataset,
    clip: Clip = Clip(),  # noqa: B008 (immutable defaults are what the form in the UI shows)
    texts: Texts = Texts(),  # noqa: B008
    videos: Videos = Videos(),  # noqa: B008
    imports: Imports = Imports(),  # noqa: B008
) -> Artifact | State[Artifact]:
    """Encode every distinct text and every clip of every video, or import the videos' features."""
    annotations = read_annotations(dataset)
    text_features = encode_queries(annotations, clip, texts)
    if is_sample(dataset) and (videos.patches or not imports.sources):
        render_scenes(str(videos_folder(dataset.name, videos)), videos.workers)
    if imports.sources:
        video_features = import_features(annotations, imports, videos.clip_length)
    else:
        video_features = encode_videos(annotations, clip, videos)
    if videos.patches:
        encode_patches(annotations, clip, videos)
    outcome = report_features(annotations, text_features, video_features)
    return Completed(message=outcome, data=video_features)  # Prefect hands the caller the data, and shows the message
