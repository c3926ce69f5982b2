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
from typing import Any, NamedTuple

from penumbra.artifacts.errors import what_there_is
from penumbra.tasks.data.dataset import DatasetError, json_object, start_of, whole_number

Row = dict[str, Any]
LONGEST_CELL = 10_000_000  # characters
MOST_COLUMNS = 1_000  # an empty cell takes one byte of CSV, and fifty in Python
LARGEST_PARQUET = 500_000_000  # bytes that a file may unpack to: one of 600 kB can hold 30 million equal rows
ROW_BYTES, VALUE_BYTES = 100, 8  # the least that a row and a value take in Python
KINDS = ".csv, .tsv, .jsonl or .parquet"


class Unreadable(NamedTuple):
    """A line of a file that holds no row: the reason, and a hint that helps to find the fault."""

    reason: str
    hint: str


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
        numbered = list[tuple[int, Row]]()
        for number, row in READERS[path.suffix.lower()](path):
            if isinstance(row, Unreadable):
                raise ValueError(f"line {number} {row.reason}{row.hint}")
            numbered.append((number, row))
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise DatasetError(f"{path} can't be read ({error.strerror or error}): give the path of a file") from None
    except ValueError as error:
        raise DatasetError(f"{path} can't be read ({error}): correct it") from None
    if not numbered:
        raise DatasetError(f"{path} holds no row: is it the right file?")

    def is_empty(cell: Any) -> bool:
        return not cell.strip() if isinstance(cell, str) else isinstance(cell, float) and math.isnan(cell)

    rows = [{name: None if is_empty(cell) else cell for name, cell in row.items()} for _, row in numbered]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return OwnTable(path, columns, rows, [f"{path.name}:{number}" for number, _ in numbered])


def _delimited(path: Path) -> Iterator[tuple[int, Row | Unreadable]]:
    csv.field_size_limit(LONGEST_CELL)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        first = stream.readline()
        stream.seek(0)
        semicolons = first.count(";") > first.count(",")  # as spreadsheets write if numbers have decimal commas
        delimiter = "\t" if path.suffix.lower() == ".tsv" else ";" if semicolons else ","
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            if len(header) > MOST_COLUMNS:
                raise ValueError(f"line 1 names {len(header):,} columns, more than {MOST_COLUMNS:,}")
            if len(set(header)) < len(header):
                raise ValueError("line 1 names a column twice")
            for fields in reader:
                if not any(field.strip() for field in fields):
                    continue
                row: Row | Unreadable = dict(zip(header, fields, strict=False))
                if len(fields) != len(header):
                    reason = f"has {len(fields)} fields, and the header {len(header)}"
                    row = Unreadable(reason, ": text that holds a delimiter needs double quotes")
                yield reader.line_num, row
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num}: {error}") from None


def _json_lines(path: Path) -> Iterator[tuple[int, Row | Unreadable]]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                row = json_object(line)
                yield number, Unreadable("is no JSON object", f"; it has {start_of(line)}") if row is None else row


def _check_size(size: int) -> None:
    if size > LARGEST_PARQUET:
        raise ValueError(f"it unpacks to more than {LARGEST_PARQUET / 1e6:.0f} MB")


def parquet_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file of unknown origin; raise `ValueError` if it can't be read or unpacks to too much."""
    import pyarrow as pa
    from pyarrow import parquet

    size = 0
    try:
        file = parquet.ParquetFile(path)
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        values = sum(group.column(i).num_values for group in groups for i in range(group.num_columns))
        _check_size(ROW_BYTES * file.metadata.num_rows + VALUE_BYTES * values)  # `batch.nbytes` hardly counts nulls
        for batch in file.iter_batches(1024):
            size += batch.nbytes
            _check_size(size)
            yield from batch.to_pylist()
    except (pa.ArrowException, OverflowError) as error:  # a date may be later than Python's
        raise ValueError(str(error).partition("\n")[0]) from None


READERS: dict[str, Callable[[Path], Iterator[tuple[int, Row | Unreadable]]]] = {
    **dict.fromkeys((".csv", ".tsv"), _delimited),
    **dict.fromkeys((".jsonl", ".ndjson"), _json_lines),
    ".parquet": lambda path: enumerate(parquet_rows(path), 1),
}
LOOKED_AT = 500  # cells of a column that are tested
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
    number: float | None = None
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        number = cell
    elif isinstance(cell, datetime.timedelta):
        number = cell.total_seconds()
    elif isinstance(cell, datetime.time):
        number = cell.hour * 3600 + cell.minute * 60 + cell.second + cell.microsecond / 1e6
    elif isinstance(cell, str) and (clock := CLOCK.match(cell.strip())):
        hours, minutes, rest = clock.groups()
        number = float(hours or 0) * 3600 + float(minutes) * 60 + float(rest.replace(",", "."))
    elif isinstance(cell, str) and (found := NUMBER.match(cell.strip())):
        number = float(found[1].replace(",", "."))
    return number if number is not None and math.isfinite(number) else None


def windows_in(cell: Any) -> list[list[Any]] | None:
    """Return windows from a list of pairs or one pair, also as JSON text; None if the cell has another form."""
    if isinstance(cell, str):
        try:
            cell = json.loads(cell.replace("(", "[").replace(")", "]"), parse_int=whole_number)
        except (json.JSONDecodeError, RecursionError):
            return None
    if not isinstance(cell, list | tuple):
        return None
    pairs = [cell] if len(cell) == 2 and not any(isinstance(edge, list | tuple) for edge in cell) else cell
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        return None
    windows = [[seconds(edge) for edge in pair] for pair in pairs]
    return None if any(None in window for window in windows) else windows


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


def find_columns(table: OwnTable, given: Mapping[str, str | None]) -> dict[str, str]:
    """Return the column of every role; raise `DatasetError` if a required one is missing or does not fit."""

    def fits(role: str, column: str) -> bool:
        cells = table.cells(column)[:LOOKED_AT]
        return bool(cells) and sum(bool(FITS[role][0](cell)) for cell in cells) > MIN_SHARE * len(cells)

    found = {role: column for role, column in given.items() if column is not None}
    for role, column in found.items():
        if column not in table.columns:
            known = what_there_is(column, table.columns)
            raise DatasetError(f"{table.path} has no column {column!r} for --{role}: {known}")
        if not fits(role, column):
            misfits = (
                f"{place} has {start_of(str(row[column]))!r}"
                for place, row in zip(table.places, table.rows, strict=True)
                if row.get(column) is not None and not FITS[role][0](row[column])
            )
            raise DatasetError(
                f"column {column!r} does not hold {FITS[role][1]}: {next(misfits, f'{table.path} has nothing there')}; "
                f"name another with --{role}"
            )
    normal = {column: UNIT.sub("", re.sub(r"\W+", "_", column.lower()).strip("_")) for column in table.columns}
    for role, names in NAMES.items():
        free = [c for name in names for c in table.columns if normal[c] == name and c not in found.values()]
        fitting = [column for column in free if fits(role, column)]
        redundant = "windows" in found if role in ("start", "end") else role == "windows" and "start" in found
        if role not in found and fitting and not redundant:
            found[role] = fitting[0]
    for role in ("query", "video") if "windows" in found else ("query", "video", "start", "end"):
        if role not in found:
            raise DatasetError(
                f"{table.path} has no column that looks like {FITS[role][1]} for {role}: name it with --{role}; there "
                f"is: {', '.join(table.columns)}"
            )
    return {role: found[role] for role in NAMES if role in found}
