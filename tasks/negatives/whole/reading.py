"""Reads others' negatives from a file, row by row: a row that can't be read is a fault, a file without any is an error.

| form | a row |
| --- | --- |
| SHINE's release, JSON lines | `qid`, `query`, and `recomposed_queries`, one a level |
| one negative a row, JSON lines, CSV or TSV | `qid`, `level`; `negative` beside its `query`, or `query`: the negative |

The second is what `penumbra export --format jsonl` or `csv` writes, and what the artifact `negatives` itself holds.
"""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penumbra.tasks.negatives.quality.file import SHINE
from penumbra.tasks.negatives.quality.negative import NegativesError
from penumbra.tasks.negatives.quality.review import as_written

DELIMITERS = {".csv": ",", ".tsv": "\t"}
NOT_TEXT = "row is not UTF-8"
FORMS = "give SHINE's JSON lines (qid, query, recomposed_queries), or JSON lines, CSV or TSV with qid, level and query"


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
        raise NegativesError(f"no file of negatives at {str(path)!r}: name one with file=…")
    try:
        found = [entry for number, row, fault in _rows(path) for entry in _entries(f"line {number}", row, fault)]
    except (OSError, csv.Error) as error:
        raise NegativesError(f"{path} can't be read ({error}): {FORMS}") from None
    if all(entry.fault for entry in found):
        first = f"{found[0].value}: {found[0].fault}" if found else "it is empty"
        raise NegativesError(f"{path} is no file of negatives ({first}): {FORMS}")
    return found


def _rows(path: Path) -> Iterator[tuple[int, Any, str]]:
    """Yield the line of each row, the row, and its fault or ''; bytes that are no UTF-8 come as lone surrogates."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        if path.suffix.lower() in DELIMITERS:
            rows = csv.DictReader(lines, delimiter=DELIMITERS[path.suffix.lower()])
            for row in rows:
                yield rows.line_num, {k: as_written(v) if isinstance(v, str) else v for k, v in row.items()}, ""
            return
        for number, line in enumerate(lines, 1):
            if not _is_text(line):
                yield number, None, NOT_TEXT
            elif line.strip():
                try:
                    yield number, json.loads(line), ""
                except (ValueError, RecursionError):
                    yield number, None, "row is no JSON"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _entries(line: str, row: Any, fault: str) -> Iterator[Entry]:
    """Yield the negatives of a row, or its fault."""
    if not fault and not isinstance(row, Mapping):
        fault = "row is no object"
    if not fault and not all(_is_text(value) for value in row.values() if isinstance(value, str)):
        fault = NOT_TEXT
    if fault:
        yield Entry(line, fault=fault)
        return
    qid = str(row.get("qid") or "")
    several = row.get(SHINE)
    if not qid or (several is None and ("level" not in row or not {"negative", "query"} & row.keys())):
        yield Entry(line, qid, fault="row lacks its qid, its level or its negative")
    elif several is None:
        named, negative = ("query", "negative") if "negative" in row else ("positive", "query")
        yield _entry(line, qid, _level(row["level"]), row[negative], row.get(named))
    elif not isinstance(several, list):
        yield Entry(line, qid, fault=f"{SHINE} is no list")
    else:
        yield from (_entry(line, qid, level, text, row.get("query")) for level, text in enumerate(several, 1))


def _entry(line: str, qid: str, level: int, text: Any, positive: Any) -> Entry:
    if not _is_text(text):
        return Entry(line, qid, fault="negative is no text")
    return Entry(f"level {level}: {text}", qid, level, text.strip(), positive if _is_text(positive) else "")


def _level(value: Any) -> int:
    """The level as a number; 0, which is none, for what is no whole number."""
    return int(value) if str(value).strip().isdecimal() else 0
