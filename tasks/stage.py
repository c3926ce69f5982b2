"""What a stage is, and the two ways in which a flow is run: its stages are made where they are missing, or planned.

A flow calls functions such as `tag(annotations, tagging)`. Each describes a `Stage` and hands it to `run`, which gives
back a reference to its artifact. In a run that artifact is there then. Inside `planning()` nothing is made: `run`
computes the key and notes whether the artifact is there. So `--dry-run` is the flow itself.
"""

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import cached_property, partial, wraps
from time import monotonic
from typing import Any, ClassVar, ParamSpec, TypeVar

import pyarrow as pa
from prefect import Task, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import MissingContextError
from prefect.futures import PrefectFuture, as_completed

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact, Made, Manifest, Part, Work
from penumbra.artifacts.prefect_ui import LiveArtifact, Rows, publish_stage
from penumbra.artifacts.store import REJECTED, Store
from penumbra.tasks.engines import Workers, processes, workers
from penumbra.tasks.log_lines import quieten
from penumbra.tasks.parameter_group import Parameters as Parameters  # noqa: PLC0414 (its users know it from here)
from penumbra.tasks.progress import LOG, ProgressEvent, State, progress_scope, stage_log_extra

REPORT_EVERY = 1.0  # seconds between two progress updates: each is a call to the API
FEW_ROWS = 4096  # are done before workers have started
TASKS_A_WORKER = 4  # at least, where there are so many parts: a task costs Prefect as much as some parts take
TASKS_A_DEVICE = 1  # Ray ends a worker after a task on a GPU, to free its memory: the next loads the model again
PARTS_A_TASK = 8  # at most: the run hears of them when all are done
IS_THERE, TO_MAKE = "is there", "would be made"

P = ParamSpec("P")
T = TypeVar("T")


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Parameters with `changes` on top, group by group."""
    merged = dict(base)
    for name, value in changes.items():
        old = merged.get(name)
        merged[name] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def logger() -> logging.Logger | logging.LoggerAdapter[Any]:
    """The log of this flow or task run, which the Prefect UI shows; outside of one an ordinary one."""
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger("penumbra")


class NotYetError(PenumbraError):
    """A key can't be told before something else is made; the message says what."""


@dataclass(frozen=True)
class Stage(ABC):
    """A stage of the DAG. A subclass is a frozen dataclass.

    Its fields that are artifacts are its parents, and those that are parameter groups its parameters.

    What the parts share is a `cached_property` of the subclass: it is made when the first part asks for it, once in a
    process, and does not travel to others.
    """

    name: ClassVar[str]  # of the table, in `artifacts.schemas`
    version: ClassVar[int]  # raised by every change of what the stage computes
    unit: ClassVar[str] = "query"  # what `taken` and `kept` count
    may_be_empty: ClassVar[bool] = False  # whether others go on where all that came in was refused

    @property
    def label(self) -> str:
        """What this is called in the Prefect UI."""
        return self.name

    @property
    def parents(self) -> tuple[Artifact, ...]:
        """The artifacts that it is made from, in the order of the fields."""
        found: list[Artifact] = []
        for item in fields(self):
            value = getattr(self, item.name)
            found += [it for it in (value if isinstance(value, tuple) else (value,)) if isinstance(it, Artifact)]
        return tuple(found)

    @property
    def groups(self) -> tuple[Parameters, ...]:
        """The parameter groups among its fields."""
        values = (getattr(self, item.name) for item in fields(self))
        return tuple(value for value in values if isinstance(value, Parameters))

    def parameters(self) -> dict[str, Any]:
        """The settings that people are told of, by default those of its parameter groups."""
        return {name: value for group in self.groups for name, value in group.model_dump(mode="json").items()}

    def determines(self) -> dict[str, Any]:
        """The settings that enter the key: what determines the content, and nothing that has its default."""
        return {
            name: value
            for group in self.groups
            for name, value in group.model_dump(mode="json", exclude_defaults=True).items()
        }

    def shown(self, rows: Rows) -> Rows:
        """Its first rows as people read them in the Prefect UI, whose cells are markdown where they are `Markdown`."""
        return rows

    def inputs(self) -> dict[str, str]:
        """Digests of the files outside the store that it reads, by name."""
        return {}

    @cached_property
    def pieces(self) -> Sequence[Any]:
        """What each part is made of; by default the number of a part of the first parent."""
        return range(number_of_parts(self.parents[0]))

    @property
    def by_workers(self) -> bool:
        """Whether workers make its parts: where there is so much to do that it pays to start them."""
        return any(Store().manifest(parent).rows > FEW_ROWS for parent in self.parents[:1])

    @property
    def on_device(self) -> bool:
        """Whether a part takes a GPU, or all cores of a host: of workers, those of a cluster alone make it."""
        return False

    @abstractmethod
    def part(self, piece: Any) -> Part:
        """Make one part."""

    def parts(self) -> Iterator[Callable[[], Part]]:
        """The work of each part, in their order; each is called only where its file is missing."""
        return (partial(self.part, piece) for piece in self.pieces)

    @property
    def total(self) -> int:
        """How many parts there will be; 0 where that is not known before they are made."""
        return len(self.pieces)

    @property
    def dataset(self) -> str:
        """The data set that it is of."""
        return self.parents[0].dataset

    @cached_property
    def work(self) -> Work:
        """All that its key is a digest of; raises `NotYetError` where that depends on what is not there yet."""
        unknown = [parent.stage for parent in self.parents if not parent.key]
        if unknown:
            raise NotYetError(f"after {', '.join(dict.fromkeys(unknown))}")
        return Work(
            dataset=self.dataset,
            stage=self.name,
            version=self.version,
            parameters=self.parameters(),
            parents=self.parents,
            inputs=self.inputs(),
            unit=self.unit,
            determines=self.determines(),
        )

    @cached_property
    def artifact(self) -> Artifact:
        """The reference of what it makes."""
        return Store().artifact(self.work)

    def __getstate__(self) -> dict[str, Any]:
        """Its fields, without what its parts share."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


# -- running a flow -------------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """The stages of a flow by their keys. A stage whose key can't be told yet has a reference without a key."""

    store: Store = field(default_factory=Store)
    rows: dict[tuple[str, str, str], None] = field(default_factory=dict)  # stage, state, and key or reason
    works: dict[Artifact, Work] = field(default_factory=dict)

    def add(self, stage: Stage) -> Artifact:
        """Note a stage."""
        try:
            work = stage.work
        except PenumbraError as error:
            return self.later(stage, str(error) if isinstance(error, NotYetError) else f"first: {error}")
        for parent in stage.parents:
            if parent not in self.works:  # of an earlier run: the flow only found it
                self.rows[parent.stage, IS_THERE, parent.key] = None
        artifact = self.store.artifact(work)
        self.works[artifact] = work
        self.rows[stage.name, IS_THERE if self.store.has(artifact) else TO_MAKE, artifact.key] = None
        return artifact

    def later(self, stage: Stage, reason: str) -> Artifact:
        """Note a stage whose key can't be told yet, and why."""
        artifact = Artifact(root=self.store.root, dataset=stage.dataset, stage=stage.name, key="")
        self.rows[stage.name, TO_MAKE, reason] = None
        self.works[artifact] = Work(stage.dataset, stage.name, stage.version, stage.parameters(), stage.parents)
        return artifact


_PLAN: ContextVar[Plan | None] = ContextVar("plan", default=None)


@contextmanager
def planning() -> Iterator[Plan]:
    """Inside, flows (`flow.fn`) are planned: nothing is made, and of artifacts only manifests are read."""
    plan = Plan()
    token = _PLAN.set(plan)
    try:
        yield plan
    finally:
        _PLAN.reset(token)


@contextmanager
def plan_if(condition: bool) -> Iterator[None]:
    """Inside, the rest of a flow is planned instead of made where the condition holds."""
    if not condition or is_planned():
        yield
        return
    with planning():
        yield


def is_planned() -> bool:
    """Whether the flow is planned, not run."""
    return _PLAN.get() is not None


def run(stage: Stage) -> Artifact:
    """The artifact of a stage: made now where it is not there or not whole, or planned."""
    plan = _PLAN.get()
    if plan is not None:
        return plan.add(stage)
    return _named(stage)(stage)


def _named(stage: Stage) -> Task[[Stage], Artifact]:
    """The task that makes a stage, as the Prefect UI calls it."""
    return make.with_options(name=stage.name, task_run_name=_shown(stage))


def _shown(stage: Stage) -> str:
    """What Prefect takes for a name, and for no template."""
    return stage.label.replace("{", "(").replace("}", ")")


def side_effect_task(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A Prefect task that makes no artifact: asking, rendering, reporting. A plan leaves it out, and gets None."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        run_as_task = task(name=name, cache_policy=NO_CACHE)(function)

        @wraps(function)
        def called(*arguments: P.args, **options: P.kwargs) -> T:
            if is_planned():
                return None  # type: ignore[return-value]
            with progress_scope(name):
                return run_as_task(*arguments, **options)

        return called

    return decorate


def work_of(artifact: Artifact) -> Work | Manifest:
    """What an artifact is made with and from (`parameters`, `parents`), whether it is there or planned."""
    plan = _PLAN.get()
    return plan.works[artifact] if plan and artifact in plan.works else Store().manifest(artifact)


@task(cache_policy=NO_CACHE)
def make(stage: Stage) -> Artifact:
    """Make the parts that are not there, and show the stage in the Prefect UI."""
    store, work = Store(), stage.work
    artifact = store.artifact(work)
    manifest = store.intact(artifact)
    if manifest:
        logger().info("%s: found done, %s", stage.name, artifact.path, extra=_news(stage, State.reused, manifest))
    else:
        logger().info("%s: being made", stage.name, extra=ProgressEvent(stage.label).as_log_extra())
        with progress_scope(stage.label), LiveArtifact("progress", work.dataset, stage.name) as bar:
            build(stage, _Progress(stage.label, work, bar))
        manifest = store.manifest(artifact)
        logger().info(
            "%s: %d %s in, %d out, %d rejected, %.1f s, %s",
            stage.name,
            manifest.taken,
            work.unit,
            manifest.kept,
            manifest.taken - manifest.kept,
            manifest.seconds,
            artifact.path,
            extra=_news(stage, State.made, manifest),
        )
    publish_stage(store, artifact, manifest, stage.shown)
    if manifest.taken and not manifest.kept and not stage.may_be_empty:
        reason, times = next(iter(manifest.rejected.items()), ("no reason", 0))
        raise PenumbraError(
            f"{stage.name}: nothing is left, {manifest.taken:,} {stage.unit}: rejected, most often ({times:,} times): "
            f"{reason}; each is told in {artifact.path}/{REJECTED}"
        )
    return artifact


def _news(stage: Stage, state: State, manifest: Manifest) -> dict[str, Any]:
    counts = manifest.taken, manifest.kept, manifest.seconds
    return ProgressEvent(stage.label, state, unit=manifest.unit, counts=counts).as_log_extra()


def build(stage: Stage, progress: Callable[[int, int], None] = lambda done, total: None) -> Artifact:
    """The artifact of a stage, made now where it is not there: needs no Prefect."""

    def waits(holder: str) -> None:
        line = f"waits for {holder}, which is making it"
        logger().info("%s: %s", stage.name, line, extra=stage_log_extra(line))

    total, there = stage.total, workers()
    LOG.info("%s: %d parts", stage.label, total, extra=ProgressEvent(stage.label, total=total).as_log_extra())
    apart = there and stage.by_workers and (there.elsewhere or not stage.on_device)
    elsewhere = partial(_made_by, there, stage) if there and apart else None
    return Store().build(stage.work, stage.parts(), total=total, progress=progress, waits=waits, elsewhere=elsewhere)


def _made_by(there: Workers, stage: Stage, missing: list[int]) -> Iterator[Made]:
    """Make these parts several at once; each as it is there. For a single one, no workers are started."""
    if len(missing) == 1 and not there.started:
        return
    pool = there.pool
    number, each = (pool.gpus or pool.number, TASKS_A_DEVICE) if stage.on_device else (pool.number, TASKS_A_WORKER)
    several = f"{len(missing)} parts by {min(len(missing), number)} workers"
    line = several if len(missing) > 1 else "by a worker"
    logger().info("%s: %s", stage.name, line, extra=stage_log_extra(line))
    with pool.a_gpu() if stage.on_device else nullcontext():
        futures = [
            pool.runner.submit(
                make_parts.with_options(
                    name=f"{stage.name}: parts", task_run_name=f"{_shown(stage)}: {_told(indices)}"
                ),
                {"stage": stage, "artifact": stage.artifact, "pieces": {at: stage.pieces[at] for at in indices}},
            )
            for indices in tasks_of(missing, number, each)
        ]
    lost: tuple[type[BaseException], ...] = (MemoryError, *pool.lost)
    try:
        for future in as_completed(futures):
            yield from future.result()
    except lost:
        raise PenumbraError(
            f"{stage.name}: a worker was killed, or had too little memory, or its scheduler has gone: the same command "
            "goes on from the parts that are done; PENUMBRA_ENGINE=here makes one after the other"
        ) from None


def tasks_of(missing: Sequence[int], workers: int, each: int) -> list[list[int]]:
    """The parts of each task. They lie far apart, so that parts with much to do, side by side, are shared out.

    Args:
        missing: the numbers of the parts
        workers: who make them
        each: a worker's tasks at least, where there are so many parts

    """
    tasks = max(min(len(missing), each * workers), -(-len(missing) // PARTS_A_TASK))
    return [list(missing[first::tasks]) for first in range(tasks)]


def _told(indices: Sequence[int]) -> str:
    numbers = ", ".join(str(index + 1) for index in indices)
    return f"part {numbers}" if len(indices) == 1 else f"parts {numbers}"


@task(cache_policy=NO_CACHE)
def make_parts(stage: Stage, artifact: Artifact, pieces: dict[int, Any]) -> list[Made]:
    """Make some parts of a stage in the process of a worker, and tell what was noted and measured of each."""
    return [_made(stage, artifact, index, piece) for index, piece in pieces.items()]


_AT_WORK: dict[Artifact, Stage] = {}
_ONE_AT_A_TIME = threading.Lock()  # a worker of a cluster may have several threads, and what parts share is for one


def _made(stage: Stage, artifact: Artifact, index: int, piece: Any) -> Made:
    """A part, made now unless it is there: an engine asks once more where a worker has ended with its answer.

    No part of the task, whose function travels by value, with copies of what it names.
    """
    with _ONE_AT_A_TIME, progress_scope(stage.label, index):
        store = Store(artifact.root)
        record = store.record(artifact, index)
        if record:
            return Made(index, record, {})
        part = _at_work(stage, artifact).part(piece)
        return Made(index, store.write(artifact, index, part), part.measured)


def _at_work(stage: Stage, artifact: Artifact) -> Stage:
    """The same stage for all parts that a worker makes of it, so that what they share is made once."""
    if artifact not in _AT_WORK:
        if not _AT_WORK:
            quieten()
        os.environ["PENUMBRA_ARTIFACTS"] = artifact.root  # the run's, wherever the worker was started
        _AT_WORK.clear()
        _AT_WORK[artifact] = stage
        vars(stage)["artifact"] = artifact  # the digest of all its input files is the run's to make
    return _AT_WORK[artifact]


Ahead = Callable[[Stage], Callable[[], None]]  # begins a stage, and gives back what waits for it


@contextmanager
def stages_ahead(number: int) -> Iterator[Ahead]:
    """Inside, stages may be begun in other processes, so many at once, each with its share of the cores.

    What waits for a stage raises what it failed with. With a single process, and in a plan, nothing is begun ahead.
    """
    if number == 1 or is_planned():
        yield lambda stage: lambda: None
        return
    with processes(number) as pool:
        yield lambda stage: partial(_wait, pool.runner.submit(_named(stage), {"stage": stage}))


def _wait(future: PrefectFuture[Artifact]) -> None:
    future.result()


class _Progress:
    """The progress bar of a stage in the Prefect UI, and a line in its log."""

    def __init__(self, label: str, work: Work, bar: LiveArtifact) -> None:
        self.label, self.work, self.bar = label, work, bar
        self.started, self.last = monotonic(), -REPORT_EVERY

    def __call__(self, done: int, total: int) -> None:
        now, parts = monotonic(), ProgressEvent(self.label, done=done, total=total).as_log_extra()
        LOG.info("%s: part %d of %d", self.label, done, total, extra=parts)
        if (done < total or self.bar.there) and (now - self.last >= REPORT_EVERY or done == total):
            self.last = now
            self.bar.show(100.0 * done / total)
            left = (now - self.started) / done * (total - done)
            logger().info("%s: part %d of %d, about %.0f s left", self.work.stage, done, total, left, extra=parts)


# -- the parts of artifacts -----------------------------------------------------------------------------------------


def number_of_parts(artifact: Artifact) -> int:
    """How many parts an artifact has."""
    return len(Store().manifest(artifact).parts)


def zip_parts(*artifacts: Artifact) -> Iterator[tuple[pa.Table, ...]]:
    """The parts of several artifacts, aligned."""
    store = Store()
    return zip(*(store.parts(artifact) for artifact in artifacts), strict=True)


def read_part(index: int, *artifacts: Artifact) -> tuple[pa.Table, ...]:
    """One part of each of several artifacts."""
    store = Store()
    return tuple(store.part(artifact, index) for artifact in artifacts)


def require_made(artifact: Artifact) -> Artifact:
    """The artifact, whose rows a key depends on; raises `NotYetError` in a plan where it is not there."""
    if is_planned() and not Store().has(artifact):
        raise NotYetError(f"after {artifact.stage}")
    return artifact
