"""`penumbra export DATASET`: negatives in the forms that others read."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from penumbra.flows.commands.terminal import warn, write_lines, write_text


class Format(StrEnum):
    """File formats that `export` writes."""

    shine = "shine"
    jsonl = "jsonl"
    review = "review"


def export(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A data set whose negatives are built.")],
    format_: Annotated[
        Format,
        typer.Option(
            "--format",
            help="shine: the authors' keys; jsonl: one row a negative; review: a CSV sheet with two questions for "
            "people, which `penumbra quality --review` reads back.",
        ),
    ] = Format.shine,
    output: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Rows of the sheet for people.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the sheet's sample.")] = 0,
) -> None:
    """Write the newest negatives in the format of SHINE's release, one negative a row, or as a sheet for people."""
    from penumbra.artifacts.store import Store
    from penumbra.tasks.negatives.export import export_rows, review_sheet

    if format_ is Format.review:
        write_text([review_sheet(Store(), dataset, count, seed)], output)
    else:
        write_lines(export_rows(Store(), dataset, format_.value, warn), output)
