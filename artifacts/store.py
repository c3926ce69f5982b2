"""The artifact store: content-derived keys, parts that appear whole or not at all, a manifest written last.

An artifact is `<root>/<dataset>/<stage>/<key>/` with `part-*.parquet`, `_rejected/part-*.parquet` where rows were
refused, `_records/part-*.json`, each written before its part with the part's digest, and `_manifest.json`. Arrow,
pandas, Spark and DuckDB skip names that begin with `_` or `.`, so each of them opens the folder as one table. The key
is a digest of everything that determines the content, so the same work has the same key: `Store.build` does nothing
when a whole artifact is there, and otherwise makes the parts that are missing or unlike their records. One process
makes an artifact at a time. Whatever is read is held against its digest.
"""

import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pydantic import ValidationError

from penumbra.artifacts.catalogue import MANIFEST, Catalogue, path_of
from penumbra.artifacts.digests import forget, remember, remembered
from penumbra.artifacts.errors import ArtifactError, what_there_is
from penumbra.artifacts.files import JsonFolder
from penumbra.artifacts.leases import lease
from penumbra.artifacts.manifest import NAME, Artifact, Made, Manifest, Part, PartRecord, Work
from penumbra.artifacts.processes import cores
from penumbra.artifacts.schemas import SCHEMAS, conform
from penumbra.artifacts.tables import REJECTED, decode, encode, encode_rejected, frame_of, is_older, part_name

__all__ = ["DRAFTS", "MANIFEST", "NAME", "REJECTED", "ArtifactError", "Progress", "Store"]

DRAFTS = "_drafts"  # folder of what a stage has done of a part that is not whole
PART = re.compile(rf"({REJECTED}/)?part-\d+\.parquet\Z|(.+/)?\.[0-9a-f]{{32}}\Z")  # or a draft, which a kill left
RECORDS = "_records"  # folder of what is known of each part
Progress = Callable[[int, int], None]
Elsewhere = Callable[[list[int]], Iterable[Made]]  # makes these parts; each as it is done
Bytes = TypeVar("Bytes", bytes, memoryview)

if TYPE_CHECKING:
    import pandas as pd

# By path and digest, the stamps of the files that were found whole.
_SEEN: dict[tuple[str, str], tuple[int, ...] | None] = {}


class Store(Catalogue):
    """All artifacts below one root: a folder or any URL that fsspec opens."""

    def __init__(self, root: str | None = None) -> None:
        super().__init__(root)
        self._digests: dict[Artifact, dict[str, str]] = {}

    def __reduce__(self) -> tuple[type["Store"], tuple[str]]:
        """Its root is all that travels to another process."""
        return Store, (self.root,)

    # -- reading ---------------------------------------------------------------------------------------------

    def part(self, artifact: Artifact, index: int, columns: list[str] | None = None) -> pa.Table:
        """One part's rows; raises `ArtifactError` if the file is not what the stage's schema says."""
        table = self._table(artifact, part_name(index), columns)
        return table if columns else conform(table, artifact.stage)

    def parts(self, artifact: Artifact, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """The rows, one part after the other."""
        for index in range(len(self.manifest(artifact).parts)):
            yield self.part(artifact, index, columns)

    def table(self, artifact: Artifact, columns: list[str] | None = None) -> pa.Table:
        """All rows at once: for small tables and for tests."""
        return pa.concat_tables(list(self.parts(artifact, columns)))

    def frame(self, artifact: Artifact, columns: Sequence[str] | None = None) -> "pd.DataFrame":
        """Return the rows as a data frame; raises `ArtifactError` naming a column that the artifact lacks."""
        known = SCHEMAS[artifact.stage].names
        for column in columns or ():
            if column not in known:
                raise ArtifactError(f"{artifact.stage} has no column {column!r}: {what_there_is(column, known)}")
        return frame_of(self.table(artifact, None if columns is None else list(columns)))

    def rejected(self, artifact: Artifact) -> Iterator[pa.Table]:
        """The refused rows of a stage, one part after the other."""
        for record in self.manifest(artifact).parts:
            if record.rejected:
                yield self._table(artifact, record.rejected)

    def raw(self, artifact: Artifact, index: int) -> memoryview:
        """The bytes of a part's file; on a disk they are mapped."""
        return self._whole(artifact, part_name(index), self.files.map)

    def _table(self, artifact: Artifact, name: str, columns: list[str] | None = None) -> pa.Table:
        return decode(self._whole(artifact, name, self.files.read), columns, artifact.stage)

    def _whole(self, artifact: Artifact, name: str, read: Callable[[str], Bytes]) -> Bytes:
        """A file's bytes; raises `ArtifactError` unless they are those that the manifest tells of."""
        try:
            data = read(path_of(artifact, name))
        except FileNotFoundError:
            self.manifest(artifact)  # says so where the artifact is not there at all
            raise self._damaged(artifact, name, "is missing") from None
        if not (self._is(artifact, name, data) or self._is(artifact, name, data, made_anew=True)):
            forget([self._place(artifact, name)])
            raise self._damaged(artifact, name, "was changed since it was made")
        return data

    def _is(self, artifact: Artifact, name: str, data: bytes | memoryview, made_anew: bool = False) -> bool:
        """Whether these are the bytes that the manifest tells of, which is read once, or once more."""
        if made_anew or artifact not in self._digests:
            self._digests[artifact] = self.manifest(artifact).digests
        digest = self._digests[artifact].get(name)
        return digest is not None and self._has_digest(path_of(artifact, name), digest, data)

    def _has_digest(self, path: str, digest: str, data: bytes | memoryview) -> bool:
        """Whether a file's bytes have this digest; a file on a disk that has not changed is asked once a process."""
        place, stamp = (f"{self.root}/{path}", digest), self.files.stamp(path)
        if stamp and _SEEN.get(place) == stamp:
            return True
        if hashlib.sha256(data).hexdigest() != digest:
            return False
        _SEEN[place] = stamp
        return True

    # -- whether it is what its manifest says ------------------------------------------------------------------

    def intact(self, artifact: Artifact) -> Manifest | None:
        """The manifest if it is there, every digest is right and no part too much; changes nothing.

        A file that has not changed since it was made, or found right, is not read again, by no process.
        """
        manifest = self._readable_manifest(artifact)
        if not manifest:
            return None
        stamps = self.files.stamps(path_of(artifact))
        if _extra(stamps, manifest) or not self._all_right(artifact, manifest.digests, stamps):
            return None
        return manifest

    def _all_right(self, artifact: Artifact, digests: dict[str, str], stamps: dict[str, str]) -> bool:
        known = remembered(self._place(artifact, name) for name in digests)
        unknown = [
            name
            for name, digest in digests.items()
            if not stamps.get(name) or known.get(self._place(artifact, name)) != (stamps[name], digest)
        ]
        with ThreadPoolExecutor(cores()) as readers:
            faults = readers.map(lambda name: self._fault(artifact, name, digests[name]), unknown)
            if any(faults):
                return False
        self._remember(artifact, {name: digests[name] for name in unknown}, stamps)
        return True

    def _remember(self, artifact: Artifact, digests: dict[str, str], stamps: dict[str, str]) -> None:
        remember((self._place(artifact, name), stamps.get(name, ""), digest) for name, digest in digests.items())

    def _place(self, artifact: Artifact, name: str) -> str:
        return f"{self.root}/{path_of(artifact, name)}"

    def _damaged_parts(self, artifact: Artifact, manifest: Manifest) -> list[str]:
        told = ((name, self._fault(artifact, name, digest)) for name, digest in manifest.digests.items())
        return [f"{artifact.path}/{name} {fault}" for name, fault in told if fault]

    def _fault(self, artifact: Artifact, name: str, digest: str) -> str:
        path = path_of(artifact, name)
        try:
            return "" if self._has_digest(path, digest, self.files.map(path)) else "was changed"
        except FileNotFoundError:
            return "is missing"

    def verify(self, artifact: Artifact) -> list[str]:
        """What is wrong with an artifact: its manifest, and every part that is missing, changed or none of it."""
        try:
            manifest = self.manifest(artifact)
        except ArtifactError as error:
            return [str(error)]
        there = self.files.below(path_of(artifact))
        extra = [f"{artifact.path}/{name} is no part of it" for name in _extra(there, manifest)]
        return self._damaged_parts(artifact, manifest) + extra

    def missing_parents(self, artifact: Artifact) -> list[Artifact]:
        """What a whole artifact was made from and is not there, or not whole, any more."""
        parents = (parent.model_copy(update={"root": self.root}) for parent in self.manifest(artifact).parents)
        return [parent for parent in parents if not self.has(parent)]

    def size(self, artifact: Artifact) -> int:
        """Bytes of all its files."""
        return sum(self.files.below(path_of(artifact)).values())

    # -- writing ---------------------------------------------------------------------------------------------

    def remove(self, artifact: Artifact) -> None:
        """Take an artifact away, its manifest first: what is left by a kill is none."""
        names = self.files.below(path_of(artifact))
        if self.has(artifact):
            self.files.remove(path_of(artifact, MANIFEST))
        self.files.remove(path_of(artifact))
        forget(self._place(artifact, name) for name in names)

    def build(
        self,
        work: Work,
        parts: Iterable[Callable[[], Part]],
        *,
        total: int = 0,
        progress: Progress = lambda done, total: None,
        waits: Callable[[str], None] = lambda holder: None,
        elsewhere: Elsewhere | None = None,
    ) -> Artifact:
        """Make the parts that are missing or damaged, then write the manifest.

        `parts` are called in order, each only if it is to be made; `progress(done, total)` follows each part. Those
        that `elsewhere` makes, where it is given, are written by its processes (`write`). Where another process makes
        the artifact, this waits for it, and `waits` is told whom for.
        """
        artifact = self.artifact(work)
        if self.intact(artifact):
            return artifact
        with lease(self.files, lease_of(artifact), waits):
            if not self.intact(artifact):  # made meanwhile
                self._build(artifact, work, parts, total, progress, elsewhere)
        return artifact

    def _build(
        self,
        artifact: Artifact,
        work: Work,
        parts: Iterable[Callable[[], Part]],
        total: int,
        progress: Progress,
        elsewhere: Elsewhere | None,
    ) -> None:
        if self.has(artifact):
            self.files.remove(path_of(artifact, MANIFEST))
        started, clock = datetime.now(UTC), time.perf_counter()
        measured: dict[str, float] = {}
        found = {index: self.record(artifact, index) for index in range(total)} if elsewhere else {}
        records = {index: record for index, record in found.items() if record}
        missing = [index for index in found if index not in records]
        for made in elsewhere(missing) if elsewhere and missing else ():
            records[made.number] = self._shared(artifact, made)
            measured = _added(measured, made.measured)
            progress(len(records), total)
        for index, make in enumerate(parts):
            record = records.get(index) or (None if index in found else self.record(artifact, index))
            if record is None:
                part = make()
                record = self.write(artifact, index, part)
                measured = _added(measured, part.measured)
            if index not in records:
                records[index] = record
                progress(len(records), max(total, len(records)))
        several = [records[index] for index in sorted(records)]
        seconds = round(time.perf_counter() - clock, 3)
        manifest = Manifest.of(work, several, self._reasons(artifact, several), started, seconds, measured)
        stamps = self.files.stamps(path_of(artifact))
        for name in _extra(stamps, manifest):
            self.files.remove(path_of(artifact, name))
        self._remember(artifact, manifest.digests, stamps)
        self.files.write(path_of(artifact, MANIFEST), manifest.model_dump_json(indent=1).encode())
        if self.files.exists(path_of(artifact, DRAFTS)):
            self.files.remove(path_of(artifact, DRAFTS))

    def _shared(self, artifact: Artifact, made: Made) -> PartRecord:
        """What a worker has noted; raises `ArtifactError` where that is not here: its store is another."""
        if self._noted(artifact, made.number) != made.record:
            raise ArtifactError(
                f"{artifact.path}: a worker has made {made.record.name}, and it is not there: PENUMBRA_ARTIFACTS "
                "must name a shared folder or a bucket (s3://…) that all workers reach"
            )
        return made.record

    def write(self, artifact: Artifact, index: int, part: Part) -> PartRecord:
        """Write a part's file, after that of its refused rows and its record."""
        if part.taken != part.kept + len(part.rejected):
            raise ArtifactError(
                f"{artifact.stage}: {part.taken} in, but {part.kept} out and {len(part.rejected)} rejected"
            )
        name = part_name(index)
        data, refused = encode(part, artifact.stage), encode_rejected(part) if part.rejected else None
        record = PartRecord(
            name=name,
            rows=len(part.rows),
            sha256=hashlib.sha256(data).hexdigest(),
            taken=part.taken,
            kept=part.kept,
            rejected=f"{REJECTED}/{name}" if refused else None,
            rejected_sha256=hashlib.sha256(refused).hexdigest() if refused else None,
            notes=dict(sorted(part.notes.items())),
            cost_usd=part.cost_usd,
        )
        self.files.write(path_of(artifact, _record_name(index)), record.model_dump_json().encode())
        if record.rejected and refused:
            self.files.write(path_of(artifact, record.rejected), refused)
        self.files.write(path_of(artifact, name), data)
        return record

    def record(self, artifact: Artifact, index: int) -> PartRecord | None:
        """Return the record of a part, or None where the part is to be made.

        That is a part that is missing, that was changed, or that an older version of Penumbra made with other columns:
        so all parts of an artifact have the same columns.
        """
        record = self._noted(artifact, index)
        if record is None or record.name != part_name(index):
            return None
        if any(self._fault(artifact, name, digest) for name, digest in record.digests.items()):
            return None
        return None if is_older(self.files.map(path_of(artifact, record.name)), artifact.stage) else record

    def _noted(self, artifact: Artifact, index: int) -> PartRecord | None:
        try:
            return PartRecord.model_validate_json(self.files.read(path_of(artifact, _record_name(index))))
        except (FileNotFoundError, ValidationError):
            return None

    def _reasons(self, artifact: Artifact, records: Iterable[PartRecord]) -> Counter[str]:
        """How many rows were refused for which reason."""
        reasons: Counter[str] = Counter()
        for record in records:
            if record.rejected:
                refused = decode(self.files.read(path_of(artifact, record.rejected)), ["reason"])
                reasons.update(refused["reason"].to_pylist())
        return reasons

    # -- beside the parts ------------------------------------------------------------------------------------

    def write_file(self, artifact: Artifact, name: str, content: bytes) -> None:
        """Put a file beside the parts; its name begins with `_`, so that no reader takes it for a part.

        What is below `_drafts/` goes when the artifact is whole.
        """
        self.files.write(path_of(artifact, name), content)

    def read_file(self, artifact: Artifact, name: str) -> bytes | None:
        """A file beside the parts, or None."""
        try:
            return self.files.read(path_of(artifact, name))
        except FileNotFoundError:
            return None

    def json_folder(self, name: str) -> JsonFolder:
        """The hidden folder `.name` of the store, for what a later run must know."""
        return JsonFolder(self.files, name)


def _added(measured: dict[str, float], more: dict[str, float]) -> dict[str, float]:
    return measured | {name: measured.get(name, 0.0) + value for name, value in more.items()}


def _extra(there: Iterable[str], manifest: Manifest) -> list[str]:
    """Of the files that are there, the parts that the manifest knows nothing of."""
    known = manifest.digests
    return [name for name in there if PART.match(name) and name not in known]


def lease_of(artifact: Artifact) -> str:
    """The name of the lease that who makes an artifact holds."""
    return "-".join((artifact.dataset, artifact.stage, artifact.key))


def _record_name(index: int) -> str:
    return f"{RECORDS}/{part_name(index).removesuffix('.parquet')}.json"
