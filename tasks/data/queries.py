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
from typing import Any

from penumbra.artifacts.locations import data_folder
from penumbra.tasks.data.columns import SPLITS, Columns, seconds, split_in, windows_in
from penumbra.tasks.data.dataset import CG_FILES, Dataset, DatasetError, start_of
from penumbra.tasks.data.own import TRAINING, write_splits
from penumbra.tasks.data.tables import OwnTable

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
