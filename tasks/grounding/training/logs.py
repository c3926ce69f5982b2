"""A training's scalars where people look, beside the page in the Prefect UI: TensorBoard and Weights & Biases.

`Training.log` names them. Each is a package of its own, imported where it is asked for. A run that goes on after a kill
is told from its first epoch on, so that its curves have no gap and no step twice.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.grounding.training.progress import Observer, Progress
from penumbra.tasks.grounding.training.settings import Settings
from penumbra.tasks.stage import logger

Write = Callable[[int, Mapping[str, float]], None]  # step, and values by SPLIT/NAME


class LogError(PenumbraError):
    """Scalars were to be written with a package that is not there, or for a service that does not take them."""


@contextmanager
def scalar_logs(settings: Settings, folder: Path, dataset: str, run: str) -> Iterator[Observer]:
    """An observer that writes every scalar once to each log that the settings name; raises `LogError`."""
    told = 0
    with ExitStack() as opened:
        writers = [opened.enter_context(LOGS[name](settings, folder, dataset, run)) for name in settings.training.log]

        def observe(progress: Progress) -> None:
            nonlocal told
            by_step = defaultdict[int, dict[str, float]](dict)
            for row in progress.history[told:]:
                by_step[row["step"]] |= {f"{row['split']}/{row['name']}": row["value"], "epoch": row["epoch"]}
            told = len(progress.history)
            for step, values in by_step.items():
                for write in writers:
                    write(step, values)

        yield observe


def _package(module: str, extra: str) -> Any:
    """A package that is no part of the usual installation."""
    try:
        return import_module(module)
    except ImportError as error:
        raise LogError(f"training.log={extra} needs a package ({error}): pip install 'penumbra[{extra}]'") from None


@contextmanager
def _tensorboard(settings: Settings, folder: Path, dataset: str, run: str) -> Iterator[Write]:
    """Event files in the run's folder, named after it, as TensorBoard lists runs by their folders."""
    place = folder / "tensorboard" / run
    # what an earlier process wrote of this run from step 0 on counts no more
    writer = _package("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(place), purge_step=0)
    logger().info("%s: tensorboard --logdir %s", run, folder.parent)

    def write(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    with writer:
        yield write


@contextmanager
def _wandb(settings: Settings, folder: Path, dataset: str, run: str) -> Iterator[Write]:
    """A run of Weights & Biases, by the training's key; nothing but settings and scalars is told of this machine."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    wandb = _package("wandb", "wandb")
    quiet = wandb.Settings(
        console="off",
        silent=True,
        disable_git=True,
        disable_code=True,
        disable_job_creation=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    try:
        opened = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "penumbra"),
            name=run,
            group=dataset,
            id=folder.name,
            resume="allow",
            dir=str(folder),
            config=settings.model_dump(mode="json"),
            settings=quiet,
        )
    except wandb.Error as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "set WANDB_API_KEY, or WANDB_MODE=offline"
        raise LogError(f"training.log=wandb: no run could be begun ({reason}): {remedy}") from None

    def write(step: int, values: Mapping[str, float]) -> None:
        if step >= opened.starting_step:  # the service has those before
            opened.log(dict(values), step=step)

    with opened:
        yield write


LOGS = {"tensorboard": _tensorboard, "wandb": _wandb}
