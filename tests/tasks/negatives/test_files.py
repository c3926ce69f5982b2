"""Files of others' negatives: every form and every fault, by row."""

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penumbra.tasks.negatives.files import NegativesError, inert, not_inert, read_negatives

SHINE = {"qid": "q", "query": "a person runs.", "recomposed_queries": ["a person sits.", "a dog sits.", "a dog eats."]}
ONE = {"qid": "q", "level": 1, "query": "a person runs.", "negative": "a person sits."}
LACKS = "row lacks its qid, its level or its negative"
FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "＝1", "'=1", "''+1", '"=1', '=cmd|" /C calc"!A0']


def written(folder: Path, content: bytes | str, name: str = "negatives.jsonl") -> Path:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


@pytest.mark.parametrize(
    ("name", "content", "query"),
    [
        ("a.jsonl", "\ufeff" + json.dumps(ONE) + "\r\n\r\n", "a person runs."),
        ("a.jsonl", json.dumps({"qid": "q", "level": "1", "negative": " a person sits. "}), ""),
        ("a.jsonl", json.dumps(ONE | {"recomposed_queries": None}), "a person runs."),
        ("a.csv", "qid,level,negative\nq,1.0,a person sits.\n", ""),
        ("a.csv", "\ufeffqid,level,negative,query\r\nq,1,a person sits.,a person runs.\r\n", "a person runs."),
        ("a.TSV", "level\tqid\tnegative\tquery\n1\tq\ta person sits.\ta person runs.\n", "a person runs."),
    ],
)
def test_one_negative_a_row_in_any_form(tmp_path: Path, name: str, content: str, query: str) -> None:
    [entry] = read_negatives(written(tmp_path, content, name))
    assert (entry.qid, entry.level, entry.negative, entry.query) == ("q", 1, "a person sits.", query)
    assert not entry.fault


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (json.dumps(ONE | {"negative": "\ud800"}).encode(), "row is no valid Unicode text"),
        (b'{"negative": "a person sits.", "level": 1}', LACKS),
        (b'{"qid": "q", "query": "", "recomposed_queries": "he sits."}', "recomposed_queries is no list of sente"),
        (b'{"qid": "q", "level": 1, "negative": null}', "negative is no text"),
        (b'{"qid": "q", "query": "", "recomposed_queries": []}', "recomposed_queries is no list of sente"),
        (json.dumps(SHINE | ONE).encode(), "row has both recomposed_queries and a negative"),
    ],
)
def test_a_row_that_is_no_negative_costs_itself_alone(tmp_path: Path, row: bytes, fault: str) -> None:
    found = read_negatives(
        written(tmp_path, json.dumps(SHINE).encode() + b"\n" + row + b"\n" + json.dumps(ONE).encode())
    )
    assert [entry.fault[:38] for entry in found] == ["", "", "", fault[:38], ""]


@pytest.mark.parametrize("level", ["x", 1.5, None, True, "\u0663"])
def test_what_is_no_level_is_none_and_is_shown_as_it_stands(tmp_path: Path, level: object) -> None:
    [entry] = read_negatives(written(tmp_path, json.dumps(ONE | {"level": level})))
    assert entry.level == 0
    assert entry.value == f"level {str(level)[:20]}, line 1: a person sits."


def test_a_line_that_is_no_json_is_refused_alone(tmp_path: Path) -> None:
    lines = [json.dumps(ONE), json.dumps(ONE)[:20], json.dumps([ONE])]
    entries = read_negatives(written(tmp_path, "\n".join(lines)))
    assert [entry.fault for entry in entries] == ["", *["line is no JSON object"] * 2]


def test_a_row_of_too_many_or_too_few_cells_is_refused_alone(tmp_path: Path) -> None:
    table = "qid,level,negative\nq,1,he sits\nq,2,he sits, and stands\nq,3\nq,3,he lies\n"
    entries = read_negatives(written(tmp_path, table, "a.csv"))
    faults = [f"line has {count} fields, and the header 3" for count in (4, 2)]
    assert [entry.fault for entry in entries] == ["", *faults, ""]
    assert [entry.negative for entry in entries] == ["he sits", "", "", "he lies"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", b"", "is no file of negatives .it is empty"),
        ("a.jsonl", json.dumps(SHINE).encode() + b"\n\xff", "can't be read .*utf-8.*: give SHINE's"),
        ("a.jsonl", json.dumps([SHINE]).encode(), "is no file of negatives .line 1: line is no JSON object"),
        ("a.csv", b"q;level;negative\nq;1;a person sits.\n", f"is no file of negatives .line 2: {LACKS}"),
        ("a.csv", b'qid,level,negative\nq,1,x\nq,2,"a man\nq,3,y\n', "can't be read .line 4: unexpected end of data"),
        ("a.parquet", b"PAR1 and no more than that PAR1", "can't be read .*: give SHINE's"),
    ],
)
def test_a_file_that_is_none_is_named_at_once(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    with pytest.raises(NegativesError, match=f"{name}:? {reason}") as caught:
        read_negatives(written(tmp_path, content, name))
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    for path in tmp_path / "none.jsonl", tmp_path, Path():
        with pytest.raises(NegativesError, match=f"{path} is no file, and no folder of Parquet files: name one with"):
            read_negatives(path)


def test_parquet_has_the_same_rows(tmp_path: Path) -> None:
    rows = [ONE | {"vid": "v", "masked_query": "a person <mask>.", "similarity": 0.5}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    lines = read_negatives(written(tmp_path, json.dumps(rows[0])))
    assert read_negatives(tmp_path / "a.parquet") == lines
    assert (lines[0].vid, lines[0].masked, lines[0].similarity) == ("v", "a person <mask>.", 0.5)
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.parquet").rename(tmp_path / "folder" / "part-0.parquet")
    assert read_negatives(tmp_path / "folder") == lines


@pytest.mark.parametrize("text", [*FORMULAS, "a person sits.", "'s", "", "a = b", "1", "'"])
def test_no_cell_of_csv_is_a_formula_and_each_is_read_back(text: str) -> None:
    assert not_inert(inert(text)) == text
    assert not inert(text).startswith(("=", "+", "-", "@", "\t", "\r", "＝"))
    assert (inert(text) == text) is (text not in FORMULAS)
    spread = f"a person sits;{text};x"  # where a semicolon ends a cell
    assert not_inert(inert(spread)) == spread
    file = io.StringIO(newline="")
    csv.writer(file).writerow(["q1", inert(spread)])
    for delimiter in ",;\t":
        file.seek(0)
        for cells in csv.reader(file, delimiter=delimiter):
            assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r", "＝"))]
