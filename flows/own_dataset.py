"""`penumbra init`: from anyone's table to the files of a data set. No flow: only `--novel` loads the tagger."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from penumbra.artifacts.locations import data_folder
from penumbra.flows.parameters import OWN, write_own
from penumbra.tasks.data.dataset import SHIPPED, Dataset, DatasetError
from penumbra.tasks.data.queries import (
    Label,
    OwnQuery,
    check_free,
    complete_durations,
    queries_of,
    split_by_video,
    write_dataset,
)
from penumbra.tasks.data.tables import Columns, OwnTable, find_columns, read_table

TEST = 0.2  # of the videos


def make_dataset(
    name: str,
    file: Path,
    given: Mapping[str, str | None],
    videos: Path | None,
    test: float | None,
    seed: int,
    novel: bool,
    force: bool,
    tell: Callable[[str], None],
) -> Dataset:
    """Write the data set `name` of a table's rows.

    Args:
        name: of a folder below `PENUMBRA_DATA`
        file: CSV, TSV, JSON lines or Parquet
        given: the column of each role, where it is told and not to be guessed
        videos: folder of the files that tell a missing duration
        test: share of the videos for tests, where the table has no splits; None: a fifth
        seed: of the splits
        novel: make splits with novel compositions and words
        force: replace a data set of this name
        tell: is given a line about each thing that was decided

    Raises:
        DatasetError, DurationError: naming file, row and remedy

    """
    folder = _folder(name, force)
    table = read_table(file.expanduser())
    columns = find_columns(table, given)
    for line in _taken(table, columns):
        tell(line)
    queries = queries_of(table, columns)
    measured = complete_durations(queries, partial(_measured, table, videos or folder / "videos", videos is not None))
    if measured:
        tell(f"duration: of {measured:,} videos decoded from {videos or folder / 'videos'}")
    labels = _make_splits(queries, columns, test, seed, novel, tell)
    dataset = write_dataset(name, queries, labels, force)
    own = write_own(name)
    tell(f"parameters of its runs: {own}" if own else f"parameters of its runs: as {OWN} of its folder has them")
    return dataset


def _folder(name: str, force: bool) -> Path:
    try:
        folder = data_folder() / Dataset(name=name).name
    except ValueError as error:
        raise DatasetError(str(error).splitlines()[2].removeprefix("  Value error, ").partition(" [type=")[0]) from None
    if name == "scenes":
        raise DatasetError(f"scenes is the shipped sample, in {SHIPPED}: choose another name")
    check_free(folder, force)
    return folder


def _taken(table: OwnTable, columns: Columns) -> list[str]:
    how = {"given": "as given", "name": "by its name", "content": "by what is in it"}
    lines = [f"{role}: column {column!r}, {how[columns.by[role]]}" for role, column in columns.of.items()]
    left = [column for column in table.columns if column not in columns.of.values()]
    return [*lines, f"not taken: {', '.join(left)}"] if left else lines


def _measured(table: OwnTable, folder: Path, told: bool, vids: Sequence[str]) -> Mapping[str, float]:
    if not told and not folder.is_dir():
        raise DatasetError(
            f"{table.path} tells no duration of video {vids[0]!r}: name a column with --duration, or the folder of "
            "the video files with --videos"
        )
    from penumbra.tasks.features.decoders import durations_of_files

    return durations_of_files(folder, vids)


def _make_splits(
    queries: Sequence[OwnQuery],
    columns: Columns,
    test: float | None,
    seed: int,
    novel: bool,
    tell: Callable[[str], None],
) -> Sequence[Label] | None:
    if "split" in columns.of and not novel:
        if test is not None:
            raise DatasetError(
                f"--test makes splits, and column {columns.of['split']!r} has some: leave out --test, or take the "
                "column out of the file"
            )
        return None
    share = TEST if test is None else test
    if not novel:
        split_by_video(queries, share, seed)
        tell(f"split: {share:.0%} of the videos for tests, seed {seed}")
        return None
    from penumbra.tasks.text.compositions import novel_splits
    from penumbra.tasks.text.tags import SHIPPED_PIPELINE, load_pipeline, tag_texts

    texts = [query.query if isinstance(query.query, str) else "" for query in queries]
    parsed = list(tag_texts(texts, load_pipeline(SHIPPED_PIPELINE)))
    made = novel_splits([query.vid for query in queries], parsed, share, seed)
    for query, (split, _) in zip(queries, made, strict=True):
        query.split = split
    tell(f"split: {share:.0%} of the videos for tests, with novel compositions and novel words, seed {seed}")
    return [label for _, label in made]
