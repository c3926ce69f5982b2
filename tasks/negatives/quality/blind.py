"""A blind reading: a sheet of negatives of several origins, shuffled, that people fill in without seeing the origins.

    penumbra quality mine/negatives release.jsonl --blind 100 --output sheet.csv
    penumbra quality --score sheet.csv

`sheet.csv` has a negative in each row, with its query, the levels before it, and a column for each question;
`sheet.key.json` beside it has the origin and level of each row, and a digest of its text.
"""

import csv
import io
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import combinations
from pathlib import Path
from statistics import NormalDist
from typing import Any

from pydantic import BaseModel, ValidationError

from penumbra.artifacts.files import draft_of, file_digest
from penumbra.artifacts.markdown import counted
from penumbra.artifacts.store import Store
from penumbra.tasks.data.resampling import Estimate, wilson
from penumbra.tasks.negatives.files import NegativesError, inert, not_inert
from penumbra.tasks.negatives.providers.random import row_seed
from penumbra.tasks.negatives.quality.command import find_negatives
from penumbra.tasks.negatives.quality.negatives import FileNegatives, Negative

QUESTIONS = ("grammatical", "false_of_the_moment", "natural", "nested")
TEXTS = ("query", "levels_before", "negative")
COLUMNS = ("id", *TEXTS, *QUESTIONS)
ANSWERS = {"y": True, "n": False, "": None}
ARROW = " → "
DELIMITERS = ",;\t"
Cells = Mapping[str, str]


class KeyRow(BaseModel):
    """The origin of a row of the sheet: the number of its source, its level, and digests of its query and its texts."""

    source: int
    level: int
    query: str
    digest: str


class Source(BaseModel):
    """What a row may come from: the reference as it was typed, and the key of the artifact or digest of the file."""

    reference: str
    key: str


class Key(BaseModel):
    """The key of a sheet; `sheet` is the beginning of its ids."""

    sheet: str
    seed: int
    sources: list[Source]
    rows: dict[str, KeyRow]


@dataclass(frozen=True)
class Scores:
    """Figures of a filled sheet: rows for a file, and tables for people."""

    rows: list[dict[str, Any]]
    tables: Sequence[tuple[str, tuple[Sequence[str], list[tuple[str, ...]]]]]
    notes: list[str]


def key_file(sheet: Path) -> Path:
    """Return where the key of a sheet lies."""
    return sheet.with_suffix(".key.json")


def _digest(*texts: str) -> str:
    return blake2b("\0".join(" ".join(text.split()) for text in texts).encode(), digest_size=12).hexdigest()


# -- write a sheet ----------------------------------------------------------------------------------------------------


def write_sheet(store: Store, references: Sequence[str], count: int, seed: int, sheet: Path) -> list[str]:
    """Write a sheet of about `count` rows and its key; return how many rows there are of each origin, and what to do.

    Every origin and level has as many rows. At a level the same queries are drawn from all origins, as far as they
    have them. Raises `NegativesError` if a file is there already, or the rows are too few.
    """
    for file in sheet, key_file(sheet):
        if file.exists():
            raise NegativesError(f"{file} is there already, perhaps filled in: name another with --output")
    twice = next((name for i, name in enumerate(references) if name in references[:i]), None)
    if twice:
        raise NegativesError(f"{twice} is given twice: give each origin once")
    origins, groups = list[Source](), dict[tuple[int, int], list[tuple[Negative, str]]]()
    for number, reference in enumerate(references):
        found = find_negatives(store, reference)
        own = file_digest(found.path) if isinstance(found, FileNegatives) else found.artifact.key
        origins.append(Source(reference=reference, key=own))
        groups |= _groups(number, [row for part in found.parts() for row in part], seed)
    each = min([count // max(1, len(groups)), *map(len, groups.values())])
    if not each:
        raise NegativesError(
            f"--blind {count} is too few for {len(groups)} groups (origins × levels): ask for {len(groups)} at least"
        )
    drawn = [(*place, row, before) for place, rows in groups.items() for row, before in rows[:each]]
    drawn.sort(key=lambda it: row_seed(seed, f"{it[0]} {it[2].qid} {it[2].negative}", it[1]))
    name = _digest(str(seed), *(f"{row.query}\n{row.negative}" for _, _, row, _ in drawn))[:6]
    key, lines = Key(sheet=name, seed=seed, sources=origins, rows={}), io.StringIO(newline="")
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(COLUMNS)
    for number, (origin, level, row, before) in enumerate(drawn, 1):
        texts = [" ".join(text.split()) for text in (row.query, before, row.negative)]
        key.rows[f"{name}-{number:04}"] = KeyRow(
            source=origin, level=level, query=_digest(row.query), digest=_digest(*texts)
        )
        writer.writerow([f"{name}-{number:04}", *map(inert, texts), *("" for _ in QUESTIONS)])
    with draft_of(key_file(sheet)) as draft:
        os.close(os.open(draft, os.O_CREAT | os.O_WRONLY, 0o600))  # nobody else reads the origins
        draft.write_text(json.dumps(key.model_dump(), indent=1), encoding="utf-8")
    with draft_of(sheet) as draft:
        draft.write_text(lines.getvalue(), encoding="utf-8-sig", newline="")  # Excel needs the mark to read UTF-8
    levels = len({level for _, level in groups})
    return [
        f"{counted(len(drawn), 'row')}: {each:,} of each of {len(references)} origins and {levels} levels",
        f"answer y or n in the columns {', '.join(QUESTIONS)}, or nothing where you can't say; don't open "
        f"{key_file(sheet).name}; then: penumbra quality --score {sheet}",
    ]


def _groups(number: int, rows: Sequence[Negative], seed: int) -> dict[tuple[int, int], list[tuple[Negative, str]]]:
    """Return the rows of each level of an origin with the levels before, one for each text of a query, shuffled."""
    texts = {(row.qid, row.level): row.negative for row in reversed(rows)}
    groups: dict[tuple[int, int], dict[str, tuple[Negative, str]]] = defaultdict(dict)
    for row in rows:
        before = ARROW.join(texts[row.qid, level] for level in range(1, row.level) if (row.qid, level) in texts)
        groups[number, row.level].setdefault(" ".join(row.query.split()), (row, before))
    return {
        place: [own[query] for query in sorted(own, key=lambda query: row_seed(seed, query, place[1]))]
        for place, own in sorted(groups.items())
    }


# -- score a sheet ----------------------------------------------------------------------------------------------------


def score_sheet(sheet: Path) -> Scores:
    """Return the figures of a filled sheet; raise `NegativesError` naming the first row that does not fit its key."""
    key = _read_key(sheet)
    answers = _read_answers(sheet, key)
    rows = [*_shares(key, answers), *_differences(key, answers)]
    names = [source.reference for source in key.sources]
    tables = []
    for title, pairs in (
        ("share of yes", [(name, "") for name in names]),
        ("difference, where the query is the same", [*combinations(names, 2)]),
    ):
        lines = []
        for pair in pairs:
            mine = [row for row in rows if (row["origin"], row["minus"]) == pair]
            for level in sorted({row["level"] for row in mine}):
                cells = {row["question"]: _cell(row) for row in mine if row["level"] == level}
                named = " − ".join(filter(None, pair))
                lines.append((named, str(level), *(cells.get(question, "–") for question in QUESTIONS)))
        if lines:
            tables.append((title, (("origin", "level", *(q.replace("_", " ") for q in QUESTIONS)), lines)))
    blank = sum(not any(answer is not None for answer in of_row.values()) for of_row in answers.values())
    missing = len(key.rows) - len(answers)
    notes = [f"{blank:,} of {counted(len(answers), 'row')} have no answer"] if blank else []
    notes += [f"{missing:,} of {counted(len(key.rows), 'row')} are not in the sheet any more"] if missing else []
    return Scores(rows, tables, notes)


def _cell(row: Mapping[str, Any]) -> str:
    interval = f"{row['low']:.0%} to {row['high']:.0%}"
    if row["minus"]:
        return f"{row['value']:+.0%} ({interval}) of {row['answered']}"
    return f"{row['yes']} of {row['answered']} ({interval})"


def _read_key(sheet: Path) -> Key:
    path = key_file(sheet)
    try:
        return Key.model_validate_json(path.read_bytes())
    except OSError as error:
        raise NegativesError(
            f"{path}, the key of the sheet, can't be read ({error.strerror}): put it beside the sheet"
        ) from None
    except ValidationError:
        raise NegativesError(
            f"{path} is no key of a sheet: it was changed; put the original beside the sheet"
        ) from None


def _read_answers(sheet: Path, key: Key) -> dict[str, dict[str, bool | None]]:
    """Return the answer to each question by row; None for a blank."""
    answers: dict[str, dict[str, bool | None]] = {}
    for line, cells in _cells(sheet):
        name = cells["id"].strip()
        place = f"{sheet}, line {line} ({name or 'without id'})"
        if name not in key.rows:
            other = "" if name.startswith(f"{key.sheet}-") else ": the key is that of another sheet"
            raise NegativesError(f"{place}: {key_file(sheet).name} has no such row{other}")
        if name in answers:
            raise NegativesError(f"{place}: the row is there twice: delete one")
        if _digest(*(not_inert(cells[column]) for column in TEXTS)) != key.rows[name].digest:
            raise NegativesError(
                f"{place}: its text is not what was written: restore the row from the original; only the columns "
                f"{', '.join(QUESTIONS)} are filled in"
            )
        answers[name] = {}
        for question in QUESTIONS:
            answer = cells[question].strip().lower()
            if answer not in ANSWERS:
                raise NegativesError(f"{place}: {question} is {cells[question][:20]!r}: answer y, n or nothing")
            answers[name][question] = ANSWERS[answer]
    return answers


def _cells(sheet: Path) -> Iterator[tuple[int, Cells]]:
    """Yield the line and the cells of each row, also of a file that a spreadsheet has saved with other delimiters."""
    try:
        text = sheet.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise NegativesError(f"{sheet} is not UTF-8: save it as CSV in UTF-8") from None
    except OSError as error:
        raise NegativesError(f"{sheet} can't be read ({error.strerror})") from None
    head = text.partition("\n")[0]
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(DELIMITERS, key=head.count), strict=True)
    try:
        lacking = [column for column in COLUMNS if column not in (rows.fieldnames or ())]
        if lacking:
            raise NegativesError(f"{sheet} lacks the column {', '.join(lacking)}: its first line must name it")
        for row in rows:
            cells = {name: value or "" for name, value in row.items() if isinstance(name, str)}
            if any(cell.strip() for cell in cells.values()):
                yield rows.line_num, cells
    except csv.Error as error:
        raise NegativesError(f"{sheet}, line {rows.line_num}: the row can't be read ({error}): mend it") from None


def _shares(key: Key, answers: Mapping[str, Mapping[str, bool | None]]) -> Iterator[dict[str, Any]]:
    """Yield the share of yes for each origin, level and question, with Wilson's interval."""
    counts: dict[tuple[int, int, str], list[bool]] = defaultdict(list)
    for name, of_row in answers.items():
        for question, answer in of_row.items():
            if answer is not None:
                counts[key.rows[name].source, key.rows[name].level, question].append(answer)
    for (source, level, question), given in sorted(counts.items()):
        share = wilson(sum(given), len(given))
        yield _row(key.sources[source].reference, "", level, question, sum(given), len(given), share)


def _differences(key: Key, answers: Mapping[str, Mapping[str, bool | None]]) -> Iterator[dict[str, Any]]:
    """Yield the difference of two origins' shares on the queries that both have, at each level."""
    by_place = {(row.source, row.level, row.query): answers.get(name, {}) for name, row in key.rows.items()}
    for first, second in combinations(range(len(key.sources)), 2):
        pairs: dict[tuple[int, str], list[tuple[bool, bool]]] = defaultdict(list)
        for (source, level, query), of_row in by_place.items():
            other = by_place.get((second, level, query), {}) if source == first else {}
            for question, answer in of_row.items():
                if answer is not None and (against := other.get(question)) is not None:
                    pairs[level, question].append((answer, against))
        names = key.sources[first].reference, key.sources[second].reference
        for (level, question), given in sorted(pairs.items()):
            yield _row(*names, level, question, sum(own for own, _ in given), len(given), paired_difference(given))


def paired_difference(pairs: Sequence[tuple[bool, bool]]) -> Estimate:
    """Estimate the difference of two shares of paired answers by Agresti and Min (2005): half a pair more a cell."""
    better, worse = (sum(own is sign and other is not sign for own, other in pairs) for sign in (True, False))
    count, more, less = len(pairs) + 2, better + 0.5, worse + 0.5
    middle = (more - less) / count
    half = NormalDist().inv_cdf(0.975) * (((more + less) - (more - less) ** 2 / count) ** 0.5) / count
    return Estimate((better - worse) / len(pairs), max(-1.0, middle - half), min(1.0, middle + half))


def _row(
    origin: str, minus: str, level: int, question: str, yes: int, answered: int, found: Estimate
) -> dict[str, Any]:
    rounded = {name: round(value, 4) for name, value in vars(found).items()}
    return {
        **{"origin": origin, "minus": minus, "level": level, "question": question, "yes": yes, "answered": answered},
        **rounded,
    }


def score_lines(rows: Sequence[Mapping[str, Any]], is_json: bool) -> Iterator[str]:
    """Yield the figures as JSON, or as CSV without formulas."""
    if is_json:
        yield json.dumps(list(rows), ensure_ascii=False, indent=1) + "\n"
        return
    lines = io.StringIO(newline="")
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(rows[0] if rows else ())
    writer.writerows([inert(cell) if isinstance(cell, str) else cell for cell in row.values()] for row in rows)
    yield lines.getvalue()
