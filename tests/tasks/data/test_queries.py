"""Sentences and data frames become the files of a data set."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from penumbra.tasks.data.dataset import DatasetError, read_rows
from penumbra.tasks.data.queries import write_queries


def rows(folder: Path, split: str = "train") -> list[dict[str, Any]]:
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
    first, last = rows(tmp_path)
    own = {"qid": "7", "query": "opens.", "vid": "a", "duration": 9.5, "source_row": "row 0"}
    assert first == {**own, "relevant_windows": [[0.0, 4.0]]}
    assert (last["qid"], last["vid"], last["duration"], last["relevant_windows"]) == ("9", "video-9", 1.0, [])
    assert rows(tmp_path, "test")[0]["relevant_windows"] == [[1.5, 2.0]]


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
