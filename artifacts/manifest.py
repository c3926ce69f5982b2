"""References to artifacts, their manifests, and the work whose digest is an artifact's key."""

import hashlib
import json
import operator
import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from penumbra.artifacts.files import FileStatus
from penumbra.artifacts.markdown import counted

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 2
TRACKED = ("penumbra", "prefect", "pyarrow", "numpy", "spacy", "torch", "transformers", "sentence-transformers")
CPU_LIMITS = ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")  # environment variables that select CPU kernels
NAME = re.compile(r"\A[a-z0-9][a-z0-9._-]{0,99}\Z")  # of a data set or a stage: a folder inside the root


class Artifact(BaseModel):
    """A reference to one artifact, small enough to travel between Prefect tasks."""

    model_config = ConfigDict(frozen=True)

    root: str
    dataset: str = Field(pattern=NAME)
    stage: str = Field(pattern=NAME)
    key: str = Field(pattern=r"^[0-9a-z]*$")

    @property
    def path(self) -> str:
        return f"{self.root.rstrip('/')}/{self.dataset}/{self.stage}/{self.key}"


class PartRecord(BaseModel):
    """One part in a manifest: file name, rows, SHA-256, and the numbers of units taken and kept."""

    name: str = Field(pattern=r"^part-\d+\.parquet$")
    rows: int
    sha256: str
    rejected: str | None = Field(None, pattern=r"^_rejected/part-\d+\.parquet$")
    rejected_sha256: str | None = None
    taken: int
    kept: int
    notes: dict[str, int] = {}
    cost_usd: float | None = None
    files: dict[str, str] = Field({}, exclude_if=operator.not_)  # SHA-256 of files outside the store, by name

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of the part's file and of the file of its rejected rows."""
        return {self.name: self.sha256} | ({self.rejected: self.rejected_sha256 or ""} if self.rejected else {})


class WrittenPart(PartRecord):
    """The record of a part in a file of its own, with measurements, versions and hardware, and its own digest."""

    reasons: dict[str, int] = {}  # of the rejected rows
    measured: dict[str, float] = {}
    made_with: dict[str, str] = {}
    record_sha256: str = ""  # of all other fields

    def sealed(self) -> "WrittenPart":
        return self.model_copy(update={"record_sha256": _digest(self, "record_sha256")})


class Manifest(BaseModel):
    """`_manifest.json`: the parts, counts, parameters, parents, software versions, times and cost of an artifact."""

    schema_version: int = SCHEMA_VERSION
    dataset: str
    stage: str
    stage_version: int
    key: str
    unit: str
    rows: int
    taken: int
    kept: int
    rejected: dict[str, int]
    notes: dict[str, int]
    parts: list[PartRecord]
    parameters: dict[str, Any]
    parents: list[Artifact]
    inputs: dict[str, str]
    software: dict[str, str]
    started: AwareDatetime
    ended: AwareDatetime
    seconds: float
    cost_usd: float | None = None  # None: the stage can't cost money
    measured: dict[str, float] = {}
    # versions, CPUs, threads or GPUs that are not the same for all parts
    differing: dict[str, list[str]] = Field({}, exclude_if=operator.not_)
    sha256: str = ""  # of all other fields; older manifests may lack it

    @property
    def reference(self) -> tuple[str, str, str]:
        return self.dataset, self.stage, self.key

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of every file, by name."""
        return {name: digest for part in self.parts for name, digest in part.digests.items()}

    @property
    def counts(self) -> str:
        return f"{counted(self.taken, self.unit)} in, {self.kept:,} out, {self.taken - self.kept:,} rejected"

    @property
    def differences(self) -> list[str]:
        return [f"its parts were made with different {name}: {', '.join(it)}" for name, it in self.differing.items()]

    def sealed(self) -> "Manifest":
        return self.model_copy(update={"sha256": _digest(self, "sha256")})


def _digest(model: BaseModel, without: str) -> str:
    return hashlib.sha256(model.model_dump_json(exclude={without}).encode()).hexdigest()


@dataclass(frozen=True)
class Work:
    """Everything that determines an artifact's content; its digest is the artifact's key.

    `key_parameters` are the parameters that enter the key, None for all: parameters that have their default, or do not
    change the content, are in the manifest only. `inputs` maps the name of each outside file or model to its SHA-256,
    `files` the path of each such file to its status at that time. `unit` names what `taken` and `kept` count.
    """

    dataset: str
    stage: str
    version: int
    parameters: dict[str, Any] = field(default_factory=dict)
    parents: tuple[Artifact, ...] = ()
    inputs: dict[str, str] = field(default_factory=dict)
    unit: str = "query"
    key_parameters: dict[str, Any] | None = None
    files: dict[str, FileStatus] = field(default_factory=dict, compare=False)

    @property
    def key(self) -> str:
        """Sixteen hex digits over stage, version, parameters, the parents' keys and the inputs' digests."""
        content = {
            "schema": SCHEMA_VERSION,
            "stage": [self.stage, self.version],
            "parameters": self.parameters if self.key_parameters is None else self.key_parameters,
            "parents": [[parent.stage, parent.key] for parent in self.parents],
            "inputs": self.inputs,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@dataclass
class Part:
    """One part of an artifact: its rows, the rejected rows, and the numbers of units taken and kept.

    `cost_usd` is the cost of the part, None if a part can't cost money. `files` are the SHA-256, by name, of files that
    it wrote outside the store. `measured` are numbers such as times; the manifest has their sums over the parts.
    """

    rows: "pa.Table"
    taken: int
    kept: int
    rejected: list[dict[str, str]] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    cost_usd: float | None = None
    measured: dict[str, float] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def flat(parameters: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    """Yield parameters with the names that users type, GROUP.NAME."""
    for name, value in parameters.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{group}{name}.")
        else:
            yield f"{group}{name}", value


def rejection(qid: str, stage: str, reason: str, value: object = "") -> dict[str, str]:
    """Return a row of `rejected`; long ids and values are truncated, reasons are counted and shown as they are."""
    texts = {"qid": qid[:300], "stage": stage, "reason": reason, "value": str(value)[:300]}
    return {name: text.encode("utf-8", "replace").decode() for name, text in texts.items()}  # no lone surrogates


@cache
def software_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that may change results."""
    versions = {"python": platform.python_version()}
    for name in TRACKED:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def made_with() -> dict[str, str]:
    """Return what may change the last bits of a result: versions, the CPU's capability, threads and the GPU."""
    facts, torch = software_versions() | {"machine": platform.machine()}, sys.modules.get("torch")
    if torch is not None:
        limits = [f"{name}={os.environ[name]}" for name in CPU_LIMITS if name in os.environ]
        facts["CPU"] = " ".join([torch.backends.cpu.get_cpu_capability(), *limits])
        facts["threads"] = str(torch.get_num_threads())
        if torch.cuda.is_initialized():
            facts["GPU"] = torch.cuda.get_device_name()
    return facts
