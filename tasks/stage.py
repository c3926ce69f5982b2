"""Stages of the DAG. A flow makes its stages, except those that exist already, or only plans them.

A flow calls functions such as `fill(annotations, tags, …)`. Each passes a `Stage` to `run`, which returns a reference
to the stage's artifact. Inside `planning()` nothing is made: `run` computes the key and looks for the artifact.
"""

import os
import platform
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import cached_property, partial, wraps
from time import monotonic
from typing import Any, ClassVar, ParamSpec, TypeVar

import pyarrow as pa
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext
from prefect.futures import as_completed

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.files import noting_files
from penumbra.artifacts.manifest import Artifact, Manifest, Part, Work, WrittenPart
from penumbra.artifacts.markdown import counted
from penumbra.artifacts.prefect_ui import has_pages, publish_stage
from penumbra.artifacts.processes import value_set
from penumbra.artifacts.store import REJECTED, Store
from penumbra.tasks.engines import Workers, workers
from penumbra.tasks.parameter_group import Parameters
from penumbra.tasks.progress import counting, logger, prepare_log, progress_scope

REPORT_EVERY = 10.0  # seconds between two lines about progress
FEW_ROWS = 4096  # the run itself makes a stage of at most so many rows, faster than workers start
TASKS_A_WORKER = 4  # at least, with enough parts; parts share tasks, as Prefect spends as long on a task as some parts
TASKS_A_DEVICE = 1  # Ray ends a worker after a task on a GPU to free the memory; a new worker loads the model again
PARTS_A_TASK = 8  # at most: the run receives the parts of a task together
IS_THERE, TO_MAKE = "exists", "would be made"
FAILS_FIRST = "first: "  # prefix of the reason why a planned stage cannot be made
NO_TEMPLATE = str.maketrans("{}", "()")  # in the name of a task run, Prefect takes braces for placeholders

P = ParamSpec("P")
T = TypeVar("T")


class NotYetError(PenumbraError):
    """A key depends on an artifact that is not made yet; the message names the artifact."""


def _manifest(artifact: Artifact) -> Manifest:
    return Store(artifact.root).manifest(artifact)  # an input may lie in another store than new artifacts


@dataclass(frozen=True)
class Stage(ABC):
    """A stage of the DAG. A subclass is a frozen dataclass.

    Fields that are artifacts are its parents; fields that are parameter groups are its parameters. Data that all parts
    share are a `cached_property` of the subclass: they are computed at first use, once in each process.
    """

    name: ClassVar[str]  # of the table in `artifacts.schemas`
    version: ClassVar[int]  # increased by each change of what the stage computes
    unit: ClassVar[str] = "query"  # what `taken` and `kept` count
    may_be_empty: ClassVar[bool] = False  # whether a flow continues if the stage rejects everything

    @property
    def label(self) -> str:
        return self.name

    def _of_type(self, kind: type[T]) -> list[T]:
        """Return the fields of this type, and the members of this type of fields that are tuples."""
        values = [getattr(self, item.name) for item in fields(self)]
        each = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
        return [one for one in each if isinstance(one, kind)]

    @property
    def parents(self) -> tuple[Artifact, ...]:
        """The artifacts that the stage reads, in the order of its fields."""
        return tuple(self._of_type(Artifact))

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that the manifest records; by default those of the parameter groups."""
        groups = [group.model_dump(mode="json") for group in self._of_type(Parameters)]
        return {name: value for group in groups for name, value in group.items()}

    def key_parameters(self) -> dict[str, Any]:
        """Return the parameters that enter the key: those that determine the content and differ from their default."""
        groups = [group.model_dump(mode="json", exclude_defaults=True) for group in self._of_type(Parameters)]
        return {name: value for group in groups for name, value in group.items()}

    def inputs(self) -> dict[str, str]:
        """Return the digests of the files outside the store that the stage reads, by name."""
        return {}

    @cached_property
    def pieces(self) -> Sequence[Any]:
        """The arguments of `part`, by default the indices of the first parent's parts; () if `parts` is overridden."""
        return range(len(_manifest(self.parents[0]).parts))

    @property
    def by_workers(self) -> bool:
        """Whether workers make the parts; by default if the first parent has more than `FEW_ROWS` rows."""
        return _manifest(self.parents[0]).rows > FEW_ROWS if self.parents else False

    @property
    def on_device(self) -> bool:
        """Whether a part takes a GPU or all cores of a host: then the run or an existing cluster makes the parts."""
        return False

    @abstractmethod
    def part(self, piece: Any) -> Part:
        """Make one part."""

    def parts(self) -> Iterator[Callable[[], Part]]:
        """Yield a function for each part, in order; only those of missing parts are called."""
        return (partial(self.part, piece) for piece in self.pieces)

    @property
    def dataset(self) -> str:
        return self.parents[0].dataset

    @cached_property
    def work(self) -> Work:
        """The values whose digest is the key; raises `NotYetError` if a parent's key is not known yet."""
        unknown = dict.fromkeys(parent.stage for parent in self.parents if not parent.key)
        if unknown:
            raise NotYetError(f"after {', '.join(unknown)}")
        with noting_files() as files:
            return Work(
                dataset=self.dataset,
                stage=self.name,
                version=self.version,
                parameters=self.parameters(),
                parents=self.parents,
                inputs=self.inputs(),
                unit=self.unit,
                key_parameters=self.key_parameters(),
                files=files,
            )

    @cached_property
    def artifact(self) -> Artifact:
        return Store().artifact(self.work)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker needs: the fields, the artifact, and the work with the status of its input files."""
        return {name: getattr(self, name) for name in [*(item.name for item in fields(self)), "artifact", "work"]}


@dataclass
class Plan:
    """The stages of a flow by their keys. A stage whose key is not known yet has a reference without a key."""

    store: Store = field(default_factory=Store)
    rows: dict[tuple[str, str, str], None] = field(default_factory=dict)  # stage, state, and key or reason
    works: dict[Artifact, Work] = field(default_factory=dict)

    def add(self, stage: Stage) -> Artifact:
        try:
            artifact, work = self.store.artifact(stage.work), stage.work
        except PenumbraError as error:
            reason = str(error) if isinstance(error, NotYetError) else f"{FAILS_FIRST}{error}"
            artifact = Artifact(root=self.store.root, dataset=stage.dataset, stage=stage.name, key="")
            self.rows[stage.name, TO_MAKE, reason] = None
            self.works[artifact] = Work(stage.dataset, stage.name, stage.version, stage.parameters(), stage.parents)
            return artifact
        for parent in stage.parents:
            if parent not in self.works:  # made by an earlier run, and only looked up by this flow
                self.rows[parent.stage, IS_THERE, parent.key] = None
        self.works[artifact] = work
        self.rows[stage.name, IS_THERE if self.store.has(artifact) else TO_MAKE, artifact.key] = None
        return artifact


_PLAN: ContextVar[Plan] = ContextVar("plan")


def planning() -> AbstractContextManager[Plan]:
    """Plan flows that are called inside (as `flow.fn`): nothing is made, and only manifests are read."""
    return value_set(_PLAN, Plan())


def plan_if(condition: bool) -> AbstractContextManager[Any]:
    """Plan the rest of a flow instead of making it if the condition holds."""
    return planning() if condition and not is_planned() else nullcontext()


def is_planned() -> bool:
    return _PLAN.get(None) is not None


def run(stage: Stage) -> Artifact:
    """Return the artifact of a stage; make it if it is missing or damaged, or add it to the plan inside `planning()`.

    In a flow run, the stage is a task run; outside, it is a plain function call, without a server and reports.
    """
    plan = _PLAN.get(None)
    if plan is not None:
        return plan.add(stage)
    if not FlowRunContext.get():
        return make.fn(stage)
    return make.with_options(name=stage.name, task_run_name=stage.label.translate(NO_TEMPLATE))(stage)


def side_effect_task(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a function a task without an artifact, such as a report; in a plan or outside a run it returns None."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        run_as_task = task(name=name, task_run_name=name, cache_policy=NO_CACHE)(function)

        @wraps(function)
        def run_in_flow(*arguments: P.args, **options: P.kwargs) -> T:
            if is_planned() or not FlowRunContext.get():
                return None  # type: ignore[return-value]
            with progress_scope(name):
                return run_as_task(*arguments, **options)

        return run_in_flow

    return decorate


def work_of(artifact: Artifact) -> Work | Manifest:
    """Return the parameters and parents of an artifact, whether it exists or is planned."""
    plan = _PLAN.get(None)
    return plan.works[artifact] if plan and artifact in plan.works else Store().manifest(artifact)


@task(cache_policy=NO_CACHE)
def make(stage: Stage) -> Artifact:
    """Make the parts that are missing, and publish the stage in the Prefect UI."""
    store, artifact = Store(), stage.artifact
    manifest, time = store.intact(artifact), "made before"
    if manifest is None:
        logger().info("%s: being made", stage.name)
        with progress_scope(stage.label):
            build(stage)
        manifest = store.manifest(artifact)
        time = f"{manifest.seconds:.1f} s"
    logger().info("%s: %s; %s, %s", stage.label, manifest.counts, time, artifact.path)
    if FlowRunContext.get() and has_pages():
        publish_stage(store, artifact, manifest)
    for it in () if manifest.kept or stage.may_be_empty else (manifest, *map(store.manifest, manifest.parents)):
        if it.taken and not it.kept:  # the stage or one of its parents rejected everything
            reason, times = max(it.rejected.items(), key=lambda pair: pair[1], default=("no reason", 0))
            raise PenumbraError(
                f"{stage.name}: nothing is left of {counted(it.taken, it.unit)}; main reason ({times:,} ×): {reason}; "
                f"{store.reference(it).path}/{REJECTED} lists each with its reason"
            )
    return artifact


def build(stage: Stage) -> Artifact:
    """Make a stage if it is missing or damaged, without Prefect, and return its artifact."""
    started = last = monotonic()
    finished = 0

    def progress(done: Collection[int], total: int, made: Collection[int]) -> None:
        nonlocal last, finished
        tick(len(done) - finished)
        now, finished = monotonic(), len(done)
        if made and finished < total and now - last >= REPORT_EVERY:
            rows = _rows_of_parts(stage, total)
            if made_rows := sum(rows[index] for index in made):  # parts without rows give no estimate
                last, left = now, (now - started) / made_rows * (sum(rows) - sum(rows[index] for index in done))
                logger().info("%s: part %d of %d, about %.0f s left", stage.name, finished, total, left)

    total, pool = len(stage.pieces), workers()
    tick = counting("parts", total)
    distributed = pool and stage.by_workers and (pool.remote or not stage.on_device)
    elsewhere = partial(_made_by, pool, stage) if pool and distributed else None
    return Store().build(
        stage.work,
        stage.parts(),
        total=total,
        progress=progress,
        waits=lambda holder: logger().info("%s: waits for %s, which is making it", stage.name, holder),
        elsewhere=elsewhere,
    )


def _rows_of_parts(stage: Stage, total: int) -> list[int]:
    """Estimate the work of each part by the rows of its smallest input; 1 if no input has as many parts."""
    inputs = [manifest.parts for manifest in map(_manifest, stage.parents) if len(manifest.parts) == total]
    return [min((parts[index].rows for parts in inputs), default=1) for index in range(total)]


def _made_by(running: Workers, stage: Stage, missing: list[int]) -> Iterator[WrittenPart]:
    """Have workers make parts in a flow run, and yield the record of each; for a single part no worker is started."""
    if not FlowRunContext.get() or (len(missing) == 1 and not running.started):
        return
    pool = running.pool
    number, each = (pool.gpus or pool.number, TASKS_A_DEVICE) if stage.on_device else (pool.number, TASKS_A_WORKER)
    by = counted(min(len(missing), number), "worker")
    logger().info("%s: %s by %s", stage.name, counted(len(missing), "part"), by)
    futures: list[Any] = []
    with pool.on_gpu() if stage.on_device else nullcontext():
        # The parts of a task are far apart, so that expensive neighbouring parts are divided among the tasks.
        tasks = max(min(len(missing), each * number), -(-len(missing) // PARTS_A_TASK))
        for indices in (missing[first::tasks] for first in range(tasks)):
            numbers = ", ".join(str(index + 1) for index in indices)
            label = f"{stage.label.translate(NO_TEMPLATE)}: parts {numbers}"
            named = make_parts.with_options(name=f"{stage.name}: parts", task_run_name=label)
            pieces = {index: stage.pieces[index] for index in indices}
            given = {"stage": stage, "host": platform.node(), "pieces": pieces}
            futures.append(pool.runner.submit(named, given))
    lost: tuple[type[BaseException], ...] = (MemoryError, *pool.lost)
    try:
        for future in as_completed(futures):
            yield from future.result()
    except lost:
        raise PenumbraError(
            f"{stage.name}: a worker was killed, or had too little memory, or its scheduler ended: the same command "
            "resumes with the parts that are left; PENUMBRA_ENGINE=here makes one part at a time"
        ) from None


@task(cache_policy=NO_CACHE)
def make_parts(stage: Stage, host: str, pieces: dict[int, Any]) -> list[WrittenPart]:
    """Make some parts of a stage in the process of a worker, and return their records."""
    if host != platform.node():
        stage.work.files.clear()  # another host has its own copies of the input files, with other times
    return [_make_part(stage, index, piece) for index, piece in pieces.items()]


_CURRENT: dict[Artifact, Stage] = {}  # the stage that this worker makes
_LOCK = threading.Lock()  # a cluster's worker may have several threads; the data that parts share is for one thread


def _make_part(stage: Stage, index: int, piece: Any) -> WrittenPart:
    """Make a part unless it exists: an engine repeats a task whose worker died before it returned.

    All parts of a stage share one `Stage` in a worker. Tasks are pickled by value, so this code is outside the task.
    """
    with _LOCK, progress_scope(stage.label):
        artifact = stage.artifact
        store = Store(artifact.root)
        if record := store.record(artifact, index):
            return record
        if artifact not in _CURRENT:
            if not _CURRENT:
                prepare_log()
            os.environ["PENUMBRA_ARTIFACTS"] = artifact.root  # as in the run, wherever the worker was started
            _CURRENT.clear()
            _CURRENT[artifact] = stage
        return store.write(artifact, index, _CURRENT[artifact].part(piece), stage.work.files)


def zip_parts(*artifacts: Artifact) -> Iterator[tuple[pa.Table, ...]]:
    """Yield the first part of each artifact, then the second of each, and so on."""
    return zip(*map(Store().parts, artifacts), strict=True)


def read_part(index: int, *artifacts: Artifact) -> tuple[pa.Table, ...]:
    """Return one part of each of several artifacts."""
    return tuple(Store().part(artifact, index) for artifact in artifacts)


def require_made(artifact: Artifact) -> Artifact:
    """Return an artifact whose rows a key depends on; raise `NotYetError` in a plan if it does not exist."""
    if is_planned() and not Store().has(artifact):
        raise NotYetError(f"after {artifact.stage}")
    return artifact
