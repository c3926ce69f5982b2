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
from penumbra.tasks.stage import run
from penumbra.tasks.text.tags import Tagging, Tags


@named_flow("extract-features")
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
    settings = FeaturesParameters(clip=clip, texts=texts, videos=videos, imports=imports, simulation=simulation)
    with use_engine(engine):
        result = features_of(dataset, chosen_negatives(dataset.name, texts), settings)
    return completed_state(result, result.outcome)


def features_of(
    dataset: Dataset,
    negatives: Artifact | None,
    settings: FeaturesParameters,
    texts: Artifact | None = None,
    videos: tuple[Artifact, ...] = (),
) -> ExtractedFeatures:
    """Extract the features of a data set; this is the flow's DAG.

    Texts are those of the queries and the negatives. Features that are given are not extracted again.
    """
    annotations = read_annotations(dataset)
    texts = texts or encode_queries(annotations, negatives, settings.clip, settings.texts)
    folder = videos_folder(dataset.name, settings.videos)
    outcome = None
    if not videos:
        if settings.simulation.wanted:
            features = simulate(
                annotations, run(Tags(annotations, Tagging())), settings.simulation, settings.videos.clip_length
            )
        elif settings.imports.sources:
            features = import_features(annotations, settings.imports, settings.videos.clip_length)
        else:
            features = encode_videos(annotations, folder, settings.clip, settings.videos)
        videos, outcome = (features,), report_features(annotations, texts, features)
    patches = encode_patches(annotations, folder, settings.clip, settings.videos) if settings.videos.patches else None
    return ExtractedFeatures(annotations, texts, videos, patches, outcome)
