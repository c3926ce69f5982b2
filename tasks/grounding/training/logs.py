"""A training's scalars where people look, beside the page in the Prefect UI: TensorBoard and Weights & Biases.

`Training.log` names them. Each is a package of its own, imported where it is asked for. A run that goes on after a kill
is told from its first epoch on, so that its curves have no gap and no step twice.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any, Self

from prefect import get_run_logger

from penumbra.artifacts.document import Document
from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.prefect_ui import LiveArtifact
from penumbra.tasks.grounding.training.curves import curves_section
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.progress import stage_log_extra
from penumbra.tasks.stage import logger

Row = dict[str, Any]


@dataclass(frozen=True)
class Progress:
    """Epochs that are done of those asked for, the rows of the `metrics` table so far, and the best figure so far.

    `best`, of the figure that `Training.chosen_by` names, is None where there is nothing to choose by. `seconds` are
    those of this process, which may have gone on where another was killed; at most `left` are to come.
    """

    epoch: int
    epochs: int
    history: list[Row]
    best: float | None
    seconds: float
    left: float
    chosen_by: str = "sum"

    def newest(self, split: str, name: str) -> float | None:
        """A figure of this epoch."""
        found = (row for row in reversed(self.history) if row["epoch"] == self.epoch)
        return next((row["value"] for row in found if (row["split"], row["name"]) == (split, name)), None)

    def line(self) -> str:
        """One line for a log."""
        chosen = self.newest("validation", "chosen_by")
        figure = "R1@0.5 + R1@0.7 + mIoU" if self.chosen_by == "sum" else self.chosen_by
        judged = f", chosen by {figure} {chosen:.2f} (best {self.best:.2f})" if None not in (chosen, self.best) else ""
        loss = self.newest("train", "total")
        shown = "" if loss is None else f": loss {loss:.4f}"
        return f"epoch {self.epoch} of {self.epochs}{shown}{judged}, {self.seconds:.0f} s, {self.left:.0f} s left"


Observer = Callable[[Progress], None]


def unobserved(progress: Progress) -> None:
    """Nobody watches."""


def together(*several: Observer) -> Observer:
    """All of them, one after the other."""

    def observe(progress: Progress) -> None:
        for one in several:
            one(progress)

    return observe


FLOW = "train-grounding"
PUBLISH_EVERY = 5.0  # seconds between two updates of the page: each is a call to the API


class Watcher:
    """An `Observer`; its page is gone when the training is over, and a report is in its place."""

    def __init__(self, dataset: str, run: str) -> None:
        self.run, self.logger = run, get_run_logger()
        self._page = LiveArtifact("markdown", dataset, FLOW)
        self._last: float | None = None

    def __enter__(self) -> Self:
        self._page.__enter__()
        return self

    def __exit__(self, *reason: object) -> None:
        self._page.__exit__(*reason)

    def __call__(self, progress: Progress) -> None:
        """Log and show how far a training is."""
        self.logger.info("%s: %s", self.run, progress.line(), extra=stage_log_extra(progress.line()))
        if self._last is None or monotonic() - self._last >= PUBLISH_EVERY:
            page = Document(f"{self.run} is being trained", progress.line(), [curves_section(progress.history)])
            self._page.show(page.markdown())
            self._last = monotonic()


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
