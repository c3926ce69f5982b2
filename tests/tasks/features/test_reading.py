"""Features as training reads them: the same numbers as through pyarrow, in one array, from any file."""

import numpy as np

from penumbra.artifacts.manifest import Part, Work
from penumbra.artifacts.store import Store
from penumbra.tasks.features.reading import Float16Array, read_features
from penumbra.tasks.features.video import features_table

CHANCE = np.random.default_rng(0)


def matrix(rows: int, dimension: int = 5) -> Float16Array:
    return CHANCE.standard_normal((rows, dimension)).astype(np.float16)


def test_one_array_holds_every_video(store: Store) -> None:
    parts = [{"a": matrix(3), "b": matrix(1)}, {}, {"c": matrix(40)}]
    rows = [[(vid, float(len(values)), values) for vid, values in part.items()] for part in parts]
    tables = [features_table("clip", 1.0, part, 5) for part in rows]
    work = Work("mine", "video_features", 1, unit="video")
    found = read_features(store.build(work, [lambda t=t: Part(t, len(t), len(t)) for t in tables]))
    assert found.values.dtype == np.float16
    assert found.values.flags.c_contiguous
    assert (found.index, found.offsets.tolist()) == ({"a": 0, "b": 1, "c": 2}, [0, 3, 4, 44])
    assert found.clip_length == 1.0
    for part in parts:
        for vid, values in part.items():
            assert np.array_equal(found[vid], values)
            assert np.shares_memory(found[vid], found.values)
    assert "d" not in found
    assert len(found) == 3
