"""A blind reading: the sheet hides its origins, and a filled one is scored, also after a spreadsheet has saved it."""

import csv
import io
import json
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.files import NegativesError
from penumbra.tasks.negatives.quality.blind import key_file, score_sheet, write_sheet
from tests.rows import build, json_lines
from tests.terminal import penumbra, printed, refusal

QUERIES = 12
Row = dict[str, str]


@pytest.fixture
def origins(tmp_path: Path) -> list[str]:
    """Two files: one negative in each row, and SHINE's form; one query begins as a formula does."""
    queries = ["=1+1 is a query", *(f"a person opens door {i}" for i in range(1, QUERIES))]
    rows = [
        {"qid": str(i), "level": level, "query": query, "negative": f"flat {level} of {i}, or so", "provider": "corpus"}
        for i, query in enumerate(queries)
        for level in (1, 2, 3)
    ]
    others = [
        {"qid": f"x{i}", "query": query, "recomposed_queries": [f"shine {level} of {i}" for level in (1, 2, 3)]}
        for i, query in enumerate(queries)
    ]
    files = json_lines(tmp_path / "flat.jsonl", rows), json_lines(tmp_path / "shine.jsonl", others)
    return [str(file) for file in files]


@pytest.fixture
def sheet(origins: list[str], store: Store, tmp_path: Path) -> Path:
    write_sheet(store, origins, 60, 0, tmp_path / "sheet.csv")
    return tmp_path / "sheet.csv"


def rows_of(sheet: Path) -> list[Row]:
    return list(csv.DictReader(io.StringIO(sheet.read_text(encoding="utf-8-sig"))))


def fill(sheet: Path, change: Callable[[Row], object], delimiter: str = ",", encoding: str = "utf-8-sig") -> None:
    rows = rows_of(sheet)
    for row in rows:
        change(row)
    pd.DataFrame(rows).to_csv(sheet, sep=delimiter, encoding=encoding, index=False, quoting=csv.QUOTE_ALL)


def change_key(sheet: Path, **changes: object) -> None:
    first, second, *rest = json.loads(key_file(sheet).read_text())
    key_file(sheet).write_text(json.dumps([first, second | changes, *rest]))


def natural_where_flat(row: Row) -> None:
    row["natural"] = "Y " if row["negative"].startswith("flat") else "n"


def test_an_artifact_without_negatives_makes_no_sheet(store: Store, tmp_path: Path) -> None:
    made = list[Artifact]()
    for stage in ("annotations", "tags", "negatives"):
        made.append(build(store, stage, [], made))
    with pytest.raises(NegativesError, match="mine/negatives: there is no negative to judge"):
        write_sheet(store, ["mine/negatives"], 60, 0, tmp_path / "sheet.csv")


def test_a_sheet_has_rows_of_each_origin_and_level_and_hides_it(
    sheet: Path, origins: list[str], store: Store, tmp_path: Path
) -> None:
    rows, key = rows_of(sheet), json.loads(key_file(sheet).read_text())
    assert len(rows) == 60
    assert Counter((row["origin"], row["level"]) for row in key) == {(it, n): 10 for it in origins for n in (1, 2, 3)}
    assert len({(row["level"], row["query"]) for row in key}) == 30, "both origins have the same queries at a level"
    text = sheet.read_text(encoding="utf-8-sig")
    assert "corpus" not in text
    assert ".jsonl" not in text
    order = [row["origin"] for row in key]
    assert order not in (sorted(order), sorted(order, reverse=True))
    third = next(row for row in rows if row["negative"].startswith("flat 3"))
    number = third["negative"].removeprefix("flat 3 of ")
    assert third["levels_before"] == f"flat 1 of {number} → flat 2 of {number}"
    assert stat.S_IMODE(key_file(sheet).stat().st_mode) == 0o600
    assert not any(row["query"].startswith("=") for row in rows), "no spreadsheet runs it"
    for seed in 0, 1:
        write_sheet(store, origins, 60, seed, tmp_path / f"{seed}.csv")
        assert ((tmp_path / f"{seed}.csv").read_bytes() == sheet.read_bytes()) is (seed == 0)


@pytest.mark.parametrize(("delimiter", "encoding"), [(",", "utf-8"), (";", "utf-8-sig"), ("\t", "utf-8-sig")])
def test_a_sheet_is_scored_by_origin_and_level(sheet: Path, origins: list[str], delimiter: str, encoding: str) -> None:
    fill(sheet, natural_where_flat, delimiter, encoding)
    (header, lines), notes = score_sheet(sheet)
    assert header == ("origin", "level", "grammatical", "false of the moment", "natural", "nested")
    flat, shine = "10 of 10 (72% to 100%)", "0 of 10 (0% to 28%)"  # Wilson's
    natural = dict(zip(origins, (flat, shine), strict=True))
    assert lines == [(it, str(n), "–", "–", own, "–") for it, own in natural.items() for n in (1, 2, 3)]
    assert notes == []


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda sheet: sheet.write_text(sheet.read_text("utf-8-sig").replace(",natural", "", 1)), "with all columns"),
        (lambda sheet: fill(sheet, lambda row: row.update(natural="maybe")), r"line 2: natural is 'maybe'"),
        (lambda sheet: fill(sheet, lambda row: row.update(negative="another")), "line 2: its id and texts are not"),
        (lambda sheet: fill(sheet, lambda row: row.update(id="0")), "line 2: its id and texts are not what was"),
        (lambda sheet: fill(sheet, lambda row: row.update(rows_of(sheet)[0])), "line 3: row 1 is there twice"),
        (lambda sheet: key_file(sheet).unlink(), "put the original next to the sheet"),
        (lambda sheet: key_file(sheet).write_text("{}"), "put the original next to the sheet"),
        (lambda sheet: key_file(sheet).write_text('[{"id": 1}]'), "put the original next to the sheet"),
        (lambda sheet: key_file(sheet).write_text("[" * 100_000), "put the original next to the sheet"),
        (lambda sheet: change_key(sheet, id="1"), "put the original next to the sheet"),
        (lambda sheet: change_key(sheet, level=[1]), "put the original next to the sheet"),
        (lambda sheet: change_key(sheet, level=10**30), "put the original next to the sheet"),
        (lambda sheet: sheet.write_bytes(sheet.read_bytes() + b"\xff"), "save it as CSV in UTF-8"),
        (lambda sheet: sheet.write_text(sheet.read_text() + 'x,"open'), "can't be read"),
    ],
)
def test_a_spoilt_sheet_is_one_line(sheet: Path, spoil: Callable[[Path], object], fault: str) -> None:
    spoil(sheet)
    with pytest.raises(NegativesError, match=fault) as caught:
        score_sheet(sheet)
    assert "\n" not in str(caught.value)


def test_deleted_and_blank_rows_are_counted(sheet: Path) -> None:
    lines = sheet.read_text(encoding="utf-8-sig").splitlines()
    sheet.write_text("\n".join([*lines[:-2], ",,,,,,,", ""]), encoding="utf-8")
    assert score_sheet(sheet)[1] == ["58 of 58 rows have no answer", "2 of 60 rows are not in the sheet any more"]


def test_the_command_never_overwrites(
    origins: list[str], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blind = ("quality", *origins, "--blind")
    shown = penumbra(*blind, "24")
    assert (shown.exit_code, "24 rows, 4 of each origin and level" in shown.output) == (0, True)
    assert "sheet.csv exists already" in refusal(*blind, "24")
    assert "too few for 6 groups" in refusal(*blind, "5", "--output", "few.csv")
    fill(tmp_path / "sheet.csv", natural_where_flat)
    assert "4 of 4 (51% to 100%)" in printed("quality", "--score", "sheet.csv")
    for wrong in ([], ["--blind", "9"], ["--score", "sheet.csv", *origins]):
        assert penumbra("quality", *wrong).exit_code == 2
