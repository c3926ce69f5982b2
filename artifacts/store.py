"""The artifact store: content-derived keys, parts that appear whole or not at all, a manifest written last.

An artifact is `<root>/<dataset>/<stage>/<key>/` with `part-*.parquet`, `_rejected/part-*.parquet` where rows were
refused, and `_manifest.json`. Arrow, pandas, Spark and DuckDB skip names that begin with `_` or `.`, so each of them
opens the folder as one table. The key is a digest of everything that determines the content, so the same work has
the same key: `Store.build` does nothing when a whole artifact is there, goes on after the last whole part when a
run was killed, and lets two runs write the same bytes side by side.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

import pyarrow as pa

from penumbra.artifacts.catalogue import MANIFEST, NAME, Catalogue, path_of
from penumbra.artifacts.errors import ArtifactError
from penumbra.artifacts.files import JsonFolder
from penumbra.artifacts.manifest import Artifact, Manifest, Part, PartRecord, Work
from penumbra.artifacts.parts import REJECTED, decode, encode, encode_rejected, part_name, record_of
from penumbra.artifacts.schemas import conform

__all__ = ["DRAFTS", "MANIFEST", "NAME", "REJECTED", "ArtifactError", "Progress", "Store"]

DRAFTS = "_drafts"  # folder of what a stage has done of a part that is not whole
Progress = Callable[[int, int], None]


class Store(Catalogue):
    """All artifacts below one root: a folder or any URL that fsspec opens."""

    # -- reading ---------------------------------------------------------------------------------------------

    def part(self, artifact: Artifact, index: int, columns: list[str] | None = None) -> pa.Table:
        """One part's rows; raises `SchemaError` if the file is not what the stage's schema says."""
        table = self._table(artifact, part_name(index), columns)
        return table if columns else conform(table, artifact.stage)

    def parts(self, artifact: Artifact, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """The rows, one part after the other."""
        for index in range(len(self.manifest(artifact).parts)):
            yield self.part(artifact, index, columns)

    def table(self, artifact: Artifact, columns: list[str] | None = None) -> pa.Table:
        """All rows at once: for small tables and for tests."""
        return pa.concat_tables(list(self.parts(artifact, columns)))

    def rejected(self, artifact: Artifact) -> Iterator[pa.Table]:
        """The refused rows of a stage, one part after the other."""
        for record in self.manifest(artifact).parts:
            if record.rejected:
                yield self._table(artifact, record.rejected)

    def raw(self, artifact: Artifact, index: int) -> memoryview:
        """The bytes of a part's file; on a disk they are mapped, not read."""
        return self.files.map(path_of(artifact, part_name(index)))

    def has_part(self, artifact: Artifact, index: int) -> bool:
        """Whether a part's file is there."""
        return self.files.exists(path_of(artifact, part_name(index)))

    def _table(self, artifact: Artifact, name: str, columns: list[str] | None = None) -> pa.Table:
        return decode(self.files.read(path_of(artifact, name)), columns)

    # -- whether it is what its manifest says ------------------------------------------------------------------

    def intact(self, artifact: Artifact) -> Manifest | None:
        """The manifest if it is there and every digest is right; reads every part and changes nothing."""
        manifest = self._readable_manifest(artifact)
        return manifest if manifest and not self.verify(artifact) else None

    def verify(self, artifact: Artifact) -> list[str]:
        """What is wrong with an artifact: every part that is missing or whose digest differs."""
        problems = []
        for record in self.manifest(artifact).parts:
            pairs = ((record.name, record.sha256), (record.rejected, record.rejected_sha256))
            problems += [self._problem(artifact, name, digest) for name, digest in pairs if name and digest]
        return [problem for problem in problems if problem]

    def _problem(self, artifact: Artifact, name: str, digest: str) -> str:
        try:
            data = self.files.read(path_of(artifact, name))
        except FileNotFoundError:
            return f"{artifact.path}/{name} is missing"
        return "" if hashlib.sha256(data).hexdigest() == digest else f"{artifact.path}/{name} was changed"

    def _readable_manifest(self, artifact: Artifact) -> Manifest | None:
        try:
            return self.manifest(artifact)
        except ArtifactError:
            return None

    # -- writing ---------------------------------------------------------------------------------------------

    def build(
        self,
        work: Work,
        parts: Iterable[Callable[[], Part]],
        *,
        total: int = 0,
        progress: Progress = lambda done, total: None,
    ) -> Artifact:
        """Make the parts that are not there yet, then write the manifest; a damaged artifact is made anew.

        `parts` are called in order, each only if its file is missing; `progress(done, total)` follows each part.
        """
        artifact = self.artifact(work)
        manifest = self._readable_manifest(artifact)  # before the parts are read: another run may write it meanwhile
        if self.intact(artifact):
            return artifact
        if manifest:
            self.files.remove(path_of(artifact))
        started, clock = datetime.now(UTC), time.perf_counter()
        records: list[PartRecord] = []
        measured: dict[str, float] = {}
        for index, make in enumerate(parts):
            record = self._record(artifact, index)
            if record is None:
                part = make()
                self._write(artifact, index, part)
                measured |= {name: measured.get(name, 0.0) + value for name, value in part.measured.items()}
                record = self._record(artifact, index)
            if record is None:
                raise ArtifactError(f"{artifact.path}/{part_name(index)} could not be read back after writing")
            records.append(record)
            progress(index + 1, max(total, index + 1))
        seconds = round(time.perf_counter() - clock, 3)
        manifest = Manifest.of(work, records, self._reasons(artifact, records), started, seconds, measured)
        self.files.write(path_of(artifact, MANIFEST), manifest.model_dump_json(indent=1).encode())
        if self.files.exists(path_of(artifact, DRAFTS)):
            self.files.remove(path_of(artifact, DRAFTS))
        return artifact

    def _write(self, artifact: Artifact, index: int, part: Part) -> None:
        """Write a part's file, after that of its refused rows."""
        if part.taken != part.kept + len(part.rejected):
            raise ArtifactError(
                f"{artifact.stage}: {part.taken} in, but {part.kept} out and {len(part.rejected)} rejected"
            )
        rejected = f"{REJECTED}/{part_name(index)}" if part.rejected else ""
        data = encode(part, artifact.stage, rejected)
        if rejected:
            self.files.write(path_of(artifact, rejected), encode_rejected(part))
        self.files.write(path_of(artifact, part_name(index)), data)

    def _record(self, artifact: Artifact, index: int) -> PartRecord | None:
        """What a part's file says of itself, or None where it is missing or can't be trusted."""
        name = part_name(index)
        try:
            data = self.files.read(path_of(artifact, name))
        except FileNotFoundError:
            return None
        return record_of(name, data, artifact.stage, lambda other: self.files.read(path_of(artifact, other)))

    def _reasons(self, artifact: Artifact, records: Iterable[PartRecord]) -> Counter[str]:
        """How many rows were refused for which reason."""
        reasons: Counter[str] = Counter()
        for record in records:
            if record.rejected:
                reasons.update(self._table(artifact, record.rejected, ["reason"])["reason"].to_pylist())
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
