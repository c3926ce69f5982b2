"""The schemas are those of the design, and `conform` enforces them."""

from typing import Any

import pyarrow as pa
import pytest

from penumbra.artifacts.catalogue import REVIEWS, making
from penumbra.artifacts.errors import ArtifactError
from penumbra.artifacts.schemas import SCHEMAS, conform, table_of
from penumbra.flows.registry import FLOWS

DICTIONARY: dict[str, Any] = {
    "primitive": ["verb", "noun"],
    "tag": ["VB", "NN"],
    "word": ["open", "door"],
    "lemma": ["open", "door"],
    "count": [3, 4],
    "is_subject": [False, True],
}


def test_missing_and_unknown_columns_are_named() -> None:
    table = pa.table({name: values for name, values in DICTIONARY.items() if name != "count"})
    with pytest.raises(ArtifactError, match=r"dictionary: missing columns \['count'\]"):
        conform(table, "dictionary")
    with pytest.raises(ArtifactError, match=r"dictionary: .*unknown columns \['colour'\]"):
        conform(pa.table({**DICTIONARY, "colour": ["red", "blue"]}), "dictionary")


def test_only_nullable_columns_hold_nulls() -> None:
    row = {"qid": "a", "vid": "v", "split": "train", "query": "q", "duration": 1.0, "windows": [[0, 1]], "novel": []}
    assert table_of("annotations", [{**row, "saliency": None}])["saliency"].to_pylist() == [None]
    with pytest.raises(ArtifactError, match="annotations: column duration holds 1 nulls"):
        table_of("annotations", [{**row, "duration": None, "saliency": None}])


@pytest.mark.parametrize(
    ("column", "values"), [("count", ["three", "four"]), ("count", [1.5, 2.0]), ("word", [["a"], ["b"]])]
)
def test_another_type_is_refused_with_stage_and_column(column: str, values: list[Any]) -> None:
    with pytest.raises(ArtifactError, match=rf"dictionary: column {column}\b"):
        conform(pa.table({**DICTIONARY, column: values}), "dictionary")


def test_the_flow_that_makes_a_stage_exists() -> None:
    assert {making(stage, "mine").split()[2] for stage in SCHEMAS if stage not in (REVIEWS, "ablation")} < FLOWS.keys()
