"""Engines make the parts of stages. The bytes of a part do not depend on the engine.

`here` makes the parts in this process, one after the other. `processes` starts processes on this machine; `dask` and
`ray` use the workers of a cluster: at PENUMBRA_ENGINE_ADDRESS, or a temporary one. A worker writes the parts it makes.
"""

import gc
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from enum import StrEnum
from functools import cached_property, partial
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import psutil
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner
from pydantic import Field

from penumbra.artifacts.errors import PenumbraError, what_there_is, without_secrets
from penumbra.artifacts.processes import cores, end_with_parent, environment, value_set
from penumbra.tasks.progress import prepare_log

GIGABYTES_A_WORKER = 2.5  # for a sentence encoder, a tagger, the modules they import, and a part of ActivityNet-CG
PROCESSES_FROM = 4  # cores; on two, `here` with two threads is as fast and takes less CPU time
OBJECTS_BETWEEN_COLLECTIONS = 100_000  # rows are many objects without cycles: Python's default, 700, costs 7 % of time
CONNECT_SECONDS = 30


class Engine(StrEnum):
    """The engines that can make parts."""

    here = "here"
    processes = "processes"
    dask = "dask"
    ray = "ray"


EngineName = Annotated[
    Engine | None,
    Field(
        description="Where parts are made: `here`, one after the other; in `processes`, one for each core; or by a "
        "`dask` or `ray` cluster, at PENUMBRA_ENGINE_ADDRESS or on this machine. Default: PENUMBRA_ENGINE, "
        f"or processes from {PROCESSES_FROM} cores on and here with fewer."
    ),
]


def chosen_engine(engine: Engine | None) -> Engine:
    """Return `engine`, PENUMBRA_ENGINE or the default; raise `PenumbraError` if the variable names no engine."""
    default = Engine.processes if local_worker_count() >= PROCESSES_FROM else Engine.here
    name = engine or os.environ.get("PENUMBRA_ENGINE") or default
    if name not in list(Engine):
        raise PenumbraError(f"PENUMBRA_ENGINE={name}: no such engine; {what_there_is(name, list(Engine))}")
    return Engine(name)


def local_worker_count() -> int:
    """Return the number of workers for this machine: one for each core, or fewer if free memory is short."""
    return max(1, min(cores(), int(psutil.virtual_memory().available / 1e9 / GIGABYTES_A_WORKER)))


class Pool(NamedTuple):
    """A number of started workers; `lost` are the exceptions of a task whose worker or scheduler died.

    A task that is submitted inside `on_gpu()` gets one of the cluster's `gpus` for itself, if there are any.
    """

    runner: TaskRunner[Any]
    number: int
    lost: tuple[type[BaseException], ...]
    gpus: int = 0
    on_gpu: Callable[[], AbstractContextManager[Any]] = nullcontext


class Workers(ExitStack):
    """The workers of a run, started when a stage first needs them; `remote`: whether an existing cluster has them."""

    def __init__(self, start: Callable[[], AbstractContextManager[Pool]], remote: bool) -> None:
        super().__init__()
        self.start, self.remote = start, remote

    @cached_property
    def pool(self) -> Pool:
        """The workers, started; raises `PenumbraError` if a cluster does not answer."""
        return self.enter_context(self.start())

    @property
    def started(self) -> bool:
        """Whether the workers have started: they then keep the models that earlier stages loaded."""
        return "pool" in vars(self)


_WORKERS: ContextVar[Workers | None] = ContextVar("workers", default=None)


@contextmanager
def use_engine(engine: Engine | None) -> Iterator[None]:
    """Make the parts of stages inside with an engine."""
    engine, number = chosen_engine(engine), local_worker_count()
    start = {Engine.dask: _dask, Engine.ray: _ray}.get(engine, _processes)
    alone = engine is Engine.here or (engine is Engine.processes and number == 1)
    remote = engine in (Engine.dask, Engine.ray) and bool(os.environ.get("PENUMBRA_ENGINE_ADDRESS"))
    if remote:
        with _cluster_errors(engine, OSError, ValueError):
            pass  # a cluster that does not answer is reported before the first stage
    with Workers(partial(start, number), remote) as running, value_set(_WORKERS, None if alone else running):
        yield


def workers() -> Workers | None:
    """Return the workers of this run; None if its parts are made in this process."""
    return _WORKERS.get()


@contextmanager
def _processes(number: int) -> Iterator[Pool]:
    """Start processes that share the cores and end with this process."""
    runner = ProcessPoolTaskRunner(number, initializer=_start_worker, initargs=(number,))
    with _script_hidden(), runner:
        yield Pool(runner, number, (BrokenExecutor,))


@contextmanager
def _dask(number: int) -> Iterator[Pool]:
    """Connect to Dask's workers, or start workers that end with this process and require a certificate."""
    address = os.environ.get("PENUMBRA_ENGINE_ADDRESS")
    with _cluster_errors(Engine.dask):
        from dask import config
        from dask.base import annotate
        from distributed import CancelledError, KilledWorker
        from distributed.comm import CommClosedError
        from prefect_dask import DaskTaskRunner
    logging.getLogger("distributed").setLevel(logging.WARNING)  # otherwise each connection is a line in the terminal
    variables = {"OMP_NUM_THREADS": str(max(1, cores() // number))}
    own = {"n_workers": number, "threads_per_worker": 1, "dashboard_address": None, "security": True, "env": variables}
    cluster: dict[str, Any] = {"address": address} if address else {"cluster_kwargs": own}
    settings: dict[str, Any] = {
        "distributed.scheduler.http.routes": [],  # pages that require no certificate
        "distributed.worker.http.routes": [],
        # an encoder is a third slower if freed memory returns to the system after each layer
        "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
        "distributed.worker.profile.enabled": False,
    }
    runner = DaskTaskRunner(**cluster, client_kwargs={"timeout": CONNECT_SECONDS})
    with _script_hidden(), config.set(settings), ExitStack() as stack:
        with _cluster_errors(Engine.dask, OSError, ValueError):
            stack.enter_context(runner)
            members = runner.client.scheduler_info(n_workers=-1)["workers"]
        gpus = int(sum(worker["resources"].get("GPU", 0) for worker in members.values()))
        on_gpu = partial(annotate, resources={"GPU": 1}) if gpus else nullcontext
        yield Pool(runner, len(members), (CancelledError, KilledWorker, CommClosedError), gpus, on_gpu)


@contextmanager
def _ray(number: int) -> Iterator[Pool]:
    """Connect to Ray's workers, or start workers that end with this process and require a token."""
    address = os.environ.get("PENUMBRA_ENGINE_ADDRESS")
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}  # no usage reports, normal priority
    token = {} if address else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with environment(settings | token), ExitStack() as stack:
        with _cluster_errors(Engine.ray):
            import ray
            from prefect_ray import RayTaskRunner
            from prefect_ray.context import remote_options
            from ray import exceptions as lost
        ray._raylet.Config.initialize("")  # reads the settings again: Prefect may have imported Ray before
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
        own = {"num_cpus": number, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        options = {"log_to_driver": False, "configure_logging": False, **({} if address else own)}
        with _cluster_errors(Engine.ray, OSError, ValueError, RuntimeError, lost.RayError):
            runner = stack.enter_context(RayTaskRunner(address or "local", options))
        killed = lost.WorkerCrashedError, lost.OutOfMemoryError, lost.NodeDiedError
        resources: dict[str, float] = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        on_gpu = partial(remote_options, num_gpus=1) if gpus else nullcontext
        number = int(resources.get("CPU", 0))
        yield Pool(runner, number, (*killed, lost.ObjectLostError, lost.RaySystemError), gpus, on_gpu)


@contextmanager
def _cluster_errors(engine: Engine, *unreachable: type[Exception]) -> Iterator[None]:
    """Raise `PenumbraError` with a remedy if the engine's package is missing or its cluster does not answer."""
    address = os.environ.get("PENUMBRA_ENGINE_ADDRESS", "")
    parts = urlsplit(address if "//" in address else f"//{address}")
    try:
        if unreachable and parts.hostname and parts.port:  # Ray itself tries for ten minutes
            socket.create_connection((parts.hostname, parts.port), CONNECT_SECONDS).close()
        yield
    except ImportError as error:
        raise PenumbraError(f"engine={engine} needs {error.name}: pip install 'penumbra[{engine}]'") from None
    except unreachable as error:
        reason = without_secrets(str(error)).partition("\n")[0] or type(error).__name__
        name = f"PENUMBRA_ENGINE_ADDRESS={without_secrets(address)}"
        remedy = f"{name}: start it, or name another" if address else "PENUMBRA_ENGINE=here"
        raise PenumbraError(f"no {engine} cluster answers ({reason}): {remedy}") from None


@contextmanager
def _script_hidden() -> Iterator[None]:
    """Keep worker processes from running this process's script again if it has no `__main__` guard."""
    main = sys.modules["__main__"]
    before: dict[str, Any] = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    vars(main).pop("__file__", None)
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(before)


def _start_worker(number: int) -> None:
    """Prepare one of several processes that make parts."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the run, which ends its workers
    prepare_log()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    os.environ["OMP_NUM_THREADS"] = str(max(1, cores() // number))  # for torch, which not every stage imports
