"""Reads others' negatives from a file, row by row: a row that can't be read is a fault, a file without any is an error.

| form | a row |
| --- | --- |
| SHINE's release, JSON lines | `qid`, `query`, and `recomposed_queries`, one a level |
| one negative a row, JSON lines, CSV or TSV | `qid`, `level`; `negative` beside its `query`, or `query`: the negative |

The second is what `penumbra export --format jsonl` or `csv` writes, and what the artifact `negatives` itself holds.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penumbra.tasks.negatives.quality.file import SHINE
from penumbra.tasks.negatives.quality.negative import NegativesError
from penumbra.tasks.negatives.quality.review import as_written

DELIMITERS = {".csv": ",", ".tsv": "\t"}
NOT_TEXT = "row is not UTF-8"
WHOLE = re.compile(r"([0-9]{1,3})(\.0+)?", re.ASCII)  # pandas writes 1.0 where a column of whole numbers has a gap
BEGINNINGS = {  # of files that are not read line by line, with what to do
    b"\xff\xfe": "it is UTF-16: save it as UTF-8",
    b"\xfe\xff": "it is UTF-16: save it as UTF-8",
    b"\x1f\x8b": "it is compressed: unpack it",
    b"PK\x03\x04": "it is compressed: unpack it",
    b"PAR1": "it is Parquet: write its rows as JSON lines",
}
FORMS = (
    "give SHINE's JSON lines (qid, query, recomposed_queries), or qid, level and query: as JSON lines, an object a "
    "line, or as .csv or .tsv with a header; in UTF-8"
)


@dataclass(frozen=True)
class Entry:
    """One negative as it stands in the file: `positive` is the query that it names, '' where it names none.

    `fault` says why it can't be used, or ''; `value` what people are shown of it.
    """

    value: str
    qid: str = ""
    level: int = 0
    text: str = ""
    positive: str = ""
    fault: str = ""


def read_entries(path: Path) -> list[Entry]:
    """Every negative of a file; raises `NegativesError` naming a file that can't be read, or of which no row can."""
    if not path.is_file():
        fault = f"{path} is no regular file" if path.exists() else f"{path} is not there"
        fault = "no file of negatives is given" if path == Path() else fault
        raise NegativesError(f"{fault}: name one with --param file=…")
    try:
        with path.open("rb") as file:
            beginning = file.read(4)
        for these, remedy in BEGINNINGS.items():
            if beginning.startswith(these):
                raise NegativesError(f"{path} is no file of negatives: {remedy}")
        found = [entry for number, row, fault in _rows(path) for entry in _entries(number, row, fault)]
    except OSError as error:
        raise NegativesError(f"{path} can't be read ({error}): {FORMS}") from None
    if all(entry.fault for entry in found):
        first = f"{found[0].value}: {found[0].fault}" if found else "it is empty"
        raise NegativesError(f"{path} is no file of negatives ({first}): {FORMS}")
    return found


def _rows(path: Path) -> Iterator[tuple[int, Any, str]]:
    """Yield the line of each row, the row, and its fault or ''; bytes that are no UTF-8 come as lone surrogates."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        if path.suffix.lower() in DELIMITERS:
            yield from _table_rows(path, csv.DictReader(lines, delimiter=DELIMITERS[path.suffix.lower()], strict=True))
            return
        for number, line in enumerate(lines, 1):
            if not _is_text(line):
                yield number, None, NOT_TEXT
            elif line.strip():
                try:
                    yield number, json.loads(line), ""
                except (ValueError, RecursionError):
                    yield number, None, "row is no JSON"


def _table_rows(path: Path, rows: "csv.DictReader[str]") -> Iterator[tuple[int, Any, str]]:
    """See `_rows`; raises `NegativesError` for a header that lacks a column, and a quotation mark that stays open."""
    last = 1
    try:
        columns = set(rows.fieldnames or ())
        if not ({"qid", "level"} <= columns and {"negative", "query"} & columns):
            named = ", ".join(map(repr, rows.fieldnames or ()))[:200]
            raise NegativesError(
                f"{path}: its first line names {named or 'nothing'}, not qid, level and query: {FORMS}"
            )
        for row in rows:
            last = rows.line_num
            fault = "row has more cells than the first line names" if None in row else ""
            cells = {name: as_written(cell) for name, cell in row.items() if isinstance(cell, str)}
            yield last, cells, fault
    except csv.Error as error:
        raise NegativesError(
            f"{path}: the row after line {last} can't be read ({error}): mend it, as what follows can't be told apart"
        ) from None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _entries(number: int, row: Any, fault: str) -> Iterator[Entry]:
    """Yield the negatives of the row on a line, or its fault."""
    line = f"line {number}"
    if not fault and not isinstance(row, Mapping):
        fault = "row is no object"
    if not fault and not all(_is_text(value) for value in row.values() if isinstance(value, str)):
        fault = NOT_TEXT
    if fault:
        yield Entry(line, fault=fault)
        return
    qid, several = str(row.get("qid") or ""), row.get(SHINE)
    alone = "level" in row and bool({"negative", "query"} & row.keys())
    if not qid or not (alone or SHINE in row):
        yield Entry(line, qid, fault="row lacks its qid, its level or its negative")
    elif several is None and alone:
        named, negative = ("query", "negative") if "negative" in row else ("positive", "query")
        yield _entry(number, qid, row["level"], row.get(negative), row.get(named))
    elif not isinstance(several, list) or not several:
        yield Entry(line, qid, fault=f"{SHINE} is {'empty' if several == [] else 'no list'}")
    elif row.get("negative") is not None:
        yield Entry(line, qid, fault=f"row has both {SHINE} and a negative")
    else:
        yield from (_entry(number, qid, level, text, row.get("query")) for level, text in enumerate(several, 1))


def _entry(line: int, qid: str, level: Any, text: Any, positive: Any) -> Entry:
    place = f"level {str(level)[:20]}, line {line}"
    if not _is_text(text):
        return Entry(place, qid, fault="negative is no text")
    return Entry(f"{place}: {text}", qid, _level(level), text.strip(), positive if _is_text(positive) else "")


def _level(value: Any) -> int:
    """The level as a number; 0, which is none, for what is no whole number."""
    whole = WHOLE.fullmatch(str(value).strip())
    return int(whole[1]) if whole else 0
