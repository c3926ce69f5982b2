"""`penumbra runs ls | show | rm`, `penumbra compare` and `penumbra predict`: trained runs."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from penumbra.artifacts.errors import PenumbraError
from penumbra.flows.commands.artifacts import DryRun, lineage, print_figures, print_removed
from penumbra.flows.console import console, print_line, print_table, warn

runs = typer.Typer(help="List trainings with their figures; show and remove trainings.", no_args_is_help=True)
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Its name, its key, or the key's first digits.")]
OfDataset = Annotated[str | None, typer.Option("--dataset", help="Only this data set's.")]


@runs.command("ls")
def list_runs(dataset: Annotated[str | None, typer.Argument(help="Only the runs on this data set.")] = None) -> None:
    """List all trainings, oldest first, with the figures of their newest evaluation, in percent."""
    from penumbra.artifacts.catalogue import example_dataset
    from penumbra.artifacts.store import Store
    from penumbra.tasks.grounding.runs import BELOW, METRICS, SHOWN, WITH_REJECTION, all_runs

    trained = list(all_runs(dataset))
    if dataset and not trained:
        raise Store().missing(dataset, METRICS)
    if not trained:
        print_line(f"No training yet: penumbra run full-pipeline {example_dataset()}")
        return
    rows, pins = [], Store().pins(dataset, METRICS)
    for run in trained:
        names = " ".join([run.run, *(f"@{pin.name}" for pin in pins if pin.artifact == run.metrics)])
        when = f"{run.finished:%F %H:%M}" if run.finished else f"not: epoch {run.epoch} of {run.epochs or '?'}"
        splits, lines = run.figures or {"damaged" if run.damaged else "–": {}}, []
        for split, row in splits.items():
            marked = f"{split} {BELOW}" if split in run.below else split
            lines.append((marked, *(f"{row[name]:.2f}" if name in row else "–" for name in SHOWN)))
        figures = ("\n".join(column) for column in zip(*lines, strict=True))
        what = names, run.metrics.dataset, run.model, run.negatives or "–", when
        rows.append((*what, *figures, f"{run.size / 1e6:,.1f}"))
    print_table(("run", "data set", "model", "negatives", "finished (UTC)", "split", *SHOWN, "MB"), rows)
    if any(run.below for run in trained):
        print_line(f"{BELOW}: mIoU no higher than the mIoU of the best constant window")
    if any(WITH_REJECTION in row for run in trained for row in run.figures.values()):
        print_line(f"{WITH_REJECTION}: half of the sentences are false; a run that rejects all sentences has 50")


@runs.command()
def show(name: RunName, dataset: OfDataset = None) -> None:
    """Show a training: settings that differ from the defaults, ancestors, figures by split, and files."""
    from penumbra.artifacts.store import Store
    from penumbra.tasks.grounding.runs import found_run
    from penumbra.tasks.grounding.training.presets import non_default_settings

    run, store = found_run(name, dataset), Store()
    print_line(f"{run.run} on {run.metrics.dataset}  {run.folder}")
    for setting, value in non_default_settings(run.settings).items():
        print_line(f"  {setting} = {json.dumps(value, ensure_ascii=False)}")
    if run.finished:
        console.print(lineage(store, run.metrics))
    else:
        print_line(f"not finished: epoch {run.epoch} of {run.epochs or '?'}; its flow resumes there")
    if run.damaged:
        print_line("damaged: penumbra artifacts verify names the file")
    elif run.evaluation:
        print_figures(store.table(run.evaluation).to_pylist())
    for file, size in (run.files() | {"in all": run.size}).items():
        print_line(f"{decimal(size):>10}  {file}")


@runs.command()
def rm(
    names: Annotated[list[str], typer.Argument(metavar="RUN…", help="Names, keys, or keys' first digits.")],
    dataset: OfDataset = None,
    dry_run: DryRun = False,
) -> None:
    """Remove trainings: checkpoints, metrics, predictions and evaluations.

    A training is kept while it runs, or if another artifact was made from it, such as an ablation's table.
    """
    from penumbra.tasks.grounding.runs import found_run, remove

    for run in [found_run(name, dataset) for name in names]:
        size = run.size
        remove(run, dry_run)
        print_removed(f"{run.run} on {run.metrics.dataset}", size, dry_run)


def compare(
    dataset: Annotated[str, typer.Argument(help="The data set of both runs.")],
    first: Annotated[str | None, typer.Argument(help="A run. Default: the newest run but one.")] = None,
    second: Annotated[str | None, typer.Argument(help="Another run. Default: the newest run.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the resampling.")] = 0,
) -> None:
    """Compare two runs (second minus first) by a paired bootstrap over the videos of each split."""
    from penumbra.tasks.grounding.evaluation import figures
    from penumbra.tasks.grounding.runs import below_in_words, found_run
    from penumbra.tasks.grounding.training.stage import newest_runs

    older, newest = (first, second) if first and second else newest_runs(dataset, 2)
    first, second = first or older, second or newest
    differences = figures.compare(dataset, first, second, seed)
    rows = ((split, metric, *difference.cells()) for split, metric, difference in differences)
    print_table(("split", "metric", f"{second} − {first}", "95 % interval", "p"), rows)
    few = figures.too_few({split: difference.videos for split, _, difference in differences})
    below = (below_in_words(run.run, run.below) for run in (found_run(first, dataset), found_run(second, dataset)))
    for note in filter(None, (few, *below)):
        print_line(f"note: {note}")


def predict(
    video: Annotated[Path, typer.Argument(metavar="VIDEO", help="Any video file that FFmpeg reads.")],
    query: Annotated[list[str], typer.Argument(metavar="QUERY…", help="Sentences that describe moments.")],
    run: Annotated[
        str | None, typer.Option(help="Name of a trained run, its key, or the key's first digits. Default: the newest.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Instead of a run: a published checkpoint such as qd_detr-qvhighlights, a file, or OWNER/NAME of the "
            "hub. It is downloaded once."
        ),
    ] = None,
    dataset: OfDataset = None,
    output: Annotated[Path | None, typer.Option(help="Draw frames, saliency and windows into this .svg file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All windows and the saliency of all clips as JSON.")] = False,
    top: Annotated[int, typer.Option(min=1, help="Windows per query in the table.")] = 5,
    windows: Annotated[bool, typer.Option("--windows", help="Also show windows of queries not in the video.")] = False,
) -> None:
    """Find the moments of a video that sentences describe, or report that a moment is not in the video."""
    if not video.exists():  # checked before the import of the models' packages, which takes seconds
        raise PenumbraError(f"{video}: no file")
    from penumbra.tasks.grounding import prediction
    from penumbra.tasks.grounding.prediction import Grounder
    from penumbra.tasks.grounding.training.stage import newest_runs

    if model is not None and (run or dataset):
        raise typer.BadParameter("--model selects a published checkpoint: leave out --run and --dataset")
    if model is None and run is None:
        [run] = newest_runs(dataset, 1)
        warn(f"run: {run}, the newest")

    def grounder() -> Grounder:
        return Grounder.pretrained(model) if model else Grounder.of_run(str(run), dataset)

    watched, predictions = prediction.predict(video, query, grounder, output)
    for note in watched.notes:
        warn(f"note: {note}")
    if as_json:
        sys.stdout.write(json.dumps([asdict(one) for one in predictions], ensure_ascii=False) + "\n")
        return
    rows = list(prediction.as_rows(predictions, top, windows))
    print_table(("query", "start, s", "end, s", "score"), rows)
    if not windows and any(one.absence for one in predictions):
        print_line("--windows also shows the windows of queries that are not in the video")
    if any(row[-1].endswith(prediction.CLOSE) for row in rows):
        print_line(f"{prediction.CLOSE}: the score is so close to the best one that this window may be better")
