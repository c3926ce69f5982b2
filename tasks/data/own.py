"""Queries that lie in no file, sentences or the rows of a data frame, written as a data set of JSON lines."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penumbra.tasks.data.dataset import DatasetError

if TYPE_CHECKING:
    import pandas as pd

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
