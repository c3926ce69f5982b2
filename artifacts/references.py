"""What a user calls an artifact: DATASET/STAGE, the newest whole one, or DATASET/STAGE/KEY."""

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import NAME, ArtifactError, Store


def named(store: Store, reference: str) -> Artifact:
    """The artifact of this name; the first digits of a key are enough.

    Raises `ArtifactError` where the reference is none, or names nothing or several; the message tells what there is.
    """
    names = reference.strip("/").split("/")
    if len(names) == 3 and all(NAME.match(name) for name in names):
        dataset, stage, key = names
        return store.with_key(dataset, stage, key)
    if len(names) != 2:
        raise ArtifactError(f"{reference!r} is no DATASET/STAGE, as in charades-cg/masks")
    return store.newest(*names)
