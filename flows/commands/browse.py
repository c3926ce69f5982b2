"""`penumbra browse DATASET`: queries, negatives and predictions as one page to look at."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from penumbra.flows import completion
from penumbra.flows.commands.terminal import write_text


def browse(
    dataset: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.data_sets, metavar="DATASET", help="A data set whose negatives are built."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write. Default: DATASET.html in this folder.")
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(
            autocompletion=completion.runs,
            help="Show what this evaluated run predicts; its key, first digits or name. May be repeated.",
        ),
    ] = None,
    provider: Annotated[
        list[str] | None,
        typer.Option(
            help="Show this provider's newest negatives, or its fills where it has none to itself. May be repeated: "
            "side by side. Default: the newest negatives."
        ),
    ] = None,
) -> None:
    """Write one HTML file that shows a data set's queries and negatives; it needs no network and no server.

    It is searched, filtered and sorted in the browser. Videos play where PENUMBRA_DATA/DATASET/videos has them.
    """
    from penumbra.artifacts.store import Store
    from penumbra.tasks.browsing.gather import gather
    from penumbra.tasks.browsing.page import write_page

    file = output or Path(f"{dataset}.html")
    data = gather(Store(), dataset, provider or [], run or [], file.absolute().parent)
    write_text([write_page(data)], file)
    sys.stdout.write(f"{file}\n")
