"""A user's table, sentences or data frame: which column holds what, how cells are read, and what is rejected."""

import datetime
import json
import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penumbra.tasks.data import tables
from penumbra.tasks.data.dataset import DatasetError, read_rows
from penumbra.tasks.data.queries import OwnQuery, queries_of, split_by_video, write_dataset, write_queries
from penumbra.tasks.data.tables import find_columns, read_table, seconds, windows_in

HEADER = "text,t0,t1,clip,len\n"
ROW = "a person opens the door.,0:02,8.5,a,30\n"


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (3, 3.0),
        ("3,5", 3.5),
        ("4.25 s", 4.25),
        ("01:02.5", 62.5),
        ("1:00:02", 3602.0),
        (datetime.timedelta(minutes=1), 60.0),
        (datetime.time(0, 1, 2), 62.0),
        ("-1", -1.0),
        *((wrong, None) for wrong in ("9" * 400 + ":00", "1e999", "1:75", "", "n/a", "2 days", True, None, math.nan)),
    ],
)
def test_a_time_is_seconds_or_a_clock(cell: Any, expected: float | None) -> None:
    assert seconds(cell) == expected


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ([[1, 2], [3, 4]], [[1.0, 2.0], [3.0, 4.0]]),
        ([1, 2], [[1.0, 2.0]]),
        ("(1, 2)", [[1.0, 2.0]]),
        ('["0:01", "0:02"]', [[1.0, 2.0]]),
        ([], []),
        *((wrong, None) for wrong in ("a person", 7, [[1, 2, 3]], [["a", "b"]])),
    ],
)
def test_windows_are_a_list_a_pair_or_text(cell: Any, expected: Any) -> None:
    assert windows_in(cell) == expected


def test_a_parquet_file_that_python_can_t_hold_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = pa.array([2**62], pa.timestamp("us"))
    pq.write_table(pa.table({"text": ["a person sits."], "added": late}), tmp_path / "late.parquet")
    with pytest.raises(DatasetError, match=r"late.parquet can't be read .date value out of range."):
        read_table(tmp_path / "late.parquet")
    same = pa.table({"text": ["a person opens the door."] * 200_000})
    monkeypatch.setattr(tables, "LARGEST_PARQUET", 1_000_000)
    flags = pa.ListArray.from_arrays([0, 1_000_000], pa.array(np.zeros(1_000_000, np.bool_)))
    for name, bomb in {
        "same": same,
        "long": pa.table({"text": ["a person opens the door." * 40] * 5_000}),
        "none": pa.table({"text": pa.nulls(100_000)}),
        "flags": pa.table([flags], ["text"]),
    }.items():
        pq.write_table(bomb, tmp_path / f"{name}.parquet", compression="zstd")
        assert (tmp_path / f"{name}.parquet").stat().st_size < 20_000
        with pytest.raises(DatasetError, match="it unpacks to more than 1 MB"):
            read_table(tmp_path / f"{name}.parquet")


def test_a_cell_that_json_can_t_hold_is_written_as_text(tmp_path: Path, datasets: Path) -> None:
    row = {"text": ["a person sits."], "t0": [0.0], "t1": [1.0], "clip": ["a"], "len": [3.0]}
    clips = pa.array([[datetime.date(2020, 1, 1)]])
    pq.write_table(pa.table({**row, "relevant_clip_ids": clips, "saliency_scores": [[1]]}), tmp_path / "own.parquet")
    table = read_table(tmp_path / "own.parquet")
    found = queries_of(table, find_columns(table, {}))
    split_by_video(found, 0, 0)
    write_dataset("mine", found, None, force=False)
    assert '"relevant_clip_ids": ["2020-01-01"]' in (datasets / "mine" / "train.jsonl").read_text()


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"])
def test_every_kind_of_file_gives_the_same_queries(tmp_path: Path, suffix: str) -> None:
    """Two rows of one query become its two windows."""
    path, query = tmp_path / f"own{suffix}", 'Öffnet die door; she says, "hi".'
    row = {"sentence": query, "start": 1.0, "end": 2.5, "video": "a", "duration": 30.0}
    frame = pd.DataFrame([row, row | {"start": 5.0, "end": 6.0}])
    if suffix == ".parquet":
        frame.to_parquet(path)
    elif suffix in (".jsonl", ".ndjson"):
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",", encoding="utf-8-sig")
    table = read_table(path)
    columns = find_columns(table, {})
    [found] = queries_of(table, columns)
    windows, first = [[1.0, 2.5], [5.0, 6.0]], found.place.removeprefix(f"own{suffix}:")
    assert found.merged == [f"own{suffix}:{int(first) + 1}"]
    line = {"qid": "0", "query": query, "vid": "a", "duration": 30.0, "relevant_windows": windows}
    assert found.line() == {**line, "source_row": found.place}


def test_semicolons_and_decimal_commas_are_read(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("text;start;end;video;length\na person opens, and closes, it.;1,5;2,5;x/a.mp4;30,0\n")
    table = read_table(path)
    [query] = queries_of(table, find_columns(table, {}))
    assert (query.vid, query.windows, query.duration) == ("a.mp4", [[1.5, 2.5]], 30.0)


def test_a_known_name_counts_only_where_the_cells_fit(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    row = {"text": 7, "caption": "a person sits.", "timestamp": 3, "moment": [1, 2], "clip": "a", "length": 9}
    path.write_text(json.dumps(row))
    expected = {"query": "caption", "windows": "moment", "video": "clip", "duration": "length"}
    assert find_columns(read_table(path), {}) == expected
    assert find_columns(read_table(path), {"video": "caption", "query": "clip"})["query"] == "clip"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", HEADER, "holds no row"),
        ("a.csv", HEADER + "a person, sitting,1,2,a,30\n", "line 2 has 6 fields, and the header 5: text that"),
        ("a.csv", HEADER + '"a person sits.,1,2,a,30\n', "line 2: unexpected end of data.: correct it"),
        ("a.csv", "text,text\na,b\n", "line 1 names a column twice"),
        ("a.csv", ",".join(map(str, range(1_001))), "line 1 names 1,001 columns, more than 1,000"),
        ("a.csv", b"text\n\xff\xfe\n", "is not UTF-8 text .byte 5.: save it as UTF-8"),
        ("a.jsonl", '{"a": 1}\n[1]\n', "line 2 is no JSON object; it has .1."),
        ("a.parquet", "text", "can.t be read .Parquet"),
        ("a.xlsx", "text", "has no suffix .csv, .tsv, .jsonl or .parquet"),
        ("a.csv", "t0,t1,clip\n1,2,a\n", "like sentences for query: name it with --query; there is: t0, t1, clip"),
        ("a.csv", "text,clip\na person sits.,a\n", "no column that looks like seconds or mm:ss for start"),
    ],
)
def test_a_file_that_is_no_table_has_one_line(tmp_path: Path, name: str, text: str | bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DatasetError, match=message) as error:
        find_columns(read_table(path), {})
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_given_column_that_does_not_fit_names_the_row(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(HEADER + ROW)
    table = read_table(path)
    with pytest.raises(DatasetError, match=r"column 'clip' does not hold seconds or mm:ss: own.csv:2 has 'a'; "):
        find_columns(table, {"start": "clip"})
    with pytest.raises(DatasetError, match=r"no column .texts. for --query: did you mean text\?"):
        find_columns(table, {"query": "texts"})
    for path, message in ((tmp_path, r"is a folder: give a .csv.*to_parquet"), (tmp_path / "none.csv", "No such file")):
        with pytest.raises(DatasetError, match=message):
            read_table(path)


def test_splits_are_by_video_and_by_seed() -> None:
    own = [OwnQuery(str(i), "sits.", f"v{i // 2}", 9.0, [], None, "row") for i in range(40)]
    first, again, other = deepcopy(own), deepcopy(own)[::-1], deepcopy(own)
    for queries, seed in ((first, 0), (again, 0), (other, 1)):
        split_by_video(queries, 0.2, seed)
    held = [{query.vid for query in queries if query.split == "test"} for queries in (first, again, other)]
    assert len(held[0]) == 4
    assert held[0].isdisjoint(query.vid for query in first if query.split == "train")
    assert held[0] == held[1]
    assert held[0] != held[2]


def written(folder: Path, split: str = "train") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]


def test_sentences_are_training_queries_of_a_video_each(tmp_path: Path) -> None:
    assert write_queries(["a person opens the door.", "„Tür“ zu."], tmp_path) == {"train": "train.jsonl"}
    queries = list(read_rows(tmp_path / "train.jsonl", "train"))
    assert [(row.qid, row.query, row.vid, row.labelled) for row in queries] == [
        ("0", "a person opens the door.", "video-0", False),
        ("1", "„Tür“ zu.", "video-1", False),
    ]


def test_the_columns_of_a_data_frame(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "query": ["opens.", "closes.", "sits."],
            "qid": [7, 8, 9],
            "vid": ["a", "a", None],
            "split": ["train", "test", "train"],
            "duration": [9.5, 9.5, np.nan],
            "windows": [[[0, 4]], np.array([[1.5, 2.0]]), None],
            "colour": ["red", "red", "red"],
        }
    )
    assert write_queries(frame, tmp_path) == {"train": "train.jsonl", "test": "test.jsonl"}
    first, last = written(tmp_path)
    own = {"qid": "7", "query": "opens.", "vid": "a", "duration": 9.5, "source_row": "row 0"}
    assert first == {**own, "relevant_windows": [[0.0, 4.0]]}
    assert (last["qid"], last["vid"], last["duration"], last["relevant_windows"]) == ("9", "video-9", 1.0, [])
    assert written(tmp_path, "test")[0]["relevant_windows"] == [[1.5, 2.0]]


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        ("a person opens the door.", "give a list of sentences: "),
        (None, "give a list of sentences: "),
        ([], "there are no sentences"),
        (pd.DataFrame({"text": ["a"]}), "no column 'query' in the data frame; there is: text"),
        (pd.DataFrame({"query": ["a"], "split": ["test"]}), "no query is of split 'train'"),
    ],
)
def test_unusable_queries_are_an_error(queries: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=message):
        write_queries(queries, tmp_path)
