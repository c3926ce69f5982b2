"""Make a data set of a user's own queries: from a table (`penumbra init`), or from sentences and data frames in Python.

A value that can't be read is written unchanged; the stage `annotations` rejects its row with the reason.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.artifacts.files import write_whole
from penumbra.artifacts.locations import data_folder
from penumbra.tasks.data.dataset import CG_FILES, PLACE, PLACES, Dataset, DatasetError
from penumbra.tasks.data.rows import TRAINING, clean_text
from penumbra.tasks.data.tables import OwnTable, seconds, split_in, windows_in

if TYPE_CHECKING:
    import pandas as pd

SALIENCY = ("relevant_clip_ids", "saliency_scores")  # of QVHighlights, copied unchanged
WRITTEN = {*CG_FILES.values(), "train.jsonl", "val.jsonl", "test.jsonl"}
LONE_SURROGATES = "backslashreplace"  # a lone surrogate is written as its JSON escape; `annotations` rejects its row
UNKNOWN_DURATION = 1.0  # seconds of a video whose length is unknown; negatives do not depend on it
Label = Mapping[str, Sequence[Any]]  # what is novel in a query, as in the Compositional-Temporal-Grounding files


@dataclass
class OwnQuery:
    """A query of a user's table: `place` of its first row, `changes` of its text, and places of the `merged` rows.

    `split` is None if the table names no known split.
    """

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
        row = {"qid": self.qid, "query": self.query, "vid": self.vid, "duration": self.duration}
        return row | {"relevant_windows": self.windows} | self.more | {PLACE: self.place}


def queries_of(table: OwnTable, columns: Mapping[str, str]) -> list[OwnQuery]:
    """Return the queries of a table; rows with the same query, video, id and split are the windows of one query."""
    queries: dict[tuple[str | None, ...], OwnQuery] = {}
    vids = {str(vid) for vid in table.cells(columns["video"])}
    names = {vid: vid.replace("\\", "/").rsplit("/", 1)[-1] for vid in vids}  # of paths such as `videos/a.mp4`
    if len(set(names.values())) < len(vids):
        names = {}

    def read(reader: Callable[[Any], Any], cell: Any) -> Any:
        value = reader(cell)
        return cell if value is None else value

    for number, (row, place) in enumerate(zip(table.rows, table.places, strict=True)):
        cells = {role: row.get(column) for role, column in columns.items()}
        split = split_in(cells.get("split"))
        text, changes = cells["query"] or "", tuple[str, ...]()
        if isinstance(text, str):
            text, changes = clean_text(text)
        edges = [cells.get("start"), cells.get("end")]
        windows: Any = [] if edges == [None, None] else [[read(seconds, edge) for edge in edges]]
        if cells.get("windows") is not None:
            windows = read(windows_in, cells["windows"])
        qid, vid = cells.get("qid"), cells["video"]
        query = OwnQuery(
            qid=str(number if "qid" not in columns else "" if qid is None else qid),
            query=text,
            vid="" if vid is None else names.get(str(vid), str(vid)),
            duration=read(seconds, cells.get("duration")),
            windows=windows,
            split=split,
            place=place,
            more={name: row[name] for name in SALIENCY if isinstance(row.get(name), list)},
            changes=changes,
        )
        own = place if not isinstance(windows, list) else ""  # unreadable windows are not merged
        earlier = queries.setdefault((str(qid), query.vid, str(text), split, own), query)
        if earlier is not query:
            earlier.merged.append(place)
            earlier.changes += changes
            earlier.windows += [window for window in windows if window not in earlier.windows]
    return list(queries.values())


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
    """Put a share `test` of the videos into the test split, and the others into the training split."""
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
    """Write a data set as JSON lines, as CG files if there are labels; raise `DatasetError` if its folder is in use."""
    dataset = Dataset(name=name)
    folder = data_folder() / dataset.name
    splits = _by_split(queries)
    if labels is None:
        texts = {f"{split}.jsonl": _json_lines(own) for split, own in splits.items()}
    else:
        label_of = {id(query): label for query, label in zip(queries, labels, strict=True)}
        texts = {CG_FILES[split]: _compositional(split, own, label_of) for split, own in splits.items()}
    there = {path.name for path in folder.glob("*.json*")}
    if there != texts.keys() or any((folder / file).read_bytes() != text for file, text in texts.items()):
        if there and not force:
            raise DatasetError(f"{folder} holds {min(there)} already: choose another name, or replace it with --force")
        if others := there - WRITTEN:
            raise DatasetError(f"{folder} holds {min(others)}, which `penumbra init` did not write: remove it first")
        for old in there - texts.keys():
            (folder / old).unlink()
        for file, text in texts.items():
            write_whole(folder / file, text)
    return dataset


def _compositional(split: str, queries: Sequence[OwnQuery], label_of: Mapping[int, Label]) -> bytes:
    labelled = {"composition": "novels", "word": "news"}.get(split)
    videos: dict[str, dict[str, Any]] = {}
    for query in queries:
        video = videos.setdefault(query.vid, {"sentences": [], "timestamps": [], "duration": query.duration})
        for window in query.windows if isinstance(query.windows, list) else [query.windows]:
            video["sentences"].append(query.query)
            video.setdefault(PLACES, []).append(query.place)
            video["timestamps"].append(window)
            if labelled:
                video.setdefault(labelled, []).append(label_of[id(query)])
    return (json.dumps(videos, ensure_ascii=False, indent=1, default=str) + "\n").encode(errors=LONE_SURROGATES)


def _by_split(queries: Iterable[OwnQuery]) -> dict[str, list[OwnQuery]]:
    """Return the queries of each split; raise `DatasetError` if none is for training."""
    splits: dict[str, list[OwnQuery]] = {}
    for query in queries:
        splits.setdefault(str(query.split), []).append(query)
    if TRAINING not in splits:
        there = f"no query is of split {TRAINING!r}" if splits else "there are no sentences"
        raise DatasetError(f"{there}: negatives are built for training queries")
    return splits


def _json_lines(queries: Iterable[OwnQuery]) -> bytes:
    lines = (json.dumps(query.line(), ensure_ascii=False, default=str) for query in queries)  # Parquet has dates, too
    return "".join(f"{line}\n" for line in lines).encode(errors=LONE_SURROGATES)


def write_queries(queries: "Sequence[str] | pd.DataFrame", folder: Path) -> dict[str, str]:
    """Write one file for each split into the folder; return their names by split, as in `Dataset.files`.

    Each sentence is a training query with a video of its own. A data frame has a column `query` and optionally `qid`,
    `vid`, `split`, `duration`, `windows`. Raises `DatasetError` if there is no training query or no column `query`.
    """
    if isinstance(queries, str) or not isinstance(queries, Iterable):
        raise DatasetError("give a list of sentences: ['a person opens the door.', …]")
    import pandas as pd

    frame = queries if isinstance(queries, pd.DataFrame) else pd.DataFrame({"query": list(queries)}, dtype=object)
    if "query" not in frame.columns:
        raise DatasetError(f"no column 'query' in the data frame; there is: {', '.join(map(str, frame.columns))}")
    several = []
    known = frame.astype(object).where(frame.notna(), None)  # NaN is pandas' None
    for number, (label, row) in enumerate(zip(known.index, known.to_dict("records"), strict=True)):
        given = {str(name): value for name, value in row.items() if value is not None}
        qid = str(given.get("qid", number))
        windows = [[float(start), float(end)] for start, end in given.get("windows", given.get("relevant_windows", ()))]
        duration = float(given.get("duration", max([UNKNOWN_DURATION, *(end for _, end in windows)])))
        vid, split = str(given.get("vid", f"video-{qid}")), str(given.get("split") or TRAINING)
        several.append(OwnQuery(qid, row["query"], vid, duration, windows, split, f"row {label}"))
    splits = _by_split(several)
    for split, own in splits.items():
        write_whole(folder / f"{split}.jsonl", _json_lines(own))
    return {split: f"{split}.jsonl" for split in splits}
