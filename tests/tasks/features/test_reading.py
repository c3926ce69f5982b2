"""Features as training reads them: the same numbers as through pyarrow, in one array."""

import numpy as np

from penumbra.artifacts.store import Store
from penumbra.tasks.features.reading import read_features
from penumbra.tasks.features.video import features_table
from tests.rows import build


def test_one_array_holds_every_video_though_a_part_is_empty(store: Store) -> None:
    chance, lengths = np.random.default_rng(0), {"a": 3, "b": 1, "c": 40}
    features = {vid: chance.standard_normal((rows, 5)).astype(np.float16) for vid, rows in lengths.items()}
    table = features_table("clip", 1.0, [(vid, float(len(of)), of) for vid, of in features.items()], 5)
    found = read_features(build(store, "video_features", table, cut=0))
    assert (found.index, found.offsets.tolist()) == ({"a": 0, "b": 1, "c": 2}, [0, 3, 4, 44])
    assert (found.values.dtype, found.clip_length) == (np.float16, 1.0)
    assert all(np.array_equal(found[vid], of) for vid, of in features.items())
    assert "d" not in found
