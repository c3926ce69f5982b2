"""Find the artifacts that a training reads, and load their features, queries and negatives into memory."""

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from penumbra.artifacts.errors import ArtifactError
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.tasks.features.errors import FeatureError
from penumbra.tasks.grounding.batches.examples import Loaded, joined, load_features, load_patches, normalised, together
from penumbra.tasks.grounding.configs import BaseSettings, InputConfig, ModelConfig


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
    tags: Artifact | None = None  # from which visual_dynamic_queries are made; no parent of a training
    judging: tuple[Artifact, ...] = ()  # false sentences of an evaluation; no parents of a training
    judging_texts: Artifact | None = None  # features of those false sentences that are no queries

    def __post_init__(self) -> None:
        """Raise `ArtifactError` if the negatives are for evaluations only."""
        if self.negatives and self.negatives.stage != "negatives":
            raise ArtifactError(
                f"{self.negatives.path} is for evaluations only: make negatives of training queries with penumbra run "
                f"build-negatives {self.negatives.dataset}"
            )

    @property
    def parents(self) -> tuple[Artifact, ...]:
        """The artifacts that a run's key depends on."""
        texts = self.negatives, self.in_video_negatives, self.visual_dynamic_queries
        return tuple(
            filter(None, (self.annotations, *texts, self.text_features, *self.video_features, self.patch_features))
        )

    def read_by(self, model: ModelConfig) -> "Sources":
        """Return only the artifacts that the training of a model reads."""
        optional = {"negatives", "in_video_negatives", "visual_dynamic_queries", "patch_features"}
        left_out: dict[str, Any] = dict.fromkeys(optional - model.reads)
        return replace(self, **left_out)


def named_sources(annotations: Artifact, inputs: InputConfig) -> dict[str, Any]:
    """Return the artifacts that `inputs` names by key or encoder, by the fields of `Sources`.

    Raise `ArtifactError` for an unknown key, and `FeatureError` for an unknown encoder.
    """
    store, dataset = Store(), annotations.dataset

    def features(stage: str, name: str) -> Artifact:
        if newest := newest_of_encoder(dataset, stage, name):
            return newest
        if set(name) <= set("0123456789abcdef"):
            return store.with_key(dataset, stage, name)
        store.newest(dataset, stage)  # raises if there is none
        raise FeatureError(f"no {dataset}/{stage} of encoder {name!r} below {store.root}: run extract-features with it")

    named: dict[str, Any] = {}
    for stage in ("negatives", "in_video_negatives"):
        if key := getattr(inputs, stage):
            named[stage] = store.with_key(dataset, stage, key)
    if inputs.text_features:
        named["text_features"] = features("text_features", inputs.text_features)
    if inputs.video_features:
        named["video_features"] = tuple(features("video_features", name) for name in inputs.video_features)
    return named


def find_sources(annotations: Artifact, settings: BaseSettings) -> Sources:
    """Return the artifacts that a training reads: those that `inputs` names, otherwise the newest of the data set.

    Raise `ArtifactError` naming a stage that has not run; for other errors see `named_sources`.
    """
    store, dataset, model = Store(), annotations.dataset, settings.model
    found, encoder = named_sources(annotations, settings.inputs), model.frames_of
    for stage in ("text_features", *sorted({"negatives", "in_video_negatives"} & model.reads)):
        found[stage] = found.get(stage) or store.newest(dataset, stage)
    if "video_features" not in found:
        frames = newest_of_encoder(dataset, "video_features", encoder) if encoder else None
        found["video_features"] = (frames or store.newest(dataset, "video_features"),)
    if "patch_features" in model.reads and encoder:
        found["patch_features"] = newest_of_encoder(dataset, "patch_features", encoder)
        if found["patch_features"] is None:
            raise FeatureError(
                f"losses.spatial_dynamics needs {dataset}/patch_features of {encoder}: run extract-features "
                f"{dataset} --param videos.patches=true --param clip.encoder={encoder}"
            )
    if "visual_dynamic_queries" in model.reads:
        found["tags"] = newest_made_of(annotations, "tags") or store.newest(dataset, "tags")
    return Sources(annotations, **found).read_by(model)


def newest_made_of(parent: Artifact, stage: str) -> Artifact | None:
    """Return the newest artifact of a stage that has this parent, if there is any."""
    store = Store()
    for manifest in reversed(store.find(parent.dataset, stage)):
        if parent.key in [it.key for it in manifest.parents]:  # keys, because a parent's root may have moved since
            return store.reference(manifest)
    return None


def judging_negatives(annotations: Artifact) -> tuple[Artifact, ...]:
    """Return the newest false sentences of these queries, for each origin (providers and splits, or kind)."""
    store, newest = Store(), dict[str, Artifact]()
    for manifest in store.find(annotations.dataset, "judging_negatives"):
        parents = {parent.key: parent for parent in manifest.parents}
        if annotations.key in parents:
            made = [it for it in parents.values() if it.stage in ("masks", "fills") and store.has(it)]
            about = [store.manifest(it).parameters for it in made]
            origin = [manifest.parameters.get("kind"), *((it.get("splits"), it.get("provider")) for it in about)]
            newest[str(origin)] = store.reference(manifest)
    return tuple(newest.values())


def newest_of_encoder(dataset: str, stage: str, encoder: str) -> Artifact | None:
    """Return the newest features of an encoder, if there are any."""

    def encoder_of(made: dict[str, Any]) -> str:  # the value of the column `encoder`
        return str(made.get("encoder") or "+".join(source["name"] for source in made.get("imported", [])))

    several = [it for it in Store().find(dataset, stage) if encoder_of(it.parameters) == encoder]
    Store().announce_newest(several)
    return Store().reference(several[-1]) if several else None


def load(sources: Sources, inputs: InputConfig) -> Loaded:
    """Load all sources; features are normalised and cut as in the published loaders."""
    store = Store()
    videos = joined([normalised(load_features(artifact), inputs.longest_video) for artifact in sources.video_features])
    if sources.patch_features is not None:
        videos = replace(videos, patches=load_patches(sources.patch_features, videos.index))
    false = [sources.judging_texts] if sources.judging_texts and store.manifest(sources.judging_texts).rows else []
    several = [normalised(load_features(it), inputs.longest_text) for it in (sources.text_features, *false)]
    texts = reduce(together, several)
    rows = list(store.rows(sources.annotations))
    negatives: defaultdict[str, dict[int, str]] = defaultdict(dict)
    if sources.negatives is not None:
        for row in store.rows(sources.negatives, ["qid", "level", "negative"]):
            negatives[row["qid"]][row["level"]] = row["negative"]
    in_video: dict[str, list[str]] | None = None
    if sources.in_video_negatives is not None:
        queries, in_video = {row["qid"]: row["query"] for row in rows}, {}
        for row in store.rows(sources.in_video_negatives, ["qid", "negative_qid"]):
            if row["negative_qid"] in queries:
                in_video.setdefault(row["qid"], []).append(queries[row["negative_qid"]])
    parts: dict[str, tuple[str, str]] | None = None
    if sources.visual_dynamic_queries is not None:
        split = store.rows(sources.visual_dynamic_queries, ["qid", "static", "dynamic"])
        parts = {row["qid"]: (row["static"], row["dynamic"]) for row in split}
    judging: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for artifact in sources.judging:
        for row in store.rows(artifact, ["qid", "level", "provider", "negative"]):
            kind = f"level {row['level']} by {row['provider']}" if row["level"] else row["provider"]
            judging[row["qid"]].setdefault(kind, row["negative"])
    return Loaded(videos, texts, rows, dict(negatives), in_video, parts, dict(judging))
