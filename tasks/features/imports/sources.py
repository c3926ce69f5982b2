"""Reading one video's features from an HDF5 file or a folder of .npy and .npz files, whoever wrote them.

Nothing is ever unpickled. HDF5: a video is a data set, or a group that holds one (VSLNet's I3D, MS-2D-TAN's C3D).
.npz: the array `features`, `pooler_output` or `last_hidden_state` (Moment-DETR's CLIP and SlowFast), or the only one.
Ids with and without the prefix "v_" are the same video (ActivityNet).
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.features.decoding.files import VideoFolder, is_inside

KEYS = ("features", "pooler_output", "last_hidden_state")
PREFIX = "v_"
SUFFIXES = (".npz", ".npy")

Array = npt.NDArray[Any]


class SourceError(PenumbraError):
    """A source of features is not there, or is none."""


class FeatureFault(Exception):  # noqa: N818 (a row's fault, not the program's)
    """A video's features can't be used; `args` are the reason, as it is counted, and what was found."""

    def __init__(self, reason: str, value: object = "") -> None:
        super().__init__(reason, value)
        self.reason, self.value = reason, str(value)


def open_source(path: Path, key: str) -> "FeatureFolder | Hdf5File":
    """A folder or an HDF5 file; `key` names the array of a video where there are several.

    Raises:
        SourceError: there is no such folder or file, or it is no HDF5 file

    """
    if path.is_dir():
        return FeatureFolder(path, key)
    if not path.is_file():
        raise SourceError(f"no folder or file {path} of features: name it in imports.sources")
    return Hdf5File(path, key)


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

    def __init__(self, path: Path, key: str = "") -> None:
        self.path, self.key = path, key
        self._folder = VideoFolder(path, SUFFIXES)

    def file(self, vid: str) -> Path | None:
        """A video's file, or None."""
        return next((file for name in ids_of(vid) if (file := self._folder.find(name))), None)

    def read(self, vid: str) -> Array | None:
        """A video's features, or None."""
        file = self.file(vid)
        if file is None:
            return None
        try:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            with loaded:
                return np.asarray(only_array(loaded, self.key, "file"))
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, MemoryError) as error:
            raise FeatureFault("file can't be read as .npy or .npz", f"{file.name}: {error}") from None


class Hdf5File:
    """An HDF5 file with all videos."""

    def __init__(self, path: Path, key: str = "") -> None:
        import h5py

        self.path, self.key = path, key
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise SourceError(f"{path} is neither a folder nor an HDF5 file ({error})") from None

    def read(self, vid: str) -> Array | None:
        """A video's features, or None."""
        import h5py

        name = next((name for name in ids_of(vid) if is_inside(name) and name in self._file), None)
        if name is None:
            return None
        try:
            array = self._file[name]
            if isinstance(array, h5py.Group):
                array = only_array({inner: array[inner] for inner in array}, self.key, "group")
            if not isinstance(array, h5py.Dataset):
                raise FeatureFault("group holds no array", name)
            return np.asarray(array[()])
        except (OSError, ValueError, KeyError, TypeError, MemoryError) as error:
            raise FeatureFault("array can't be read from the HDF5 file", f"{name}: {error}") from None
