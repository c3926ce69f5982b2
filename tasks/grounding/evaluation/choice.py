"""Which run is judged, on what: the parameters of `evaluate-grounding`."""

from penumbra.artifacts.manifest import Artifact, Manifest
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.grounding.batches.inputs import Sources, find_sources
from penumbra.tasks.grounding.training.checkpoint import RunError
from penumbra.tasks.grounding.training.run import name_of, settings_of
from penumbra.tasks.grounding.training.settings import Ranking
from penumbra.tasks.stage import Parameters
from pydantic import Field


class Choice(Parameters):
    """Which run, and which of its predictions."""

    run: str | None = Field(
        None,
        coerce_numbers_to_str=True,
        description="Key of the run's `metrics` artifact, or its first digits; default: newest.",
    )
    beside: str | None = Field(
        None,
        coerce_numbers_to_str=True,
        description="Another run, as `run`, that the report shows beside it: before SHINE.",
    )
    splits: tuple[str, ...] = Field((), description="Splits to judge; default: all but train.")
    ranking: Ranking | None = Field(None, description="How windows are made; default: as the run says.")


def chosen_run(dataset: str | None, run: str | None) -> Artifact:
    """The `metrics` artifact of a run by its key, first digits or name, of one data set or of any; None: the newest.

    Raises `ArtifactError` naming those that match, or the newest, where none or several match.
    """
    store = Store()
    if run is None and dataset is not None:
        return store.newest(dataset, "metrics")
    return store.with_key(dataset, "metrics", run or "", called)


def called(metrics: Manifest) -> str:
    """What a run is called, by the manifest of its `metrics`; its key where this version can't read its settings."""
    try:
        return name_of(metrics)
    except RunError:  # of a version with other settings
        return metrics.key


def sources_of_run(metrics: Artifact, annotations: Artifact) -> Sources:
    """What the run was trained on, with the annotations given; negatives too where there are any."""
    store = Store()
    manifest = store.manifest(metrics)
    settings = settings_of(manifest)
    parents = {parent.stage: parent for parent in manifest.parents}
    negatives = parents.get("negatives")
    if negatives is None:
        try:
            negatives = store.newest(annotations.dataset, "negatives")
        except ArtifactError:  # none were built: the ordering is left out
            negatives = None
    features = tuple(parent for parent in manifest.parents if parent.stage == "video_features")
    if not features or "text_features" not in parents:
        return find_sources(annotations, settings.inputs, negatives is not None, settings.reads_in_video,
                            settings.reads_parts)  # fmt: skip
    return Sources(
        annotations, parents["text_features"], features, negatives, parents.get("in_video_negatives"),
        parents.get("visual_dynamic_queries"),
    )  # fmt: skip
