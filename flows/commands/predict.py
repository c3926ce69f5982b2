"""`penumbra predict VIDEO QUERY… --run RUN`: moments in a video of one's own."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from penumbra.flows import completion
from penumbra.flows.commands.terminal import console


def predict(
    video: Annotated[Path, typer.Argument(metavar="VIDEO", help="Any video file that FFmpeg reads.")],
    query: Annotated[list[str], typer.Argument(metavar="QUERY…", help="What to look for, a sentence each.")],
    run: Annotated[
        str,
        typer.Option(
            autocompletion=completion.runs, help="Key of a trained run's metrics, its first digits, or the run's name."
        ),
    ],
    dataset: Annotated[
        str | None,
        typer.Option(autocompletion=completion.data_sets, help="Data set that the run was trained on, if need be."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Draw frames, saliency and windows into this .svg file.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="All windows and the saliency of every clip as JSON.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Windows a query in the table.")] = 5,
) -> None:
    """Find the moments of a video that sentences describe, with a trained run."""
    from penumbra.tasks.grounding.prediction import command

    watched, found = command.predict(video, query, run, dataset, output)
    for note in watched.notes:
        sys.stderr.write(f"note: {note}\n")
    if as_json:
        sys.stdout.write(command.as_json(found) + "\n")
        return
    table = Table("query", "start, s", "end, s", "score")
    for row in command.as_rows(found, top):
        table.add_row(*map(escape, row))
    console.print(table)
