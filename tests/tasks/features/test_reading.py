"""Features as training reads them: the same numbers as through pyarrow, in one array, from any file."""

import numpy as np
import pyarrow as pa
import pytest

from penumbra.artifacts.manifest import Artifact, Part, Work
from penumbra.artifacts.schemas import ArtifactError, conform
from penumbra.artifacts.store import Store
from penumbra.tasks.features.reading import Float16Array, lists_of, read_features, vectors_of
from penumbra.tasks.features.video import features_table

CHANCE = np.random.default_rng(0)


def matrix(rows: int, dimension: int = 5) -> Float16Array:
    return CHANCE.standard_normal((rows, dimension)).astype(np.float16)


def videos(store: Store, *parts: dict[str, Float16Array]) -> Artifact:
    rows = [[(vid, float(len(values)), values) for vid, values in part.items()] for part in parts]
    tables = [features_table("clip", 1.0, part, 5) for part in rows]
    return store.build(
        Work("mine", "video_features", 1, unit="video"), [lambda t=t: Part(t, len(t), len(t)) for t in tables]
    )


def test_one_array_holds_every_video(store: Store) -> None:
    parts = [{"a": matrix(3), "b": matrix(1)}, {}, {"c": matrix(40)}]
    artifact = videos(store, *parts)
    found = read_features(artifact)
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


def test_texts_have_their_tokens(store: Store) -> None:
    tokens, pooled = [matrix(4, 6), matrix(2, 6)], matrix(2, 5)
    table = pa.table(
        {"text": ["x", "y"], "encoder": ["clip"] * 2, "tokens": lists_of(tokens, 6), "pooled": vectors_of(pooled)}
    )
    found = read_features(store.build(Work("mine", "text_features", 1), [lambda: Part(table, 2, 2)]))
    assert np.array_equal(found["y"], tokens[1])


def test_numbers_survive_to_the_bit(store: Store) -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = np.ascontiguousarray(every[np.isfinite(every)][:60000].reshape(-1, 5))
    assert read_features(videos(store, {"a": finite}))["a"].tobytes() == finite.tobytes()


def test_the_schema_takes_any_width_but_one() -> None:
    table = features_table("clip", 1.0, [("a", 1.0, matrix(2, 7))], 7)
    assert conform(table, "video_features").schema.field("features").type.value_type.list_size == 7
    with pytest.raises(ArtifactError, match="column features"):
        conform(table.set_column(4, "features", [[["x"]]]), "video_features")
