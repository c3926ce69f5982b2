"""`penumbra init NAME --from FILE`: a data set of one's own table."""

from pathlib import Path
from typing import Annotated

import typer

from penumbra.flows.commands.check import show
from penumbra.flows.commands.terminal import console


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the data set: a new folder of PENUMBRA_DATA.")],
    file: Annotated[Path, typer.Option("--from", metavar="FILE", help="A .csv, .tsv, .jsonl or .parquet file.")],
    query: Annotated[str | None, typer.Option(help="Column of the sentences.")] = None,
    video: Annotated[str | None, typer.Option(help="Column of the videos' names.")] = None,
    start: Annotated[str | None, typer.Option(help="Column of windows' starts: seconds or mm:ss.")] = None,
    end: Annotated[str | None, typer.Option(help="Column of windows' ends.")] = None,
    windows: Annotated[str | None, typer.Option(help="Column of lists of windows, as [[2.0, 8.5]].")] = None,
    duration: Annotated[str | None, typer.Option(help="Column of the videos' lengths: seconds or mm:ss.")] = None,
    split: Annotated[str | None, typer.Option(help="Column with train, val or test.")] = None,
    qid: Annotated[str | None, typer.Option(help="Column of the queries' ids.")] = None,
    videos: Annotated[
        Path | None,
        typer.Option(help="Folder of video files, which tell a length that FILE lacks. Default: NAME/videos."),
    ] = None,
    test: Annotated[
        float | None,
        typer.Option(min=0, max=0.9, help="Share of the videos for tests, where FILE has no splits. Default: 0.2."),
    ] = None,
    novel: Annotated[
        bool, typer.Option("--novel", help="Make Novel-Composition and Novel-Word splits, too; FILE's are not taken.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the splits.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace the data set of this name.")] = False,
) -> None:
    """Make a data set of a table: columns are guessed by name and content, or given. Ends with `penumbra check`."""
    from penumbra.flows.own_dataset import make_dataset

    given = {
        "query": query,
        "video": video,
        "start": start,
        "end": end,
        "windows": windows,
        "duration": duration,
        "split": split,
        "qid": qid,
    }

    def tell(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False, highlight=False)

    show(make_dataset(name, file, given, videos, test, seed, novel, force, tell))
