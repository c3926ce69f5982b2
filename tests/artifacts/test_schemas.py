"""`conform` enforces the schemas; tables become data frames."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penumbra.artifacts.catalogue import REVIEWS, making
from penumbra.artifacts.errors import ArtifactError
from penumbra.artifacts.schemas import SCHEMAS, conform, frame_of, table_of
from penumbra.flows.registry import FLOWS
from tests.rows import annotation

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
    assert table_of("annotations", [annotation("a", "q", saliency=None)])["saliency"].to_pylist() == [None]
    with pytest.raises(ArtifactError, match="annotations: column duration holds 1 nulls"):
        table_of("annotations", [annotation("a", "q", duration=None)])


@pytest.mark.parametrize(
    ("column", "values"), [("count", ["three", "four"]), ("count", [1.5, 2.0]), ("word", [["a"], ["b"]])]
)
def test_another_type_is_refused_with_stage_and_column(column: str, values: list[Any]) -> None:
    with pytest.raises(ArtifactError, match=rf"dictionary: column {column}\b"):
        conform(pa.table({**DICTIONARY, column: values}), "dictionary")


def test_the_flow_that_makes_a_stage_exists() -> None:
    assert {making(stage, "mine").split()[2] for stage in SCHEMAS if stage not in (REVIEWS, "ablation")} < FLOWS.keys()


def test_nested_values_are_lists_and_dicts() -> None:
    novel = [{"type": "v-n", "words": ["put", "cup"]}]
    row = annotation("q", "a", windows=[[0.0, 4.2], [5.0, 6.0]], novel=novel)
    frame = frame_of(table_of("annotations", [row, {**row, "qid": "r", "windows": []}]))
    assert frame.to_dict("records")[0] == row
    assert frame["windows"].to_list() == [[[0.0, 4.2], [5.0, 6.0]], []]
    assert frame["duration"].dtype == np.float64


def features(*lengths: int) -> pa.Table:
    halves = np.arange(3 * sum(lengths), dtype=np.float16)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(halves), 3)
    offsets = pa.array(np.cumsum([0, *lengths]), pa.int32())
    return pa.table({"features": pa.ListArray.from_arrays(offsets, vectors)})


def test_features_are_arrays_of_half_floats() -> None:
    several = pa.concat_tables([features(2, 0), features(1)])
    arrays = frame_of(several)["features"].to_list()
    assert [array.shape for array in arrays] == [(2, 3), (0, 3), (1, 3)]
    assert arrays[0].dtype == np.float16
    assert arrays[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert frame_of(several.slice(2))["features"][0].tolist() == [[0, 1, 2]]
    assert [array.shape for array in frame_of(features(2, 2))["features"]] == [(2, 3), (2, 3)]
    pooled = pa.table({"pooled": pa.array([[1, 2], [3, 4]], pa.list_(pa.float16(), 2))})
    assert [array.tolist() for array in frame_of(pooled)["pooled"]] == [[1, 2], [3, 4]]
