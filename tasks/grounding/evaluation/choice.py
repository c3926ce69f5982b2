"""Which run is judged, on what: the parameters of `evaluate-grounding`."""

from pydantic import Field

from penumbra.artifacts.manifest import Artifact, Manifest
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.grounding.batches.inputs import Sources
from penumbra.tasks.grounding.settings import Ranking
from penumbra.tasks.grounding.training.checkpoint import RunError
from penumbra.tasks.grounding.training.run import name_of
from penumbra.tasks.stage import Parameters, work_of


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
        try:
            return store.newest(dataset, "metrics")
        except ArtifactError as error:
            raise ArtifactError(f"{error}; penumbra run train-grounding {dataset} makes one") from None
    return store.with_key(dataset, "metrics", run or "", called)


def called(metrics: Manifest) -> str:
    """What a run is called, by the manifest of its `metrics`; its key where this version can't read its settings."""
    try:
        return name_of(metrics)
    except RunError:  # of a version with other settings
        return metrics.key


def sources_of_run(
    metrics: Artifact, annotations: Artifact, negatives: Artifact | None = None, tags: Artifact | None = None
) -> Sources:
    """What the run was trained on, with the annotations given.

    `negatives` are those by which a run is judged that was trained on none: is saliency in their order? `tags` tell
    the verbs of queries, for the constant window by verb.
    """
    parents = work_of(metrics).parents
    of = {parent.stage: parent for parent in parents}
    return Sources(
        annotations,
        of["text_features"],
        tuple(it for it in parents if it.stage == "video_features"),
        of.get("negatives", negatives),
        of.get("in_video_negatives"),
        of.get("visual_dynamic_queries"),
        tags=tags,
    )


def newest_negatives(dataset: str) -> Artifact | None:
    """The negatives of a data set that were built last, if there are any."""
    return Store().newest_if_any(dataset, "negatives")
