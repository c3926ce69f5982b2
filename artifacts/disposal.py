"""Which artifacts can be taken away."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import ArtifactError, Store

RESULTS = {"metrics", "evaluation", "ablation"}  # none takes the place of another


def to_remove(store: Store, reference: str | None, older: float | None, unneeded: bool) -> list[Artifact]:
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


def check_unneeded(store: Store, artifacts: Sequence[Artifact]) -> None:
    """Raise `ArtifactError` where another artifact was made from one of these, naming it and what takes it away."""
    for manifest in store.find():
        made = store.reference(manifest)
        for parent in manifest.parents if made not in artifacts else ():
            if parent.model_copy(update={"root": store.root}) in artifacts:
                takes = f"penumbra artifacts rm {made.dataset}/{made.stage}/{made.key}"
                raise ArtifactError(f"{made.path} was made from {parent.path}: {takes} takes it away first")


def needed(store: Store) -> set[Artifact]:
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
