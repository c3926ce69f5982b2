"""Read negatives from a file of any origin, row by row: JSON lines, CSV or TSV, Parquet, or a folder of Parquet files.

A row is one of SHINE's release (`qid`, `query`, `recomposed_queries`), or one negative (`qid`, `level`, `negative`,
`query`), as `penumbra export` writes it. A row without a negative, or a line without a row, becomes a `Negative` with
a `fault`; a file that can't be read, or has no negative, raises `NegativesError`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.files import file_digest
from penumbra.tasks.data.rows import clean_text, is_text
from penumbra.tasks.data.tables import READERS, Row, Unreadable, parquet_rows
from penumbra.tasks.negatives.providers import Slot

SHINE = "recomposed_queries"
WHOLE = re.compile(r"([0-9]{1,3})(\.0+)?", re.ASCII)  # pandas writes 1.0 if a column of whole numbers has a gap
CELL = r"(?:(?<=[;\t\r\n])|^)"  # the beginning of a cell for a spreadsheet
FORMULA = r"""(?=["']*[=+\-@\t\r\n＝＋－＠])"""  # the beginning of a formula, even after quotes: ;""=1 is read as =1
FORMS = (
    "give SHINE's JSON lines (qid, query, recomposed_queries), or qid, level, query and negative: as JSON lines, an "
    "object on each line, as .csv or .tsv with a header, or as .parquet; in UTF-8"
)


class NegativesError(PenumbraError):
    """Negatives can't be read, imported or evaluated; the message names file, line and remedy."""


@dataclass(frozen=True, slots=True)
class Negative:
    """A negative and its query, from an artifact or a file; unknown fields are None or ''.

    For a row of a file, `fault` is why it can't be used, `value` is its text in messages, and `changes` are those that
    `clean_text` made. `similarity` is the cosine to the query.
    """

    qid: str
    vid: str = ""
    level: int = 0
    query: str = ""
    negative: str = ""
    provider: str = ""
    masked: str | None = None
    slots: tuple[Slot, ...] | None = None
    similarity: float | None = None
    value: str = ""
    fault: str = ""
    changes: tuple[str, ...] = ()


def read_negatives(path: Path) -> list[Negative]:
    """Return every negative of a file; raise `NegativesError` if the file, or every row of it, can't be used."""
    check_file(path)
    rows = [row for number, read in rows_of(path) for row in _negatives(number, read)]
    if all(row.fault for row in rows):
        first = f"{rows[0].value}: {rows[0].fault}" if rows else "it is empty"
        raise NegativesError(f"{path} is no file of negatives ({first}): {FORMS}")
    return rows


def check_file(path: Path) -> None:
    """Raise `NegativesError` unless a file, or a folder of Parquet files, is there."""
    is_folder = path != Path() and path.is_dir() and any(path.glob("*.parquet"))
    if not path.is_file() and not is_folder:
        raise NegativesError(f"{path} is no file, and no folder of Parquet files: name one with --param file=…")


def digest_of(path: Path) -> str:
    """Return the digest of a file of negatives; raise `NegativesError` if it can't be read."""
    try:
        return file_digest(path)
    except OSError as error:
        raise NegativesError(f"{path} can't be read ({error.strerror}): name it with file=…") from None


def rows_of(path: Path) -> Iterator[tuple[int, Row | Unreadable]]:
    """Yield the number of each row from 1 (in CSV, of its last line), and the row, or `Unreadable` for other lines.

    Raises `NegativesError` if the file, or the rest of it, can't be read.
    """
    suffix = path.suffix.lower()
    try:
        if path.is_dir():
            yield from enumerate((row for file in sorted(path.glob("*.parquet")) for row in parquet_rows(file)), 1)
            return
        for number, row in READERS.get(suffix, READERS[".jsonl"])(path):
            if suffix not in (".csv", ".tsv") or isinstance(row, Unreadable):
                yield number, row
            else:
                yield number, {name: not_inert(cell) for name, cell in row.items()}
    except (OSError, ValueError) as error:
        raise NegativesError(f"{path} can't be read ({error}): {FORMS}") from None


def _negatives(number: int, row: Row | Unreadable) -> Iterator[Negative]:
    """Yield the negatives of a row, or one with the fault of the row."""
    line = f"line {number}"
    if isinstance(row, Unreadable):
        yield Negative("", value=line, fault=f"line {row.reason}")
        return
    qid, several, fault = row.get("qid"), row.get(SHINE), ""
    if not all(is_text(value) for value in row.values() if isinstance(value, str)):
        fault = "row is no valid Unicode text"
    elif qid in (None, "") or (several is None and not {"level", "negative"} <= row.keys()):
        fault = "row lacks its qid, its level or its negative"
    elif several is not None and (not isinstance(several, list) or not several):
        fault = f"{SHINE} is no list of sentences"
    elif several is not None and row.get("negative") is not None:
        fault = f"row has both {SHINE} and a negative"
    if fault:
        yield Negative("" if qid is None else str(qid), value=line, fault=fault)
        return
    levels: list[tuple[Any, Any, Any]] = [(row.get("level"), row.get("negative"), row.get("masked_query"))]
    if several is not None:
        masked = row.get("masked_queries")
        masked = masked if isinstance(masked, list) and len(masked) == len(several) else [None] * len(several)
        levels = list(zip(range(1, len(several) + 1), several, masked, strict=True))
    for level, given, mask in levels:
        place, whole = f"level {str(level)[:20]}, {line}", WHOLE.fullmatch(str(level).strip())
        if not is_text(given):
            yield Negative(str(qid), value=place, fault="negative is no text")
            continue
        text, changes = clean_text(given)
        query, similarity = row.get("query", ""), row.get("similarity")
        yield Negative(
            str(qid),
            str(row.get("vid") or qid),
            int(whole[1]) if whole else 0,
            clean_text(query)[0] if is_text(query) else "",
            text,
            str(row.get("provider") or "file"),
            mask if is_text(mask) else None,
            similarity=similarity if isinstance(similarity, float | int) else None,
            value=f"{place}: {text}",
            changes=changes,
        )


def inert(cell: str) -> str:
    """Return a CSV cell with an apostrophe before all text that a spreadsheet would run as a formula.

    In some languages, spreadsheets also begin a cell after each semicolon.
    """
    return re.sub(CELL + FORMULA, "'", cell)


def not_inert(cell: str) -> str:
    """Return a cell without the apostrophes that `inert` added."""
    return re.sub(f"{CELL}'{FORMULA}", "", cell)
