"""`penumbra export DATASET`: negatives in the forms that others read."""

import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penumbra.flows import completion
from penumbra.flows.commands.terminal import print_json_lines, warn, write_text

if TYPE_CHECKING:
    from penumbra.artifacts.store import Store


class Format(StrEnum):
    """File formats that `export` writes."""

    shine = "shine"
    jsonl = "jsonl"
    csv = "csv"
    parquet = "parquet"
    hf = "hf"
    review = "review"


def export(
    dataset: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.data_sets, metavar="DATASET", help="A data set whose negatives are built."
        ),
    ],
    format_: Annotated[
        Format,
        typer.Option(
            "--format",
            help="shine: the authors' keys; jsonl, csv, parquet: one row a negative; hf: a folder that "
            "`datasets.load_dataset` opens, with a card; review: a CSV sheet with two questions for people, which "
            "`penumbra quality --review` reads back.",
        ),
    ] = Format.shine,
    output: Annotated[
        Path | None,
        typer.Option(help="File to write, of hf the folder; default: standard output, but of parquet and hf."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Rows of the sheet for people.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the sheet's sample.")] = 0,
    licence: Annotated[
        str, typer.Option("--license", help="What hf's card says: an identifier of the Hub, as in cc-by-4.0.")
    ] = "unknown",
    push: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="Send hf's folder to this data set of the Hugging Face Hub, a private one where it is new, by the "
            "token HF_TOKEN.",
        ),
    ] = None,
) -> None:
    """Write the newest negatives in the format of SHINE's release, one negative a row, or as a sheet for people."""
    from penumbra.artifacts.store import Store
    from penumbra.tasks.negatives.export.rows import export_rows, review_sheet
    from penumbra.tasks.negatives.export.tables import COLUMNS, write_parquet
    from penumbra.tasks.negatives.quality.review import csv_lines

    if push and format_ is not Format.hf:
        raise typer.BadParameter("--push sends the folder of --format hf")
    if output is None and (format_ is Format.parquet or (format_ is Format.hf and not push)):
        raise typer.BadParameter(f"--format {format_} needs --output")
    store = Store()
    if format_ is Format.hf:
        _folder(store, dataset, output, licence, push)
        return
    if format_ is Format.review:
        write_text([review_sheet(store, dataset, count, seed)], output)
        return
    rows = export_rows(store, dataset, format_.value, warn)
    if format_ is Format.csv:
        write_text(csv_lines(COLUMNS, rows), output)
    elif output and format_ is Format.parquet:
        write_parquet(rows, output)
    else:
        print_json_lines(rows, output)


def _folder(store: "Store", dataset: str, output: Path | None, licence: str, push: str | None) -> None:
    """Write the folder, one of its own where none is named, and send it."""
    from penumbra.tasks.negatives.export.hub import push as push_folder
    from penumbra.tasks.negatives.export.hub import write_folder

    with tempfile.TemporaryDirectory(prefix="penumbra-") as scratch:
        folder = output or Path(scratch)
        files = write_folder(store, dataset, folder, push or folder.name, licence, warn)
        if push:
            sys.stdout.write(push_folder(folder, push, files) + "\n")
