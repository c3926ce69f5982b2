"""Anyone's own table as rows of named cells: CSV, TSV, JSON lines or Parquet."""

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penumbra.tasks.data.dataset import DatasetError, start_of

Row = dict[str, Any]
LONGEST_CELL = 10_000_000  # characters
KINDS = ".csv, .tsv, .jsonl or .parquet"


@dataclass(frozen=True)
class OwnTable:
    """The rows of a file, None where a cell is empty, and each row's place in it, for messages."""

    path: Path
    columns: list[str]
    rows: list[Row]
    places: list[str]

    def cells(self, column: str) -> list[Any]:
        """A column's cells that are not empty."""
        return [row[column] for row in self.rows if row.get(column) is not None]


def read_table(path: Path) -> OwnTable:
    """Read a table; raises `DatasetError` naming file, line and remedy where it is none."""
    if path.is_dir():
        raise DatasetError(
            f"{path} is a folder: give a {KINDS} file; a table of Hugging Face datasets writes one by "
            ".to_parquet('mine.parquet')"
        )
    readers = {
        ".csv": _delimited,
        ".tsv": _delimited,
        ".jsonl": _json_lines,
        ".ndjson": _json_lines,
        ".parquet": _parquet,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DatasetError(f"{path} is no {KINDS} file by its name: save it as one, or rename it")
    try:
        numbered = list(reader(path))
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise DatasetError(f"{path} can't be read ({error.strerror or error}): give the path of a file") from None
    if not numbered:
        raise DatasetError(f"{path} holds no row: is it the right file?")
    rows = [{name: None if _is_empty(cell) else cell for name, cell in row.items()} for _, row in numbered]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return OwnTable(path, columns, rows, [f"{path} {place}" for place, _ in numbered])


def _is_empty(cell: Any) -> bool:
    return (isinstance(cell, str) and not cell.strip()) or (isinstance(cell, float) and math.isnan(cell))


def _delimited(path: Path) -> Iterator[tuple[str, Row]]:
    csv.field_size_limit(LONGEST_CELL)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        first = stream.readline()
        stream.seek(0)
        semicolons = first.count(";") > first.count(",")  # as spreadsheets write where the comma is in numbers
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
                yield f"line {reader.line_num}", dict(zip(header, fields, strict=True))
        except csv.Error as error:
            raise DatasetError(f"{path} line {reader.line_num}: {error}: mend its quotes") from None


def _json_lines(path: Path) -> Iterator[tuple[str, Row]]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig"))
            except (json.JSONDecodeError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise DatasetError(
                    f"{path} line {number} is no JSON object; it has {start_of(line)}: write one object a line"
                )
            yield f"line {number}", row


def _parquet(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(path).read()
    except pa.ArrowException as error:
        raise DatasetError(f"{path} is no Parquet file ({str(error).splitlines()[0]}): write it again") from None
    for number, row in enumerate(table.to_pylist(), 1):
        yield f"row {number}", row
