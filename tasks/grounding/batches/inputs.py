"""From artifacts to what training and prediction take: features, queries of a split, hard negatives."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import ArtifactError, Store
from penumbra.tasks.grounding.batches.examples import Prepared, prepare
from penumbra.tasks.grounding.batches.features import FeatureError, Features, joined, load_features, normalised
from penumbra.tasks.grounding.batches.patches import load_patches
from penumbra.tasks.grounding.training.settings import Inputs, Settings

COLUMNS = ["qid", "vid", "split", "query", "duration", "windows", "novel", "saliency"]


@dataclass(frozen=True)
class Sources:
    """The artifacts that a training or an evaluation reads."""

    annotations: Artifact
    text_features: Artifact
    video_features: tuple[Artifact, ...]
    negatives: Artifact | None = None
    in_video_negatives: Artifact | None = None
    visual_dynamic_queries: Artifact | None = None
    patch_features: Artifact | None = None

    @property
    def parents(self) -> tuple[Artifact, ...]:
        """All of them, for an artifact's key."""
        texts = self.negatives, self.in_video_negatives, self.visual_dynamic_queries
        return tuple(
            filter(None, (self.annotations, *texts, self.text_features, *self.video_features, self.patch_features))
        )

    def read_by(self, settings: Settings) -> "Sources":
        """What of it a training with these settings reads."""
        return replace(
            self,
            negatives=self.negatives if settings.reads_negatives else None,
            in_video_negatives=self.in_video_negatives if settings.reads_in_video else None,
            visual_dynamic_queries=self.visual_dynamic_queries if settings.reads_parts else None,
            patch_features=self.patch_features if settings.patches_of else None,
        )


def find_sources(
    annotations: Artifact, inputs: Inputs, with_negatives: bool, with_in_video: bool = False, with_parts: bool = False,
    patches_of: str | None = None,
) -> Sources:  # fmt: skip
    """The artifacts that `inputs` names, otherwise the newest, of the annotations' data set; patches of an encoder.

    Raises `ArtifactError` naming the stage that has not run or the key that is not there, `FeatureError` an encoder.
    """
    store, dataset = Store(), annotations.dataset
    if inputs.text_features:
        text = store.with_key(dataset, "text_features", inputs.text_features)
    else:
        text = _of_encoder(store, dataset, "text_features", inputs.text_encoder)
    encoders: Sequence[str | None] = inputs.video_encoders or (None,)
    videos = tuple(store.with_key(dataset, "video_features", key) for key in inputs.video_features)
    videos = videos or tuple(_of_encoder(store, dataset, "video_features", encoder) for encoder in encoders)
    negatives = _named(store, dataset, "negatives", inputs.negatives) if with_negatives else None
    in_video = _named(store, dataset, "in_video_negatives", inputs.in_video_negatives) if with_in_video else None
    parts = store.newest(dataset, "visual_dynamic_queries") if with_parts else None
    patches = _patches(store, dataset, inputs.patch_features, patches_of) if patches_of else None
    return Sources(annotations, text, videos, negatives, in_video, parts, patches)


def sources_for(annotations: Artifact, settings: Settings) -> Sources:
    """What a training with these settings reads; raises as `find_sources` does."""
    return find_sources(
        annotations, settings.inputs, settings.reads_negatives, settings.reads_in_video, settings.reads_parts,
        settings.patches_of,
    )  # fmt: skip


def _patches(store: Store, dataset: str, key: str | None, encoder: str) -> Artifact:
    if key:
        return store.with_key(dataset, "patch_features", key)
    try:
        return _of_encoder(store, dataset, "patch_features", encoder)
    except (ArtifactError, FeatureError):
        raise FeatureError(
            f"injection.dynamic needs {dataset}/patch_features of {encoder}: "
            f"run extract-features {dataset} --param videos.patches=true --param clip.encoder={encoder}"
        ) from None


def _named(store: Store, dataset: str, stage: str, key: str | None) -> Artifact:
    return store.with_key(dataset, stage, key) if key else store.newest(dataset, stage)


def _of_encoder(store: Store, dataset: str, stage: str, encoder: str | None) -> Artifact:
    """The newest artifact of a stage whose first row is of the encoder."""
    newest = store.newest(dataset, stage)
    if encoder is None:
        return newest
    for manifest in reversed(store.find(dataset, stage)):
        artifact = store.reference(manifest)
        if manifest.rows and store.part(artifact, 0, ["encoder"])["encoder"][0].as_py() == encoder:
            return artifact
    raise FeatureError(f"no {dataset}/{stage} of encoder {encoder!r} below {store.root}: run extract-features with it")


@dataclass(frozen=True)
class Loaded:
    """Features ready for a model, all rows of `annotations`, and the hard negatives of each query by level.

    `in_video` gives the texts of a query's negatives in its own video, `parts` its static and dynamic query; None where
    they were not asked for.
    """

    videos: Features
    texts: Features
    rows: list[dict[str, Any]]
    negatives: dict[str, dict[int, str]]
    in_video: dict[str, list[str]] | None = None
    parts: dict[str, tuple[str, str]] | None = None

    def splits(self) -> list[str]:
        """The splits, in the order of the table."""
        return list(dict.fromkeys(row["split"] for row in self.rows))

    def of_split(self, splits: Iterable[str]) -> list[dict[str, Any]]:
        """Rows of some splits."""
        wanted = set(splits)
        return [row for row in self.rows if row["split"] in wanted]

    def prepare(self, rows: Iterable[dict[str, Any]], stage: str) -> Prepared:
        """Examples of some rows."""
        return prepare(rows, self.negatives, self.videos, self.texts, stage, self.in_video, self.parts)


def load(sources: Sources, inputs: Inputs) -> Loaded:
    """Read everything; features are normalised and cut as the published loaders do."""
    store = Store()
    videos = joined([normalised(load_features(artifact), inputs.longest_video) for artifact in sources.video_features])
    if sources.patch_features is not None:
        patches = load_patches(sources.patch_features, videos.index)
        if patches is None:
            raise FeatureError(f"{sources.patch_features.path} has no patches of any video that has features")
        videos = replace(videos, patches=patches)
    texts = normalised(load_features(sources.text_features), inputs.longest_text)
    rows = [row for part in store.parts(sources.annotations, COLUMNS) for row in part.to_pylist()]
    negatives: defaultdict[str, dict[int, str]] = defaultdict(dict)
    if sources.negatives is not None:
        for part in store.parts(sources.negatives, ["qid", "level", "query"]):
            for row in part.to_pylist():
                negatives[row["qid"]][row["level"]] = row["query"]
    in_video = _in_video(store, sources.in_video_negatives, rows)
    return Loaded(videos, texts, rows, dict(negatives), in_video, _parts(store, sources.visual_dynamic_queries))


def _parts(store: Store, queries: Artifact | None) -> dict[str, tuple[str, str]] | None:
    """The static and the dynamic part of each query."""
    if queries is None:
        return None
    rows = (row for part in store.parts(queries, ["qid", "static", "dynamic"]) for row in part.to_pylist())
    return {row["qid"]: (row["static"], row["dynamic"]) for row in rows}


def _in_video(
    store: Store, pairs: Artifact | None, rows: Iterable[dict[str, Any]]
) -> dict[str, list[str]] | None:  # fmt: skip
    """The texts of each query's negatives in its own video."""
    if pairs is None:
        return None
    texts = {row["qid"]: row["query"] for row in rows}
    found: defaultdict[str, list[str]] = defaultdict(list)
    for part in store.parts(pairs, ["qid", "negative_qid"]):
        for qid, other in zip(part["qid"].to_pylist(), part["negative_qid"].to_pylist(), strict=True):
            if other in texts:
                found[qid].append(texts[other])
    return dict(found)
