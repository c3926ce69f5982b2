"""Progress of a training in the log, the Prefect UI, TensorBoard and W&B, and its curves in reports."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from time import monotonic
from typing import Any

from penumbra.artifacts.charts import Drawing, Line, Panel, Points, panels
from penumbra.artifacts.document import Document, Section
from penumbra.artifacts.prefect_ui import live_page
from penumbra.tasks.grounding.configs import Training
from penumbra.tasks.grounding.runs import RunError
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.progress import logger

FLOW = "train-grounding"
PUBLISH_EVERY = 5.0  # seconds between two updates of the page: each is a call to the API
TRAIN, VALIDATION, CHOSEN_BY = "train", "validation", "chosen_by"
FIRST, LAST, NOT_DRAWN = ("total",), ("gradient_norm", "learning_rate"), {"seconds"}
METRICS = ("R1@0.3", "R1@0.5", "R1@0.7", "mIoU", "mAP")
HEADLINE = ("R1@0.5", "R1@0.7", "mIoU")
MOST_POINTS = 200  # of a line
Row = dict[str, Any]
Write = Callable[[int, dict[str, float]], None]  # the step, and values by SPLIT/NAME
# rows of the table `metrics` so far, seconds since this process started, and an upper bound of the seconds left
Observer = Callable[[Sequence[Row], float, float], None]


# -- curves ------------------------------------------------------------------------------------------------------------


def best_of(rows: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the row `chosen_by` of the best epoch, of equals the first; None without validation."""
    return max((row for row in rows if row["name"] == CHOSEN_BY), key=itemgetter("value"), default=None)


def figures_in_words(metrics: Mapping[str, float]) -> str:
    """Return recall and mIoU, or else the other known metrics, in one line."""
    names = [name for name in HEADLINE if name in metrics] or [name for name in METRICS if name in metrics]
    return ", ".join(f"{name} {metrics[name]:.2f}" for name in names)


def headline(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the validation metrics of the best epoch; empty without validation queries."""
    best = best_of(rows)
    if best is None:
        return ""
    place = VALIDATION, best["epoch"]
    metrics = {row["name"]: row["value"] for row in rows if (row["split"], row["epoch"]) == place}
    return f"{figures_in_words(metrics)} on the validation queries, epoch {best['epoch']}"


def curves_section(rows: Sequence[Mapping[str, Any]]) -> Section:
    """Return the section of a report that shows the curves.

    There is one panel for the metrics, one for the value that selects the best epoch, and one for each loss, because
    the scales of the losses differ.
    """
    curves = defaultdict[tuple[str, str], list[tuple[float, float]]](list)
    best, drawings = best_of(rows), list[Drawing]()
    for row in rows:
        curves[row["split"], row["name"]].append((row["epoch"], row["value"]))
    marked = [best["epoch"]] if best else []
    judged = [name for name in METRICS if (VALIDATION, name) in curves]
    if judged:
        lines = [_line(name, curves[VALIDATION, name], style) for style, name in enumerate(judged)]
        chosen = [_line("value that selects the best epoch", curves[VALIDATION, CHOSEN_BY], len(lines))]
        several = [_panel("%, validation queries", lines, marked), _panel(chosen[0].label, chosen, marked)]
        title = "Validation by epoch, the best one marked"
        drawings.append(panels(title, several, columns=2, height=230, legend=True))
    names = {name for split, name in curves if split == TRAIN} - NOT_DRAWN
    ordered = [name for name in (*FIRST, *sorted(names - {*FIRST, *LAST}), *LAST) if name in names]
    if ordered:
        several = [_panel(name, [_line(name, curves[TRAIN, name])], marked) for name in ordered]
        drawings.append(panels("Losses by epoch, mean over steps, each before its weight", several, 3, 140))
    return Section("Training", [] if drawings else ["No epoch was trained."], drawings=drawings)


def _line(label: str, points: Points, style: int = 0) -> Line:
    every = -(-len(points) // MOST_POINTS)
    return Line(label, [*points[:-1:every], *points[-1:]], style)


def _panel(title: str, lines: Sequence[Line], marked: Sequence[int]) -> Panel:
    epochs = [epoch for line in lines for epoch, _ in line.points]
    return Panel(title, lines, min(epochs), max(epochs), "epoch", marked=marked)


# -- progress of a running training ------------------------------------------------------------------------------------


def progress_line(training: Training, history: Sequence[Row], seconds: float, left: float) -> str:
    """Return the progress of a training after an evaluation, in one line; for the arguments see `Observer`."""
    epoch, best = history[-1]["epoch"], best_of(history)
    newest = {row["name"]: row["value"] for row in history if row["epoch"] == epoch}
    chosen, loss = newest.get(CHOSEN_BY), newest.get("total")
    metric = "R1@0.5 + R1@0.7 + mIoU" if training.chosen_by == "sum" else training.chosen_by
    judged = f", {metric} {chosen:.2f} (best {best['value']:.2f})" if chosen is not None and best else ""
    losses = "" if loss is None else f": loss {loss:.4f}"
    return f"epoch {epoch} of {training.epochs}{losses}{judged}, {seconds:.0f} s, {left:.0f} s left"


@contextmanager
def progress_shown(settings: Settings, folder: Path, dataset: str, run: str) -> Iterator[Observer]:
    """Yield an observer that writes a line to the log, curves to the Prefect UI, and scalars to `training.log`.

    A resumed run is written again from its first epoch, so that its curves have no gaps and no duplicate steps.
    """
    with ExitStack() as stack:
        show = stack.enter_context(live_page(dataset, FLOW))
        writers = list[Write]()
        if "tensorboard" in settings.training.log:
            writers.append(_tensorboard(stack, folder, run))
        if "wandb" in settings.training.log:
            writers.append(_wandb(stack, settings, folder, dataset, run))
        written, published = 0, -PUBLISH_EVERY

        def observe(history: Sequence[Row], seconds: float, left: float) -> None:
            nonlocal written, published
            line = progress_line(settings.training, history, seconds, left)
            logger().info("%s: %s", run, line)
            if monotonic() - published >= PUBLISH_EVERY:
                document = Document(f"{run} is being trained", line, [curves_section(history)])
                show(document.markdown())
                published = monotonic()
            by_step = defaultdict[int, dict[str, float]](dict)
            for row in history[written:]:
                by_step[row["step"]] |= {f"{row['split']}/{row['name']}": row["value"], "epoch": row["epoch"]}
            written = len(history)
            for step, values in by_step.items():
                for write in writers:
                    write(step, values)

        yield observe


def _package(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise RunError(f"training.log={extra} needs a package ({error}): pip install 'penumbra[{extra}]'") from None


def _tensorboard(stack: ExitStack, folder: Path, run: str) -> Write:
    """Return a function that writes event files; `purge_step` discards what an earlier process wrote."""
    summary_writer = _package("torch.utils.tensorboard", "tensorboard").SummaryWriter
    writer = stack.enter_context(summary_writer(str(folder / "tensorboard" / run), purge_step=0))
    logger().info("%s: tensorboard --logdir %s", run, folder.parent)

    def write(step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return write


def _wandb(stack: ExitStack, settings: Settings, folder: Path, dataset: str, run: str) -> Write:
    """Return a function that logs to a run whose id is the training's key; only settings and scalars are sent."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    wandb = _package("wandb", "wandb")
    off = ("disable_git", "disable_code", "disable_job_creation", "x_disable_meta", "x_disable_machine_info")
    private = {"console": "off", "silent": True, "x_disable_stats": True, "x_save_requirements": False}
    place = {"project": os.environ.get("WANDB_PROJECT", "penumbra"), "group": dataset, "name": run, "id": folder.name}
    place |= {"dir": str(folder), "resume": "allow"}
    chosen, config = wandb.Settings(**private, **dict.fromkeys(off, True)), settings.model_dump(mode="json")
    try:
        opened = stack.enter_context(wandb.init(**place, config=config, settings=chosen))
    except wandb.Error as error:
        remedy = "set WANDB_API_KEY, or WANDB_MODE=offline"
        raise RunError(f"training.log=wandb: no run could be started ({error}): {remedy}") from None

    def write(step: int, values: dict[str, float]) -> None:
        if step >= opened.starting_step:  # the service has the earlier steps
            opened.log(values, step=step)

    return write
