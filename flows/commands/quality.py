"""`penumbra quality FILE`: the quality report of anyone's negatives."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from penumbra.flows.commands.terminal import console


def quality(
    negatives: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Negatives of any origin: DATASET/negatives or DATASET/fills, with /KEY if need be, a folder or file "
            "of Parquet, or JSON lines in SHINE's form or one negative a row.",
        ),
    ],
    dataset: Annotated[
        str | None,
        typer.Option(help="Data set whose annotations judge a file; default: the one that has its first query."),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(help="Queries for what needs a parser or an encoder; 0: all. Default: 600.")
    ] = None,
    classifier: Annotated[
        list[str] | None, typer.Option(help="Blind classifier: words, characters, sentences or gru; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of samples, random fills and intervals.")] = 0,
    human: Annotated[
        Path | None, typer.Option(help="More human text that the fillers did not draw from, one sentence a line.")
    ] = None,
    review: Annotated[Path | None, typer.Option(help="A filled-in sheet of `export --format review`.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write tables and charts as markdown, too.")] = None,
) -> None:
    """Judge negatives, anyone's: every figure a level and a provider, with intervals and two controls."""
    from penumbra.tasks.negatives.quality.command import judge_reference

    settings = {"sample": sample, "classifiers": classifier or None, "sampling_seed": seed}
    judged = judge_reference(negatives, dataset, settings, human, review)
    if page:
        page.write_text(judged.page, encoding="utf-8")
    for title, (header, *rows) in judged.tables:
        table = Table(*header, title=title, title_justify="left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for note in judged.notes:
        console.print(f"note: {note}", soft_wrap=True)
    sys.stdout.write(f"{judged.artifact.path}\n")
