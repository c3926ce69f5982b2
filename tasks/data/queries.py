"""Make a data set of a user's own queries: from a table (`penumbra init`), or from sentences and data frames in Python.

A value that can't be read is written unchanged; the stage `annotations` rejects its row with the reason.
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
from penumbra.tasks.data.dataset import CG_FILES, PLACE, PLACES, Dataset, DatasetError, start_of
from penumbra.tasks.data.rows import clean_text

if TYPE_CHECKING:
    import pandas as pd

    from penumbra.tasks.data.tables import Columns, OwnTable

SALIENCY = ("relevant_clip_ids", "saliency_scores")  # of QVHighlights, copied unchanged
WRITTEN = {*CG_FILES.values(), "train.jsonl", "val.jsonl", "test.jsonl"}
Label = Mapping[str, Sequence[Any]]  # what is novel in a query, as in the Compositional-Temporal-Grounding files


@dataclass
class OwnQuery:
    """A query of a user's table, with its first row's `place`, `changes` of its text, and `merged` rows."""

    qid: str
    query: Any
    vid: str
    duration: Any
    windows: Any
    split: str | None
    place: str
    more: dict[str, Any] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    merged: list[str] = field(default_factory=list)

    def line(self) -> dict[str, Any]:
        """Return the query as a line of a file of the Moment-DETR family."""
        row = {"qid": self.qid, "query": self.query, "vid": self.vid, "duration": self.duration}
        return row | {"relevant_windows": self.windows} | self.more | {PLACE: self.place}


def queries_of(table: "OwnTable", columns: "Columns") -> list[OwnQuery]:
    """Return the queries of a table; rows with the same query, video and id are its windows. Raise `DatasetError`."""
    from penumbra.tasks.data.tables import SPLITS, seconds, split_in, windows_in

    queries: dict[tuple[str | None, ...], OwnQuery] = {}
    vids = {str(vid) for vid in table.cells(columns.of["video"])}
    names = {vid: vid.replace("\\", "/").rsplit("/", 1)[-1] for vid in vids}  # of paths such as `videos/a.mp4`
    if len(set(names.values())) < len(vids):
        names = {}
    for number, (row, place) in enumerate(zip(table.rows, table.places, strict=True)):
        cell = columns.cell(row, "split")
        split = split_in(cell)
        if split is None and "split" in columns.of:
            raise DatasetError(
                f"{place}: column {columns.of['split']!r} has {start_of(str(cell or ''))!r}, which is no split: "
                f"write {', '.join(dict.fromkeys(SPLITS.values()))}"
            )
        qid, vid = columns.cell(row, "qid"), columns.cell(row, "video")
        text = columns.cell(row, "query") or ""
        text, changes = clean_text(text) if isinstance(text, str) else (text, ())
        edges = [columns.cell(row, "start"), columns.cell(row, "end")]
        windows: Any = [] if edges == [None, None] else [[_read(seconds, edge) for edge in edges]]
        if (cell := columns.cell(row, "windows")) is not None:
            windows = _read(windows_in, cell)
        query = OwnQuery(
            qid=str(number if "qid" not in columns.of else "" if qid is None else qid),
            query=text,
            vid="" if vid is None else names.get(str(vid), str(vid)),
            duration=_read(seconds, columns.cell(row, "duration")),
            windows=windows,
            split=split,
            place=place,
            more={name: row[name] for name in SALIENCY if isinstance(row.get(name), list)},
            changes=changes,
        )
        own = place if not isinstance(query.windows, list) else ""  # unreadable windows are not merged
        earlier = queries.setdefault((str(qid), query.vid, str(query.query), split, own), query)
        if earlier is not query:
            earlier.merged.append(place)
            earlier.changes += changes
            earlier.windows += [window for window in query.windows if window not in earlier.windows]
    return list(queries.values())


def _read(reader: Callable[[Any], Any], cell: Any) -> Any:
    """Return the value of a cell, or the cell itself if it can't be read."""
    read = reader(cell)
    return cell if read is None else read


def complete_durations(queries: Sequence[OwnQuery], measure: Callable[[Sequence[str]], Mapping[str, float]]) -> int:
    """Set missing durations from other rows or from `measure`; return how many videos were measured."""
    known = {query.vid: query.duration for query in queries if query.duration is not None}
    unknown = sorted({query.vid for query in queries} - known.keys())
    known |= measure(unknown) if unknown else {}
    for query in queries:
        query.duration = known[query.vid] if query.duration is None else query.duration
    return len(unknown)


def in_order(vids: Iterable[str], seed: int) -> list[str]:
    """Return the videos in an order that depends only on the seed and the digest of each id."""
    return sorted(set(vids), key=lambda vid: hashlib.sha256(f"{seed} {vid}".encode("utf-8", "replace")).digest())


def split_by_video(queries: Sequence[OwnQuery], test: float, seed: int) -> None:
    """Put this share of the videos into the test split, and the others into the training split."""
    vids = in_order((query.vid for query in queries), seed)
    held = set(vids[: share_of(len(vids), test)])
    for query in queries:
        query.split = "test" if query.vid in held else TRAINING


def share_of(videos: int, test: float) -> int:
    """Return how many videos are for tests; raise `DatasetError` if there is only one video."""
    if videos < 2 and test > 0:
        raise DatasetError("one video can't be both for training and for a test: set --test 0, or add videos")
    return min(videos - 1, max(1, round(test * videos))) if test > 0 else 0


def write_dataset(name: str, queries: Sequence[OwnQuery], labels: Sequence[Label] | None, force: bool) -> Dataset:
    """Write the folder of a data set: JSON lines, or CG files if there are labels; raise `DatasetError` if not free."""
    dataset = Dataset(name=name)
    folder = data_folder() / dataset.name
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
        files = sorted(Path(draft).iterdir())
        if {file.name: file.read_bytes() for file in files} == {
            it.name: it.read_bytes() for it in _annotations(folder)
        }:
            return dataset
        _check_free(folder, force)
        for old in WRITTEN:
            (folder / old).unlink(missing_ok=True)
        for file in files:
            os.replace(file, folder / file.name)
    return dataset


def _annotations(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json*"))


def _check_free(folder: Path, force: bool) -> None:
    """Raise `DatasetError` if a folder holds annotation files that must not be replaced."""
    names = [path.name for path in _annotations(folder)]
    if names and not force:
        raise DatasetError(f"{folder} holds {names[0]} already: choose another name, or replace it with --force")
    others = sorted(set(names) - WRITTEN)
    if others:
        raise DatasetError(f"{folder} holds {others[0]}, which was not written by `penumbra init`: remove it first")


def _write_compositional(splits: Mapping[str, Sequence[OwnQuery]], labels: Mapping[int, Label], folder: Path) -> None:
    keys = {"composition": "novels", "word": "news"}
    for split, queries in splits.items():
        videos: dict[str, dict[str, Any]] = {}
        for query in queries:
            video = videos.setdefault(query.vid, {"sentences": [], "timestamps": [], "duration": query.duration})
            for window in query.windows if isinstance(query.windows, list) else [query.windows]:
                video["sentences"].append(query.query)
                video.setdefault(PLACES, []).append(query.place)
                video["timestamps"].append(window)
                if split in keys:
                    video.setdefault(keys[split], []).append(labels[id(query)])
        (folder / CG_FILES[split]).write_text(
            json.dumps(videos, ensure_ascii=False, indent=1, default=str) + "\n", encoding="utf-8"
        )


TRAINING = "train"
UNKNOWN_DURATION = 1.0  # seconds of a video whose length is unknown; negatives do not depend on it


def write_queries(queries: "Sequence[str] | pd.DataFrame", folder: Path) -> dict[str, str]:
    """Write one file for each split into the folder; return their names by split, as in `Dataset.files`.

    Sentences are training queries of a video each. A data frame has a column `query` and maybe `qid`, `vid`, `split`,
    `duration` and `windows`. Raises `DatasetError` if there is no training query or no column `query`.
    """
    if isinstance(queries, str):
        raise DatasetError("give a list of sentences, not one text: ['a person opens the door.', …]")
    import pandas as pd

    rows: Sequence[Mapping[str, Any]]
    if not isinstance(queries, pd.DataFrame):
        rows = [{"query": query} for query in queries]
    elif "query" in queries.columns:
        known = queries.astype(object).where(queries.notna(), None)  # NaN is pandas' None
        rows = [{str(name): value for name, value in row.items()} for row in known.to_dict("records")]
    else:
        raise DatasetError(f"no column 'query' in the data frame; there is: {', '.join(map(str, queries.columns))}")
    splits: dict[str, list[dict[str, Any]]] = {}
    for number, row in enumerate(rows):
        given = {name: value for name, value in row.items() if value is not None}
        qid = str(given.get("qid", number))
        windows = [[float(start), float(end)] for start, end in given.get("windows", given.get("relevant_windows", ()))]
        line = {
            "qid": qid,
            "query": row["query"],
            "vid": str(given.get("vid", f"video-{qid}")),
            "duration": float(given.get("duration", max([UNKNOWN_DURATION, *(end for _, end in windows)]))),
            "relevant_windows": windows,
        }
        splits.setdefault(str(row.get("split") or TRAINING), []).append(line)
    if TRAINING not in splits:
        raise DatasetError(f"there is no query of split {TRAINING!r}: negatives are built for training queries")
    return write_splits(splits, folder)


def write_splits(splits: Mapping[str, Iterable[Mapping[str, Any]]], folder: Path) -> dict[str, str]:
    """Write a file of JSON lines for each split; return their names by split."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        lines = [json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows]  # Parquet has dates, too
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    return {split: f"{split}.jsonl" for split in splits}
