"""`penumbra check DATASET`: what a data set holds, and what of it would be rejected, in a second."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from penumbra.flows import completion
from penumbra.flows.commands.terminal import console

if TYPE_CHECKING:
    from penumbra.tasks.data.dataset import Dataset


def check(
    dataset: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.data_sets, metavar="DATASET", help="A data set's name: a folder of PENUMBRA_DATA."
        ),
    ],
) -> None:
    """Is this a data set? Rows, videos and lengths by split, and what would be rejected, and why.

    Exit 1 where no training query could be used.
    """
    from penumbra.tasks.data.dataset import Dataset

    show(Dataset(name=dataset))


def show(dataset: "Dataset") -> None:
    """Print what was found."""
    from penumbra.tasks.data.annotations import HEADER
    from penumbra.tasks.data.annotations import check as check_dataset

    checked = check_dataset(dataset)
    table = Table(*HEADER, title=f"{escape(str(dataset.location()))}", title_justify="left")
    for split in checked.splits:
        table.add_row(*map(escape, split.figures()))
    console.print(table)
    if checked.rejected:
        table = Table("rejected", "rows", "the first")
        for reason, (count, example) in checked.rejected.items():
            table.add_row(escape(reason), f"{count:,}", escape(example))
        console.print(table)
    for change, count in checked.changed.items():
        console.print(f"note: {escape(change)}: {count:,} rows", soft_wrap=True)
    for note in checked.notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)
    if not any(split.usable for split in checked.splits if split.name == "train"):
        console.print("No training query can be used: mend what the table of rejected rows tells.")
        raise typer.Exit(1)
