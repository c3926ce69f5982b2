"""Negatives of any other origin: SHINE's JSON lines, one negative a line, or Parquet of either.

| form | keys of a row |
| --- | --- |
| SHINE's | `qid`, `query`, `recomposed_queries`, one a level; `vid`, `masked_queries` where there are any |
| one negative a row | `qid`, `level`, `query`, `negative`; `vid`, `masked_query`, `provider`, `similarity` likewise |
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penumbra.tasks.negatives.quality.negative import Negative, NegativesError

LEVELS = range(1, 10)
SHINE = "recomposed_queries"
FORMS = "give SHINE's keys (qid, query, recomposed_queries) or one negative a row (qid, level, query, negative)"


@dataclass(frozen=True)
class FileNegatives:
    """The rows of a file, or of the Parquet files of a folder."""

    path: Path

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    @cached_property
    def rows(self) -> list[Negative]:
        """All rows; raises `NegativesError` naming the first row that is none."""
        try:
            return [negative for number, row in _read(self.path) for negative in _negatives(self.path, number, row)]
        except (OSError, pa.ArrowInvalid) as error:
            raise NegativesError(f"{self.path} can't be read ({error}): give a .jsonl or .parquet file") from None

    def parts(self, queries: Collection[str] | None = None) -> Iterator[list[Negative]]:
        """Yield all rows at once, of all queries or of these: a file is read whole."""
        yield self.rows if queries is None else [row for row in self.rows if row.qid in queries]


def _read(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the rows with their numbers, from 1."""
    if path.is_dir() or path.suffix == ".parquet":
        files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not files:
            raise NegativesError(f"{path} holds no .parquet file: give a file of negatives, or DATASET/negatives")
        rows = (row for file in files for batch in pq.ParquetFile(file).iter_batches() for row in batch.to_pylist())
        yield from enumerate(rows, 1)
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield number, json.loads(line.decode("utf-8-sig"))
                except (ValueError, RecursionError):
                    raise NegativesError(f"{path} row {number} is not JSON: mend the line or take it out") from None


def _negatives(path: Path, number: int, row: Any) -> Iterator[Negative]:
    """Yield the negatives of one row."""
    fault = _fault(row)
    if fault:
        raise NegativesError(f"{path} row {number}: {fault}")
    qid, positive = str(row["qid"]), row["query"].strip()
    vid = str(row.get("vid") or qid)
    if SHINE not in row:
        yield Negative(
            qid,
            vid,
            row["level"],
            positive,
            row["negative"].strip(),
            str(row.get("provider") or "file"),
            row.get("masked_query"),
            None,
            row.get("similarity"),
        )
        return
    masked = row.get("masked_queries") or [None] * len(row[SHINE])
    for level, (negative, mask) in enumerate(zip(row[SHINE], masked, strict=True), 1):
        yield Negative(qid, vid, level, positive, negative.strip(), str(row.get("provider") or "file"), mask)


def _fault(row: Any) -> str:
    """What keeps a row from being judged, with the remedy, or ''."""
    if not isinstance(row, dict):
        return f"no object: {FORMS}"
    lacking = [key for key in ("qid", "query") if row.get(key) in (None, "")]
    if lacking or not (SHINE in row or {"level", "negative"} <= row.keys()):
        lacking = lacking or [f"{SHINE}, or level and negative"]
        return f"lacks {', '.join(lacking)}: {FORMS}"
    if not isinstance(row["query"], str):
        return "query is no text: mend it or take the row out"
    if SHINE not in row:
        if not isinstance(row["negative"], str) or not row["negative"].strip():
            return "negative is no text: mend it or take the row out"
        if not isinstance(row["level"], int) or row["level"] not in LEVELS:
            return f"level {row['level']!r} is no whole number from 1 on: mend it or take the row out"
        fits = isinstance(row.get("masked_query"), str | None) and isinstance(row.get("similarity"), float | int | None)
        return "" if fits else "masked_query is no text or similarity no number: mend it or leave the key out"
    several, masked = row[SHINE], row.get("masked_queries")
    if not isinstance(several, list) or not all(isinstance(text, str) and text.strip() for text in several):
        return f"{SHINE} is no list of texts: mend it or take the row out"
    if masked is not None and (
        not isinstance(masked, list) or len(masked) != len(several) or not all(isinstance(m, str) for m in masked)
    ):
        return f"masked_queries is no list of {len(several)} texts, one a level: mend it or leave the key out"
    return ""
