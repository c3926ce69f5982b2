"""A blind reading: the sheet hides its origins, and a filled one is scored, also after a spreadsheet has saved it."""

import csv
import io
import json
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penumbra.artifacts.store import Store
from penumbra.flows.commands import app
from penumbra.tasks.negatives.files import NegativesError
from penumbra.tasks.negatives.quality.blind import COLUMNS, key_file, paired_difference, score_sheet, write_sheet

QUERIES = 12
Row = dict[str, str]


@pytest.fixture
def origins(tmp_path: Path) -> list[str]:
    """Two files: one negative in each row, and SHINE's form; one query begins as a formula does."""
    flat, shine = tmp_path / "flat.jsonl", tmp_path / "shine.jsonl"
    queries = ["=1+1 is a query", *(f"a person opens door {i}" for i in range(1, QUERIES))]
    rows = [
        {"qid": str(i), "level": level, "query": query, "negative": f"flat {level} of {i}, or so", "provider": "corpus"}
        for i, query in enumerate(queries)
        for level in (1, 2, 3)
    ]
    flat.write_text("".join(json.dumps(row) + "\n" for row in rows))
    others = [
        {"qid": f"x{i}", "query": query, "recomposed_queries": [f"shine {level} of {i}" for level in (1, 2, 3)]}
        for i, query in enumerate(queries)
    ]
    shine.write_text("".join(json.dumps(row) + "\n" for row in others))
    return [str(flat), str(shine)]


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
    lines = io.StringIO(newline="")
    writer = csv.DictWriter(lines, rows[0].keys(), delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    sheet.write_bytes(lines.getvalue().encode(encoding))


def natural_where_flat(row: Row) -> None:
    row["natural"] = "Y " if row["negative"].startswith("flat") else "n"


def test_a_sheet_has_as_many_rows_of_each_origin_and_level_and_does_not_show_them(
    sheet: Path, origins: list[str], store: Store, tmp_path: Path
) -> None:
    rows, key = rows_of(sheet), json.loads(key_file(sheet).read_text())
    assert tuple(rows[0]) == COLUMNS
    assert set(Counter((row["source"], row["level"]) for row in key["rows"].values()).values()) == {10}
    assert len(rows) == 60
    assert [it["reference"] for it in key["sources"]] == origins
    text = sheet.read_text(encoding="utf-8-sig")
    assert "corpus" not in text
    assert ".jsonl" not in text
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows), "an id is the place in the shuffled order"
    sources = [key["rows"][row["id"]]["source"] for row in rows]
    assert sources not in (sorted(sources), sorted(sources, reverse=True))
    third = next(row for row in rows if row["negative"].startswith("flat 3"))
    number = third["negative"].removeprefix("flat 3 of ")
    assert third["levels_before"] == f"flat 1 of {number} → flat 2 of {number}"
    assert stat.S_IMODE(key_file(sheet).stat().st_mode) == 0o600
    assert not any(row["query"].startswith("=") for row in rows), "no spreadsheet runs it"
    paired = {(row["level"], row["query"]) for row in key["rows"].values()}
    assert len(paired) == 30, "both origins have the same queries at a level"
    other = tmp_path / "again.csv"
    write_sheet(store, origins, 60, 0, other)
    assert other.read_bytes() == sheet.read_bytes()
    write_sheet(store, origins, 60, 1, tmp_path / "seed.csv")
    assert (tmp_path / "seed.csv").read_bytes() != sheet.read_bytes()


@pytest.mark.parametrize(("delimiter", "encoding"), [(",", "utf-8"), (";", "utf-8-sig"), ("\t", "utf-8-sig")])
def test_a_filled_sheet_is_scored_by_origin_and_level(
    sheet: Path, origins: list[str], delimiter: str, encoding: str
) -> None:
    fill(sheet, natural_where_flat, delimiter, encoding)
    figures, _, _ = score_sheet(sheet)
    found = {(row["origin"], row["minus"], row["level"], row["question"]): row for row in figures}
    assert {question for *_, question in found} == {"natural"}, "a blank is no answer"
    flat, shine = origins
    own = found[flat, "", 1, "natural"]
    assert (own["yes"], own["answered"], own["value"], own["high"]) == (10, 10, 1, 1)
    assert own["low"] == pytest.approx(0.7225, abs=1e-4), "Wilson's"
    assert found[shine, "", 3, "natural"]["value"] == 0
    difference = found[flat, shine, 2, "natural"]
    assert (difference["value"], difference["answered"]) == (1, 10)
    assert 0 < difference["low"] < 1 == difference["high"]


def test_paired_differences_are_agrestis_and_mins() -> None:
    # Agresti and Min (2005): 15 and 5 discordant of 100 pairs, each cell with half a pair more
    found = paired_difference([(True, False)] * 15 + [(False, True)] * 5 + [(True, True)] * 80)
    spread = (15.5 + 5.5 - 100 / 102) ** 0.5 / 102
    assert found.value == pytest.approx(0.10)
    assert (found.low, found.high) == pytest.approx((10 / 102 - 1.959964 * spread, 10 / 102 + 1.959964 * spread))
    same = paired_difference([(True, True)] * 10)
    assert same.low < 0 < same.high, "an interval also where nobody differs"


def drop_question(sheet: Path) -> None:
    sheet.write_text(sheet.read_text(encoding="utf-8-sig").replace(",natural", "", 1), encoding="utf-8")


def other_key(sheet: Path) -> None:
    key = json.loads(key_file(sheet).read_text())
    rows = {name.replace(key["sheet"], "ffffff"): row for name, row in key["rows"].items()}
    key_file(sheet).write_text(json.dumps(key | {"sheet": "ffffff", "rows": rows}))


def change_key(sheet: Path, **changes: object) -> None:
    key_file(sheet).write_text(json.dumps(json.loads(key_file(sheet).read_text()) | changes))


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (drop_question, "lacks the column natural"),
        (lambda sheet: fill(sheet, lambda row: row.update(natural="maybe")), r"line 2 \(.*-0001\): natural is 'maybe'"),
        (lambda sheet: fill(sheet, lambda row: row.update(negative=row["negative"] + " not")), "line 2 .*its text is"),
        (lambda sheet: fill(sheet, lambda row: row.update(id=rows_of(sheet)[0]["id"])), "line 3 .*twice"),
        (other_key, "it may be the key of another sheet"),
        (lambda sheet: key_file(sheet).unlink(), "put the original next to the sheet"),
        (lambda sheet: key_file(sheet).write_text("{}"), "put the original next to the sheet"),
        (lambda sheet: change_key(sheet, sources=[]), "put the original next to the sheet"),
        (lambda sheet: change_key(sheet, sources=[{"key": "0"}] * 2), "put the original next to the sheet"),
        (lambda sheet: sheet.write_bytes(sheet.read_bytes() + b"\xff"), "save it as CSV in UTF-8"),
        (lambda sheet: sheet.write_text(sheet.read_text() + 'x,"open'), "can't be read"),
        (lambda sheet: sheet.write_text(""), "can't be read"),
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
    assert score_sheet(sheet)[2] == ["58 of 58 rows have no answer", "2 of 60 rows are not in the sheet any more"]


def test_the_command_writes_scores_and_never_overwrites(
    origins: list[str], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def penumbra(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["quality", *arguments])
        return result.exit_code, result.output + str(result.exception or "")

    code, shown = penumbra(*origins, "--blind", "24", "--output", "sheet.csv")
    assert code == 0
    assert "24 rows: 4 of each of 2 origins and 3 levels" in shown
    code, shown = penumbra(*origins, "--blind", "24", "--output", "sheet.csv")
    assert code != 0
    assert "sheet.csv exists already" in shown
    assert "too few for 6 groups" in penumbra(*origins, "--blind", "5", "--output", "few.csv")[1]
    assert "given twice" in penumbra(origins[0], origins[0], "--blind", "9", "--output", "few.csv")[1]
    fill(tmp_path / "sheet.csv", natural_where_flat)
    code, shown = penumbra("--score", "sheet.csv", "--output", "scores.json")
    assert code == 0, shown
    assert "4 of 4 (51% to 100%)" in shown
    assert "difference, where the query is the same" in shown
    assert {row["level"] for row in json.loads((tmp_path / "scores.json").read_text())} == {1, 2, 3}
    penumbra("--score", "sheet.csv", "--output", "scores.csv")
    assert (tmp_path / "scores.csv").read_text().startswith("origin,minus,level,question,yes,answered,value,low,high\n")
    for wrong in ([], ["--blind", "9", *origins], ["--score", "sheet.csv", *origins], [*origins, "--output", "x.csv"]):
        assert penumbra(*wrong)[0] == 2
