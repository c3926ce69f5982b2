"""A blind reading: a sheet of negatives of several origins, shuffled, that people fill in without seeing the origins.

`sheet.csv` has a negative in each row, with its query, the levels before it, and a column for each question.
`sheet.key.json` has the origin and level of each row, and a digest of its text (docs/guides/quality.md).
"""

import csv
import io
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import combinations
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pandas as pd
from pydantic import BaseModel, ValidationError, model_validator

from penumbra.artifacts.files import draft_of, file_digest
from penumbra.artifacts.markdown import counted
from penumbra.artifacts.store import Store
from penumbra.tasks.data.resampling import Estimate, wilson
from penumbra.tasks.negatives.files import NegativesError, inert, not_inert
from penumbra.tasks.negatives.providers.random import row_seed
from penumbra.tasks.negatives.quality.negatives import FileNegatives, Negative, find_negatives
from penumbra.tasks.negatives.quality.page import Table

QUESTIONS = ("grammatical", "false_of_the_moment", "natural", "nested")
TEXTS = ("query", "levels_before", "negative")
COLUMNS = ("id", *TEXTS, *QUESTIONS)
ANSWERS = {"y": True, "n": False, "": None}
ARROW = " → "
Figure = dict[str, Any]


class KeyRow(BaseModel):
    """The origin of a row of the sheet: the number of its source, its level, and digests of its query and its texts."""

    source: int
    level: int
    query: str
    digest: str


class Source(BaseModel):
    """An origin as it was typed, and the key of its artifact or the digest of its file."""

    reference: str
    key: str


class Key(BaseModel):
    """The key of a sheet; `sheet` is the beginning of its ids."""

    sheet: str
    seed: int
    sources: list[Source]
    rows: dict[str, KeyRow]

    @model_validator(mode="after")
    def _known_sources(self) -> "Key":
        if not all(0 <= row.source < len(self.sources) for row in self.rows.values()):
            raise ValueError("a row is of an origin that the key lacks")
        return self


def key_file(sheet: Path) -> Path:
    """Return where the key of a sheet lies."""
    return sheet.with_suffix(".key.json")


def _digest(*texts: str) -> str:
    return blake2b("\0".join(" ".join(text.split()) for text in texts).encode(), digest_size=12).hexdigest()


# -- write a sheet ----------------------------------------------------------------------------------------------------


def write_sheet(store: Store, references: Sequence[str], count: int, seed: int, sheet: Path) -> list[str]:
    """Write a sheet of about `count` rows and its key; return how many rows there are of each origin, and what to do.

    Every origin and level has as many rows. At a level the same queries are drawn from all origins, as far as they
    have them. Raises `NegativesError` if a file exists already, or the rows are too few.
    """
    for file in sheet, key_file(sheet):
        if file.exists():
            raise NegativesError(f"{file} exists already, perhaps filled in: name another with --output")
    if len({*references}) < len(references):
        raise NegativesError("the same negatives are given twice: give each origin once")
    sources, groups = list[Source](), dict[tuple[int, int], list[tuple[Negative, str]]]()
    for number, reference in enumerate(references):
        found = find_negatives(store, reference)
        own = file_digest(found.path) if isinstance(found, FileNegatives) else found.artifact.key
        sources.append(Source(reference=reference, key=own))
        groups |= _groups(number, [row for part in found.parts() for row in part], seed)
    each = min([count // max(1, len(groups)), *map(len, groups.values())])
    if not each:
        raise NegativesError(
            f"--blind {count} is too few for {len(groups)} groups (origins × levels): ask for {len(groups)} at least"
        )
    drawn = [(*place, row, before) for place, rows in groups.items() for row, before in rows[:each]]
    drawn.sort(key=lambda it: row_seed(seed, f"{it[0]} {it[2].qid} {it[2].negative}", it[1]))
    name = _digest(str(seed), *(f"{row.query}\n{row.negative}" for _, _, row, _ in drawn))[:6]
    key, lines = Key(sheet=name, seed=seed, sources=sources, rows={}), io.StringIO(newline="")
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(COLUMNS)
    for number, (origin, level, row, before) in enumerate(drawn, 1):
        texts = [" ".join(text.split()) for text in (row.query, before, row.negative)]
        about = {"source": origin, "level": level, "query": _digest(row.query), "digest": _digest(*texts)}
        key.rows[f"{name}-{number:04}"] = KeyRow.model_validate(about)
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


def score_sheet(sheet: Path) -> tuple[list[Figure], list[tuple[str, Table]], list[str]]:
    """Return the figures of a filled sheet, the tables that show them, and notes on what is not answered.

    Raises `NegativesError` naming the first row that does not fit its key.
    """
    try:
        key = Key.model_validate_json(key_file(sheet).read_bytes())
    except (OSError, ValidationError):
        raise NegativesError(
            f"{key_file(sheet)} is not the key of {sheet.name}: put the original next to the sheet"
        ) from None
    answers = dict(_read_answers(sheet, key))
    figures = list(_figures(key, answers))
    kinds = {"share of yes": False, "difference, where the query is the same": True}
    tables = [(title, [it for it in figures if bool(it["minus"]) is minus]) for title, minus in kinds.items()]
    blank = sum(not any(answer is not None for answer in row.values()) for row in answers.values())
    missing = len(key.rows) - len(answers)
    notes = [f"{blank:,} of {counted(len(answers), 'row')} have no answer"] if blank else []
    notes += [f"{missing:,} of {counted(len(key.rows), 'row')} are not in the sheet any more"] if missing else []
    return figures, [(title, _table(own)) for title, own in tables if own], notes


def _table(figures: Sequence[Figure]) -> Table:
    """Return a row for each origin, or pair of origins, and level, with a column for each question."""
    lines: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for it in figures:
        place = it["origin"] + f" − {it['minus']}" * bool(it["minus"]), str(it["level"])
        interval = f"({it['low']:.0%} to {it['high']:.0%})"
        difference = f"{it['value']:+.0%} {interval} of {it['answered']}"
        lines[place][it["question"]] = difference if it["minus"] else f"{it['yes']} of {it['answered']} {interval}"
    header = ("origin", "level", *(question.replace("_", " ") for question in QUESTIONS))
    return header, [(*place, *(cells.get(it, "–") for it in QUESTIONS)) for place, cells in lines.items()]


def _read_answers(sheet: Path, key: Key) -> Iterator[tuple[str, dict[str, bool | None]]]:
    """Yield the id of each row with the answer to each question; None for a blank."""
    try:
        text = sheet.read_text(encoding="utf-8-sig")
        delimiter = max(",;\t", key=text.partition("\n")[0].count)  # a spreadsheet may save other ones
        rows = pd.read_csv(
            io.StringIO(text), sep=delimiter, dtype=str, keep_default_na=False, skip_blank_lines=False, engine="python"
        )
    except (OSError, ValueError) as error:
        raise NegativesError(f"{sheet} can't be read ({error}): save it as CSV in UTF-8") from None
    if lacking := [column for column in COLUMNS if column not in rows]:
        raise NegativesError(f"{sheet} lacks the column {', '.join(lacking)}: its first line must name it")
    taken = set[str]()
    for line, cells in enumerate(rows[[*COLUMNS]].fillna("").to_dict("records"), 2):
        name = cells["id"].strip()
        place = f"{sheet}, line {line} ({name or 'without id'})"
        if not any(map(str.strip, cells.values())):
            continue
        if name not in key.rows:
            raise NegativesError(f"{place}: {key_file(sheet).name} has no such row: it may be the key of another sheet")
        if name in taken:
            raise NegativesError(f"{place}: the row is there twice: delete one")
        if _digest(*(not_inert(cells[column]) for column in TEXTS)) != key.rows[name].digest:
            raise NegativesError(
                f"{place}: its text is not what was written: restore the row from the original; only the columns "
                f"{', '.join(QUESTIONS)} are filled in"
            )
        wrong = [question for question in QUESTIONS if cells[question].strip().lower() not in ANSWERS]
        if wrong:
            raise NegativesError(f"{place}: {wrong[0]} is {cells[wrong[0]][:20]!r}: answer y, n or nothing")
        taken.add(name)
        yield name, {question: ANSWERS[cells[question].strip().lower()] for question in QUESTIONS}


def _figures(key: Key, answers: Mapping[str, Mapping[str, bool | None]]) -> Iterator[Figure]:
    """Yield the share of yes by origin, level and question, and the difference of two origins on the same queries."""
    given: dict[tuple[int, int, str], dict[str, bool]] = defaultdict(dict)  # by query
    for name, row in key.rows.items():
        for question, answer in answers.get(name, {}).items():
            if answer is not None:
                given[row.source, row.level, question][row.query] = answer
    names = [source.reference for source in key.sources]
    for (source, level, question), own in sorted(given.items()):
        share = wilson(sum(own.values()), len(own))
        yield _figure(names[source], "", level, question, sum(own.values()), len(own), share)
    for first, second in combinations(range(len(names)), 2):
        for (source, level, question), own in sorted(given.items()):
            other = given.get((second, level, question), {}) if source == first else {}
            if pairs := [(answer, other[query]) for query, answer in own.items() if query in other]:
                yes, found = sum(answer for answer, _ in pairs), paired_difference(pairs)
                yield _figure(names[first], names[second], level, question, yes, len(pairs), found)


def _figure(origin: str, minus: str, level: int, question: str, yes: int, answered: int, found: Estimate) -> Figure:
    about = {"origin": origin, "minus": minus, "level": level, "question": question, "yes": yes, "answered": answered}
    return about | {name: round(value, 4) for name, value in vars(found).items()}


def paired_difference(pairs: Sequence[tuple[bool, bool]]) -> Estimate:
    """Estimate the difference of two shares of paired answers by Agresti and Min (2005): half a pair more a cell."""
    better, worse = (sum(own is sign and other is not sign for own, other in pairs) for sign in (True, False))
    count, more, less = len(pairs) + 2, better + 0.5, worse + 0.5
    middle = (more - less) / count
    half = NormalDist().inv_cdf(0.975) * (((more + less) - (more - less) ** 2 / count) ** 0.5) / count
    return Estimate((better - worse) / len(pairs), max(-1.0, middle - half), min(1.0, middle + half))


def score_text(figures: Sequence[Figure], is_json: bool) -> str:
    """Return the figures as JSON, or as CSV without formulas."""
    frame = pd.DataFrame(figures)
    if is_json:
        return str(frame.to_json(orient="records", indent=1, force_ascii=False)) + "\n"
    return str(frame.map(lambda cell: inert(cell) if isinstance(cell, str) else cell).to_csv(index=False))
