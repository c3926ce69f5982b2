"""A sheet for people, with two questions: is a negative false of its moment, and is it natural English."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import sqrt
from pathlib import Path
from typing import Any

from penumbra.tasks.data.resampling import Estimate
from penumbra.tasks.negatives.quality.controls import EVERY_LEVEL
from penumbra.tasks.negatives.quality.figures import ALL, Figures
from penumbra.tasks.negatives.quality.negative import Negative, NegativesError, draw

QUESTIONS = {
    "false_of_this_moment": "Is the negative false of the moment that the query describes? yes or no",
    "natural_english": "Is the negative natural English? yes or no",
}
COLUMNS = ("row", "qid", "level", "query", "negative", *QUESTIONS)
YES, NO = ("yes", "y", "1", "true"), ("no", "n", "0", "false")
FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")  # what a spreadsheet runs, and what `inert` made of it
ROWS = 100
NORMAL = 1.959964  # the normal distribution's quantile of a 95 % interval


def sheet_rows(rows: Iterable[Negative], count: int = ROWS, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of a sheet: as many of each level as of the next, drawn and mixed by the seed, without their answers."""
    by_level: dict[int, list[Negative]] = {}
    for row in rows:
        by_level.setdefault(row.level, []).append(row)
    chosen: list[Negative] = []
    for left, level in zip(range(len(by_level), 0, -1), sorted(by_level), strict=True):
        share = -(-(count - len(chosen)) // left)
        chosen += sorted(by_level[level], key=lambda row: draw(seed, f"{row.qid} {row.level}"))[:share]
    chosen.sort(key=lambda row: draw(seed + 1, f"{row.qid} {row.level}"))
    empty = dict.fromkeys(QUESTIONS, "")
    return [
        {"row": i, "qid": row.qid, "level": row.level, "query": row.positive, "negative": row.negative, **empty}
        for i, row in enumerate(chosen, 1)
    ]


def inert(cell: str) -> str:
    """A cell that no spreadsheet runs as a formula: an apostrophe goes before what would be one. See `as_written`."""
    return f"'{cell}" if FORMULA.match(cell) else cell


def as_written(cell: str) -> str:
    """The cell that `inert` was given."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def csv_lines(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Rows as CSV, a row at a time: no text is a formula, and lists are JSON."""
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    for cells in chain([columns], ([row[name] for name in columns] for row in rows)):
        writer.writerow([_cell(cell) for cell in cells])
        yield line.getvalue()
        line.seek(line.truncate(0))


def _cell(cell: object) -> object:
    text = json.dumps(cell, ensure_ascii=False) if isinstance(cell, list) else cell
    return inert(text) if isinstance(text, str) else text


def sheet_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """The sheet as CSV."""
    return "".join(csv_lines(COLUMNS, rows))


def wilson(yes: int, answers: int) -> Estimate:
    """The share of yes with Wilson's 95 % interval (Wilson, 1927)."""
    if not answers:
        return Estimate(float("nan"))
    share, square = yes / answers, NORMAL**2
    middle = (share + square / (2 * answers)) / (1 + square / answers)
    half = NORMAL * sqrt(share * (1 - share) / answers + square / (4 * answers**2)) / (1 + square / answers)
    return Estimate(share, middle - half, middle + half)


@dataclass(frozen=True)
class Sheet:
    """A filled-in sheet."""

    path: Path

    @cached_property
    def rows(self) -> list[dict[str, str]]:
        """Its rows; raises `NegativesError` naming every answer that is neither yes nor no."""
        try:
            text = self.path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise NegativesError(f"{self.path} can't be read ({error}): give the sheet as UTF-8 CSV") from None
        first = text.partition("\n")[0]
        rows = list(csv.DictReader(io.StringIO(text), delimiter=max(",;\t", key=first.count)))
        lacking = [name for name in COLUMNS if not rows or rows[0].get(name) is None]
        if lacking:
            raise NegativesError(
                f"{self.path} lacks {', '.join(lacking)}: give a sheet that `penumbra export --format review` wrote"
            )
        bad = [
            f"row {row['row']}: {name} is {row[name]!r}"
            for row in rows
            for name in QUESTIONS
            if (row[name] or "").strip().lower() not in (*YES, *NO, "")
        ]
        bad += [f"row {row['row']}: level is {row['level']!r}" for row in rows if not row["level"].isdigit()]
        if bad:
            raise NegativesError(f"{self.path}: answer yes or no, or nothing; {'; '.join(bad)}")
        return rows

    def check(self, negatives: Iterable[Negative], name: str) -> None:
        """Raise `NegativesError` unless every row of the sheet is one of these negatives."""
        known = {(row.qid, row.level, row.negative) for row in negatives}
        for row in self.rows:
            if (as_written(row["qid"]), int(row["level"]), as_written(row["negative"])) not in known:
                raise NegativesError(
                    f"{self.path} row {row['row']}: {name} has no such negative: name the negatives that the sheet "
                    "was exported from"
                )

    def figures(self) -> list[dict[str, Any]]:
        """Rows of `quality`: the share of yes to each question, by level and over all, and the rows left empty."""
        figures = Figures()
        for level in (EVERY_LEVEL, *sorted({int(row["level"]) for row in self.rows})):
            here = [row for row in self.rows if level in (EVERY_LEVEL, int(row["level"]))]
            for name in QUESTIONS:
                answers = [row[name].strip().lower() for row in here if (row[name] or "").strip()]
                figures.put(level, ALL, f"review.{name}", wilson(sum(a in YES for a in answers), len(answers)))
                figures.put(level, ALL, f"review.{name}.answers", len(answers))
            empty = sum(not any((row[name] or "").strip() for name in QUESTIONS) for row in here)
            figures.put(level, ALL, "review.empty_rows", empty)
        return figures.rows
