"""The artifacts below a root, found by their manifests. No part is read and nothing is changed."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import ClassVar, NamedTuple

from pydantic import ValidationError

from penumbra.artifacts.errors import ArtifactError, what_there_is
from penumbra.artifacts.files import Files
from penumbra.artifacts.locations import artifacts_root, data_folder
from penumbra.artifacts.manifest import NAME, Artifact, Manifest, Work, flat

MANIFEST = "_manifest.json"
LISTED = 10  # artifacts in a message
MOST = 4  # differences in a line
REVIEWS = "reviews"  # a stage that `rm` removes only by its name
# Stages whose newer artifacts do not replace older ones
RESULTS = {"metrics", "evaluation", "ablation", "judging_negatives", REVIEWS}
PINS = ".pins"  # folder of the pins: DATASET/STAGE/NAME.json
PIN = re.compile(r"[a-z0-9-]{1,50}\Z")


class Pin(NamedTuple):
    """A name that somebody gave to an artifact, and the artifact, which may not exist any more."""

    name: str
    artifact: Artifact

    @property
    def text(self) -> str:
        return f"{self.artifact.dataset}/{self.artifact.stage}@{self.name}"

    @property
    def fault(self) -> str:
        """The error message of a pin whose artifact does not exist any more."""
        return f"{self.text} is {self.artifact.key}, which does not exist any more: {self.unpin}"

    @property
    def unpin(self) -> str:
        return f"penumbra artifacts pin {self.artifact.dataset}/{self.artifact.stage} --as {self.name} --remove"


class Catalogue:
    """The artifacts of one root, by data set, stage and key."""

    announce: ClassVar[Callable[[str], None] | None] = None  # called with a line if the newest of several is used

    def __init__(self, root: str | None = None) -> None:
        self.files = Files(root or artifacts_root())
        self.root = self.files.root

    def artifact(self, work: Work) -> Artifact:
        return Artifact(root=self.root, dataset=work.dataset, stage=work.stage, key=work.key)

    def reference(self, manifest: Manifest) -> Artifact:
        return Artifact(root=self.root, dataset=manifest.dataset, stage=manifest.stage, key=manifest.key)

    def has(self, artifact: Artifact) -> bool:
        return self.files.exists(path_of(artifact, MANIFEST))

    def manifest(self, artifact: Artifact) -> Manifest:
        """Return the manifest; raise `ArtifactError` if there is none, or it was changed since it was written."""
        try:
            manifest = Manifest.model_validate_json(self.files.read(path_of(artifact, MANIFEST)))
        except FileNotFoundError:
            command = making(artifact.stage, artifact.dataset)
            raise ArtifactError(f"no whole artifact at {artifact.path} (no {MANIFEST}): {command} makes it") from None
        except ValidationError:
            raise self.damaged(artifact, MANIFEST, "is damaged") from None
        is_sealed = "sha256" not in manifest.model_fields_set or manifest.sealed() == manifest
        if not is_sealed or manifest.reference != (artifact.dataset, artifact.stage, artifact.key):
            raise self.damaged(artifact, MANIFEST, "was edited")
        # The manifest names the root where it was made; the store may have been moved.
        manifest.parents = [parent.model_copy(update={"root": self.root}) for parent in manifest.parents]
        return manifest

    def damaged(self, artifact: Artifact, name: str, fault: str) -> ArtifactError:
        """Return the error to raise for a damaged file of an artifact."""
        return ArtifactError(
            f"{artifact.path}/{name} {fault}: {making(artifact.stage, artifact.dataset)} repairs it, "
            f"penumbra artifacts rm {path_of(artifact)} removes it"
        )

    def readable_manifest(self, artifact: Artifact) -> Manifest | None:
        try:
            return self.manifest(artifact)
        except ArtifactError:
            return None

    def find(self, dataset: str | None = None, stage: str | None = None) -> list[Manifest]:
        """Return the manifests of all artifacts, oldest first, without damaged ones (`verify` reports those)."""
        manifests = map(self.readable_manifest, self.folders(dataset, stage, MANIFEST))
        return sorted((manifest for manifest in manifests if manifest), key=lambda manifest: manifest.ended)

    def folders(self, dataset: str | None = None, stage: str | None = None, name: str = "*") -> Iterator[Artifact]:
        """Yield all artifacts, finished or not, that have a file of this name."""
        paths = self.files.matching(f"{dataset or '*'}/{stage or '*'}/*/{name}")
        for folder in sorted({path.rpartition("/")[0] for path in paths}):
            of, at, key = folder.split("/")
            with suppress(ValidationError):  # another program's folder
                yield Artifact(root=self.root, dataset=of, stage=at, key=key)

    def newest(self, dataset: str, stage: str) -> Artifact:
        """Return the artifact of a stage that was finished last; raise `ArtifactError` if there is none."""
        if not NAME.match(dataset) or not NAME.match(stage):
            raise ArtifactError(f"'{dataset}/{stage}' is no DATASET/STAGE, as in charades-cg/masks")
        artifact = self.newest_if_any(dataset, stage)
        if artifact is None:
            raise self.missing(dataset, stage)
        return artifact

    def manifests(self, dataset: str, stage: str) -> list[Manifest]:
        """Return the manifests of a stage, oldest first; raise `ArtifactError` if one, maybe the newest, is damaged."""
        found = map(self.manifest, self.folders(dataset, stage, MANIFEST))
        return sorted(found, key=lambda manifest: manifest.ended)

    def newest_if_any(self, dataset: str, stage: str) -> Artifact | None:
        """Return the newest artifact of a stage or None; raise `ArtifactError` as `manifests` does."""
        manifests = self.manifests(dataset, stage)
        self.announce_newest(manifests)
        return self.reference(manifests[-1]) if manifests else None

    def announce_newest(self, manifests: Sequence[Manifest]) -> None:
        """Announce that the last of several artifacts is used, and how it differs from the previous one."""
        if len(manifests) < 2 or not Catalogue.announce:
            return
        *_, before, now = manifests
        old, new = self._settings(before), self._settings(now)
        names = [name for name in {**new, **old} if new.get(name) != old.get(name)]
        names.sort(key=lambda name: name != "fills.provider")
        shown = [f"{name}={old.get(name, 'none')} (now {new.get(name, 'none')})" for name in names[:MOST]]
        shown += [f"{len(names) - MOST} more"] if len(names) > MOST else []
        Catalogue.announce(
            f"{now.dataset}/{now.stage}: uses {now.key}, the newest of {len(manifests)}; "
            f"the previous one, {before.key}, has {'; '.join(shown) or 'the same parameters and inputs'}"
        )

    def _settings(self, manifest: Manifest) -> dict[str, str]:
        """Return the parameters, inputs and versions of an artifact and its ancestors as JSON, by STAGE.NAME."""
        values, waiting = defaultdict[str, list[str]](list), [manifest]
        for one in waiting:  # the list grows inside the loop
            inputs = {f"content of {name}": digest[:8] for name, digest in one.inputs.items()}
            for name, value in flat({**one.parameters, **inputs, "version": one.stage_version}):
                values[f"{one.stage}.{name}"].append(json.dumps(value, ensure_ascii=False))
            parents = [self.readable_manifest(parent) for parent in one.parents]
            waiting += [parent for parent in parents if parent and parent not in waiting]
        return {name: ", ".join(several) for name, several in values.items()}

    def with_key(
        self, dataset: str | None, stage: str, key: str, name: Callable[[Manifest], str] | None = None
    ) -> Artifact:
        """Return the artifact that `key`, a pin or the first digits of a key, names; `dataset` None: of any data set.

        With `name`, which returns a run's MODEL-DIGITS, `key` may be that name or the model alone. Raises
        `ArtifactError` listing those that match, or the newest ones, unless exactly one matches.
        """
        pins = [pin for pin in self.pins(dataset, stage) if pin.name == key.rpartition("@")[2]]
        if len(pins) == 1:
            if not self.has(pins[0].artifact):
                raise ArtifactError(pins[0].fault)
            return pins[0].artifact
        manifests = self.find(dataset, stage)
        if not manifests:
            raise self.missing(dataset, stage)
        called, digits = name or (lambda it: "/".join(it.reference)), key.rpartition("-")[2]
        matching = [it for it in manifests if digits and it.key.startswith(digits)]
        matching = matching or [it for it in manifests if name and name(it).rpartition("-")[0] == key]
        if len(matching) == 1:
            return self.reference(matching[0])
        listed = matching or manifests
        newest = ", ".join(map(called, listed[: -LISTED - 1 : -1]))
        newest += f" and {len(listed) - LISTED} more" if len(listed) > LISTED else ""
        place = f"{dataset or '*'}/{stage}"
        if matching:
            raise ArtifactError(f"{len(matching)} of {place} match {key!r}, give more of its digits: {newest}")
        wrong = f"no run is called {key!r}" if name else f"no {place} matches {key!r}"
        raise ArtifactError(f"{wrong}; there {'are' if len(listed) > 1 else 'is'}: {newest}")

    def resolve(self, reference: str) -> Artifact:
        """Return the artifact of DATASET/STAGE (the newest), DATASET/STAGE/KEY (first digits) or DATASET/STAGE@PIN."""
        names = names_in(reference)
        if len(names) not in (2, 3) or not all(map(NAME.match, names)):
            raise ArtifactError(f"{reference!r} is no DATASET/STAGE, as in charades-cg/masks")
        return self.newest(*names) if len(names) == 2 else self.with_key(names[0], names[1], names[2])

    def pins(self, dataset: str | None = None, stage: str | None = None) -> list[Pin]:
        """Return the pins, in the order of their names; raise `ArtifactError` if one is damaged."""
        found = []
        for path in self.files.matching(f"{PINS}/{dataset or '*'}/{stage or '*'}/*.json"):
            _, of, at, file = path.split("/")
            try:
                key = json.loads(self.files.read(path))["key"]
                artifact = Artifact(root=self.root, dataset=of, stage=at, key=key)
            except (ValueError, TypeError, KeyError, RecursionError):
                raise ArtifactError(f"{self.root}/{path} is damaged: pin the artifact again, or remove it") from None
            found.append(Pin(file.removesuffix(".json"), artifact))
        return found

    def pin(self, artifact: Artifact, name: str) -> Pin:
        """Give an artifact a name; another artifact that had this name loses it."""
        if not PIN.match(name):
            raise ArtifactError(f"{name!r} is no name of a pin: lower-case letters, digits and '-', as in release")
        path = f"{PINS}/{artifact.dataset}/{artifact.stage}/{name}.json"
        self.files.write(path, json.dumps({"key": artifact.key}).encode())
        return Pin(name, artifact)

    def unpin(self, dataset: str, stage: str, name: str) -> None:
        """Remove a pin; raise `ArtifactError` that lists the existing pins if there is none of this name."""
        known = [it.name for it in self.pins() if (it.artifact.dataset, it.artifact.stage) == (dataset, stage)]
        if name not in known:
            raise ArtifactError(f"{dataset}/{stage} has no pin {name!r}: {what_there_is(name, known)}")
        self.files.remove(f"{PINS}/{dataset}/{stage}/{name}.json")

    def below(self, reference: str | None) -> list[Artifact]:
        """Return the artifacts, finished or not, below DATASET[/STAGE[/KEY]] or DATASET/STAGE@PIN; None: all."""
        if not reference:
            return list(self.folders())
        if "@" in reference:
            return [self.resolve(reference)]
        names = names_in(reference)
        is_name = len(names) <= 3 and all(map(NAME.match, names))
        artifacts = [it for it in self.folders(*names[:2]) if it.key.startswith("".join(names[2:]))] if is_name else []
        if not artifacts:
            raise ArtifactError(f"nothing is below {reference}: penumbra artifacts ls shows what there is")
        return artifacts

    def ancestors(self, artifact: Artifact) -> dict[str, list[Artifact]]:
        """Return what an artifact was made from, by stage, parents before their parents."""
        by_stage: dict[str, list[Artifact]] = {}
        waiting = list(self.manifest(artifact).parents)
        for parent in waiting:  # the list grows inside the loop
            if parent not in by_stage.setdefault(parent.stage, []):
                by_stage[parent.stage].append(parent)
                waiting += self.manifest(parent).parents
        return by_stage

    def missing(self, dataset: str | None, stage: str | None = None) -> ArtifactError:
        """Return the error to raise if a data set, or all of them, has no artifact of a stage."""
        from penumbra.artifacts.schemas import TABLES

        found = sorted({(it.dataset, it.stage) for it in self.folders(name=MANIFEST)})
        datasets = sorted({name for name, _ in found})
        if dataset and dataset not in datasets and (datasets or stage is None):
            there = what_there_is(dataset, datasets)
            return ArtifactError(f"no data set {dataset!r} is known below {self.root}: {there}")
        there = ", ".join(f"{name}/{other}" for name, other in found if dataset in (None, name))
        made = f": {making(stage, dataset or example_dataset())} makes it" if stage in TABLES else ""
        return ArtifactError(f"no {dataset or '*'}/{stage} below {self.root}{made}; there is: {there or 'nothing yet'}")


def names_in(reference: str) -> list[str]:
    """Return the names in DATASET/STAGE/KEY or DATASET/STAGE@PIN."""
    return reference.strip("/").replace("@", "/").split("/")


def example_dataset() -> str:
    """Return a data set to name in advice: the user's own that was changed last, or the shipped one."""
    own = [path for path in data_folder().glob("*/") if NAME.match(path.name)]
    return max(own, key=lambda path: path.stat().st_mtime).name if own else "scenes"


def making(stage: str, dataset: str) -> str:
    """Return the command that makes a stage of a data set."""
    from penumbra.artifacts.schemas import TABLES  # imports pyarrow

    return TABLES.get(stage, TABLES["negatives"]).command.format(dataset)


def path_of(artifact: Artifact, name: str = "") -> str:
    """Return the path below the root of an artifact's folder, or of a file in it."""
    return f"{artifact.dataset}/{artifact.stage}/{artifact.key}/{name}".rstrip("/")


def to_remove(store: Catalogue, reference: str | None, unneeded: bool) -> list[Artifact]:
    """Return the artifacts below a reference (`Catalogue.below`), reviews only if it names them.

    With `unneeded`, only artifacts that are neither pinned, a result, the newest of a stage, nor an ancestor of these.
    Raises `ArtifactError` if nothing is below the reference, or what would be removed is pinned.
    """
    named = REVIEWS in names_in(reference or "")[1:]
    artifacts = [it for it in store.below(reference) if named or it.stage != REVIEWS]
    if not artifacts:
        raise ArtifactError(f"nothing is below {reference or store.root}: penumbra artifacts ls shows what there is")
    pins = store.pins()
    if not unneeded:
        check_unpinned(pins, artifacts)
        return artifacts
    manifests = {store.reference(manifest): manifest for manifest in store.find()}
    newest = {(artifact.dataset, artifact.stage): artifact for artifact in manifests}  # the last one replaces others
    needed = [*newest.values(), *(pin.artifact for pin in pins), *(it for it in manifests if it.stage in RESULTS)]
    for artifact in needed:  # the list grows inside the loop
        parents = manifests[artifact].parents if artifact in manifests else []
        needed += {*parents} - {*needed}
    return [artifact for artifact in artifacts if artifact not in needed]


def check_unpinned(pins: Sequence[Pin], artifacts: Sequence[Artifact]) -> None:
    """Raise `ArtifactError` if one of these artifacts is pinned, with the command that unpins it."""
    for pin in pins:
        if pin.artifact in artifacts:
            raise ArtifactError(f"{path_of(pin.artifact)} is pinned as {pin.name}: {pin.unpin} unpins it")


def check_unneeded(store: Catalogue, artifacts: Sequence[Artifact]) -> None:
    """Raise `ArtifactError` if another artifact was made from one of these, with the command that removes it."""
    for manifest in store.find():
        child = store.reference(manifest)
        for parent in {*artifacts}.intersection(() if child in artifacts else manifest.parents):
            command = f"penumbra artifacts rm {path_of(child)}"
            raise ArtifactError(f"{child.path} was made from {parent.path}: {command} removes it first")
