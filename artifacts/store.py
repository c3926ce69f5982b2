"""The artifact store: keys derived from content, parts written in one step, and a manifest written last.

An artifact is `<root>/<dataset>/<stage>/<key>/` with `part-*.parquet`, `_rejected/`, `_records/part-*.json` and
`_manifest.json`. A record has the digest of its part and is written before it. `Store.build` makes the parts that are
missing or unlike their records; one process makes an artifact at a time. Reading a file checks its digest.
"""

import hashlib
import math
import re
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic import ValidationError

from penumbra.artifacts.catalogue import MANIFEST, Catalogue, path_of
from penumbra.artifacts.errors import ArtifactError, what_there_is
from penumbra.artifacts.files import FileStatus, Waits, check_unchanged, remember, remembered
from penumbra.artifacts.manifest import Artifact, Manifest, Part, Work, WrittenPart, made_with, software_versions
from penumbra.artifacts.processes import cores
from penumbra.artifacts.schemas import SCHEMAS, conform, decode, encode, for_display, frame_of, table_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MANIFEST", "REJECTED", "ArtifactError", "Store"]

USE = "use~"  # prefix of the leases of runs that use artifacts of a data set
REJECTED = "_rejected"  # folder of the rejected rows
RECORD = "_records/part-{:05d}.json"  # a part's record
PART = re.compile(rf"({REJECTED}/)?part-\d+\.parquet\Z|(.+/)?\.[0-9a-f]{{32}}\Z")  # or the draft of a killed process
Progress = Callable[[Collection[int], int, Collection[int]], None]
Elsewhere = Callable[[list[int]], Iterable[WrittenPart]]


def part_name(index: int) -> str:
    return f"part-{index:05d}.parquet"


class Store(Catalogue):
    """All artifacts below one root: a folder or any URL that fsspec opens."""

    def __init__(self, root: str | None = None) -> None:
        super().__init__(root)
        self._digests: dict[Artifact, dict[str, str]] = {}

    def part(self, artifact: Artifact, index: int, columns: list[str] | None = None) -> pa.Table:
        """Return one part's rows; raise `ArtifactError` if they do not fit the stage's schema."""
        table = decode(self._read(artifact, part_name(index)), columns, artifact.stage)
        return table if columns else conform(table, artifact.stage)

    def parts(self, artifact: Artifact, columns: list[str] | None = None) -> Iterator[pa.Table]:
        for index in range(len(self.manifest(artifact).parts)):
            yield self.part(artifact, index, columns)

    def rows(self, artifact: Artifact, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the rows as dictionaries, part by part."""
        return (row for part in self.parts(artifact, columns) for row in part.to_pylist())

    def shown_rows(self, artifact: Artifact) -> Iterator[dict[str, Any]]:
        """Yield the rows as they are displayed, see `for_display`."""
        batches = (batch for part in self.parts(artifact) for batch in for_display(part).to_batches(max_chunksize=50))
        return (row for batch in batches for row in batch.to_pylist())

    def table(self, artifact: Artifact, columns: list[str] | None = None) -> pa.Table:
        """Return all rows at once, for small tables and tests."""
        return pa.concat_tables(list(self.parts(artifact, columns)))

    def frame(self, artifact: Artifact, columns: Sequence[str] | None = None) -> "pd.DataFrame":
        """Return all rows as a data frame; raise `ArtifactError` naming a column that the artifact lacks."""
        known = SCHEMAS[artifact.stage].names
        for column in columns or ():
            if column not in known:
                raise ArtifactError(f"{artifact.stage} has no column {column!r}: {what_there_is(column, known)}")
        return frame_of(self.table(artifact, None if columns is None else list(columns)))

    def rejected(self, artifact: Artifact) -> Iterator[pa.Table]:
        for record in self.manifest(artifact).parts:
            if record.rejected:
                yield decode(self._read(artifact, record.rejected))

    def _read(self, artifact: Artifact, name: str) -> bytes:
        """Return a file's bytes; raise `ArtifactError` unless they have the digest of the manifest."""
        path = path_of(artifact, name)
        try:
            data = self.files.read(path)
        except FileNotFoundError:
            self.manifest(artifact)  # raises if the whole artifact is missing
            raise self.damaged(artifact, name, "is missing") from None
        digest = hashlib.sha256(data).hexdigest()
        if self._digests.get(artifact, {}).get(name) != digest:  # an artifact that was made again has other digests
            self._digests[artifact] = self.manifest(artifact).digests
        if self._digests[artifact].get(name) != digest:
            remember([(f"{self.root}/{path}", "", "")])  # so that the next run reads it, and makes it again
            raise self.damaged(artifact, name, "was changed since it was made")
        return data

    def intact(self, artifact: Artifact) -> Manifest | None:
        """Return the manifest, None if a digest is wrong or a part is extra; a file is read again only if changed."""
        manifest = self.readable_manifest(artifact)
        if not manifest:
            return None
        stamps = self.files.stamps(path_of(artifact))
        places = {name: f"{self.root}/{path_of(artifact, name)}" for name in manifest.digests}
        known = remembered({place: stamps.get(name, "") for name, place in places.items()})
        unknown = {name: digest for name, digest in manifest.digests.items() if known.get(places[name]) != digest}
        with ThreadPoolExecutor(cores()) as readers:
            faults = readers.map(lambda name: self._fault(artifact, name, unknown[name]), unknown)
            if _extra(stamps, manifest) or any(faults):
                return None
        remember((places[name], stamps.get(name, ""), digest) for name, digest in unknown.items())
        return manifest

    def _fault(self, artifact: Artifact, name: str, digest: str) -> str:
        try:
            data = self.files.read(path_of(artifact, name))
        except FileNotFoundError:
            return "is missing"
        return "" if hashlib.sha256(data).hexdigest() == digest else "was changed"

    def verify(self, artifact: Artifact) -> list[str]:
        """Return the faults of an artifact: a damaged manifest or part, a link, or a file that is no part of it."""
        try:
            manifest = self.manifest(artifact)
        except ArtifactError as error:
            return [str(error)]
        faults = [(name, self._fault(artifact, name, digest)) for name, digest in manifest.digests.items()]
        for name, info in self.files.infos(path_of(artifact)).items():
            is_visible = not any(it.startswith(("_", ".")) for it in name.split("/"))  # to pandas and Spark
            if name not in manifest.digests and (is_visible or name.endswith(".parquet") or PART.match(name)):
                faults.append((name, "is no part of it"))
            if info.get("islink"):
                faults.append((name, "is a link"))
        return [f"{artifact.path}/{name} {fault}" for name, fault in faults if fault]

    def size(self, artifact: Artifact) -> int:
        return sum(self.files.below(path_of(artifact)).values())

    def remove(self, artifact: Artifact) -> None:
        """Remove an artifact, its manifest first, so that a killed process leaves nothing that looks complete."""
        if self.has(artifact):
            self.files.remove(path_of(artifact, MANIFEST))
        self.files.remove(path_of(artifact))

    def lease(self, artifact: Artifact, waits: Waits = lambda holder: None) -> AbstractContextManager[None]:
        """Hold the lease for making an artifact; if another process holds it, call `waits` with its holder and wait."""
        return self.files.lease(_lease_name(artifact), waits)

    @contextmanager
    def use(self, dataset: str) -> Iterator[None]:
        """Hold a lease that keeps others from removing artifacts of a data set."""
        name = f"{USE}{dataset}~{uuid.uuid4().hex}"
        try:
            with self.files.lease(name):
                yield
        finally:
            self.files.holders(name)  # removes the files of a lease that has ended

    def check_unused(self, artifacts: Iterable[Artifact]) -> None:
        """Raise `ArtifactError` if a run uses the data set of one of these artifacts, or makes one of them."""
        for prefix in dict.fromkeys(name for it in artifacts for name in (f"{USE}{it.dataset}~", _lease_name(it))):
            for holder in self.files.holders(prefix):
                raise ArtifactError(f"{holder} uses artifacts of this data set: remove them when it has finished")

    def build(
        self,
        work: Work,
        parts: Iterable[Callable[[], Part]],
        *,
        total: int = 0,
        progress: Progress = lambda done, total, made: None,
        waits: Waits = lambda holder: None,
        elsewhere: Elsewhere | None = None,
    ) -> Artifact:
        """Make the parts that are missing or damaged, then write the manifest; wait if another process does so already.

        `parts` has a function for each of `total` parts; it is called if the part has to be made. `progress` is called
        with the indices of finished parts, the total, and the indices of parts made now, `waits` with another holder of
        the lease. `elsewhere` takes indices, has other processes make and write these parts, and yields their records.
        """
        artifact = self.artifact(work)
        if self.intact(artifact):
            return artifact
        with self.lease(artifact, waits):
            if self.intact(artifact):  # another process has made it meanwhile
                return artifact
            if self.has(artifact):
                self.files.remove(path_of(artifact, MANIFEST))
            started, made, records = datetime.now(UTC), list[int](), dict[int, WrittenPart]()
            if elsewhere:
                found = {index: self.record(artifact, index) for index in range(total)}
                records = {index: record for index, record in found.items() if record}
                missing = {part_name(index): index for index, record in found.items() if record is None}
                for record in elsewhere([*missing.values()]) if missing else ():
                    if not self.files.exists(path_of(artifact, record.name)):
                        raise ArtifactError(
                            f"{artifact.path}: a worker has made {record.name}, which does not exist here: "
                            "PENUMBRA_ARTIFACTS must name a shared folder or a bucket (s3://…) that all workers reach"
                        )
                    records[missing[record.name]] = record
                    made.append(missing[record.name])
                    progress(records, total, made)
            for index, make in enumerate(parts):
                if index in records:
                    continue
                if there := self.record(artifact, index):
                    records[index] = there
                else:
                    records[index] = self.write(artifact, index, make(), work.files)
                    made.append(index)
                progress(records, max(total, len(records)), made)
            self._finish(artifact, work, [records[index] for index in range(len(records))], started)
        return artifact

    def _finish(self, artifact: Artifact, work: Work, records: list[WrittenPart], started: datetime) -> None:
        """Remove extra parts, and write the manifest; refuse if an input file has changed."""
        check_unchanged(work.files)
        notes, reasons, measured = Counter[str](), Counter[str](), defaultdict[str, float](float)
        facts = defaultdict[str, set[str]](set)
        for record in records:
            notes.update(record.notes)
            reasons.update(record.reasons)
            for name, fact in record.made_with.items():
                facts[name].add(fact)
            for name, value in record.measured.items():
                measured[name] += value
        ended = datetime.now(UTC)
        costs = [record.cost_usd for record in records if record.cost_usd is not None]
        manifest = Manifest(
            dataset=work.dataset,
            stage=work.stage,
            stage_version=work.version,
            key=work.key,
            unit=work.unit,
            rows=sum([record.rows for record in records]),
            taken=sum([record.taken for record in records]),
            kept=sum([record.kept for record in records]),
            rejected=dict(reasons.most_common()),
            notes=dict(+notes),
            parts=records,
            parameters=work.parameters,
            parents=list(work.parents),
            inputs=work.inputs,
            software=software_versions(),
            started=started,
            ended=ended,
            seconds=round((ended - started).total_seconds(), 3),
            cost_usd=math.fsum(costs) if costs else None,
            measured=measured,
            differing={name: sorted(values) for name, values in facts.items() if len(values) > 1},
        ).sealed()
        stamps = self.files.stamps(path_of(artifact))
        for name in _extra(stamps, manifest):
            self.files.remove(path_of(artifact, name))
        digests = manifest.digests.items()
        remember((f"{self.root}/{path_of(artifact, name)}", stamps.get(name, ""), digest) for name, digest in digests)
        self.files.write(path_of(artifact, MANIFEST), manifest.model_dump_json(indent=1).encode())

    def write(
        self, artifact: Artifact, index: int, part: Part, files: Mapping[str, FileStatus] | None = None
    ) -> WrittenPart:
        """Write a part, its record and its rejected rows; raise `ArtifactError` if an input file has changed."""
        check_unchanged(files or {})
        if part.taken != part.kept + len(part.rejected):
            raise ArtifactError(
                f"{artifact.stage}: {part.taken} in, but {part.kept} out and {len(part.rejected)} rejected"
            )
        name = part_name(index)
        data = encode(part.rows, artifact.stage)
        rejected = encode(table_of("rejected", part.rejected), "rejected") if part.rejected else b""
        record = WrittenPart(
            name=name,
            rows=len(part.rows),
            sha256=hashlib.sha256(data).hexdigest(),
            taken=part.taken,
            kept=part.kept,
            rejected=f"{REJECTED}/{name}" if rejected else None,
            rejected_sha256=hashlib.sha256(rejected).hexdigest() if rejected else None,
            notes=dict(sorted(part.notes.items())),
            cost_usd=part.cost_usd,
            files=part.files,
            reasons=Counter(row["reason"] for row in part.rejected),
            measured=part.measured,
            made_with=made_with(),
        ).sealed()
        self.files.write(path_of(artifact, RECORD.format(index)), record.model_dump_json().encode())
        if record.rejected:
            self.files.write(path_of(artifact, record.rejected), rejected)
        self.files.write(path_of(artifact, name), data)
        return record

    def record(self, artifact: Artifact, index: int) -> WrittenPart | None:
        """Return the record of a part; None if the part is missing, or it or its record was changed."""
        try:
            record = WrittenPart.model_validate_json(self.files.read(path_of(artifact, RECORD.format(index))))
        except (FileNotFoundError, ValidationError):
            return None
        if record.sealed() != record or record.name != part_name(index):
            return None
        damaged = any(self._fault(artifact, name, digest) for name, digest in record.digests.items())
        return None if damaged else record


def _lease_name(artifact: Artifact) -> str:
    return "-".join((artifact.dataset, artifact.stage, artifact.key))


def _extra(names: Iterable[str], manifest: Manifest) -> list[str]:
    """Return the files that look like parts but that the manifest does not list."""
    known = manifest.digests
    return [name for name in names if PART.match(name) and name not in known]
