"""`penumbra runs ls | show | rm`."""

import json
import sys
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from penumbra.flows import completion
from penumbra.flows.commands.artifacts import figures_table, lineage
from penumbra.flows.commands.terminal import console, tell_taken

runs = typer.Typer(help="Trainings with their figures, what is known of one, and taking it away.", no_args_is_help=True)
RunName = Annotated[
    str,
    typer.Argument(autocompletion=completion.runs, metavar="RUN", help="Its name, its key, or the key's first digits."),
]
OfDataset = Annotated[
    str | None, typer.Option("--dataset", autocompletion=completion.data_sets, help="Only this data set's.")
]
AsJson = Annotated[bool, typer.Option("--json", help="All that is known, as JSON.")]


@runs.command("ls")
def list_runs(
    dataset: OfDataset = None,
    model: Annotated[
        str | None, typer.Option(help="Only this model's, as in qd_detr+shine; qd_detr is with and without SHINE.")
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            help="run, dataset, model, negatives, finished, seconds, size, or a figure, the best first: R1@0.5, or of "
            "a split, as in 'test mIoU'. Default: finished."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """All trainings, oldest first, with the figures of their newest evaluation, in percent."""
    from penumbra.tasks.grounding.runs import SHOWN, listed

    found = listed(dataset, model, sort)
    if as_json:
        sys.stdout.write(json.dumps([run.described() for run in found], ensure_ascii=False, indent=1) + "\n")
        return
    table = Table("run", "data set", "model", "negatives", "finished (UTC)", "split", *SHOWN, "MB")
    for run in found:
        when = f"{run.finished:%Y-%m-%d %H:%M}" if run.finished else f"not: epoch {run.epoch} of {run.epochs or '?'}"
        figures = ("\n".join(column) for column in zip(*run.lines(), strict=True))
        table.add_row(
            *map(escape, (run.run, run.dataset, run.model, run.negatives or "–", when, *figures)),
            f"{run.size / 1e6:,.1f}",
        )
    console.print(table if found else "No training yet: penumbra run full-pipeline scenes")


@runs.command()
def show(name: RunName, dataset: OfDataset = None, as_json: AsJson = False) -> None:
    """Settings that differ from the defaults, what it was made from, figures by split, and its files."""
    from penumbra.artifacts.store import Store
    from penumbra.tasks.grounding.runs import found_run
    from penumbra.tasks.grounding.training.presets import non_default_settings

    run, store = found_run(name, dataset), Store()
    settings, files = non_default_settings(run.settings), run.files()
    manifest = store.manifest(run.metrics) if run.finished else None
    if as_json:
        parents = [parent.path for parent in manifest.parents] if manifest else []
        told = run.described() | {"settings": settings, "parents": parents, "files": files}
        sys.stdout.write(json.dumps(told, ensure_ascii=False, indent=1) + "\n")
        return
    console.print(f"[bold]{escape(run.run)}[/] on {escape(run.dataset)}  {escape(str(run.folder))}", soft_wrap=True)
    for setting, value in settings.items():
        console.print(f"  {setting} = {json.dumps(value, ensure_ascii=False)}", soft_wrap=True, markup=False)
    if manifest:
        console.print(lineage(store, run.metrics, manifest))
    else:
        console.print(f"not finished: epoch {run.epoch} of {run.epochs or '?'}; its flow goes on from there")
    if run.damaged:
        console.print("damaged: penumbra artifacts verify tells what")
    elif run.evaluation:
        console.print(figures_table(store.table(run.evaluation).to_pylist()))
    for file, size in (files | {"in all": run.size}).items():
        console.print(f"{decimal(size):>10}  {escape(file)}", soft_wrap=True, highlight=False)


@runs.command()
def rm(
    names: Annotated[
        list[str],
        typer.Argument(autocompletion=completion.runs, metavar="RUN…", help="Names, keys, or keys' first digits."),
    ],
    dataset: OfDataset = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be taken away, and how large it is.")
    ] = False,
) -> None:
    """Take trainings away: checkpoints, metrics, predictions and evaluations.

    One that is being trained stays, and so does one that something else was made from, as an ablation's table.
    """
    from penumbra.tasks.grounding.runs import found_run, remove

    for run in [found_run(name, dataset) for name in names]:
        remove(run, dry_run)
        tell_taken(f"{run.run} on {run.dataset}", run.size, dry_run)
