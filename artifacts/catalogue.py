"""Which artifacts there are below a root: their manifests tell, no part is read and nothing is changed."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

from pydantic import ValidationError

from penumbra.artifacts.errors import ArtifactError, what_there_is
from penumbra.artifacts.files import Files
from penumbra.artifacts.locations import artifacts_root
from penumbra.artifacts.manifest import NAME, Artifact, Manifest, Work

MANIFEST = "_manifest.json"
LISTED = 10  # artifacts in a message
RESULTS = {"metrics", "evaluation", "ablation"}  # none takes the place of another


class Catalogue:
    """The artifacts of one root, by data set, stage and key."""

    def __init__(self, root: str | None = None) -> None:
        self.files = Files(root or artifacts_root())
        self.root = self.files.root

    def artifact(self, work: Work) -> Artifact:
        """The reference of the artifact that this work makes."""
        for name in (work.dataset, work.stage):
            if not NAME.match(name):
                raise ArtifactError(f"{name!r} is no name for a folder: lower-case letters, digits, '.', '_', '-'")
        return Artifact(root=self.root, dataset=work.dataset, stage=work.stage, key=work.key)

    def reference(self, manifest: Manifest) -> Artifact:
        """The artifact that a manifest of this store describes."""
        return Artifact(root=self.root, dataset=manifest.dataset, stage=manifest.stage, key=manifest.key)

    def has(self, artifact: Artifact) -> bool:
        """Whether the artifact has its manifest."""
        return self.files.exists(path_of(artifact, MANIFEST))

    def manifest(self, artifact: Artifact) -> Manifest:
        """Read the manifest; raises `ArtifactError` where there is none, or it is not as it was written."""
        try:
            manifest = Manifest.model_validate_json(self.files.read(path_of(artifact, MANIFEST)))
        except FileNotFoundError:
            makes = _making(artifact.stage, artifact.dataset)
            raise ArtifactError(f"no whole artifact at {artifact.path} (no {MANIFEST}): {makes} makes it") from None
        except ValidationError as error:
            raise self._damaged(artifact, MANIFEST, f"is damaged ({error.error_count()} faults)") from None
        if not manifest.is_as_written:
            raise self._damaged(artifact, MANIFEST, "was edited")
        if manifest.reference != (artifact.dataset, artifact.stage, artifact.key):
            raise self._damaged(artifact, MANIFEST, f"is that of {'/'.join(manifest.reference)}")
        return manifest

    def _damaged(self, artifact: Artifact, name: str, fault: str) -> ArtifactError:
        return ArtifactError(
            f"{artifact.path}/{name} {fault}: {_making(artifact.stage, artifact.dataset)} mends it, "
            f"penumbra artifacts rm {path_of(artifact)} takes it away"
        )

    def find(self, dataset: str | None = None, stage: str | None = None) -> list[Manifest]:
        """All whole artifacts, oldest first; those whose manifest is damaged are left out (`verify` names them)."""
        manifests = (self._readable_manifest(artifact) for artifact in self.folders(dataset, stage, MANIFEST))
        return sorted((manifest for manifest in manifests if manifest), key=lambda manifest: manifest.ended)

    def folders(self, dataset: str | None = None, stage: str | None = None, name: str = "*") -> Iterator[Artifact]:
        """All artifacts, whole or not, that have a file of this name."""
        for place in sorted(
            {path.rpartition("/")[0] for path in self.files.matching(f"{dataset or '*'}/{stage or '*'}/*/{name}")}
        ):
            dataset_name, stage_name, key = place.split("/")
            try:
                yield Artifact(root=self.root, dataset=dataset_name, stage=stage_name, key=key)
            except ValidationError:
                continue  # somebody else's folder

    def _readable_manifest(self, artifact: Artifact) -> Manifest | None:
        try:
            return self.manifest(artifact)
        except ArtifactError:
            return None

    def newest(self, dataset: str, stage: str) -> Artifact:
        """The artifact of a stage that was finished last; raises `ArtifactError` where that one is damaged."""
        if not NAME.match(dataset) or not NAME.match(stage):
            raise ArtifactError(f"'{dataset}/{stage}' is no DATASET/STAGE, as in charades-cg/masks")
        found = self.newest_if_any(dataset, stage)
        if found is None:
            raise self.missing(dataset, stage)
        return found

    def newest_if_any(self, dataset: str, stage: str) -> Artifact | None:
        """The same, or None where there is none; raises `ArtifactError` where it may be one that is damaged."""
        whole = [self.reference(manifest) for manifest in self.find(dataset, stage)]
        for artifact in {*self.folders(dataset, stage, MANIFEST)} - {*whole}:
            if not whole or self._written(artifact) > self._written(whole[-1]):
                self.manifest(artifact)  # says what is wrong with it
        return whole[-1] if whole else None

    def _written(self, artifact: Artifact) -> datetime:
        return self.files.modified(path_of(artifact, MANIFEST))

    def with_key(
        self, dataset: str | None, stage: str, key: str, name: Callable[[Manifest], str] | None = None
    ) -> Artifact:
        """The artifact, of a data set or of any, whose key begins so, or with the last digits of a name.

        Raises `ArtifactError` naming those that match, or the newest by `name`, unless it is just one.
        """
        manifests = self.find(dataset, stage)
        if not manifests:
            raise self.missing(dataset, stage)
        digits = key.rpartition("-")[2]
        matching = [manifest for manifest in manifests if digits and manifest.key.startswith(digits)]
        if len(matching) == 1:
            return self.reference(matching[0])
        place = f"{dataset or '*'}/{stage}"
        if matching:
            raise ArtifactError(f"{len(matching)} of {place} match {key!r}, say more of it: {_newest(matching, _key)}")
        raise ArtifactError(f"no {place} matches {key!r}; the newest: {_newest(manifests, name or _key)}")

    def resolve(self, reference: str) -> Artifact:
        """Return the artifact that a user calls DATASET/STAGE (the newest whole one) or DATASET/STAGE/KEY.

        The first digits of a key are enough. Raises `ArtifactError` where the reference is none, or names nothing or
        several artifacts.
        """
        names = reference.strip("/").split("/")
        if len(names) == 3 and all(NAME.match(name) for name in names):
            dataset, stage, key = names
            return self.with_key(dataset, stage, key)
        if len(names) != 2:
            raise ArtifactError(f"{reference!r} is no DATASET/STAGE, as in charades-cg/masks")
        return self.newest(*names)

    def ancestors(self, artifact: Artifact) -> dict[str, list[Artifact]]:
        """What an artifact was made from, by stage, its parents before theirs."""
        by_stage: dict[str, list[Artifact]] = {}
        waiting = list(self.manifest(artifact).parents)
        for parent in waiting:  # grows while it is gone through
            if parent not in by_stage.setdefault(parent.stage, []):
                by_stage[parent.stage].append(parent)
                waiting += self.manifest(parent).parents
        return by_stage

    def missing(self, dataset: str | None, stage: str | None = None) -> ArtifactError:
        """What to raise where a data set, or all of them, has no artifact of a stage."""
        pairs = sorted({(m.dataset, m.stage) for m in self.find()})
        datasets = sorted({name for name, _ in pairs})
        if dataset and dataset not in datasets and (datasets or stage is None):
            return ArtifactError(
                f"no data set {dataset!r} is known below {self.root}: {what_there_is(dataset, datasets)}"
            )
        stages = [f"{name}/{other}" for name, other in pairs if dataset in (None, name)]
        made = f": {_making(stage, dataset or 'DATASET')} makes it" if stage and _is_stage(stage) else ""
        return ArtifactError(
            f"no {dataset or '*'}/{stage} below {self.root}{made}; there is: {', '.join(stages) or 'nothing yet'}"
        )


def path_of(artifact: Artifact, name: str = "") -> str:
    """Where a file of an artifact, or its folder, lies below the root."""
    return f"{artifact.dataset}/{artifact.stage}/{artifact.key}/{name}".rstrip("/")


def _making(stage: str, dataset: str) -> str:
    from penumbra.artifacts.schemas import making  # a list of what is there need not wait for pyarrow

    return making(stage, dataset)


def _is_stage(name: str) -> bool:
    from penumbra.artifacts.schemas import SCHEMAS

    return name in SCHEMAS


def _key(manifest: Manifest) -> str:
    return f"{manifest.dataset}/{manifest.stage}/{manifest.key}"


def _newest(manifests: Sequence[Manifest], name: Callable[[Manifest], str]) -> str:
    names = [name(manifest) for manifest in manifests[: -LISTED - 1 : -1]]
    more = f" and {len(manifests) - LISTED} more" if len(manifests) > LISTED else ""
    return ", ".join(names) + more


def to_remove(store: Catalogue, reference: str | None, older: float | None, unneeded: bool) -> list[Artifact]:
    """The artifacts below a reference, DATASET[/STAGE[/KEY]]; where said, only old or unneeded ones.

    `older` is an age in days; what is not finished has none. An artifact is needed that is a result or the newest of
    its stage, or that a needed one was made from. Raises `ArtifactError` where nothing is below.
    """
    names = (reference or "").strip("/").split("/") if reference else []
    found = [it for it in store.folders(*names[:2]) if it.key.startswith("".join(names[2:3]))]
    if len(names) > 3 or not found:
        raise ArtifactError(f"nothing is below {reference or store.root}: penumbra artifacts ls shows what there is")
    if older is not None:
        since = datetime.now(UTC) - timedelta(days=older)
        old = {store.reference(manifest) for manifest in store.find(*names[:2]) if manifest.ended < since}
        found = [artifact for artifact in found if artifact in old]
    if unneeded:
        kept = needed(store)
        found = [artifact for artifact in found if artifact not in kept]
    return found


def check_unneeded(store: Catalogue, artifacts: Sequence[Artifact]) -> None:
    """Raise `ArtifactError` where another artifact was made from one of these, naming it and what takes it away."""
    for manifest in store.find():
        made = store.reference(manifest)
        for parent in manifest.parents if made not in artifacts else ():
            if parent.model_copy(update={"root": store.root}) in artifacts:
                takes = f"penumbra artifacts rm {made.dataset}/{made.stage}/{made.key}"
                raise ArtifactError(f"{made.path} was made from {parent.path}: {takes} takes it away first")


def needed(store: Catalogue) -> set[Artifact]:
    """Results, the newest artifact of each stage of each data set, and all that these were made from."""
    manifests = {store.reference(manifest): manifest for manifest in store.find()}
    newest = {(artifact.dataset, artifact.stage): artifact for artifact in manifests}  # the last of them stays
    results = [artifact for artifact in manifests if artifact.stage in RESULTS]
    kept, waiting = set[Artifact](), [*newest.values(), *results]
    while waiting:
        artifact = waiting.pop()
        if artifact not in kept and artifact in manifests:
            kept.add(artifact)
            waiting += [it.model_copy(update={"root": store.root}) for it in manifests[artifact].parents]
    return kept
