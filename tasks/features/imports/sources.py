"""Reading one video's features from an HDF5 file or a folder of .npy and .npz files, whoever wrote them.

HDF5: a video is a data set, or a group that holds one (VSLNet's I3D, MS-2D-TAN's C3D). .npz: the array `features`,
`pooler_output` or `last_hidden_state` (Moment-DETR's CLIP and SlowFast), or the only one. Ids with and without the
prefix "v_" are the same video (ActivityNet).

Nothing is trusted: no array is unpickled, none is read that is larger than the ceiling, and an HDF5 file is never
followed into another one.
"""

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.features.decoding.files import VideoFolder, is_inside

KEYS = ("features", "pooler_output", "last_hidden_state")
PREFIX = "v_"
SUFFIXES = (".npz", ".npy")
MOST = 1 << 30  # bytes of a video's array
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
DAMAGE = (  # what numpy, zipfile and h5py are known to raise of a damaged file
    ArithmeticError,
    EOFError,
    KeyError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)

Array = npt.NDArray[Any]


class SourceError(PenumbraError):
    """A source of features is not there, or is none."""


class FeatureFault(Exception):  # noqa: N818 (a row's fault, not the program's)
    """A video's features can't be used; `args` are the reason, as it is counted, and what was found."""

    def __init__(self, reason: str, value: object = "") -> None:
        super().__init__(reason, value)
        self.reason, self.value = reason, str(value)


def open_source(path: Path, key: str, most: int = MOST) -> "FeatureFolder | Hdf5File":
    """A folder or an HDF5 file.

    Args:
        path: where it is
        key: the array of a video where there are several
        most: bytes that a video's array may take

    Raises:
        SourceError: there is no such folder or file, or it is no HDF5 file

    """
    if path.is_dir():
        return FeatureFolder(path, key, most)
    if not path.is_file():
        raise SourceError(f"no folder or file {path} of features: name it in imports.sources")
    return Hdf5File(path, key, most)


def check_announced(shape: tuple[int, ...], dtype: np.dtype[Any], most: int) -> None:
    """Whether what a header tells of an array can be read; raises `FeatureFault` before anything is allocated."""
    if dtype.kind not in "fiu":
        raise FeatureFault("features are no numbers", dtype)
    size = prod(shape) * max(dtype.itemsize, np.dtype(np.float32).itemsize)  # what it takes as single precision
    if size > most:
        raise FeatureFault("array is larger than imports.largest_mb", f"{size / (1 << 20):,.0f} MB")


def ids_of(vid: str) -> tuple[str, str]:
    """The names under which a video may be found."""
    return vid, vid.removeprefix(PREFIX) if vid.startswith(PREFIX) else PREFIX + vid


def only_array(arrays: Mapping[str, Any], key: str, what: str) -> Any:
    """The array that `key` names, or one of the usual ones, or the only one."""
    if key:
        if key not in arrays:
            raise FeatureFault(f"{what} has no array {key}", ", ".join(sorted(arrays)[:5]))
        return arrays[key]
    for name in KEYS:
        if name in arrays:
            return arrays[name]
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    raise FeatureFault(f"{what} has several arrays: name one with key", ", ".join(sorted(arrays)[:5]))


class FeatureFolder:
    """A folder with a .npy or .npz file a video."""

    def __init__(self, path: Path, key: str = "", most: int = MOST) -> None:
        self.path, self.key, self.most = path, key, most
        self._folder = VideoFolder(path, SUFFIXES)

    def file(self, vid: str) -> Path | None:
        """A video's file, or None."""
        return next((file for name in ids_of(vid) if (file := self._folder.find(name))), None)

    def read(self, vid: str) -> Array | None:
        """A video's features, or None; raises `FeatureFault`."""
        file = self.file(vid)
        if file is None:
            if self._folder.outside.intersection(ids_of(vid)):
                raise FeatureFault("link leads out of the folder", "name the folder it leads to in imports.sources")
            return None
        try:
            with file.open("rb") as stream:
                if stream.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                    return self._array(stream)
                with zipfile.ZipFile(stream) as archive:
                    return self._only_member(archive)
        except DAMAGE as error:
            raise FeatureFault("file can't be read as .npy or .npz", f"{file.name}: {error}") from None

    def _only_member(self, archive: zipfile.ZipFile) -> Array:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        member = only_array(members, self.key, "file")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others may ask for any memory
            raise FeatureFault("file is compressed as numpy compresses none", member.filename)
        with archive.open(member) as stream:
            array = self._array(stream)
            stream.read(1)  # at the end the checksum is checked
            return array

    def _array(self, stream: IO[bytes]) -> Array:
        stream.seek(0)
        shape, _, dtype = HEADERS[npy.read_magic(stream)](stream)
        check_announced(shape, dtype, self.most)
        stream.seek(0)
        array: Array = npy.read_array(stream, allow_pickle=False)
        return array


class Hdf5File:
    """An HDF5 file with all videos."""

    def __init__(self, path: Path, key: str = "", most: int = MOST) -> None:
        import h5py

        self.path, self.key, self.most = path, key, most
        try:
            self._file = h5py.File(path, "r")
        except DAMAGE as error:
            raise SourceError(f"{path} is neither a folder nor an HDF5 file ({error})") from None

    def read(self, vid: str) -> Array | None:
        """A video's features, or None; raises `FeatureFault`."""
        import h5py

        try:
            links = ((name, _link(self._file, name)) for name in ids_of(vid) if is_inside(name))
            name, link = next(((name, link) for name, link in links if link), ("", None))
            if link is None:
                return None
            found = _linked(self._file, name)
            if isinstance(found, h5py.Group):
                found = _linked(found, only_array({inner: inner for inner in found}, self.key, "group"))
            if not isinstance(found, h5py.Dataset):
                raise FeatureFault("group holds no array", name)
            self._check(found)
            return np.asarray(found[()])
        except DAMAGE as error:
            raise FeatureFault("array can't be read from the HDF5 file", f"{vid}: {error}") from None

    def _check(self, found: Any) -> None:
        if found.is_virtual or found.external:
            raise FeatureFault("array lies in another file than the HDF5 file", found.name)
        check_announced(found.shape or (), found.dtype, self.most)
        check_announced(found.chunks or (), found.dtype, self.most)  # a chunk is read whole, however small the array


def _link(group: Any, name: str) -> Any:
    """The link of this name in a group, or None; it is not followed."""
    return group.get(name, getlink=True)


def _linked(group: Any, name: str) -> Any:
    """What a group of an HDF5 file holds under this name, in this very file; raises `FeatureFault`."""
    import h5py

    if not isinstance(_link(group, name), h5py.HardLink):
        raise FeatureFault("HDF5 link leads elsewhere", f"{group.name}/{name}")
    return group[name]
