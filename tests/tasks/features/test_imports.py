"""Features that others have extracted, in every form; faulty and hostile files reject one video and nothing else."""

import os
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.schemas import conform
from penumbra.tasks.features import imports
from penumbra.tasks.features.errors import FeatureError, VideoError
from penumbra.tasks.features.imports import (
    FeatureFolder,
    Hdf5File,
    ImportedFeatures,
    Imports,
    Source,
    check_length,
    check_matrix,
    open_source,
)
from penumbra.tasks.features.reading import Float16Array, matrix_of

CHANCE = np.random.default_rng(0)
DURATIONS = {"a": 10.0, "b": 9.5, "c": 4.0}


def matrix(clips: int, dimension: int = 6) -> Any:
    return CHANCE.standard_normal((clips, dimension)).astype(np.float32)


def features(rows: pa.Table) -> dict[str, Float16Array]:
    """Each video's features."""
    lists = zip(rows["vid"].to_pylist(), rows["features"], strict=True)
    return {vid: matrix_of(several.values) for vid, several in lists}


def stage(durations: dict[str, float], *sources: Source) -> ImportedFeatures:
    annotations = Artifact(root="/r", dataset="d", stage="annotations", key="0")
    found = ImportedFeatures(annotations, Imports(sources=[*sources]), 1.0)
    vars(found)["durations"] = durations
    return found


def imported(vids: list[str], *paths: Path) -> Any:
    sources = [Source(path=str(path)) if isinstance(path, Path) else path for path in paths]
    return stage(DURATIONS, *sources).part(vids)


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_folders(tmp_path: Path, suffix: str) -> None:
    arrays = {"a": matrix(10), "b": matrix(10), "c": matrix(4)}
    for vid, array in arrays.items():
        path = tmp_path / f"{vid}.{suffix}"
        np.save(path, array) if suffix == "npy" else np.savez(path, features=array)
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


@pytest.mark.parametrize("key", ["features", "last_hidden_state", "anything"])
def test_npz_keys(tmp_path: Path, key: str) -> None:
    array = matrix(10)
    np.savez(tmp_path / "a.npz", **{key: array})
    assert np.array_equal(FeatureFolder(tmp_path).read("a"), array)
    np.savez(tmp_path / "a.npz", **{key: array, "other": array[:1], "more": array[:2]})
    if key == "anything":
        with pytest.raises(VideoError, match="several arrays"):
            FeatureFolder(tmp_path).read("a")
    assert np.array_equal(FeatureFolder(tmp_path, key).read("a"), array)


def test_the_columns_of_two_sources_are_joined(tmp_path: Path) -> None:
    for name, clips, dimension in (("slowfast", 11, 4), ("clip", 10, 2)):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "a.npz", features=matrix(clips, dimension))
    part = imported(["a"], tmp_path / "slowfast", tmp_path / "clip")
    slow, clip = (np.load(tmp_path / name / "a.npz")["features"] for name in ("slowfast", "clip"))
    joined = np.concatenate([slow[:10], clip], axis=1).astype(np.float16)
    assert np.array_equal(features(part.rows)["a"], joined)
    assert part.rows["encoder"].to_pylist() == ["slowfast+clip"]
    assert part.notes == {"sources of different lengths cut to the shortest": 1}


def test_longest_cuts_as_max_v_l_does(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", matrix(10))
    part = imported(["a"], Source(path=str(tmp_path), longest=7))  # type: ignore[arg-type]
    assert features(part.rows)["a"].shape == (7, 6)


BAD: list[tuple[str, Any]] = [
    ("features hold NaN or infinity", np.full((4, 6), np.nan, np.float32)),
    ("features are not finite in half precision", np.full((4, 6), 1e5, np.float32)),
    ("features are not 6-dimensional", np.zeros((4, 5), np.float32)),
    ("features are no matrix of clips and dimensions", np.zeros((4, 3, 2), np.float32)),
    ("features are no matrix of clips and dimensions", np.zeros((0, 6), np.float32)),
    ("features are no numbers", np.full((4, 6), "x")),
    ("another number of clips than the duration asks for", np.zeros((9, 6), np.float32)),
    ("another number of clips than the duration asks for", np.zeros((1, 6), np.float32)),
]


@pytest.mark.parametrize(("reason", "array"), BAD)
def test_bad_features_are_rejected_and_the_rest_is_imported(tmp_path: Path, reason: str, array: Any) -> None:
    np.save(tmp_path / "a.npy", matrix(10))
    np.save(tmp_path / "b.npy", matrix(10))
    np.save(tmp_path / "c.npy", array)
    part = imported(["a", "b", "c"], tmp_path)
    assert part.rows["vid"].to_pylist() == ["a", "b"]
    assert [(row["qid"], row["reason"]) for row in part.rejected] == [("c", reason)]


def test_files_that_hold_no_array(tmp_path: Path) -> None:
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "zip.npz").write_bytes(b"PK\3\4 no archive either")
    np.save(tmp_path / "pickled.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    folder = FeatureFolder(tmp_path)
    for vid, reason in (("empty", "can't be read"), ("zip", "can't be read"), ("pickled", "features are no numbers")):
        with pytest.raises(VideoError, match=reason):
            folder.read(vid)
    assert folder.read("missing") is None


@pytest.mark.parametrize("vid", ["../a", "/etc/passwd", "..", ".", "", "x/../../a", "a\\b"])
def test_an_id_never_leaves_its_folder(tmp_path: Path, vid: str) -> None:
    np.save(tmp_path / "a.npy", matrix(10))
    inner = tmp_path / "inner"
    inner.mkdir()
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.update({"a": matrix(2), "x/y": matrix(2)})
    assert FeatureFolder(inner).read(vid) is None
    assert Hdf5File(tmp_path / "f.h5").read(vid) is None
    with pytest.raises(VideoError, match="points outside"):
        stage({}, Source(path=str(inner))).read(vid)


def test_an_unusable_source_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(FeatureError, match="no folder or file"):
        open_source(tmp_path / "nowhere", "")
    (tmp_path / "text.h5").write_text("no HDF5")
    with pytest.raises(FeatureError, match="neither a folder nor an HDF5 file"):
        open_source(tmp_path / "text.h5", "")


def test_one_clip_more_or_fewer_is_allowed_and_a_leading_axis_of_one_dropped() -> None:
    config = Imports(sources=[Source(path="x")])
    assert check_length(9, 10.0, 1.0, config) == check_length(11, 10.0, 1.0, config) == 10
    assert check_length(100, 95.2, 1.0, config) == 96
    for clips in (8, 12):
        with pytest.raises(VideoError):
            check_length(clips, 10.0, 1.0, config)
    assert check_matrix(np.zeros((10, 1, 1, 6)), 6).shape == (10, 6)


VIDS = ["good", "bad", "other"]
MATRIX = CHANCE.standard_normal((10, 6)).astype(np.float32)
ELSEWHERE = "array lies in another file than the HDF5 file"
LINK = "HDF5 link leads elsewhere"


def rejected(source: Path) -> tuple[str, str]:
    """Return why `bad` is rejected; the two others must be imported."""
    part = stage(dict.fromkeys(VIDS, 10.0), Source(path=str(source))).part(VIDS)
    assert part.rows["vid"].to_pylist() == ["good", "other"]
    [row] = part.rejected
    assert row["qid"] == "bad"
    return row["reason"], row["value"]


def folder_of(path: Path) -> Path:
    for vid in ("good", "other"):
        np.save(path / f"{vid}.npy", MATRIX)
    return path


def hdf5_of(path: Path, write: Callable[[h5py.File], None]) -> Path:
    with h5py.File(path, "w") as file:
        for vid in ("good", "other"):
            file[vid] = MATRIX
        write(file)
    return path


def virtual_data_set(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((10, 6), np.float32)
    layout[:] = h5py.VirtualSource("secret.h5", "features", (10, 6))
    file.create_virtual_dataset("bad", layout)


STORED_ELSEWHERE: dict[str, Any] = {"shape": (10, 6), "dtype": np.float32, "external": [("secret", 0, 240)]}
OTHER_FILE = h5py.ExternalLink("secret.h5", "/features")


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda file: file.create_dataset("bad", **STORED_ELSEWHERE), ELSEWHERE),
        (lambda file: file.create_group("bad").create_dataset("c3d", **STORED_ELSEWHERE), ELSEWHERE),
        (virtual_data_set, ELSEWHERE),
        (lambda file: file.update({"bad": OTHER_FILE}), LINK),
        (lambda file: file.create_group("bad").update({"features": OTHER_FILE}), LINK),
        (
            lambda file: file.update(
                {"door": h5py.ExternalLink("secret.h5", "/"), "bad": h5py.SoftLink("/door/features")}
            ),
            LINK,
        ),
    ],
)
def test_an_hdf5_file_is_not_followed_into_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[h5py.File], None], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret").write_bytes(MATRIX.tobytes())
    with h5py.File("secret.h5", "w") as file:
        file["features"] = MATRIX
    path = hdf5_of(tmp_path / "f.h5", write)
    with h5py.File(path) as file:  # as it was read before
        array = file["bad"]
        assert np.array_equal(next(iter(array.values())) if isinstance(array, h5py.Group) else array, MATRIX)
    assert rejected(path)[0] == reason


def large_npy(path: Path) -> Path:
    with (path / "bad.npy").open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 6)})
    return folder_of(path)


def large_npz(path: Path) -> Path:
    np.savez_compressed(path / "bad.npz", features=np.zeros((1 << 20, 64), np.float32))
    return folder_of(path)


def large_hdf5(path: Path) -> Path:
    return hdf5_of(path / "f.h5", lambda file: file.create_dataset("bad", (1 << 40, 6), np.float32, chunks=(1, 6)))


def large_chunk(path: Path) -> Path:
    chunk: dict[str, Any] = {"chunks": (1 << 24, 6), "maxshape": (None, 6)}
    return hdf5_of(path / "f.h5", lambda file: file.create_dataset("bad", (10, 6), np.float32, **chunk))


def small_numbers(path: Path) -> Path:
    """As single precision they take four times as much."""
    np.save(path / "bad.npy", np.zeros((1 << 20, 6), np.int8))
    return folder_of(path)


@pytest.mark.parametrize("write", [large_npy, large_npz, large_hdf5, large_chunk, small_numbers])
def test_no_array_takes_more_memory_than_the_limit(
    tmp_path: Path, write: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "MAX_BYTES", 16 << 20)
    source = write(tmp_path)
    tracemalloc.start()
    reason, size = rejected(source)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reason == "array is larger than a gigabyte"
    assert size.endswith(" MB")
    assert peak < 16 << 20


def test_a_compression_without_a_limit_or_a_wrong_checksum_is_rejected(tmp_path: Path) -> None:
    folder_of(tmp_path)
    np.savez(tmp_path / "bad.npz", features=MATRIX)
    data = bytearray((tmp_path / "bad.npz").read_bytes())
    data[data.index(MATRIX.tobytes()) + 100] ^= 1
    (tmp_path / "bad.npz").write_bytes(data)
    reason, value = rejected(tmp_path)
    assert reason == "file can't be read as .npy or .npz"
    assert "CRC" in value
    with zipfile.ZipFile(tmp_path / "bad.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.write(tmp_path / "good.npy", "features.npy")
    assert rejected(tmp_path)[0] == "file is compressed as numpy compresses none"


def test_a_link_that_leads_out_of_the_folder_is_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "features"
    folder.mkdir()
    np.save(tmp_path / "secret.npy", MATRIX)
    os.symlink(tmp_path / "secret.npy", folder / "bad.npy")
    assert rejected(folder_of(folder))[0] == "link leads out of the folder"
