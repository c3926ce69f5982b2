"""`extract-features`: CLIP features of a data set's videos and texts, or features that others have extracted.

penumbra run extract-features scenes
prefect deployment run extract-features/charades-cg
"""

from pathlib import Path

from penumbra.artifacts.manifest import Artifact
from penumbra.flows.registry import Outcome, named_flow
from penumbra.tasks.data.annotations import read_annotations
from penumbra.tasks.data.dataset import Dataset, videos_of
from penumbra.tasks.engines import EngineName, use_engine
from penumbra.tasks.features.clip import Clip
from penumbra.tasks.features.extraction import ExtractedFeatures, FeaturesParameters, report_features
from penumbra.tasks.features.imports import ImportedFeatures, Imports
from penumbra.tasks.features.simulated import SimulatedFeatures, Simulation
from penumbra.tasks.features.text import TextFeatures, Texts, chosen_negatives
from penumbra.tasks.features.video import PatchFeatures, VideoFeatures, Videos, video_files
from penumbra.tasks.stage import is_planned, run
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
) -> Outcome[ExtractedFeatures]:
    """Encode every distinct text and every clip of every video, or import or simulate the videos' features."""
    settings = FeaturesParameters(clip=clip, texts=texts, videos=videos, imports=imports, simulation=simulation)
    with use_engine(engine):
        result = features_of(dataset, chosen_negatives(dataset.name, texts), settings)
    return result, result.outcome


def features_of(
    dataset: Dataset,
    negatives: Artifact | None,
    settings: FeaturesParameters,
    texts: Artifact | None = None,
    videos: tuple[Artifact, ...] = (),
) -> ExtractedFeatures:
    """Extract the features that are not given; this is the flow's DAG."""
    annotations, clip, sampling = read_annotations(dataset), settings.clip, settings.videos
    text_clip = clip.model_copy(update={"encoder": settings.texts.encoder or clip.encoder})
    folder, outcome = Path(sampling.folder).expanduser() if sampling.folder else videos_of(dataset.name), None
    if not (videos or settings.simulation.wanted or settings.imports.sources or is_planned()):
        video_files(folder)  # raises for a missing folder before a text encoder is downloaded
    texts = texts or run(TextFeatures(annotations, negatives, text_clip))
    if not videos:
        if settings.simulation.wanted:
            tags = run(Tags(annotations, Tagging()))
            features = run(SimulatedFeatures(annotations, tags, settings.simulation, sampling.clip_length))
        elif settings.imports.sources:
            features = run(ImportedFeatures(annotations, settings.imports, sampling.clip_length))
        else:
            features = run(VideoFeatures(annotations, folder, clip, sampling))
        videos, outcome = (features,), report_features(annotations, texts, features)
    patches = run(PatchFeatures(annotations, folder, clip, sampling)) if sampling.patches else None
    return ExtractedFeatures(annotations, texts, videos, patches, outcome)
