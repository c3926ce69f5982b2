"""Feature files made to hurt: each is a refused video with its reason, and the videos beside it are imported."""

import logging
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from penumbra.tasks.features.imports import FeatureFolder, Hdf5File, Importer, Imports, Source, import_part, open_source

VIDS = ["good", "bad", "other"]
MATRIX = np.random.default_rng(0).standard_normal((10, 6)).astype(np.float32)
ELSEWHERE = "array lies in another file than the HDF5 file"
LINK = "HDF5 link leads elsewhere"
TOO_LARGE = "array is larger than imports.largest_mb"


def refused(source: Path, **settings: Any) -> tuple[str, str]:
    """Why `bad` is refused; the two others must be there."""
    imports = Imports(sources=[Source(path=str(source))], **settings)
    opened = [open_source(source, "", imports.largest_mb << 20)]
    part = import_part(VIDS, dict.fromkeys(VIDS, 10.0), Importer(imports, 1.0, opened, VIDS))
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


def external_storage(file: h5py.File) -> None:
    file.create_dataset("bad", (10, 6), np.float32, external=[("secret", 0, 240)])


def external_storage_in_a_group(file: h5py.File) -> None:
    file.create_group("bad").create_dataset("c3d", (10, 6), np.float32, external=[("secret", 0, 240)])


def external_link(file: h5py.File) -> None:
    file["bad"] = h5py.ExternalLink("secret.h5", "/features")


def external_link_in_a_group(file: h5py.File) -> None:
    file.create_group("bad")["features"] = h5py.ExternalLink("secret.h5", "/features")


def soft_link_through_an_external_one(file: h5py.File) -> None:
    file["door"] = h5py.ExternalLink("secret.h5", "/")
    file["bad"] = h5py.SoftLink("/door/features")


def virtual_data_set(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((10, 6), np.float32)
    layout[:] = h5py.VirtualSource("secret.h5", "features", (10, 6))
    file.create_virtual_dataset("bad", layout)


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (external_storage, ELSEWHERE),
        (external_storage_in_a_group, ELSEWHERE),
        (external_link, LINK),
        (external_link_in_a_group, LINK),
        (soft_link_through_an_external_one, LINK),
        (virtual_data_set, ELSEWHERE),
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
    assert refused(path)[0] == reason


def test_an_hdf5_file_does_not_even_open_another(tmp_path: Path) -> None:
    """A pipe without a writer would be waited for."""
    os.mkfifo(tmp_path / "pipe")

    def link(file: h5py.File) -> None:
        file["bad"] = h5py.ExternalLink(str(tmp_path / "pipe"), "/features")

    assert refused(hdf5_of(tmp_path / "f.h5", link))[0] == LINK


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
    return hdf5_of(
        path / "f.h5",
        lambda file: file.create_dataset("bad", (10, 6), np.float32, chunks=(1 << 24, 6), maxshape=(None, 6)),
    )


def small_numbers(path: Path) -> Path:
    """As single precision they take four times as much."""
    np.save(path / "bad.npy", np.zeros((1 << 20, 6), np.int8))
    return folder_of(path)


@pytest.mark.parametrize("write", [large_npy, large_npz, large_hdf5, large_chunk, small_numbers])
def test_no_file_gets_more_memory_than_the_ceiling(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    source = write(tmp_path)
    tracemalloc.start()
    reason, size = refused(source, largest_mb=16)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reason == TOO_LARGE
    assert size.endswith(" MB")
    assert peak < 16 << 20


def test_compression_that_may_ask_for_any_memory_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "bad.npy", MATRIX)
    with zipfile.ZipFile(tmp_path / "bad.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.write(tmp_path / "bad.npy", "features.npy")
    assert refused(folder_of(tmp_path))[0] == "file is compressed as numpy compresses none"


def test_a_flipped_byte_of_an_archive_is_seen(tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", features=MATRIX)
    data = bytearray((tmp_path / "bad.npz").read_bytes())
    data[data.index(MATRIX.tobytes()) + 100] ^= 1
    (tmp_path / "bad.npz").write_bytes(data)
    reason, value = refused(folder_of(tmp_path))
    assert reason == "file can't be read as .npy or .npz"
    assert "CRC" in value


def test_what_nobody_expected_is_a_refused_video_and_logged_in_full_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class UnforeseenError(Exception):
        pass

    read = FeatureFolder.read

    def broken(folder: FeatureFolder, vid: str) -> Any:
        if vid == "bad":
            raise UnforeseenError("of no known kind")
        return read(folder, vid)

    monkeypatch.setattr(FeatureFolder, "read", broken)
    with caplog.at_level(logging.ERROR):
        found = refused(folder_of(tmp_path))  # it is read twice: for the usual dimension, too
    assert found == ("reading failed unexpectedly", "UnforeseenError: of no known kind")
    [record] = [record for record in caplog.records if record.exc_info]
    assert "in broken" in caplog.text
    assert "bad" in record.getMessage()


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "features"
    folder.mkdir()
    np.save(tmp_path / "secret.npy", MATRIX)
    os.symlink(tmp_path / "secret.npy", folder / "bad.npy")
    assert refused(folder_of(folder))[0] == "link leads out of the folder"


def test_ordinary_forms_of_hdf5_are_read(tmp_path: Path) -> None:
    def write(file: h5py.File) -> None:
        file.create_dataset("packed", data=MATRIX, compression="gzip", shuffle=True, chunks=(4, 6))
        file.create_dataset("lzf", data=MATRIX, compression="lzf")
        file.create_dataset("growing", data=MATRIX, maxshape=(None, 6))
        file["again"] = file["packed"]  # a hard link

    opened = Hdf5File(hdf5_of(tmp_path / "f.h5", write))
    for vid in ("good", "packed", "lzf", "growing", "again"):
        assert np.array_equal(opened.read(vid), MATRIX)  # type: ignore[arg-type]
