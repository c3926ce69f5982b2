"""`penumbra fetch DATASET`: public annotation files."""

from typing import Annotated

import typer

from penumbra.flows.commands.terminal import console


def fetch(dataset: Annotated[str, typer.Argument(metavar="DATASET", help="charades-cg or activitynet-cg")]) -> None:
    """Download a data set's public annotation files into PENUMBRA_DATA, digests checked."""
    from penumbra.tasks.data.fetch import fetch as fetch_files

    for file in fetch_files(dataset):
        console.print(f"{file}", soft_wrap=True)
