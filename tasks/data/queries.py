"""Anyone's own queries on their way into a data set: read from a table, given durations and splits, and written.

What can't be read in a single row is written as it stands: reading the data set rejects it with its reason.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.artifacts.locations import data_folder
from penumbra.tasks.data.dataset import CG_FILES, Dataset, DatasetError, start_of
from penumbra.tasks.data.tables import SPLITS, Columns, OwnTable, seconds, split_in, windows_in

if TYPE_CHECKING:
    import pandas as pd

SALIENCY = ("relevant_clip_ids", "saliency_scores")  # QVHighlights' own, taken along as they are
WRITTEN = {*CG_FILES.values(), "train.jsonl", "val.jsonl", "test.jsonl"}
Label = Mapping[str, Sequence[Any]]  # what is novel in a query, as the Compositional-Temporal-Grounding files have it


@dataclass
class OwnQuery:
    """A query as its table has it; times in seconds where they can be read. `place` is its row, for messages."""

    qid: str
    query: Any
    vid: str
    duration: Any
    windows: Any
    split: str | None
    place: str
    more: dict[str, Any] = field(default_factory=dict)

    def line(self) -> dict[str, Any]:
        """A line of the Moment-DETR family's files."""
        row = {"qid": self.qid, "query": self.query, "vid": self.vid, "duration": self.duration}
        return row | {"relevant_windows": self.windows} | self.more


def queries_of(table: OwnTable, columns: Columns) -> list[OwnQuery]:
    """The table's queries; rows of one query in one video are its windows. Raises `DatasetError` on an unknown split.

    With a column of ids rows are of one query where the id is the same, too.
    """
    queries: dict[tuple[str | None, ...], OwnQuery] = {}
    names = _video_names(table, columns)
    for number, (row, place) in enumerate(zip(table.rows, table.places, strict=True)):
        split = _split(columns.cell(row, "split"), place, columns) if "split" in columns.of else None
        qid, vid = columns.cell(row, "qid"), columns.cell(row, "video")
        query = OwnQuery(
            qid=str(number if "qid" not in columns.of else "" if qid is None else qid),
            query=columns.cell(row, "query") or "",
            vid="" if vid is None else names.get(str(vid), str(vid)),
            duration=_read(seconds, columns.cell(row, "duration")),
            windows=_windows(row, columns),
            split=split,
            place=place,
            more={name: row[name] for name in SALIENCY if isinstance(row.get(name), list)},
        )
        key = (str(qid), query.vid, str(query.query), split)
        earlier = queries.setdefault(key, query)
        if earlier is not query and isinstance(earlier.windows, list) and isinstance(query.windows, list):
            earlier.windows += [window for window in query.windows if window not in earlier.windows]
    return list(queries.values())


def _read(reader: Callable[[Any], Any], cell: Any) -> Any:
    """What a cell says, or itself where that can't be read."""
    read = reader(cell)
    return cell if read is None else read


def _windows(row: Mapping[str, Any], columns: Columns) -> Any:
    if "windows" in columns.of:
        cell = columns.cell(row, "windows")
        return [] if cell is None else _read(windows_in, cell)
    edges = [columns.cell(row, "start"), columns.cell(row, "end")]
    return [] if edges == [None, None] else [[_read(seconds, edge) for edge in edges]]


def _split(cell: Any, place: str, columns: Columns) -> str:
    split = split_in(cell)
    if split is None:
        raise DatasetError(
            f"{place}: column {columns.of['split']!r} has {start_of(str(cell or ''))!r}, which is no split: "
            f"write {', '.join(dict.fromkeys(SPLITS.values()))}"
        )
    return split


def _video_names(table: OwnTable, columns: Columns) -> dict[str, str]:
    """The name alone of a video that is told by its path, as `videos/a.mp4`, where two don't become one."""
    vids = {str(vid) for vid in table.cells(columns.of["video"])}
    names = {vid: vid.replace("\\", "/").rsplit("/", 1)[-1] for vid in vids}
    return names if len(set(names.values())) == len(vids) else {}


def complete_durations(queries: Sequence[OwnQuery], measure: Callable[[Sequence[str]], Mapping[str, float]]) -> int:
    """Give each query its video's duration: another row's, or what `measure` says; return how many were measured."""
    known = {query.vid: query.duration for query in queries if query.duration is not None}
    unknown = sorted({query.vid for query in queries} - known.keys())
    known |= measure(unknown) if unknown else {}
    for query in queries:
        query.duration = known[query.vid] if query.duration is None else query.duration
    return len(unknown)


def in_order(vids: Iterable[str], seed: int) -> list[str]:
    """The videos in an order that the seed and the digests of their ids tell, whatever else the data set holds."""
    return sorted(set(vids), key=lambda vid: hashlib.sha256(f"{seed} {vid}".encode("utf-8", "replace")).digest())


def split_by_video(queries: Sequence[OwnQuery], test: float, seed: int) -> None:
    """Make this share of the videos the test split, and the others the training split."""
    vids = in_order((query.vid for query in queries), seed)
    held = set(vids[: share_of(len(vids), test)])
    for query in queries:
        query.split = "test" if query.vid in held else TRAINING


def share_of(videos: int, test: float) -> int:
    """So many videos are for tests; raises `DatasetError` where none would be left, or one can't be both."""
    if videos < 2 and test > 0:
        raise DatasetError("one video can't be both for training and for a test: leave --test at 0, or add videos")
    return min(videos - 1, max(1, round(test * videos))) if test > 0 else 0


def write_dataset(name: str, queries: Sequence[OwnQuery], labels: Sequence[Label] | None, force: bool) -> Dataset:
    """Write a data set's folder below `PENUMBRA_DATA`: JSON lines, or with labels of what is novel the CG files.

    Raises `DatasetError` where there is one of this name (unless `force`), or no query is for training.
    """
    dataset = Dataset(name=name)
    folder = data_folder() / dataset.name
    check_free(folder, force)
    splits: dict[str, list[OwnQuery]] = {}
    for query in queries:
        splits.setdefault(str(query.split), []).append(query)
    if TRAINING not in splits:
        raise DatasetError(f"no query is of split {TRAINING!r}: negatives are built for training queries")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".penumbra-", dir=folder) as draft:
        if labels is None:
            write_splits({split: [query.line() for query in own] for split, own in splits.items()}, Path(draft))
        else:
            _write_compositional(splits, {id(q): label for q, label in zip(queries, labels, strict=True)}, Path(draft))
        for old in WRITTEN:
            (folder / old).unlink(missing_ok=True)
        for file in sorted(Path(draft).iterdir()):
            os.replace(file, folder / file.name)
    return dataset


def check_free(folder: Path, force: bool) -> None:
    """Raise `DatasetError` where a folder holds annotation files that may not be replaced."""
    there = sorted(path.name for path in folder.glob("*.json*"))
    if there and not force:
        raise DatasetError(f"{folder} holds {there[0]} already: choose another name, or replace it with --force")
    others = sorted(set(there) - WRITTEN)
    if others:
        raise DatasetError(f"{folder} holds {others[0]}, which was not written by `penumbra init`: take it away first")


def _write_compositional(splits: Mapping[str, Sequence[OwnQuery]], labels: Mapping[int, Label], folder: Path) -> None:
    keys = {"composition": "novels", "word": "news"}
    for split, queries in splits.items():
        videos: dict[str, dict[str, Any]] = {}
        for query in queries:
            video = videos.setdefault(query.vid, {"sentences": [], "timestamps": [], "duration": query.duration})
            for window in query.windows if isinstance(query.windows, list) else [query.windows]:
                video["sentences"].append(query.query)
                video["timestamps"].append(window)
                if split in keys:
                    video.setdefault(keys[split], []).append(labels[id(query)])
        (folder / CG_FILES[split]).write_text(json.dumps(videos, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


TRAINING = "train"
SECONDS = 1.0  # of a video whose length nobody told: no negative depends on it
WINDOWS = ("windows", "relevant_windows")


def write_queries(queries: "Sequence[str] | pd.DataFrame", folder: Path) -> dict[str, str]:
    """Write a file a split into the folder; return their names by split, as `Dataset.files` takes them.

    Sentences are training queries, each of a video of its own. A data frame has a column `query`; `qid`, `vid`,
    `split`, `duration` and `windows` are taken where they are there, other columns are not.

    Raises `DatasetError` where there is no query, no training query or no column `query`.
    """
    splits: dict[str, list[dict[str, Any]]] = {}
    for number, row in enumerate(_rows(queries)):
        splits.setdefault(str(row.get("split") or TRAINING), []).append(_json_row(number, row))
    if TRAINING not in splits:
        raise DatasetError(f"there is no query of split {TRAINING!r}: negatives are built for training queries")
    return write_splits(splits, folder)


def write_splits(splits: Mapping[str, Iterable[Mapping[str, Any]]], folder: Path) -> dict[str, str]:
    """Write a file of JSON lines a split into the folder; return their names by split."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    return {split: f"{split}.jsonl" for split in splits}


def _rows(queries: "Sequence[str] | pd.DataFrame") -> Sequence[Mapping[str, Any]]:
    if isinstance(queries, str):
        raise DatasetError("give a list of sentences, not one text: ['a person opens the door.', …]")
    import pandas as pd

    if not isinstance(queries, pd.DataFrame):
        return [{"query": query} for query in queries]
    if "query" not in queries.columns:
        raise DatasetError(f"no column 'query' in the data frame; there is: {', '.join(map(str, queries.columns))}")
    known = queries.astype(object).where(queries.notna(), None)  # NaN is pandas' None
    rows: list[dict[str, Any]] = [{str(name): row[name] for name in known.columns} for _, row in known.iterrows()]
    return rows


def _json_row(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the Moment-DETR family's files."""
    qid = _told(row.get("qid"), str(number))
    windows = next((row[name] for name in WINDOWS if row.get(name) is not None), ())
    return {
        "qid": str(qid),
        "query": row["query"],
        "vid": str(_told(row.get("vid"), f"video-{qid}")),
        "duration": float(_told(row.get("duration"), max([SECONDS, *(float(end) for _, end in windows)]))),
        "relevant_windows": [[float(start), float(end)] for start, end in windows],
    }


def _told(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value
