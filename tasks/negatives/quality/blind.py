"""A blind reading: a sheet of negatives of several origins, shuffled, that people fill in without seeing the origins.

`sheet.csv` has a negative in each row, with its query, the levels before it, and a column for each question.
`sheet.key.json` has the origin, level and texts of each row (docs/guides/quality.md).
"""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from penumbra.artifacts.markdown import counted
from penumbra.artifacts.store import Store
from penumbra.tasks.data.resampling import wilson
from penumbra.tasks.negatives.files import NegativesError, inert, not_inert
from penumbra.tasks.negatives.providers.random import row_seed
from penumbra.tasks.negatives.quality.negatives import find_negatives
from penumbra.tasks.negatives.quality.page import Table

QUESTIONS = ("grammatical", "false_of_the_moment", "natural", "nested")
TEXTS = ("query", "levels_before", "negative")
ANSWERS = ("y", "n", "")


def key_file(sheet: Path) -> Path:
    """Return where the key of a sheet lies."""
    return sheet.with_suffix(".key.json")


def write_sheet(store: Store, references: Sequence[str], count: int, seed: int, sheet: Path) -> str:
    """Write a sheet of about `count` rows and its key; return what to do with it.

    Every origin and level has the same number of rows. At a level, all origins have rows of the same queries, if they
    have negatives of these. Raises `NegativesError` if a file exists already, or the rows are too few.
    """
    for file in sheet, key_file(sheet):
        if file.exists():
            raise NegativesError(f"{file} exists already, perhaps filled in: name another with --output")
    rows = []
    for origin in dict.fromkeys(references):
        negatives = find_negatives(store, origin).rows()
        texts = {(row.qid, row.level): row.negative for row in reversed(negatives)}
        for row in negatives:
            before = [texts[row.qid, level] for level in range(1, row.level) if (row.qid, level) in texts]
            about = {"origin": origin, "level": row.level, "draw": row_seed(seed, row.query, row.level)}
            rows.append({**about, "query": row.query, "levels_before": " → ".join(before), "negative": row.negative})
    if not rows:
        raise NegativesError(f"{', '.join(references)}: there is no negative to judge: build negatives again")
    groups = pd.DataFrame(rows).drop_duplicates(["origin", "level", "query"]).sort_values("draw")
    sizes = groups.groupby(["origin", "level"]).size()
    each = min(count // len(sizes), sizes.min())
    if not each:
        raise NegativesError(
            f"--blind {count} is too few for {len(sizes)} groups (origins × levels): ask for {len(sizes)} at least"
        )
    drawn = groups.groupby(["origin", "level"]).head(each).sample(frac=1, random_state=seed)
    drawn["id"] = [str(number) for number in range(1, len(drawn) + 1)]
    key_file(sheet).touch(0o600)  # nobody else reads the origins
    drawn[["id", "origin", "level", *TEXTS]].to_json(key_file(sheet), orient="records", indent=1, force_ascii=False)
    shown = drawn[["id", *TEXTS]].map(inert).assign(**dict.fromkeys(QUESTIONS, ""))
    shown.to_csv(sheet, index=False, encoding="utf-8-sig")  # Excel needs the mark to read UTF-8
    return (
        f"{counted(len(drawn), 'row')}, {each:,} of each origin and level: answer y or n in the columns "
        f"{', '.join(QUESTIONS)}, or nothing where you can't say; don't open {key_file(sheet).name}; "
        f"then: penumbra quality --score {sheet}"
    )


def score_sheet(sheet: Path) -> tuple[Table, list[str]]:
    """Return the share of "y" among the answers to each question, by origin and level, and notes on unanswered rows.

    Raises `NegativesError` naming the first row that does not fit its key.
    """
    try:
        key = pd.DataFrame(json.loads(key_file(sheet).read_bytes())).set_index("id")[["origin", "level", *TEXTS]]
        key = key.astype({"origin": str, "level": int})
        if not key.index.is_unique:
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise NegativesError(
            f"{key_file(sheet)} is not the key of {sheet.name}: put the original next to the sheet"
        ) from None
    answers = pd.DataFrame.from_dict(dict(_answers(sheet, key)), orient="index", columns=QUESTIONS, dtype=str)
    lines = list[tuple[str, ...]]()
    for (origin, level), own in key.join(answers, how="inner").groupby(["origin", "level"]):
        counts = [((own[question] == "y").sum(), (own[question] != "").sum()) for question in QUESTIONS]
        shares = [(yes, given, wilson(yes, given)) for yes, given in counts]
        cells = [f"{yes} of {n} ({share.low:.0%} to {share.high:.0%})" if n else "–" for yes, n, share in shares]
        lines.append((str(origin), str(level), *cells))
    blank, missing = (answers == "").all(axis=1).sum(), len(key) - len(answers)
    notes = [f"{blank:,} of {counted(len(answers), 'row')} have no answer"] if blank else []
    notes += [f"{missing:,} of {counted(len(key), 'row')} are not in the sheet any more"] if missing else []
    return (("origin", "level", *(question.replace("_", " ") for question in QUESTIONS)), lines), notes


def _answers(sheet: Path, key: pd.DataFrame) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the id of each row with the answer to each question."""
    try:
        lines = sheet.read_text("utf-8-sig").splitlines(keepends=True)
        delimiter = max(",;\t", key=lines[0].count)  # a spreadsheet may save another delimiter
        reader = csv.DictReader(lines, delimiter=delimiter, restval="", strict=True)
        rows = [(reader.line_num, {name: row[name] for name in ("id", *TEXTS, *QUESTIONS)}) for row in reader]
    except (OSError, ValueError, LookupError, csv.Error) as error:
        raise NegativesError(f"{sheet} can't be read ({error}): save it as CSV in UTF-8, with all columns") from None
    taken = set[str]()
    for line, cells in rows:
        if not any(map(str.strip, cells.values())):
            continue
        name, answers = cells["id"].strip(), {it: cells[it].strip().lower() for it in QUESTIONS}
        place = f"{sheet}, line {line}"
        if name not in key.index or [not_inert(cells[it]) for it in TEXTS] != [key[it][name] for it in TEXTS]:
            raise NegativesError(
                f"{place}: its id and texts are not what was written: restore the row; only the columns "
                f"{', '.join(QUESTIONS)} are filled in"
            )
        if name in taken:
            raise NegativesError(f"{place}: row {name} is there twice: delete one")
        wrong = [question for question, answer in answers.items() if answer not in ANSWERS]
        if wrong:
            raise NegativesError(f"{place}: {wrong[0]} is {cells[wrong[0]][:20]!r}: answer y, n or nothing")
        taken.add(name)
        yield name, answers
