"""Read a user's own table (CSV, TSV, JSON lines or Parquet), and find which column holds what.

A column is named by the user, or found by its usual name, which counts only if the cells fit. Times are seconds, or
`mm:ss` and `hh:mm:ss`.
"""

import csv
import datetime
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penumbra.artifacts.errors import what_there_is
from penumbra.tasks.data.dataset import DatasetError, start_of, whole_number

Row = dict[str, Any]
LONGEST_CELL = 10_000_000  # characters
KINDS = ".csv, .tsv, .jsonl or .parquet"


@dataclass(frozen=True)
class OwnTable:
    """The rows of a file, with None for empty cells, and the place of each row: `rows.csv:182`."""

    path: Path
    columns: list[str]
    rows: list[Row]
    places: list[str]

    def cells(self, column: str) -> list[Any]:
        return [row[column] for row in self.rows if row.get(column) is not None]


def read_table(path: Path) -> OwnTable:
    """Read a table; raise `DatasetError` with file, line and remedy if that fails."""
    if path.is_dir():
        raise DatasetError(
            f"{path} is a folder: give a {KINDS} file; a table of Hugging Face datasets writes one by "
            ".to_parquet('mine.parquet')"
        )
    if path.suffix.lower() not in READERS:
        raise DatasetError(f"{path} has no suffix {KINDS}: save it as such a file, or rename it")
    try:
        numbered = list(READERS[path.suffix.lower()](path))
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise DatasetError(f"{path} can't be read ({error.strerror or error}): give the path of a file") from None
    if not numbered:
        raise DatasetError(f"{path} holds no row: is it the right file?")

    def is_empty(cell: Any) -> bool:
        return not cell.strip() if isinstance(cell, str) else isinstance(cell, float) and math.isnan(cell)

    rows = [{name: None if is_empty(cell) else cell for name, cell in row.items()} for _, row in numbered]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return OwnTable(path, columns, rows, [f"{path.name}:{number}" for number, _ in numbered])


def _delimited(path: Path) -> Iterator[tuple[int, Row]]:
    csv.field_size_limit(LONGEST_CELL)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        first = stream.readline()
        stream.seek(0)
        semicolons = first.count(";") > first.count(",")  # as spreadsheets write if numbers have decimal commas
        delimiter = "\t" if path.suffix.lower() == ".tsv" else ";" if semicolons else ","
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            if len(set(header)) < len(header):
                twice = next(name for name in header if header.count(name) > 1)
                raise DatasetError(f"{path} line 1 names column {twice!r} twice: rename one")
            for fields in reader:
                if not any(field.strip() for field in fields):
                    continue
                if len(fields) != len(header):
                    raise DatasetError(
                        f"{path} line {reader.line_num} has {len(fields)} fields, and its header {len(header)}: put "
                        "text that holds a delimiter into double quotes"
                    )
                yield reader.line_num, dict(zip(header, fields, strict=True))
        except csv.Error as error:
            raise DatasetError(f"{path} line {reader.line_num}: {error}: correct its quotes") from None


def _json_lines(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig"), parse_int=whole_number)
            except (json.JSONDecodeError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise DatasetError(
                    f"{path} line {number} is no JSON object; it has {start_of(line)}: write one object a line"
                )
            yield number, row


def _parquet(path: Path) -> Iterator[tuple[int, Row]]:
    from penumbra.tasks.data.parquet import parquet_rows

    try:
        yield from enumerate(parquet_rows(path), 1)
    except ValueError as error:
        raise DatasetError(f"{path} can't be read as Parquet ({error}): write it again") from None


READERS = {".csv": _delimited, ".tsv": _delimited, ".jsonl": _json_lines, ".ndjson": _json_lines, ".parquet": _parquet}
LOOKED_AT = 500  # cells of a column
MIN_SHARE = 0.5  # of the cells must fit the role of a column
NAMES = {  # usual names of a column, the likelier first
    role: tuple(names.split())
    for role, names in {
        "query": "query sentence text caption description annotation question",
        "windows": "relevant_windows windows window timestamps timestamp moments moment segments segment spans span",
        "start": "start start_time t_start time_start t0 begin begin_time from onset",
        "end": "end end_time t_end time_end t1 stop stop_time to offset",
        "video": "vid video video_id videoid video_name clip clip_id file filename file_name video_file path "
        "video_path youtube_id",
        "duration": "duration video_duration length video_length len",
        "split": "split set subset partition fold",
        "qid": "qid query_id id annotation_id desc_id",
    }.items()
}
SPLITS = {
    name: split
    for split, names in {"train": "train training", "val": "val valid validation dev", "test": "test testing"}.items()
    for name in names.split()
}
CLOCK = re.compile(r"(?:(\d+):(?=\d+:))?(\d+):([0-5]?\d(?:[.,]\d+)?)\Z")
NUMBER = re.compile(r"([+-]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:e[+-]?\d+)?)\s*(?:s|sec|secs|seconds)?\Z", re.I)
UNIT = re.compile(r"_(s|sec|secs|seconds)\Z")


def seconds(cell: Any) -> float | None:
    """Return a number, `mm:ss` or `hh:mm:ss` as seconds; None if the cell is no time."""
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return _finite(cell)
    if isinstance(cell, datetime.timedelta):
        return cell.total_seconds()
    if isinstance(cell, datetime.time):
        return cell.hour * 3600 + cell.minute * 60 + cell.second + cell.microsecond / 1e6
    if not isinstance(cell, str):
        return None
    text = cell.strip()
    if clock := CLOCK.match(text):
        hours, minutes, rest = clock.groups()
        return _finite(float(hours or 0) * 3600 + float(minutes) * 60 + float(rest.replace(",", ".")))
    number = NUMBER.match(text)
    return _finite(float(number[1].replace(",", "."))) if number else None


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def windows_in(cell: Any) -> list[list[Any]] | None:
    """Return windows from a list of pairs, one pair, pairs as JSON text, or `0:02-0:08; 0:11-0:15`; None otherwise."""
    if isinstance(cell, str):
        try:
            cell = json.loads(cell.replace("(", "[").replace(")", "]"), parse_int=whole_number)
        except (json.JSONDecodeError, RecursionError):
            cell = [[edge.strip() for edge in re.split("[-–]", part)] for part in cell.split(";")]
    if not isinstance(cell, list | tuple):
        return None
    pairs = [cell] if len(cell) == 2 and not any(isinstance(edge, list | tuple | dict) for edge in cell) else cell
    windows = []
    for pair in pairs:
        edges = [pair.get("start"), pair.get("end")] if isinstance(pair, dict) else pair
        if not isinstance(edges, list | tuple) or len(edges) != 2 or None in (times := [*map(seconds, edges)]):
            return None
        windows.append(times)
    return windows


def split_in(cell: Any) -> str | None:
    """Return the split that a cell names: train, val or test; None otherwise."""
    return SPLITS.get(cell.strip().lower()) if isinstance(cell, str) else None


def _is_name(cell: Any) -> bool:
    return (isinstance(cell, str) and "\n" not in cell) or type(cell) is int


TIMES = (lambda cell: seconds(cell) is not None, "seconds or mm:ss")
FITS: Mapping[str, tuple[Callable[[Any], Any], str]] = {  # whether a cell fits a role, and what its column holds
    "query": (lambda cell: isinstance(cell, str) and seconds(cell) is None, "sentences"),
    "windows": (lambda cell: windows_in(cell) is not None, "windows such as [[2.0, 8.5]]"),
    "start": TIMES,
    "end": TIMES,
    "video": (_is_name, "names of videos"),
    "duration": TIMES,
    "split": (lambda cell: split_in(cell) is not None, "train, val or test"),
    "qid": (_is_name, "ids"),
}


@dataclass(frozen=True)
class Columns:
    """The column of each role, and how it was found: "given" or "name"."""

    of: dict[str, str]
    by: dict[str, str]

    def cell(self, row: Mapping[str, Any], role: str) -> Any:
        return row.get(self.of[role]) if role in self.of else None


def find_columns(table: OwnTable, given: Mapping[str, str | None]) -> Columns:
    """Find the column of every role; raise `DatasetError` if a required one is missing or does not fit."""
    of: dict[str, str] = {}
    by: dict[str, str] = {}
    for role, column in given.items():
        if column is not None:
            _check_given(table, role, column)
            of[role], by[role] = column, "given"
    normal = {column: UNIT.sub("", re.sub(r"\W+", "_", column.strip().lower())) for column in table.columns}
    for role, names in NAMES.items():
        fitting = [c for name in names for c in table.columns if normal[c] == name and c not in of.values()]
        fitting = [column for column in fitting if _fits(table, role, column)]
        redundant = "windows" in of if role in ("start", "end") else role == "windows" and "start" in of
        if role not in of and fitting and not redundant:
            of[role], by[role] = fitting[0], "name"
    for role in ("query", "video") if "windows" in of else ("query", "video", "start", "end"):
        if role not in of:
            raise DatasetError(
                f"{table.path} has no column that looks like {FITS[role][1]} for {role}: name it with --{role}; there "
                f"is: {', '.join(table.columns)}"
            )
    return Columns({role: of[role] for role in NAMES if role in of}, by)


def _fits(table: OwnTable, role: str, column: str) -> bool:
    cells = table.cells(column)[:LOOKED_AT]
    return bool(cells) and sum(bool(FITS[role][0](cell)) for cell in cells) > MIN_SHARE * len(cells)


def _check_given(table: OwnTable, role: str, column: str) -> None:
    if column not in table.columns:
        known = what_there_is(column, table.columns)
        raise DatasetError(f"{table.path} has no column {column!r} for --{role}: {known}")
    if not _fits(table, role, column):
        misfits = (
            f"{place} has {start_of(str(row[column]))!r}"
            for place, row in zip(table.places, table.rows, strict=True)
            if row.get(column) is not None and not FITS[role][0](row[column])
        )
        raise DatasetError(
            f"column {column!r} does not hold {FITS[role][1]}: {next(misfits, f'{table.path} has nothing there')}; "
            f"name another with --{role}"
        )
