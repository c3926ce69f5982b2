"""`penumbra browse`, `review`, `export` and `quality`: show, review, export and measure negatives."""

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penumbra.artifacts.markdown import counted
from penumbra.flows.console import json_text, print_line, print_table, warn, write_text

if TYPE_CHECKING:
    from penumbra.artifacts.manifest import Artifact
    from penumbra.artifacts.store import Store

SHOWN = 10  # disagreements that are listed
NamedNegatives = Annotated[
    str,
    typer.Argument(
        metavar="DATASET", help="A data set: its newest negatives; or DATASET@PIN, or DATASET/negatives/KEY."
    ),
]


def named_negatives(store: "Store", name: str) -> tuple[str, "Artifact | None"]:
    """Return the data set of a name, and the negatives if the name has their key or pin."""
    dataset, mark, rest = name.partition("/" if "/" in name else "@")
    if not mark:
        return dataset, None
    artifact = store.resolve(name if mark == "/" else f"{dataset}/negatives@{rest}")
    if artifact.stage != "negatives":
        raise typer.BadParameter(f"{name} holds {artifact.stage}: name DATASET/negatives")
    return dataset, artifact


def browse(
    dataset: NamedNegatives,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Default: DATASET.html in this folder.")] = None,
    run: Annotated[
        list[str] | None, typer.Option(help="Show this evaluated run: key, first digits or name. May be repeated.")
    ] = None,
    provider: Annotated[
        list[str] | None,
        typer.Option(
            help="Show this provider's newest negatives, or its fills if it has none. May be repeated. Default: the "
            "newest negatives of any provider."
        ),
    ] = None,
) -> None:
    """Write one HTML file that shows a data set's queries and negatives; it needs no network and no server.

    It is searched, filtered and sorted in the browser. Videos play if PENUMBRA_DATA/DATASET/videos has them.
    """
    from penumbra.artifacts.store import Store
    from penumbra.tasks.browsing.page import gather, write_page

    store = Store()
    dataset, negatives = named_negatives(store, dataset)
    file = output or Path(f"{dataset}.html")
    data = gather(store, dataset, provider or [], run or [], file.absolute().parent, negatives)
    write_text([write_page(data)], file)
    sys.stdout.write(f"{file}\n")


def review(
    dataset: Annotated[str, typer.Argument(help="A data set whose negatives are built.")],
    from_: Annotated[
        list[Path],
        typer.Option("--from", metavar="FILE", help="A review that the page of `browse` saved. May be repeated."),
    ],
) -> None:
    """Store reviewers' verdicts on negatives, and make new negatives without the rejected and with the edited ones.

    Reviews are kept for good and apply to all later negatives of the data set, of any provider: a rejected sentence is
    never chosen again. If reviewers disagree, a rejection wins. No provider is asked again.
    """
    from penumbra.artifacts.store import Store
    from penumbra.tasks.negatives import reviewing
    from penumbra.tasks.negatives.reviews import VERDICTS, Verdicts, reviews_of
    from penumbra.tasks.stage import build

    store = Store()
    found = [reviewing.read_review(store, path, dataset) for path in from_]
    reviews = {one.digest: one for one in found}.values()  # the same file counts once
    with store.use(dataset):
        for one in reviews:
            reviewing.keep(store, one)
            for refused in one.refused:
                warn(f"{refused['value']}: {refused['reason']}")
        rows = []
        for one in reviews:
            counts = Counter(row["verdict"] for row in one.rows)
            rows.append((one.reviewer, *(str(counts[it]) for it in VERDICTS), str(len(one.refused))))
        print_table(("reviewer", "accepted", "rejected", "edited", "refused"), rows)
        disagreements = Verdicts.of(reviews_of(dataset)).disagreements
        if disagreements:
            several = counted(len(disagreements), "negative")
            print_line(f"Reviewers disagree on {several} (a rejection wins, then the last edit):")
        for qid, negative, verdicts in disagreements[:SHOWN]:
            print_line(f"  {qid} {negative!r}: {', '.join(f'{who} {what}s' for who, what in verdicts.items())}")
        for reviewed in dict.fromkeys(one.reviewed for one in reviews):
            made = build(reviewing.stage_of(store, reviewed))
            print_line(f"{reviewing.differences(store, reviewed, made)}; before: {reviewed.stage}/{reviewed.key}")
            sys.stdout.write(f"{made.path}\n")


def export(
    dataset: NamedNegatives,
    format_: Annotated[
        Literal["shine", "jsonl", "csv", "parquet", "hf"],
        typer.Option(
            "--format",
            help="shine: the authors' keys; jsonl, csv, parquet: one negative in each row; hf: a folder that "
            "`datasets.load_dataset` opens, with a card.",
        ),
    ] = "shine",
    output: Annotated[
        Path | None,
        typer.Option(help="Output file, for hf a folder; parquet and hf need it. Default: standard output."),
    ] = None,
) -> None:
    """Write the newest negatives in the format of SHINE's release, or with one negative in each row."""
    from penumbra.artifacts.store import Store
    from penumbra.tasks.negatives import export as files

    if output is None and format_ in ("parquet", "hf"):
        raise typer.BadParameter(f"--format {format_} needs --output")
    store = Store()
    dataset, named = named_negatives(store, dataset)
    negatives = named or store.newest(dataset, "negatives")
    if output and format_ == "hf":
        files.write_folder(store, negatives, output, warn)
        return
    rows = files.export_rows(store, negatives, format_, warn)
    if output and format_ == "parquet":
        files.write_parquet(rows, output)
    elif format_ == "csv":
        write_text(files.csv_lines(rows), output)
    else:
        write_text((json_text(row) + "\n" for row in rows), output)


def quality(
    negatives: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]…",
            help="Negatives of any origin: DATASET/negatives or DATASET/fills, with /KEY if need be, or a file or "
            "folder in SHINE's form or with one negative in each row: JSON lines, CSV, TSV or Parquet.",
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Data set of a file's annotations. Default: the data set with the first query.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(help="Queries for figures that need a parser or an encoder; 0: all. Default: 600.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The language model that judges: a name on the hub, a folder or a GGUF file.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="Also write the tables as markdown.")] = None,
    blind: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="ROWS",
            help="Write a sheet with this many negatives of all FILEs for people to judge without seeing the origins, "
            "and a key file in the same folder.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="With --blind: another seed draws other negatives.")] = 0,
    output: Annotated[Path, typer.Option(help="With --blind: the sheet.")] = Path("sheet.csv"),
    score: Annotated[Path | None, typer.Option(metavar="SHEET", help="Score a sheet that people filled in.")] = None,
) -> None:
    """Evaluate the quality of negatives: print a verdict, and figures by level and provider with intervals.

    With --blind and --score, people judge shuffled negatives of several origins without seeing the origins.
    """
    if bool(score) == bool(negatives):
        raise typer.BadParameter("name negatives: DATASET/negatives, or a file; or a filled sheet with --score")
    from penumbra.artifacts.store import Store
    from penumbra.tasks.negatives.quality.page import figure_tables, figures_by_name, write_page

    store, pages = Store(), list[str]()
    if score:
        from penumbra.tasks.negatives.quality.blind import score_sheet

        table, notes = score_sheet(score)
        print_table(*table)
        for note in notes:
            print_line(f"note: {note}")
    elif blind:
        from penumbra.tasks.negatives.quality.blind import write_sheet

        print_line(write_sheet(store, negatives or [], blind, seed, output))
    else:
        from penumbra.tasks.negatives.quality.report import evaluate

        for reference in negatives or []:
            report = evaluate(reference, dataset, {"sample": sample, "language_model": model})
            for title, table in figure_tables(figures_by_name(store.rows(report))):
                print_table(*table, title)
            for note in store.manifest(report).notes:
                print_line(f"note: {note}")
            sys.stdout.write(f"{report.path}\n")
            pages.append(write_page(store, report))
    if page and pages:
        page.write_text("\n\n".join(pages), encoding="utf-8")
