"""Several processes that train together on one machine, one a GPU (or on CPU cores)."""

import socket
from queue import Empty
from typing import Any

from torch.distributed import barrier, destroy_process_group
from torch.multiprocessing import get_context
from torch.multiprocessing.spawn import ProcessRaisedException, spawn

from penumbra.artifacts.processes import environment
from penumbra.tasks.grounding.training.checkpoint import RunError, read_checkpoint
from penumbra.tasks.grounding.training.job import Job
from penumbra.tasks.grounding.training.loop import TrainingError, train
from penumbra.tasks.grounding.training.progress import Observer, Row, unobserved

LOOK_EVERY = 0.5  # seconds between two looks at what the processes tell


def run_job(job: Job, observe: Observer = unobserved) -> list[Row]:
    """Train with as many processes as the settings ask for; returns the metrics. `observe` is called in this one."""
    count = job.settings.training.processes
    if count == 1:
        return train(job, observe)
    told = get_context("spawn").Queue()
    try:
        several: Any = spawn(_worker, args=(job, count, _free_port(), told), nprocs=count, join=False)  # type: ignore[no-untyped-call]
        while not several.join(LOOK_EVERY):
            _pass_on(told, observe)
        _pass_on(told, observe)
    except ProcessRaisedException as error:
        line = str(error).strip().splitlines()[-1]
        raise TrainingError(line.partition("Error: ")[2] or line) from None
    found = read_checkpoint(job.folder, "last")
    if found is None:
        raise RunError(f"{job.folder} has no checkpoint after training")
    rows: list[Row] = found.state["history"]
    return rows


def _pass_on(told: Any, observe: Observer) -> None:
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
        train(job, told.put)
        barrier()  # one that ends first would take its connections from those that still use them
        destroy_process_group()
