"""Where the parts of stages are made: in this process, one after the other, or several at once by workers.

The parts are the same to the byte. Each is written by the process that makes it, under the lease of the one that
waits, so that one which ends takes no finished part with it.

Workers are processes of this machine, or those of a Dask or a Ray cluster: the one at PENUMBRA_ENGINE_ADDRESS, or
without it one that is started here for the run, and that nobody else gets in touch with.
"""

import gc
import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from typing import Annotated, Any
from urllib.parse import urlsplit

import psutil
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner
from pydantic import Field

from penumbra.artifacts.errors import PenumbraError, what_there_is, without_secrets
from penumbra.artifacts.processes import cores, end_with_parent, environment
from penumbra.tasks.log_lines import from_workers, quieten, tell

GIGABYTES_A_WORKER = 2.5  # a sentence encoder, a tagger, what they import, and a part of ActivityNet-CG
OBJECTS_BETWEEN_COLLECTIONS = 100_000  # rows are many objects and no cycles; Python's 700 took 7 % of a worker's time
ANSWERS_WITHIN = 30  # seconds, a cluster


class Engine(StrEnum):
    """Where parts are made."""

    here = "here"
    processes = "processes"
    dask = "dask"
    ray = "ray"


EngineName = Annotated[
    Engine | None,
    Field(
        description="Where parts are made: here, one after the other; in processes, a worker a core; or by a dask or "
        "ray cluster, that at PENUMBRA_ENGINE_ADDRESS or one of this machine. Default: what PENUMBRA_ENGINE says, or "
        "processes."
    ),
]


def usual(engine: Engine | None) -> Engine:
    """The engine that was said, or PENUMBRA_ENGINE's; raises `PenumbraError` where there is none of that name."""
    said = engine or os.environ.get("PENUMBRA_ENGINE") or Engine.processes
    if said not in list(Engine):
        raise PenumbraError(f"PENUMBRA_ENGINE={said}: no such engine; {what_there_is(said, list(Engine))}")
    return Engine(said)


def address() -> str:
    """PENUMBRA_ENGINE_ADDRESS: where a cluster's scheduler answers; '' for a cluster of the run's own."""
    return os.environ.get("PENUMBRA_ENGINE_ADDRESS", "")


def local_worker_count() -> int:
    """Workers for this machine: one a core, and no more than its free memory has room for."""
    room = int(psutil.virtual_memory().available / 1e9 / GIGABYTES_A_WORKER)
    return max(1, min(cores(), room))


@dataclass(frozen=True)
class Pool:
    """Workers that have started.

    `lost` is what a part raises whose worker has ended, or whose scheduler does not answer any more. What is submitted
    inside `a_gpu()` gets one of the cluster's `gpus` for itself, where it has any.
    """

    runner: TaskRunner[Any]
    number: int
    lost: tuple[type[BaseException], ...]
    gpus: int = 0
    a_gpu: Callable[[], AbstractContextManager[Any]] = nullcontext


class Workers:
    """The workers of a run, which start when a stage first has several parts of many rows to make.

    `elsewhere` says whether they are of a cluster that is there, with devices of their own.
    """

    def __init__(self, start: Callable[[], AbstractContextManager[Pool]], stack: ExitStack, elsewhere: bool) -> None:
        self._start, self._stack, self.elsewhere = start, stack, elsewhere

    @property
    def started(self) -> bool:
        """Whether they are there, with what earlier stages have had them load."""
        return "pool" in vars(self)

    @cached_property
    def pool(self) -> Pool:
        """They, started; raises `PenumbraError` where a cluster does not answer."""
        return self._stack.enter_context(self._start())


_WORKERS: ContextVar[Workers | None] = ContextVar("workers", default=None)


@contextmanager
def use_engine(engine: Engine | None) -> Iterator[None]:
    """Inside, stages make their parts there."""
    chosen, number = usual(engine), local_worker_count()
    starts = {Engine.processes: processes, Engine.dask: _dask, Engine.ray: _ray}
    alone = chosen is Engine.here or (chosen is Engine.processes and number == 1)
    with ExitStack() as stack:
        elsewhere = chosen in (Engine.dask, Engine.ray) and bool(address())
        token = _WORKERS.set(None if alone else Workers(lambda: starts[chosen](number), stack, elsewhere))
        try:
            yield
        finally:
            _WORKERS.reset(token)


def workers() -> Workers | None:
    """The workers of this run; None where parts are made in this process."""
    return _WORKERS.get()


@contextmanager
def processes(number: int) -> Iterator[Pool]:
    """So many processes, each with its share of the cores, which end with this one."""
    with from_workers() as queue:
        runner = ProcessPoolTaskRunner(number, initializer=_begin, initargs=(_threads(number), queue))
        with _script_hidden(), runner:
            yield Pool(runner, number, (BrokenExecutor,))


@contextmanager
def _dask(number: int) -> Iterator[Pool]:
    """Dask's workers: where it is a cluster of our own so many, which end with this process and want a certificate."""
    try:
        from dask import config
        from dask.base import annotate
        from distributed import CancelledError, KilledWorker
        from distributed.comm import CommClosedError
        from prefect_dask import DaskTaskRunner
    except ImportError as error:
        raise _no_extra(Engine.dask, error) from None
    logging.getLogger("distributed").setLevel(logging.WARNING)  # else every connection is a line on the terminal
    own = {
        "n_workers": number,
        "threads_per_worker": 1,
        "dashboard_address": None,
        "security": True,
        "env": {"OMP_NUM_THREADS": str(_threads(number))},
    }
    where: dict[str, Any] = {"address": address()} if address() else {"cluster_kwargs": own}
    quick = {  # memory that is given back after each layer makes an encoder a third slower; nobody reads the profile
        "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
        "distributed.worker.profile.enabled": False,
    }
    runner = DaskTaskRunner(**where, client_kwargs={"timeout": ANSWERS_WITHIN})
    with _script_hidden(), config.set(quick), ExitStack() as stack:
        try:
            check_port_open(address())
            stack.enter_context(runner)
            there = runner.client.scheduler_info(n_workers=-1)["workers"]
        except (OSError, ValueError) as error:
            raise _no_answer(Engine.dask, error) from None
        gpus = int(sum(worker["resources"].get("GPU", 0) for worker in there.values()))
        a_gpu = partial(annotate, resources={"GPU": 1}) if gpus else nullcontext
        yield Pool(runner, len(there), (CancelledError, KilledWorker, CommClosedError), gpus, a_gpu)


@contextmanager
def _ray(number: int) -> Iterator[Pool]:
    """Ray's workers: where it is a cluster of our own so many, which end with this process and want a password."""
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}  # it would yield to all else, and tell home
    lock = {} if address() else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with environment(settings | lock), ExitStack() as stack:
        try:
            import ray
            from prefect_ray import RayTaskRunner
            from prefect_ray.context import remote_options
            from ray import exceptions
        except ImportError as error:
            raise _no_extra(Engine.ray, error) from None
        ray._raylet.Config.initialize("")  # Prefect imports Ray before a flow begins, and Ray reads its settings then
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
        own = {"num_cpus": number, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        started = {"log_to_driver": False, "configure_logging": False, **({} if address() else own)}
        try:
            check_port_open(address())  # Ray itself tries for ten minutes
            runner = stack.enter_context(RayTaskRunner(address() or "local", started))
        except (OSError, ValueError, RuntimeError, exceptions.RayError) as error:
            raise _no_answer(Engine.ray, error) from None
        lost = (
            exceptions.WorkerCrashedError,
            exceptions.OutOfMemoryError,
            exceptions.NodeDiedError,
            exceptions.ObjectLostError,
            exceptions.RaySystemError,
        )
        there: dict[str, float] = ray.cluster_resources()
        gpus = int(there.get("GPU", 0))
        a_gpu = partial(remote_options, num_gpus=1) if gpus else nullcontext
        yield Pool(runner, int(there.get("CPU", 0)), lost, gpus, a_gpu)


def check_port_open(address: str) -> None:
    """Raise an `OSError` where nobody listens at an address that has a port."""
    where = urlsplit(address if "//" in address else f"//{address}")
    if where.hostname and where.port:
        socket.create_connection((where.hostname, where.port), ANSWERS_WITHIN).close()


def _no_extra(engine: Engine, error: ImportError) -> PenumbraError:
    return PenumbraError(f"engine={engine} needs {error.name}: pip install 'penumbra[{engine}]'")


def _no_answer(engine: Engine, error: Exception) -> PenumbraError:
    reason = without_secrets(str(error)).partition("\n")[0] or type(error).__name__
    where = without_secrets(address())
    remedy = f"PENUMBRA_ENGINE_ADDRESS={where}: start it, or name another" if where else "PENUMBRA_ENGINE=processes"
    return PenumbraError(f"no {engine} cluster answers ({reason}): {remedy}")


def _threads(number: int) -> int:
    """Each worker's share of the cores."""
    return max(1, cores() // number)


@contextmanager
def _script_hidden() -> Iterator[None]:
    """Inside, a process that Python starts does not run the script of this one again.

    A script that runs a flow, and not below `if __name__ == "__main__"`, would run it once more in every worker.
    """
    main = sys.modules["__main__"]
    before: dict[str, Any] = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    vars(main).pop("__file__", None)
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(before)


def _begin(threads: int, queue: Any) -> None:
    """What a process that makes stages, or parts of one, begins with."""
    end_with_parent()
    quieten()
    tell(queue)
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # for torch, which not every stage imports: it takes seconds
