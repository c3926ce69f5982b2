"""`penumbra ablation NAME DATASET`: a grid of trainings, as one table."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from penumbra.flows.commands.terminal import console, goes_on, parse_parameters, write_text


def ablation(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A grid of tasks/grounding/ablation_grids.yaml: losses, llms, "
            "ratios, margins, prepositions, systems …",
        ),
    ],
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="charades-cg, activitynet-cg, scenes or your own")],
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each row; several give intervals.")] = 3,
    row: Annotated[
        list[str] | None, typer.Option(help="Only this row, by its label; may be repeated. --dry-run lists them.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", help="NAME=VALUE for every row, as in training.epochs=10; may be repeated."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write the table as markdown, too.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the rows and what they change; train nothing.")
    ] = False,
) -> None:
    """Run a grid of trainings, a table of the papers, over a data set, and print the table.

    Each row builds its negatives and features, trains and is judged on every test split. What was done before is found,
    so that a grid that was ended goes on. A row that fails is told, the others go on, and the exit code is 1.
    """
    from penumbra.flows.local_run import prepare, run_flow
    from penumbra.tasks.grounding.ablation import GROUPS, TRAINING, RowsFailedError, listing, plan, table_text

    changes = {**parse_parameters(param or []), "name": name, "rows": row or [], "seeds": seeds}
    _, _, known = prepare("ablation", dataset, changes)
    groups = {**dict(known["negatives"] or {}), **dict(known["features"] or {}), **known}
    given = {group: groups.get(group) for group in (*GROUPS, *TRAINING)}
    grid, plans = plan(name, row or [], dataset, known["preset"], given)
    if dry_run:
        table = Table("row", "changes", "model", "negatives", title=grid.title, title_justify="left")
        for line in listing(plans):
            table.add_row(*map(escape, line))
        console.print(table)
        console.print(f"{len(plans)} rows × {seeds} seeds" + escape("".join(f", {said}" for said in param or [])))
        return
    failed = None
    try:
        with goes_on():
            artifact = run_flow("ablation", dataset, changes)
    except RowsFailedError as error:
        artifact, failed = error.artifact, error
    text = table_text(artifact)
    if output:
        write_text([text], output)
    sys.stdout.write(f"{text}\n{artifact.path}\n")
    if failed:
        raise failed
