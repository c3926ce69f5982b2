"""Features that others have extracted, in every form; faulty and hostile files reject one video and nothing else."""

import os
import tracemalloc
import zipfile
import zlib
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
from penumbra.tasks.features.errors import FeatureError
from penumbra.tasks.features.imports import Hdf5File, ImportedFeatures, Imports, Source
from penumbra.tasks.features.reading import Float16Array, matrix_of

CHANCE = np.random.default_rng(0)
DURATIONS = {"a": 10.0, "b": 9.5, "c": 4.0}
HALF = "features are not finite in half precision"
LENGTH = "number of clips does not match the duration"
BAD: list[tuple[str, Any]] = [
    (HALF, np.full((4, 6), np.nan, np.float32)),
    (HALF, np.full((4, 6), 1e5, np.float32)),
    ("features are not 6-dimensional", np.zeros((4, 5), np.float32)),
    ("features are no matrix of clips and dimensions", np.zeros((4, 3, 2), np.float32)),
    ("features are no matrix of clips and dimensions", np.zeros((0, 6), np.float32)),
    ("features are no numbers", np.full((4, 6), "x")),
    (LENGTH, np.zeros((6, 6), np.float32)),
    (LENGTH, np.zeros((1, 6), np.float32)),
    ("", np.zeros((5, 6), np.float32)),  # one clip more or fewer is allowed
    ("", np.zeros((3, 6), np.float32)),
    ("", np.zeros((4, 1, 1, 6), np.float32)),  # as is an axis of one
]
MATRIX = CHANCE.standard_normal((10, 6)).astype(np.float32)
ELSEWHERE = "array lies in another file than the HDF5 file"
LINK = "HDF5 link leads elsewhere"
UNPACKS = "array unpacks to more than its shape holds"
STORED_ELSEWHERE: dict[str, Any] = {"shape": (10, 6), "dtype": np.float32, "external": [("secret", 0, 240)]}
LARGE_CHUNK: dict[str, Any] = {"chunks": (1 << 24, 6), "maxshape": (None, 6)}
OTHER_FILE, DOOR = h5py.ExternalLink("secret.h5", "/features"), h5py.ExternalLink("secret.h5", "/")


def matrix(clips: int, dimension: int = 6) -> Any:
    return CHANCE.standard_normal((clips, dimension)).astype(np.float32)


def features(rows: pa.Table) -> dict[str, Float16Array]:
    lists = zip(rows["vid"].to_pylist(), rows["features"], strict=True)
    return {vid: matrix_of(several.values) for vid, several in lists}


def imported(vids: list[str], *sources: Path | Source, duration: float = 0.0) -> Any:
    """Import the features of videos of `duration` seconds, or else of `DURATIONS`."""
    annotations = Artifact(root="/r", dataset="d", stage="annotations", key="0")
    named = [Source(path=str(source)) if isinstance(source, Path) else source for source in sources]
    stage = ImportedFeatures(annotations, Imports(sources=named), 1.0)
    vars(stage)["durations"] = dict.fromkeys(vids, duration) if duration else DURATIONS
    return stage.part(vids)


def test_folders(tmp_path: Path) -> None:
    arrays = {"a": matrix(10), "b": matrix(10), "c": matrix(4)}
    for vid, array in arrays.items():
        np.save(tmp_path / f"{vid}.npy", array)
    part = imported(list(arrays), tmp_path)
    assert (part.taken, part.kept, part.rejected) == (3, 3, [])
    found = features(conform(part.rows, "video_features"))
    for vid, array in arrays.items():
        assert np.array_equal(found[vid], array.astype(np.float16))
    assert part.rows["encoder"].to_pylist() == [tmp_path.name] * 3
    assert part.rows["duration"].to_pylist() == list(DURATIONS.values())


@pytest.mark.parametrize("name", ["a", "a/c3d_features", "v_a/c3d_features"])
def test_hdf5_of_vslnet_and_2d_tan(tmp_path: Path, name: str) -> None:
    array = matrix(10)
    with h5py.File(tmp_path / "i3d.hdf5", "w") as file:
        file[name] = array
    part = imported(["a", "c"], tmp_path / "i3d.hdf5")
    assert part.rows["vid"].to_pylist() == ["a"]
    assert np.array_equal(features(part.rows)["a"], array.astype(np.float16))
    assert [(row["qid"], row["reason"]) for row in part.rejected] == [("c", "no features in i3d")]


@pytest.mark.parametrize("key", ["features", "last_hidden_state", "anything"])
def test_npz_keys(tmp_path: Path, key: str) -> None:
    array = matrix(10)
    named = Source(path=str(tmp_path), key=key)
    np.savez(tmp_path / "a.npz", **{key: array})
    assert np.array_equal(features(imported(["a"], tmp_path).rows)["a"], array.astype(np.float16))
    np.savez(tmp_path / "a.npz", **{key: array, "other": array[:1], "more": array[:2]})
    if key == "anything":
        assert "no array of the usual names" in imported(["a"], tmp_path).rejected[0]["reason"]
    assert np.array_equal(features(imported(["a"], named).rows)["a"], array.astype(np.float16))


def test_the_columns_of_two_sources_are_joined_and_longest_cuts_as_max_v_l_does(tmp_path: Path) -> None:
    for name, clips, dimension in (("slowfast", 11, 4), ("clip", 10, 2)):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "a.npz", features=matrix(clips, dimension))
    part = imported(["a"], tmp_path / "slowfast", tmp_path / "clip")
    slow, clip = (np.load(tmp_path / name / "a.npz")["features"] for name in ("slowfast", "clip"))
    joined = np.concatenate([slow[:10], clip], axis=1).astype(np.float16)
    assert np.array_equal(features(part.rows)["a"], joined)
    assert part.rows["encoder"].to_pylist() == ["slowfast+clip"]
    assert part.notes == {"sources of different lengths cut to the shortest": 1}
    part = imported(["a"], Source(path=str(tmp_path / "clip"), longest=7))
    assert features(part.rows)["a"].shape == (7, 2)


@pytest.mark.parametrize(("reason", "array"), BAD)
def test_bad_features_are_rejected_and_the_rest_is_imported(tmp_path: Path, reason: str, array: Any) -> None:
    np.save(tmp_path / "a.npy", matrix(10))
    np.save(tmp_path / "b.npy", matrix(10))
    np.save(tmp_path / "c.npy", array)
    part = imported(["a", "b", "c"], tmp_path)
    assert part.rows["vid"].to_pylist() == ["a", "b"] + ["c"] * (not reason)
    assert [(row["qid"], row["reason"]) for row in part.rejected] == [("c", reason)] * bool(reason)


@pytest.mark.parametrize("vid", ["../a", "/etc/passwd", "..", ".", "", "x/../../a", "a\\b", "x/y"])
def test_an_id_never_leaves_its_folder(tmp_path: Path, vid: str) -> None:
    np.save(tmp_path / "a.npy", matrix(10))
    inner = tmp_path / "inner"
    inner.mkdir()
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.update({"a": matrix(2), "x/y": matrix(2)})
    for source in (inner, tmp_path / "f.h5"):
        [row] = imported([vid], source, duration=2.0).rejected
        assert row["reason"].startswith("no features in ")


def test_an_unusable_source_is_reported_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.hdf5")  # is not waited for
    (tmp_path / "text.h5").write_text("no HDF5")
    nothing, other = "no folder or file", "neither a folder nor an HDF5 file"
    for name, reason in (("nowhere", nothing), ("pipe.hdf5", nothing), ("text.h5", other)):
        with pytest.raises(FeatureError, match=reason):
            imported(["a"], tmp_path / name)


def rejected(source: Path) -> tuple[str, str]:
    """Return why `bad` is rejected; the two others must be imported."""
    part = imported(["good", "bad", "other"], source, duration=10.0)
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


def bomb(file: h5py.File, **options: Any) -> None:
    chunk = zlib.compress(bytes(64 << 20), 9)
    file.create_dataset("bad", (4, 8), "f4", chunks=(4, 8), **options).id.write_direct_chunk((0, 0), chunk)


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda file: file.create_dataset("bad", **STORED_ELSEWHERE), ELSEWHERE),
        (lambda file: file.create_group("bad").create_dataset("c3d", **STORED_ELSEWHERE), ELSEWHERE),
        (virtual_data_set, ELSEWHERE),
        (lambda file: file.update({"bad": OTHER_FILE}), LINK),
        (lambda file: file.create_group("bad").update({"features": OTHER_FILE}), LINK),
        (lambda file: file.update({"door": DOOR, "bad": h5py.SoftLink("/door/features")}), LINK),
        (lambda file: bomb(file, compression="gzip"), UNPACKS),
        (lambda file: bomb(file, compression="gzip", shuffle=True, fletcher32=True), UNPACKS),
        (lambda file: bomb(file, compression="lzf"), "array has another compression than gzip: repack it with h5rep"),
    ],
)
def test_no_hdf5_file_leads_elsewhere_or_unpacks_to_more_than_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[h5py.File], None], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret").write_bytes(MATRIX.tobytes())
    with h5py.File("secret.h5", "w") as file:
        file["features"] = MATRIX
    path = hdf5_of(tmp_path / "f.h5", write)
    assert rejected(path)[0].startswith(reason)


def npy_header(path: Path, rows: int) -> None:
    with (path / "bad.npy").open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (rows, 6)})


LARGE: tuple[Callable[[Path], Any], ...] = (
    lambda path: npy_header(path, 1 << 40),
    lambda path: np.savez_compressed(path / "bad.npz", features=np.zeros((1 << 20, 64), np.float32)),
    lambda path: np.save(path / "bad.npy", np.zeros((1 << 20, 6), np.int8)),  # as single precision four times as much
    lambda path: hdf5_of(path / "f.h5", lambda file: file.create_dataset("bad", (1 << 40, 6), "f4", chunks=(1, 6))),
    lambda path: hdf5_of(path / "f.h5", lambda file: file.create_dataset("bad", (10, 6), "f4", **LARGE_CHUNK)),
)


@pytest.mark.parametrize("write", LARGE)
def test_no_array_takes_more_memory(
    tmp_path: Path, write: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "MAX_BYTES", 16 << 20)
    source = write(tmp_path) or folder_of(tmp_path)
    tracemalloc.start()
    reason, size = rejected(source)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reason == "array is larger than a gigabyte"
    assert size.endswith(" MB")
    assert peak < 16 << 20


def test_packed_arrays_are_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("v", data=MATRIX, chunks=(3, 6), compression="gzip", shuffle=True, fletcher32=True)
    np.testing.assert_array_equal(Hdf5File(tmp_path / "f.h5").read("v"), MATRIX)


def test_an_array_with_a_negative_side_is_rejected(tmp_path: Path) -> None:
    npy_header(folder_of(tmp_path), -1)
    assert rejected(tmp_path)[0] == "array has a negative side"


def test_a_file_that_holds_no_array_is_rejected(tmp_path: Path) -> None:
    folder_of(tmp_path)
    pickled, broken = tmp_path / "bad.npy", tmp_path / "bad.npz"
    np.save(pickled, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert rejected(tmp_path)[0] == "features are no numbers"
    pickled.unlink()
    broken.write_bytes(b"PK\3\4 no archive")
    assert rejected(tmp_path)[0] == "features can't be read"
    with zipfile.ZipFile(broken, "w", zipfile.ZIP_LZMA) as archive:
        archive.write(tmp_path / "good.npy", "features.npy")
    assert rejected(tmp_path)[0] == "file has a compression that numpy does not use"


def test_a_link_that_leads_out_of_the_folder_is_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "features"
    folder.mkdir()
    np.save(tmp_path / "secret.npy", MATRIX)
    os.symlink(tmp_path / "secret.npy", folder / "bad.npy")
    assert rejected(folder_of(folder))[0] == "link leads out of the folder"
