"""`penumbra compare DATASET FIRST SECOND`: whether one run is better than another."""

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from penumbra.flows import completion
from penumbra.flows.commands.terminal import console


def compare(
    dataset: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.data_sets, metavar="DATASET", help="A data set with two evaluated runs."
        ),
    ],
    first: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.runs, metavar="FIRST", help="A run's key, its first digits, or its name."
        ),
    ],
    second: Annotated[
        str, typer.Argument(autocompletion=completion.runs, metavar="SECOND", help="The run that may be better.")
    ],
    seed: Annotated[int, typer.Option(help="Seed of the resampling.")] = 0,
) -> None:
    """Is the second run better than the first? A paired bootstrap over the videos of each split: second minus first."""
    from penumbra.tasks.grounding.evaluation.compare import compare as compare_runs

    table = Table("split", "metric", f"{escape(second)} − {escape(first)}", "95 % interval", "p")
    for split, metric, difference in compare_runs(dataset, first, second, seed):
        interval = f"{difference.low:+.2f} … {difference.high:+.2f}"
        table.add_row(split, metric, f"{difference.mean:+.2f}", interval, difference.p_text)
    console.print(table)
