"""Several processes that train together, one a GPU (or on CPU cores), on one machine or several."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from datetime import timedelta
from queue import Empty
from threading import Event, Thread
from typing import Any

from torch.distributed import DistError, barrier, destroy_process_group
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.multiprocessing import get_context
from torch.multiprocessing.spawn import ProcessRaisedException, spawn

from penumbra.artifacts.processes import cores, environment
from penumbra.tasks.grounding.configs import Training
from penumbra.tasks.grounding.training.checkpoints import RunError, read_checkpoint
from penumbra.tasks.grounding.training.logs import Observer, Row, unobserved
from penumbra.tasks.grounding.training.loop import Job, TrainingError, train

LOOK_EVERY = 0.5  # seconds between two looks at what the processes tell
GATHER = timedelta(minutes=15)  # in which all hosts have to come together


def run_job(job: Job, observe: Observer = unobserved) -> list[Row]:
    """Train with as many processes as the settings ask for; returns the metrics. `observe` is called in this one."""
    training = job.settings.training
    if training.launch == "spawn" and training.processes == 1:
        return train(job, observe)
    share = max(1, cores() // training.processes)  # in the environment, for what reads it before torch is told
    with environment({"OMP_NUM_THREADS": str(share)}), _passed_on(observe) as told:
        if training.launch == "spawn":
            _spawn(job, training.processes, told)
        else:
            _torchrun(job, training, told)
    found = read_checkpoint(job.folder, "last")
    if found is None:
        raise RunError(f"{job.folder} has no checkpoint after training: do all hosts share PENUMBRA_RUNS?")
    rows: list[Row] = found.state["history"]
    return rows


def _spawn(job: Job, count: int, told: Any) -> None:
    """The processes of this machine alone."""
    try:
        spawn(_worker, args=(job, count, _free_port(), told), nprocs=count)  # type: ignore[no-untyped-call]
    except ProcessRaisedException as error:
        raise _failure(str(error)) from None


def _torchrun(job: Job, training: Training, told: Any) -> None:
    """The processes of this host, started by torchrun's agent once all hosts have come."""
    endpoint = training.rendezvous or f"127.0.0.1:{_free_port()}"
    how = LaunchConfig(
        min_nodes=training.nodes,
        max_nodes=training.nodes,
        nproc_per_node=training.processes,
        run_id=job.folder.name,
        rdzv_backend="static",
        rdzv_endpoint=endpoint,
        max_restarts=0,
        rdzv_configs={"rank": training.node_rank, "timeout": int(GATHER.total_seconds())},
    )
    try:
        elastic_launch(how, _recorded)(job, told)
    except ChildFailedError as error:
        failure = error.get_first_failure()[1]
        told_of = failure.error_file_data.get("message", failure.message)
        raise _failure(told_of["message"] if isinstance(told_of, dict) else told_of) from None
    except DistError as error:
        raise TrainingError(
            f"{training.nodes} hosts did not come together at {endpoint} ({type(error).__name__}): start the same "
            "command, with the same settings, on each, training.node_rank from 0 up, and let them reach that port"
        ) from None


def _failure(told: str) -> TrainingError:
    """What a process failed with, by the last line of what it left."""
    line = told.strip().splitlines()[-1]
    return TrainingError(line.partition("Error: ")[2] or line)


@contextmanager
def _passed_on(observe: Observer) -> Iterator[Any]:
    """A queue, and what processes put into it handed to the observer: in a thread, for this one waits for them."""
    told, ended, failed = get_context("spawn").Queue(), Event(), list[BaseException]()

    def pass_on() -> None:
        try:
            while not (ended.wait(LOOK_EVERY) and told.empty()):
                _empty(told, observe)
        except BaseException as error:  # raised where the processes are waited for
            failed.append(error)

    thread = Thread(target=copy_context().run, args=(pass_on,), daemon=True)  # the flow run is known there as well
    thread.start()
    try:
        yield told
    finally:
        ended.set()
        thread.join()
    if failed:
        raise failed[0]


def _empty(told: Any, observe: Observer) -> None:
    try:
        while True:
            observe(told.get_nowait())
    except Empty:
        return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _worker(rank: int, job: Job, count: int, port: int, told: Any) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    with environment({**{name: str(value) for name, value in names.items()}, "MASTER_ADDR": "127.0.0.1"}):
        _train(job, told)


def _train(job: Job, told: Any) -> None:
    """Train as one of several, whose place among them and share of the cores are in the environment."""
    train(job, told.put)
    barrier()  # one that ends first would take its connections from those that still use them
    destroy_process_group()


@record  # what it fails with reaches the agent
def _recorded(job: Job, told: Any) -> None:
    _train(job, told)
