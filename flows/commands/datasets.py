"""`penumbra init`, `penumbra check` and `penumbra fetch`: your own data sets, and public data sets."""

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penumbra.artifacts.markdown import counted
from penumbra.flows.console import print_line, print_table

if TYPE_CHECKING:
    from penumbra.tasks.data.dataset import Dataset
    from penumbra.tasks.data.queries import Label, OwnQuery
    from penumbra.tasks.data.rows import Split

LISTED = 200  # characters of the merged rows' places
PARSED, LONGEST_QUERY = 1000, 80  # queries that are searched for verbs; characters shown of a query


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
        Path | None, typer.Option(help="Folder of video files, for lengths that FILE lacks. Default: NAME/videos.")
    ] = None,
    test: Annotated[float, typer.Option(min=0, max=0.9, help="Share of test videos, if FILE has no splits.")] = 0.2,
    novel: Annotated[
        bool, typer.Option("--novel", help="Make Novel-Composition and Novel-Word splits, too; ignore FILE's splits.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the splits.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace the data set of this name.")] = False,
) -> None:
    """Make a data set from a table, and check it. Columns are found by their usual names, or named by options."""
    from penumbra.artifacts.locations import data_folder
    from penumbra.artifacts.markdown import truncated
    from penumbra.flows.parameters import OWN_FILE
    from penumbra.tasks.data.dataset import SHIPPED, DatasetError
    from penumbra.tasks.data.queries import complete_durations, queries_of, split_by_video, write_dataset
    from penumbra.tasks.data.tables import SPLITS, find_columns, read_table

    dataset_named(name)
    if name == "scenes":
        raise DatasetError(f"scenes is the shipped data set, in {SHIPPED}: choose another name")
    folder = data_folder() / name
    table = read_table(file.expanduser())
    named = {"query": query, "video": video, "start": start, "end": end, "windows": windows, "duration": duration}
    named |= {"split": split, "qid": qid}
    columns = find_columns(table, named)
    for role, column in columns.items():
        print_line(f"{role}: column {column!r}, {'as given' if named.get(role) else 'by its name'}")
    unused = [column for column in table.columns if column not in columns.values()]
    if unused:
        print_line(f"unused columns: {', '.join(unused)}")
    queries = queries_of(table, columns)
    for change, count in Counter(change for query in queries for change in query.changes).items():
        print_line(f"query: {change}, rows: {count:,}")
    merged = [place for query in queries for place in query.merged]
    if merged:
        print_line(
            f"{counted(len(table.rows), 'row')} in, {len(queries):,} out, {len(merged):,} merged with earlier "
            f"rows of the same sentence and video: {truncated(', '.join(merged), LISTED)}"
        )

    def measure(vids: Sequence[str]) -> Mapping[str, float]:
        from penumbra.tasks.features.decoders import durations_of_files  # imports torch

        return durations_of_files(videos or folder / "videos", vids)

    if measured := complete_durations(queries, measure):
        print_line(f"duration: of {counted(measured, 'video')} decoded from {videos or folder / 'videos'}")
    labels = None
    if novel:
        labels = split_by_novelty(queries, test, seed)
        print_line(f"split: {test:.0%} of the videos for tests, with novel compositions and novel words, seed {seed}")
    elif "split" not in columns:
        split_by_video(queries, test, seed)
        print_line(f"split: {test:.0%} of the videos for tests, seed {seed}")
    elif strays := [place for query in queries if not query.split for place in (query.place, *query.merged)]:
        queries = [query for query in queries if query.split]
        print_line(
            f"split: {counted(len(strays), 'row')} left out, where column {columns['split']!r} is not "
            f"{', '.join(dict.fromkeys(SPLITS.values()))}: {truncated(', '.join(strays), LISTED)}"
        )
    dataset = write_dataset(name, queries, labels, force)
    own_file = folder / OWN_FILE
    if not own_file.exists():
        own_file.write_text(own_file_text(name, folder, videos), encoding="utf-8")
    print_line(f"parameters of its runs: {own_file}")
    print_check(dataset)


def own_file_text(name: str, folder: Path, videos: Path | None) -> str:
    """Return the text of a data set's own parameter file: comments, and the videos' folder if it is not the default."""
    from penumbra.artifacts.locations import PROJECT

    text = (PROJECT / "flows" / "own_parameters.yaml").read_text(encoding="utf-8").replace("NAME", name)
    if videos:
        text = text.replace("# videos.folder:", "videos.folder:")
    return text.replace("VIDEOS", json.dumps(str((videos or folder / "videos").absolute())))


def split_by_novelty(queries: "Sequence[OwnQuery]", test: float, seed: int) -> "list[Label]":
    """Give each query a split; return the labels of the novel splits."""
    from penumbra.tasks.data.rows import is_text
    from penumbra.tasks.text.compositions import novel_splits
    from penumbra.tasks.text.tags import SHIPPED_PIPELINE, load_pipeline, tag_texts

    texts = [query.query if is_text(query.query) else "" for query in queries]
    parsed = list(tag_texts(texts, load_pipeline(SHIPPED_PIPELINE)))
    splits = novel_splits([query.vid for query in queries], parsed, test, seed)
    for query, (split, _) in zip(queries, splits, strict=True):
        query.split = split
    return [label for _, label in splits]


def dataset_named(name: str) -> "Dataset":
    """Return the data set of this name; raise `DatasetError` if the name is invalid."""
    from pydantic import ValidationError

    from penumbra.tasks.data.dataset import Dataset, DatasetError

    try:
        return Dataset(name=name)
    except ValidationError as error:
        raise DatasetError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def check(dataset: Annotated[str, typer.Argument(help="A folder of PENUMBRA_DATA.")]) -> None:
    """Check a data set: print rows, videos and lengths by split, and the rows that would be rejected, with reasons.

    Exit 1 if no training query can be used.
    """
    print_check(dataset_named(dataset))


def print_check(dataset: "Dataset") -> None:
    from penumbra.tasks.data.rows import HEADER
    from penumbra.tasks.data.rows import check as check_dataset

    checked = check_dataset(dataset)
    title = f"{dataset.location()} (lengths and words: minimum – median – maximum)"
    print_table(HEADER, (split.figures() for split in checked.splits), title)
    if checked.rejected:
        rows = ((reason, f"{count:,}", example) for reason, (count, example) in checked.rejected.items())
        print_table(("rejected", "rows", "the first"), rows)
    for note in (*(f"{change}: {counted(count, 'row')}" for change, count in checked.changed.items()), *checked.notes):
        print_line(f"note: {note}")
    _print_queries_without_verb(checked.splits)
    if not any(split.usable for split in checked.splits if split.name == "train"):
        print_line("No training query can be used: correct the rows as the table of rejected rows says.")
        raise typer.Exit(1)


def _print_queries_without_verb(splits: "Sequence[Split]") -> None:
    """Print in how many queries the shipped tagger finds no verb, and the first ones; read a sample of many queries."""
    from penumbra.artifacts.locations import PROJECT
    from penumbra.artifacts.markdown import truncated

    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # spaCy would spend a second on its import
    import spacy

    if sys.modules["torch"] is None:
        del sys.modules["torch"]
    queries = [query for split in splits for query in split.queries.values()]
    sample = queries[:: max(1, -(-len(queries) // PARSED))]
    nlp = spacy.load(PROJECT / "models" / "tagger", exclude=["tagger", "parser", "lemmatizer"])
    docs = nlp.pipe(query for _, query in sample)
    found = [row for row, doc in zip(sample, docs, strict=True) if not {"VERB", "AUX"} & {word.pos_ for word in doc}]
    if found:
        of = f"{len(queries):,} different queries" + f", of which {len(sample):,} were read" * (sample != queries)
        first = "; ".join(f"{place}: {truncated(query, LONGEST_QUERY)!r}" for place, query in found[:3])
        more = f"; and {len(found) - 3:,} more" if len(found) > 3 else ""
        print_line(f"note: no verb is found, and none replaced, in {len(found):,} of {of}: {first}{more}")


def fetch(dataset: Annotated[str, typer.Argument(metavar="DATASET", help="charades-cg or activitynet-cg")]) -> None:
    """Download a data set's public annotation files into PENUMBRA_DATA, and verify their digests."""
    from penumbra.tasks.data.fetch import fetch as fetch_files

    for file in fetch_files(dataset):
        print_line(str(file))
