"""Features that others have extracted, in every form and with every fault, into our table."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest

from penumbra.artifacts.schemas import conform
from penumbra.tasks.features.imports import (
    FeatureFault,
    FeatureFolder,
    Hdf5File,
    Importer,
    Imports,
    Source,
    SourceError,
    check_length,
    check_matrix,
    import_part,
    open_source,
)
from penumbra.tasks.features.reading import Float16Array, matrix_of

CHANCE = np.random.default_rng(0)
DURATIONS = {"a": 10.0, "b": 9.5, "c": 4.0}


def matrix(clips: int, dimension: int = 6) -> Any:
    return CHANCE.standard_normal((clips, dimension)).astype(np.float32)


def write_npy(folder: Path, vid: str, array: Any) -> None:
    np.save(folder / f"{vid}.npy", array)


def write_npz(folder: Path, vid: str, array: Any) -> None:
    np.savez(folder / f"{vid}.npz", features=array)


def features(rows: pa.Table) -> dict[str, Float16Array]:
    """Each video's features."""
    lists = zip(rows["vid"].to_pylist(), rows["features"], strict=True)
    return {vid: matrix_of(several.values, several.type.value_type.list_size) for vid, several in lists}


def imported(vids: list[str], *paths: Path, **settings: Any) -> Any:
    sources = [Source(path=str(path)) if isinstance(path, Path) else path for path in paths]
    imports = Imports(sources=sources, **settings)
    opened = [open_source(Path(source.path), source.key) for source in sources]
    return import_part(vids, DURATIONS, Importer(imports, 1.0, opened, vids))


@pytest.mark.parametrize("write", [write_npy, write_npz])
def test_folders(tmp_path: Path, write: Callable[[Path, str, Any], None]) -> None:
    arrays = {"a": matrix(10), "b": matrix(10), "c": matrix(4)}
    for vid, array in arrays.items():
        write(tmp_path, vid, array)
    part = imported(list(arrays), tmp_path)
    assert (part.taken, part.kept, part.rejected) == (3, 3, [])
    found = features(conform(part.rows, "video_features"))
    for vid, array in arrays.items():
        assert np.array_equal(found[vid], array.astype(np.float16))
    assert part.rows["encoder"].to_pylist() == [tmp_path.name] * 3
    assert part.rows["duration"].to_pylist() == list(DURATIONS.values())


@pytest.mark.parametrize("form", ["flat", "group", "prefixed"])
def test_hdf5_of_vslnet_and_2d_tan(tmp_path: Path, form: str) -> None:
    array = matrix(10)
    with h5py.File(tmp_path / "i3d.hdf5", "w") as file:
        if form == "flat":
            file["a"] = array
        else:
            file[("v_a" if form == "prefixed" else "a") + "/c3d_features"] = array
    part = imported(["a", "c"], tmp_path / "i3d.hdf5")
    assert part.rows["vid"].to_pylist() == ["a"]
    assert np.array_equal(features(part.rows)["a"], array.astype(np.float16))
    assert [(row["qid"], row["reason"]) for row in part.rejected] == [("c", "no features in i3d")]


@pytest.mark.parametrize("key", ["features", "pooler_output", "last_hidden_state", "anything"])
def test_npz_keys(tmp_path: Path, key: str) -> None:
    array = matrix(10)
    np.savez(tmp_path / "a.npz", **{key: array})
    assert np.array_equal(FeatureFolder(tmp_path).read("a"), array)
    np.savez(tmp_path / "a.npz", **{key: array, "other": array[:1], "more": array[:2]})
    if key == "anything":
        with pytest.raises(FeatureFault, match="several arrays"):
            FeatureFolder(tmp_path).read("a")
    assert np.array_equal(FeatureFolder(tmp_path, key).read("a"), array)


def test_slowfast_and_clip_stand_side_by_side_cut_to_the_shortest(tmp_path: Path) -> None:
    for name, clips, dimension in (("slowfast", 11, 4), ("clip", 10, 2)):
        (tmp_path / name).mkdir()
        write_npz(tmp_path / name, "a", matrix(clips, dimension))
    part = imported(["a"], tmp_path / "slowfast", tmp_path / "clip")
    found = features(part.rows)["a"]
    assert found.shape == (10, 6)
    slow, clip = (np.load(tmp_path / name / "a.npz")["features"] for name in ("slowfast", "clip"))
    assert np.array_equal(found, np.concatenate([slow[:10], clip], axis=1).astype(np.float16))
    assert part.rows["encoder"].to_pylist() == ["slowfast+clip"]
    assert part.notes == {"sources of different lengths cut to the shortest": 1}


def test_longest_cuts_as_max_v_l_does(tmp_path: Path) -> None:
    write_npy(tmp_path, "a", matrix(10))
    part = imported(["a"], Source(path=str(tmp_path), longest=7))  # type: ignore[arg-type]
    assert features(part.rows)["a"].shape == (7, 6)


BAD: list[tuple[str, Any]] = [
    ("features hold NaN or infinity", np.full((4, 6), np.nan, np.float32)),
    ("features hold NaN or infinity", np.full((4, 6), np.inf, np.float32)),
    ("features are not finite in half precision", np.full((4, 6), 1e5, np.float32)),
    ("features are not 6-dimensional", np.zeros((4, 5), np.float32)),
    ("features are no matrix of clips and dimensions", np.zeros(6, np.float32)),
    ("features are no matrix of clips and dimensions", np.zeros((4, 3, 2), np.float32)),
    ("features are no matrix of clips and dimensions", np.zeros((0, 6), np.float32)),
    ("features are no numbers", np.full((4, 6), "x")),
    ("another number of clips than the duration asks for", np.zeros((9, 6), np.float32)),
    ("another number of clips than the duration asks for", np.zeros((1, 6), np.float32)),
]


@pytest.mark.parametrize(("reason", "array"), BAD)
def test_bad_features_are_rejected_and_the_rest_goes_on(tmp_path: Path, reason: str, array: Any) -> None:
    write_npy(tmp_path, "a", matrix(10))
    write_npy(tmp_path, "b", matrix(10))
    write_npy(tmp_path, "c", array)
    part = imported(["a", "b", "c"], tmp_path)
    assert part.rows["vid"].to_pylist() == ["a", "b"]
    assert [(row["qid"], row["reason"]) for row in part.rejected] == [("c", reason)]


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "zip.npz").write_bytes(b"PK\3\4 no archive either")
    np.save(tmp_path / "pickled.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    folder = FeatureFolder(tmp_path)
    for vid in ("empty", "text", "zip"):
        with pytest.raises(FeatureFault, match="can't be read"):
            folder.read(vid)
    with pytest.raises(FeatureFault, match="features are no numbers"):
        folder.read("pickled")
    assert folder.read("missing") is None


@pytest.mark.parametrize("vid", ["../a", "/etc/passwd", "..", ".", "", "x/../../a", "a\\b"])
def test_an_id_never_leaves_its_folder(tmp_path: Path, vid: str) -> None:
    write_npy(tmp_path, "a", matrix(10))
    inner = tmp_path / "inner"
    inner.mkdir()
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["a"] = matrix(2)
        file["x/y"] = matrix(2)
    assert FeatureFolder(inner).read(vid) is None
    assert Hdf5File(tmp_path / "f.h5").read(vid) is None
    imports = Imports(sources=[Source(path=str(inner))])
    with pytest.raises(FeatureFault, match="points outside"):
        Importer(imports, 1.0, [FeatureFolder(inner)], []).read(vid, 1.0)


def test_a_source_that_is_none_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no folder or file"):
        open_source(tmp_path / "nowhere", "")
    (tmp_path / "text.h5").write_text("no HDF5")
    with pytest.raises(SourceError, match="neither a folder nor an HDF5 file"):
        open_source(tmp_path / "text.h5", "")


def test_one_clip_more_or_fewer_is_the_field_s_habit() -> None:
    imports = Imports(sources=[Source(path="x")])
    assert check_length(9, 10.0, 1.0, imports) == check_length(11, 10.0, 1.0, imports) == 10
    assert check_length(100, 95.2, 1.0, imports) == 96
    for clips in (8, 12):
        with pytest.raises(FeatureFault):
            check_length(clips, 10.0, 1.0, imports)


def test_a_leading_axis_of_one_is_dropped() -> None:
    assert check_matrix(np.zeros((10, 1, 1, 6)), 6).shape == (10, 6)
