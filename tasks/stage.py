"""What every stage shares: run it only if its artifact is not there, say how far it is, show what it made."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import monotonic
from typing import Any
from uuid import UUID

import pyarrow as pa
from penumbra.artifacts.interface import publish_stage, stage_key
from penumbra.artifacts.manifest import Artifact, Part, Work
from penumbra.artifacts.store import Store
from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from pydantic import BaseModel, ConfigDict

REPORT_EVERY = 1.0  # seconds between two progress updates: each is a call to the API


class Parameters(BaseModel):
    """Base of the flows' parameter groups: a name that a group does not know is an error, not ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Parameters with `changes` on top, group by group."""
    merged = dict(base)
    for name, value in changes.items():
        old = merged.get(name)
        merged[name] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


class _Progress:
    """The progress bar of a stage in the Prefect UI, and a line in its log."""

    def __init__(self, work: Work) -> None:
        self.work, self.logger = work, get_run_logger()
        self.bar: UUID | None = None
        self.last = self.started = monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = monotonic()
        if self.bar is None and done < total:
            self.bar = create_progress_artifact(
                0.0, key=stage_key(self.work.dataset, self.work.stage, "progress"), description=self.work.stage
            )  # type: ignore[assignment]
        if self.bar and (now - self.last >= REPORT_EVERY or done == total):
            self.last = now
            update_progress_artifact(self.bar, 100.0 * done / total)
            left = (now - self.started) / done * (total - done)
            self.logger.info("%s: part %d of %d, about %.0f s left", self.work.stage, done, total, left)


def run_stage(work: Work, parts: Callable[[], Iterable[Callable[[], Part]]], total: int = 0) -> Artifact:
    """Return the artifact of this work, made now where it is not there or not whole."""
    store = Store()
    artifact = store.artifact(work)
    manifest = store.intact(artifact)
    if manifest:
        get_run_logger().info("%s: found done, %s", work.stage, artifact.path)
    else:
        get_run_logger().info("%s: being made", work.stage)
        store.build(work, parts(), total=total, progress=_Progress(work))
        manifest = store.manifest(artifact)
        get_run_logger().info(
            "%s: %d %s in, %d out, %d rejected, %.1f s, %s", work.stage, manifest.taken, work.unit, manifest.kept,
            manifest.taken - manifest.kept, manifest.seconds, artifact.path,
        )  # fmt: skip
    publish_stage(store, artifact, manifest)
    return artifact


def part_by_part(make: Callable[..., Part], *parents: Artifact) -> Callable[[], Iterator[Callable[[], Part]]]:
    """The work of a stage whose i-th part comes from the i-th part of each parent: `make(part, part, …)`."""
    store = Store()

    def make_part(index: int) -> Part:
        return make(*(store.part(parent, index) for parent in parents))

    def parts() -> Iterator[Callable[[], Part]]:
        return (partial(make_part, index) for index in range(number_of_parts(parents[0])))

    return parts


def number_of_parts(artifact: Artifact) -> int:
    """How many parts an artifact has."""
    return len(Store().manifest(artifact).parts)


def side_by_side(*artifacts: Artifact) -> Iterator[tuple[pa.Table, ...]]:
    """The parts of several artifacts, aligned."""
    store = Store()
    return zip(*(store.parts(artifact) for artifact in artifacts), strict=True)
