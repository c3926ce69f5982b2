"""Tables as data frames, and lookup of artifacts by reference."""

import numpy as np
import pyarrow as pa

from penumbra.artifacts.schemas import frame_of, table_of


def test_nested_values_are_lists_and_dicts() -> None:
    row = {
        "qid": "q",
        "vid": "v",
        "split": "train",
        "query": "a",
        "duration": 9.5,
        "windows": [[0.0, 4.2], [5.0, 6.0]],
        "novel": [{"type": "v-n", "words": ["put", "cup"]}],
        "saliency": None,
    }
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
