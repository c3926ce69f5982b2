"""The artifact store: content-derived keys, parts that appear whole or not at all, a manifest written last.

An artifact is `<root>/<dataset>/<stage>/<key>/` with `part-*.parquet`, `_rejected/part-*.parquet` where rows were
refused, and `_manifest.json`. Arrow, pandas, Spark and DuckDB skip names that begin with `_` or `.`, so each of them
opens the folder as one table. The key is a digest of everything that determines the content, so the same work has
the same key: `Store.build` does nothing when a whole artifact is there, goes on after the last whole part when a
run was killed, and lets two runs write the same bytes side by side.
"""

import hashlib
import io
import json
import math
import os
import re
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from penumbra.artifacts.errors import PenumbraError, what_there_is, without_secrets
from penumbra.artifacts.manifest import Artifact, Manifest, Part, PartRecord, Work, software_versions
from penumbra.artifacts.schemas import conform, fitted, is_features, lengths, table_of
from penumbra.artifacts.settings import artifacts_root
from pydantic import ValidationError

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")
MANIFEST = "_manifest.json"
REJECTED = "_rejected"  # folder of the refused rows
DRAFTS = "_drafts"  # folder of what a stage has done of a part that is not whole
TABLE_FILES = {"compression": "zstd"}
# Halves hardly repeat and hardly shrink: plain values, read as they lie (`tests/bench_features.py` compares).
FEATURE_FILES = {"compression": "none", "use_dictionary": False, "write_statistics": False}


class ArtifactError(PenumbraError):
    """An artifact is not there, not whole, or not what its manifest says."""


Progress = Callable[[int, int], None]
LISTED = 10  # artifacts in a message


class _Remote:
    """A file system elsewhere: whatever keeps it from answering is an `ArtifactError` that names its address."""

    def __init__(self, files: Any, root: str) -> None:
        self.files, self.root = files, root

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self.files, name)

        def asked(*arguments: Any, **options: Any) -> Any:
            try:
                return call(*arguments, **options)
            except FileNotFoundError:
                raise
            except Exception as error:  # each protocol's client has its own
                reason = f"{type(error).__name__}: {without_secrets(str(error))}"
                raise ArtifactError(f"{without_secrets(self.root)} can't be reached ({reason})") from None

        return asked


class Store:
    """All artifacts below one root: a folder or any URL that fsspec opens."""

    def __init__(self, root: str | None = None) -> None:
        self.root = root or artifacts_root()
        if "://" not in self.root:
            self.root = str(Path(self.root).expanduser().resolve())
        try:
            self.files, self._base = fsspec.core.url_to_fs(self.root)
        except (ImportError, ValueError) as error:
            raise ArtifactError(f"PENUMBRA_ARTIFACTS={without_secrets(self.root)} can't be opened: {error}") from None
        if not isinstance(self.files, fsspec.implementations.local.LocalFileSystem):
            self.files = _Remote(self.files, self.root)

    # -- where things are ------------------------------------------------------------------------------------

    def artifact(self, work: Work) -> Artifact:
        """The reference of the artifact that this work makes."""
        for name in (work.dataset, work.stage):
            if not NAME.match(name):
                raise ArtifactError(f"{name!r} is no name for a folder: lower-case letters, digits, '.', '_', '-'")
        return Artifact(root=self.root, dataset=work.dataset, stage=work.stage, key=work.key)

    def _file(self, artifact: Artifact, name: str) -> str:
        return f"{self._base}/{artifact.dataset}/{artifact.stage}/{artifact.key}/{name}"

    def manifest(self, artifact: Artifact) -> Manifest:
        """Read the manifest; raises `ArtifactError` where there is none or it can't be read."""
        path = self._file(artifact, MANIFEST)
        try:
            return Manifest.model_validate_json(self.files.cat_file(path))
        except FileNotFoundError:
            raise ArtifactError(f"no whole artifact at {artifact.path} (no {MANIFEST}): run its flow") from None
        except ValidationError as error:
            raise ArtifactError(f"{artifact.path}/{MANIFEST} is damaged ({error.error_count()} faults)") from None

    def has(self, artifact: Artifact) -> bool:
        """Whether the artifact has its manifest; reads no part."""
        self.files.invalidate_cache()
        return bool(self.files.exists(self._file(artifact, MANIFEST)))

    def find(self, dataset: str | None = None, stage: str | None = None) -> list[Manifest]:
        """All whole artifacts, oldest first."""
        self.files.invalidate_cache()
        found = self.files.glob(f"{self._base}/{dataset or '*'}/{stage or '*'}/*/{MANIFEST}")
        manifests = []
        for path in found:
            *_, dataset_name, stage_name, key, _ = path.split("/")
            artifact = Artifact(root=self.root, dataset=dataset_name, stage=stage_name, key=key)
            manifests.append(self.manifest(artifact))
        return sorted(manifests, key=lambda manifest: manifest.ended)

    def newest(self, dataset: str, stage: str) -> Artifact:
        """The artifact of a stage that was finished last."""
        if not NAME.match(dataset) or not NAME.match(stage):
            raise ArtifactError(f"'{dataset}/{stage}' is no DATASET/STAGE, as in charades-cg/masks")
        manifests = self.find(dataset, stage)
        if not manifests:
            raise self.missing(dataset, stage)
        return self.reference(manifests[-1])

    def missing(self, dataset: str | None, stage: str | None = None) -> ArtifactError:
        """What to raise where a data set, or all of them, has no artifact of a stage."""
        there = sorted({(m.dataset, m.stage) for m in self.find()})
        datasets = sorted({name for name, _ in there})
        if dataset and dataset not in datasets and (datasets or stage is None):
            return ArtifactError(
                f"no data set {dataset!r} is known below {self.root}: {what_there_is(dataset, datasets)}"
            )
        stages = [f"{name}/{other}" for name, other in there if dataset in (None, name)]
        return ArtifactError(
            f"no {dataset or '*'}/{stage} below {self.root}; there is: {', '.join(stages) or 'nothing yet'}"
        )

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

    def reference(self, manifest: Manifest) -> Artifact:
        """The artifact that a manifest of this store describes."""
        return Artifact(root=self.root, dataset=manifest.dataset, stage=manifest.stage, key=manifest.key)

    # -- reading ---------------------------------------------------------------------------------------------

    def part(self, artifact: Artifact, index: int, columns: list[str] | None = None) -> pa.Table:
        """One part's rows; raises `SchemaError` if the file is not what the stage's schema says."""
        table = self._read(artifact, f"part-{index:05d}.parquet", columns)
        return table if columns else conform(table, artifact.stage)

    def raw(self, artifact: Artifact, index: int) -> memoryview:
        """The bytes of a part's file; on a disk they are mapped, not read."""
        path = self._file(artifact, f"part-{index:05d}.parquet")
        if isinstance(self.files, fsspec.implementations.local.LocalFileSystem):
            return memoryview(pa.memory_map(path).read_buffer()).cast("B")
        return memoryview(self.files.cat_file(path))

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
                yield self._read(artifact, record.rejected)

    def _read(self, artifact: Artifact, name: str, columns: list[str] | None = None) -> pa.Table:
        return pq.read_table(io.BytesIO(self.files.cat_file(self._file(artifact, name))), columns=columns)

    def verify(self, artifact: Artifact) -> list[str]:
        """What is wrong with an artifact: every part that is missing or whose digest differs."""
        problems = []
        for record in self.manifest(artifact).parts:
            pairs = ((record.name, record.sha256), (record.rejected, record.rejected_sha256))
            problems += [self._fault(artifact, name, digest) for name, digest in pairs if name and digest]
        return [problem for problem in problems if problem]

    def intact(self, artifact: Artifact) -> Manifest | None:
        """The manifest if it is there and every digest is right; reads every part and changes nothing."""
        manifest = self._readable(artifact)
        return manifest if manifest and not self.verify(artifact) else None

    def _readable(self, artifact: Artifact) -> Manifest | None:
        try:
            return self.manifest(artifact)
        except ArtifactError:
            return None

    def _fault(self, artifact: Artifact, name: str, digest: str) -> str:
        try:
            data = self.files.cat_file(self._file(artifact, name))
        except FileNotFoundError:
            return f"{artifact.path}/{name} is missing"
        return "" if hashlib.sha256(data).hexdigest() == digest else f"{artifact.path}/{name} was changed"

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
        finished = self._readable(artifact)  # before it is judged: another run may finish it right after
        if self.intact(artifact):
            return artifact
        if finished:
            self.files.rm(self._file(artifact, ""), recursive=True)
        started, clock = datetime.now(UTC), time.perf_counter()
        records = []
        measured: defaultdict[str, float] = defaultdict(float)
        for index, make in enumerate(parts):
            name = f"part-{index:05d}.parquet"
            record = self._record(artifact, name)
            if record is None:
                part = make()
                self._write_part(artifact, index, name, part)
                for what, value in part.measured.items():
                    measured[what] += value
                record = self._record(artifact, name)
            if record is None:
                raise ArtifactError(f"{artifact.path}/{name} could not be read back after writing")
            records.append(record)
            progress(index + 1, max(total, index + 1))
        rejected: Counter[str] = Counter()
        for record in records:
            if record.rejected:
                rejected.update(self._read(artifact, record.rejected, ["reason"])["reason"].to_pylist())
        manifest = Manifest(
            dataset=work.dataset,
            stage=work.stage,
            stage_version=work.version,
            key=work.key,
            unit=work.unit,
            rows=sum(record.rows for record in records),
            taken=sum(record.taken for record in records),
            kept=sum(record.kept for record in records),
            rejected=dict(rejected.most_common()),
            notes=dict(sum((Counter(record.notes) for record in records), Counter[str]())),
            cost_usd=_sum(record.cost_usd for record in records),
            parts=records,
            parameters=work.parameters,
            parents=list(work.parents),
            inputs=work.inputs,
            software=software_versions(),
            started=started,
            ended=datetime.now(UTC),
            seconds=round(time.perf_counter() - clock, 3),
            measured=dict(measured),
        )
        self._write_whole(self._file(artifact, MANIFEST), manifest.model_dump_json(indent=1).encode())
        if self.files.exists(self._file(artifact, DRAFTS)):
            self.files.rm(self._file(artifact, DRAFTS), recursive=True)
        return artifact

    # -- beside the parts ------------------------------------------------------------------------------------

    def has_part(self, artifact: Artifact, index: int) -> bool:
        """Whether a part's file is there."""
        self.files.invalidate_cache()
        return bool(self.files.exists(self._file(artifact, f"part-{index:05d}.parquet")))

    def keep(self, artifact: Artifact, name: str, data: bytes) -> None:
        """Put a file beside the parts, whole or not at all; `_` begins its name, so that no reader takes it for one.

        What is below `_drafts/` goes when the artifact is whole.
        """
        self._write_whole(self._file(artifact, name), data)

    def kept(self, artifact: Artifact, name: str) -> bytes | None:
        """A file beside the parts, or None."""
        try:
            data: bytes = self.files.cat_file(self._file(artifact, name))
        except FileNotFoundError:
            return None
        return data

    # -- what a stage remembers from run to run ----------------------------------------------------------------

    def note(self, kind: str, name: str, content: dict[str, Any]) -> None:
        """Write a note down, whole or not at all."""
        self._write_whole(f"{self._base}/.{kind}/{name}.json", json.dumps(content).encode())

    def notes(self, kind: str) -> list[dict[str, Any]]:
        """All notes of a kind, in the order of their names."""
        self.files.invalidate_cache()
        return [
            json.loads(self.files.cat_file(path)) for path in sorted(self.files.glob(f"{self._base}/.{kind}/*.json"))
        ]

    def forget(self, kind: str, name: str) -> None:
        """Take a note away."""
        self.files.rm(f"{self._base}/.{kind}/{name}.json")

    def _write_part(self, artifact: Artifact, index: int, name: str, part: Part) -> None:
        if part.taken != part.kept + len(part.rejected):
            raise ArtifactError(
                f"{artifact.stage}: {part.taken} in, but {part.kept} out and {len(part.rejected)} rejected"
            )
        refused = ""
        if part.rejected:
            refused = f"{REJECTED}/{name}"
            self._write_whole(self._file(artifact, refused), _parquet(table_of("rejected", part.rejected), TABLE_FILES))
        rows = conform(part.rows, artifact.stage)
        features = {
            name: lengths(rows[name]) for name in rows.column_names if is_features(rows.schema.field(name).type)
        }
        counts = {"taken": part.taken, "kept": part.kept, "notes": dict(sorted(part.notes.items())), "refused": refused}
        counts |= {} if part.cost_usd is None else {"cost_usd": part.cost_usd}
        counts |= {"lengths": features} if features else {}
        rows = rows.replace_schema_metadata({"penumbra": json.dumps(counts, sort_keys=True)})
        self._write_whole(self._file(artifact, name), _parquet(rows, FEATURE_FILES if features else TABLE_FILES))

    def _record(self, artifact: Artifact, name: str) -> PartRecord | None:
        """What a part's file says of itself, or None where it is missing or foreign."""
        try:
            data = self.files.cat_file(self._file(artifact, name))
        except FileNotFoundError:
            return None
        try:
            schema = pq.read_schema(io.BytesIO(data))
            counts = json.loads(schema.metadata[b"penumbra"])
            refused = counts["refused"] or None
            refused_data = self.files.cat_file(self._file(artifact, refused)) if refused else b""
        except (OSError, ValueError, KeyError, TypeError):  # cut short, or not one of ours
            return None
        if schema.remove_metadata() != fitted(artifact.stage, schema):
            return None
        return PartRecord(
            name=name,
            rows=pq.read_metadata(io.BytesIO(data)).num_rows,
            sha256=hashlib.sha256(data).hexdigest(),
            rejected=refused,
            rejected_sha256=hashlib.sha256(refused_data).hexdigest() if refused else None,
            taken=counts["taken"],
            kept=counts["kept"],
            notes=counts["notes"],
            cost_usd=counts.get("cost_usd"),
        )

    def _write_whole(self, path: str, data: bytes) -> None:
        """Write a file so that it is there whole or not at all: rename on a disk, one PUT on an object store."""
        if not isinstance(self.files, fsspec.implementations.local.LocalFileSystem):
            self.files.pipe_file(path, data)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        with draft.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, target)


def _sum(costs: Iterable[float | None]) -> float | None:
    paid = [cost for cost in costs if cost is not None]
    return math.fsum(paid) if paid else None


def _key(manifest: Manifest) -> str:
    return f"{manifest.dataset}/{manifest.stage}/{manifest.key}"


def _newest(manifests: Sequence[Manifest], name: Callable[[Manifest], str]) -> str:
    names = [name(manifest) for manifest in manifests[: -LISTED - 1 : -1]]
    more = f" and {len(manifests) - LISTED} more" if len(manifests) > LISTED else ""
    return ", ".join(names) + more


def _parquet(table: pa.Table, options: dict[str, Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    data: bytes = sink.getvalue().to_pybytes()
    return data
