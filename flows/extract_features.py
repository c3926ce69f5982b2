"""`extract-features`: CLIP features of a data set's videos and texts, or features that others have extracted.

penumbra run extract-features scenes
prefect deployment run extract-features/charades-cg
"""

from prefect import State

from penumbra.artifacts.manifest import Artifact
from penumbra.flows.named_flow import completed_state, named_flow
from penumbra.tasks.data.annotations import read_annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.engines import EngineName, use_engine
from penumbra.tasks.features.clip import Clip
from penumbra.tasks.features.extraction import ExtractedFeatures, FeaturesParameters
from penumbra.tasks.features.imports import Imports, import_features
from penumbra.tasks.features.report import report_features
from penumbra.tasks.features.simulated import Simulation, simulate
from penumbra.tasks.features.text import Texts, chosen_negatives, encode_queries
from penumbra.tasks.features.video import Videos, encode_patches, encode_videos, videos_folder
from penumbra.tasks.text.tags import Tagging, tag


@named_flow(
    "extract-features",
    lambda dataset, clip, imports, simulation, **_: " ".join(
        ("extract-features", dataset.name, FeaturesParameters(clip=clip, imports=imports, simulation=simulation).source)
    ),
)
def extract_features(
    dataset: Dataset,
    clip: Clip = Clip(),
    texts: Texts = Texts(),
    videos: Videos = Videos(),
    imports: Imports = Imports(),
    simulation: Simulation = Simulation(),
    engine: EngineName = None,
) -> State[ExtractedFeatures]:
    """Encode every distinct text and every clip of every video, or import or simulate the videos' features."""
    how = FeaturesParameters(clip=clip, texts=texts, videos=videos, imports=imports, simulation=simulation)
    with use_engine(engine):
        made = features_of(dataset, chosen_negatives(dataset.name, texts), how)
    return completed_state(made, made.outcome)


def features_of(
    dataset: Dataset,
    negatives: Artifact | None,
    how: FeaturesParameters,
    texts: Artifact | None = None,
    videos: tuple[Artifact, ...] = (),
) -> ExtractedFeatures:
    """The flow's DAG; texts are the queries and these negatives. Features that are given are taken."""
    annotations = read_annotations(dataset)
    texts = texts or encode_queries(annotations, negatives, how.clip, how.texts)
    folder = videos_folder(dataset.name, how.videos)
    outcome = None
    if not videos:
        if how.simulation.wanted:
            features = simulate(annotations, tag(annotations, Tagging()), how.simulation, how.videos.clip_length)
        elif how.imports.sources:
            features = import_features(annotations, how.imports, how.videos.clip_length)
        else:
            features = encode_videos(annotations, folder, how.clip, how.videos)
        videos, outcome = (features,), report_features(annotations, texts, features)
    patches = encode_patches(annotations, folder, how.clip, how.videos) if how.videos.patches else None
    return ExtractedFeatures(annotations, texts, videos, patches, outcome)
