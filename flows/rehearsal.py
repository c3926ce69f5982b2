"""`penumbra run FLOW DATASET --dry-run`: which artifacts a flow would find there, and which it would make."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact, Work
from penumbra.artifacts.store import Store
from penumbra.flows.running import ParameterError, prepare, run_flow
from penumbra.tasks.data import annotations
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.features import patches as patch_features
from penumbra.tasks.features import text as text_features
from penumbra.tasks.features import video as video_features
from penumbra.tasks.features.imports import importer as imported
from penumbra.tasks.grounding.batches.inputs import sources_for
from penumbra.tasks.grounding.evaluation import figures as evaluation
from penumbra.tasks.grounding.evaluation import predictions
from penumbra.tasks.grounding.evaluation.choice import chosen_run, sources_of_run
from penumbra.tasks.grounding.training import run as training
from penumbra.tasks.grounding.training.settings import Settings, with_preset
from penumbra.tasks.negatives import fills, in_video_negatives
from penumbra.tasks.negatives import selection as negatives
from penumbra.tasks.negatives.fills import Filling
from penumbra.tasks.sample.scenes.videos import RenderingError, is_sample, rendered
from penumbra.tasks.stage import merge
from penumbra.tasks.text import dictionary, embeddings, masks, tags, visual_dynamic_queries

IS_THERE, TO_MAKE = "is there", "would be made"
Row = tuple[str, str, str]  # a stage, whether it is there, and its key or why that can't be told yet


class Rehearsal:
    """A flow's stages by their keys: nothing is made, and of rows only those are read that a key depends on."""

    def __init__(self, dataset: Dataset, groups: dict[str, Any]) -> None:
        self.dataset, self.groups, self.store = dataset, groups, Store()
        self.rows: dict[Row, None] = {}
        self.annotations = self.see(annotations.STAGE, lambda: annotations.work(dataset))

    def there(self, artifact: Artifact) -> bool:
        """Whether the artifact has its manifest."""
        return bool(artifact.key) and self.store.has(artifact)

    def see(
        self, stage: str, work: Callable[[], Work], parents: Sequence[Artifact] = (), reads: Sequence[Artifact] = ()
    ) -> Artifact:
        """Note a stage; parents without a key yet, and those that must be read but aren't there, come first."""
        first = [it.stage for it in parents if not it.key] + [it.stage for it in reads if not self.there(it)]
        if first:
            return self.later(stage, f"after {', '.join(dict.fromkeys(first))}")
        try:
            artifact = self.store.artifact(work())
        except PenumbraError as error:
            return self.later(stage, f"first: {error}")
        return self.note(artifact)

    def note(self, artifact: Artifact) -> Artifact:
        """Note an artifact whose key is known."""
        self.rows[artifact.stage, IS_THERE if self.there(artifact) else TO_MAKE, artifact.key] = None
        return artifact

    def later(self, stage: str, reason: str, state: str = TO_MAKE) -> Artifact:
        """Note a stage whose key can't be told yet; returns a reference without one."""
        self.rows[stage, state, reason] = None
        return Artifact(root=self.store.root, dataset=self.dataset.name, stage=stage, key="")

    # -- the flows, as their files in this folder --------------------------------------------------------------

    def build_negatives(self) -> Artifact:
        """Up to what other flows read."""
        read, of = self.annotations, self.groups
        tagged = self.see(tags.STAGE, lambda: tags.work(read, of["tagging"]))
        counted = self.see(dictionary.STAGE, lambda: dictionary.work(read, tagged))
        masked = self.see(masks.STAGE, lambda: masks.work(read, tagged, of["masking"]))
        filled = [self._fills(tagged, masked, counted, provider) for provider in of["filling"].providers]
        if of["filling"].substitute and "corpus" not in of["filling"].providers:
            filled.append(self.later(fills.STAGE, "of corpus, where no provider filled a level"))
        embedded = self.see(embeddings.STAGE, lambda: embeddings.work(read, of["encoding"]))
        parents = (read, tagged, masked, counted, filled, embedded)
        made = self.see(negatives.STAGE, lambda: negatives.work(*parents, of["choosing"], of["encoding"]), filled)
        self.see(in_video_negatives.STAGE, lambda: in_video_negatives.work(read, embedded, of["pairing"]))
        return made

    def _fills(self, tagged: Artifact, masked: Artifact, counted: Artifact, provider: str) -> Artifact:
        filling: Filling = self.groups["filling"]
        key = fills.work(tagged, masked, counted, provider, filling)
        hosted = {settings.provider for settings in filling.hosted}
        if provider in hosted and not self.there(self.store.artifact(key)):
            return self.later(fills.STAGE, f"after {provider} is asked")
        return self.see(fills.STAGE, lambda: key)

    def extract_features(self, made: Artifact | None = None) -> list[Artifact]:
        """Of the texts and the videos; `made` are the negatives of the same pipeline."""
        read, clip, videos = self.annotations, self.groups["clip"], self.groups["videos"]
        imports = self.groups["imports"]

        def texts() -> Work:
            others = made or text_features.chosen_negatives(self.dataset.name, self.groups["texts"])
            return text_features.work([read, *([others] if others else [])], clip)

        def films(stage: str, version: int, seconds: float) -> Work:
            folder = video_features.videos_folder(self.dataset.name, videos)
            if is_sample(self.dataset) and not rendered(folder):
                raise RenderingError(f"the sample's videos, rendered into {folder}")
            wanted = video_features.wanted_videos(read, videos)
            return video_features.work(read, wanted, clip, stage, version, seconds)

        def of_videos() -> Work:
            if not imports.sources:
                return films(video_features.STAGE, video_features.VERSION, videos.clip_length)
            opened, vids = imported.open_sources(read, imports), list(video_features.durations_of(read))
            return imported.work(read, imports, videos.clip_length, opened, vids)

        found = [
            self.see(text_features.STAGE, texts, [made] if made else []),
            self.see(video_features.STAGE, of_videos, reads=[read]),
        ]
        if videos.patches:
            patches = (patch_features.STAGE, patch_features.VERSION, videos.patch_interval)
            self.see(patch_features.STAGE, lambda: films(*patches), reads=[read])
        return found

    def train_grounding(self, made: Sequence[Artifact] = ()) -> Artifact:
        """With the newest features and negatives, or `made` by the same pipeline."""
        groups = {name: self.groups[name] for name in Settings.model_fields}
        settings = with_preset(self.groups["preset"], groups)
        settings = settings.model_copy(update={"inputs": settings.inputs.model_copy(update=keys(made))})
        needed, split = list(made), visual_dynamic_queries
        if settings.reads_parts:
            needed.append(self.see(split.STAGE, lambda: split.work(split.newest_tags(self.annotations))))

        def work() -> Work:
            sources = sources_for(self.annotations, settings)
            for parent in sources.parents:
                self.note(parent)
            return training.work(sources, settings)

        return self.see(training.STAGE, work, reads=needed)

    def evaluate_grounding(self, made: Artifact | None = None) -> None:
        """Of the run of the same pipeline, or the one chosen, and of the one beside it."""
        run, beside = self.groups["choice"].run, self.groups["choice"].beside
        if made is None and run is None and not self.store.find(self.dataset.name, training.STAGE):
            made = self.later(
                training.STAGE, f"first: penumbra run train-grounding {self.dataset.name}", "is not there"
            )
        self._judge(made or self.note(chosen_run(self.dataset.name, run)))
        if beside:
            self._judge(self.note(chosen_run(self.dataset.name, beside)))

    def _judge(self, metrics: Artifact) -> None:
        choice = self.groups["choice"]

        def predicted() -> Work:
            ranking = choice.ranking or training.settings_of(self.store.manifest(metrics)).ranking
            return predictions.work(metrics, sources_of_run(metrics, self.annotations), ranking, choice.splits)

        def judged() -> Work:
            return evaluation.work(metrics, found, sources_of_run(metrics, self.annotations))

        found = self.see(predictions.STAGE, predicted, reads=[metrics])
        self.see(evaluation.STAGE, judged, [found])

    def full_pipeline(self) -> None:
        """All of them, each with what the one before makes."""
        made = self.build_negatives()
        self.evaluate_grounding(self.train_grounding([made, *self.extract_features(made)]))


def keys(made: Sequence[Artifact]) -> dict[str, Any]:
    """Artifacts as `Inputs` names them."""
    found: dict[str, Any] = {it.stage: it.key for it in made}
    return found | ({"video_features": (found["video_features"],)} if found else {})


def rehearse(name: str, dataset: str, changes: dict[str, Any]) -> Iterator[Row]:
    """Each stage of a flow in its order; raises as `penumbra.flows.running.prepare` does."""
    flow, _, known = prepare(name, dataset, changes)
    if not hasattr(Rehearsal, flow.fn.__name__):
        raise ParameterError(f"`penumbra ablation NAME {dataset} --dry-run` lists a grid's rows")
    rehearsal = Rehearsal(known["dataset"], known)
    getattr(rehearsal, flow.fn.__name__)()
    yield from rehearsal.rows


def price(name: str, dataset: str, changes: dict[str, Any]) -> None:
    """Log what asking the hosted models would cost; the masks, of which they are asked, are made."""
    _, _, known = prepare(name, dataset, changes)
    if "filling" in known and known["filling"].hosted:
        run_flow(name, dataset, merge(changes, {"filling": {"dry_run": True}}))
