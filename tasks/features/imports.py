"""Stage `video_features` from features that others have extracted: one source, or several joined by columns.

A source is an HDF5 file (VSLNet's I3D, MS-2D-TAN's C3D) or a folder of .npy and .npz files (Moment-DETR's CLIP and
SlowFast). As in Moment-DETR, sources are cut to the shortest and joined without normalisation. Files are not trusted:
pickled arrays and arrays larger than `MAX_BYTES` are rejected, and links from an HDF5 file to others are not followed.
"""

import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy
from pydantic import Field

from penumbra.artifacts.files import file_digest, named_digest
from penumbra.artifacts.locations import data_folder
from penumbra.artifacts.manifest import Part, rejection
from penumbra.tasks.features.errors import FeatureError, VideoError
from penumbra.tasks.features.files import VideoFolder, is_inside
from penumbra.tasks.features.reading import Float16Array
from penumbra.tasks.features.video import STAGE, VIDEOS_A_PART, VideoStage, features_table
from penumbra.tasks.parameter_group import Parameters

ARRAY_NAMES = ("features", "pooler_output", "last_hidden_state")
PREFIX = "v_"
SUFFIXES = (".npz", ".npy")
MAX_BYTES = 1 << 30  # of a video's array
TOLERANCE = 0.05  # share of the clips that may be missing or in excess; one clip is always tolerated
VIDEOS_FOR_DIMENSION = 9  # number of videos from which the dimension of a source is determined
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
Array = npt.NDArray[Any]


class Source(Parameters):
    """The features of one extractor."""

    path: str = Field(
        description="An HDF5 file, or a folder of .npy or .npz files named by video id. A relative path starts at the "
        "data set's folder below PENUMBRA_DATA."
    )
    name: str = Field("", description="Name of the encoder. Default: the name of the folder or file.")
    key: str = Field("", description="Name of a video's array if its file or group holds several.")
    dimension: int = Field(0, ge=0, description="Number of columns of every video; 0: as in the first videos.")
    longest: int = Field(
        0, ge=0, description="Number of rows that are used; 0: all (max_v_l of the DETR family is 75)."
    )

    def called(self) -> str:
        return self.name or Path(self.path).stem


class Imports(Parameters):
    """Features of videos that others have extracted."""

    sources: list[Source] = Field([], description="Sources whose columns are joined, such as SlowFast and CLIP.")


# -- reading one video's array ----------------------------------------------------------------------------------------


def check_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise `VideoError` if an array with this header must not be read, before memory is allocated for it."""
    if dtype.kind not in "fiu":
        raise VideoError("features are no numbers", dtype)
    if min(shape, default=0) < 0:  # numpy would read the whole file
        raise VideoError("array has a negative side", shape)
    size = prod(shape) * max(dtype.itemsize, np.dtype(np.float32).itemsize)  # of the array in single precision
    if size > MAX_BYTES:
        raise VideoError("array is larger than a gigabyte", f"{size / (1 << 20):,.0f} MB")


def ids_of(vid: str) -> tuple[str, str]:
    """Return the names under which a source may have a video."""
    return vid, vid.removeprefix(PREFIX) if vid.startswith(PREFIX) else PREFIX + vid


def array_name(names: Iterable[str], key: str) -> str:
    """Return `key`, or else a usual name, or else the only name; raise `VideoError` if there is none."""
    names = sorted(names)
    usual = [name for name in ((key,) if key else ARRAY_NAMES) if name in names]
    if not usual and (key or len(names) != 1):
        raise VideoError("no array of the usual names: name one with key", ", ".join(names[:5]))
    return (usual or names)[0]


class FeatureFolder:
    """A folder with a .npy or .npz file for each video."""

    def __init__(self, path: Path, key: str = "") -> None:
        self.path, self.key = path, key
        self._folder = VideoFolder(path, SUFFIXES)

    def digest(self, vids: Iterable[str]) -> str:
        return named_digest((vid, self._file(vid)) for vid in vids)

    def _file(self, vid: str) -> Path | None:
        return next((file for name in ids_of(vid) if (file := self._folder.find(name))), None)

    def read(self, vid: str) -> Array | None:
        """Return a video's features, or None if there are none; raise `VideoError` if they must not be read."""
        file = self._file(vid)
        if file is None:
            if self._folder.outside.intersection(ids_of(vid)):
                raise VideoError("link leads out of the folder", "name its target folder in imports.sources")
            return None
        with file.open("rb") as stream:
            if stream.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                return self._read_array(stream)
            with zipfile.ZipFile(stream) as archive:
                members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
                member = members[array_name(members, self.key)]
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # unlimited memory
                    raise VideoError("file has a compression that numpy does not use", member.filename)
                with archive.open(member) as inner:
                    array = self._read_array(inner)
                    inner.read(1)  # reaches the end, where zipfile verifies the checksum
                    return array

    def _read_array(self, stream: IO[bytes]) -> Array:
        stream.seek(0)
        shape, _, dtype = HEADERS[npy.read_magic(stream)](stream)
        check_header(shape, dtype)
        stream.seek(0)
        array: Array = npy.read_array(stream, allow_pickle=False)
        return array


class Hdf5File:
    """An HDF5 file that holds all videos."""

    def __init__(self, path: Path, key: str = "") -> None:
        import h5py

        self.path, self.key = path, key
        try:
            self._file = h5py.File(path, "r")
        except Exception as error:
            raise FeatureError(f"{path} is neither a folder nor an HDF5 file ({error})") from None

    def digest(self, vids: Iterable[str]) -> str:
        return file_digest(self.path)

    def read(self, vid: str) -> Array | None:
        """Return a video's features, or None if there are none; raise `VideoError` if they must not be read."""
        import h5py

        def member(group: Any, name: str) -> Any:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):  # read without following the link
                raise VideoError("HDF5 link leads elsewhere", f"{group.name}/{name}")
            return group[name]

        names = [name for name in ids_of(vid) if is_inside(name) and self._file.get(name, getlink=True)]
        if not names:
            return None
        item = member(self._file, names[0])
        if isinstance(item, h5py.Group):
            item = member(item, array_name(item, self.key))
        if not isinstance(item, h5py.Dataset):
            raise VideoError("group holds no array", names[0])
        if item.is_virtual or item.external:
            raise VideoError("array lies in another file than the HDF5 file", item.name)
        check_header(item.shape or (), item.dtype)
        check_header(item.chunks or (), item.dtype)  # a chunk is read as a whole, even for a small array
        check_chunks(item)
        return np.asarray(item[()])


def check_chunks(item: Any) -> None:
    """Raise `VideoError` if a chunk unpacks to more than its shape holds, because HDF5 does not limit its memory."""
    from h5py import h5z

    properties = item.id.get_create_plist()
    filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    known = {h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32}
    if not known.issuperset(filters) or len({*filters}) < len(filters):
        raise VideoError("array has another compression than gzip: repack it with h5repack -f GZIP=4", item.name)
    if h5z.FILTER_DEFLATE not in filters:
        return
    skipped, most = 1 << filters.index(h5z.FILTER_DEFLATE), prod(item.chunks) * item.dtype.itemsize
    for number in range(item.id.get_num_chunks()):
        mask, packed = item.id.read_direct_chunk(item.id.get_chunk_info(number).chunk_offset)
        if not mask & skipped and len(zlib.decompressobj().decompress(packed, most + 1)) > most:
            raise VideoError("array unpacks to more than its shape holds", item.name)


# -- checking and joining sources -------------------------------------------------------------------------------------


def read_matrix(source: FeatureFolder | Hdf5File, vid: str, dimension: int = 0) -> Float16Array | None:
    """Return a video's features (clips, dimension) or None; raise `VideoError` if they can't be used."""
    try:
        array = source.read(vid)
    except VideoError:
        raise
    except Exception as error:  # numpy, zipfile and HDF5 raise many kinds for a damaged file
        raise VideoError("features can't be read", f"{vid} of {source.path.name}: {error}") from None
    if array is None:
        return None
    matrix = array.reshape(array.shape[0], -1) if array.ndim > 2 and array[:1].size == array.shape[-1] else array
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise VideoError("features are no matrix of clips and dimensions", array.shape)
    if dimension and matrix.shape[1] != dimension:
        raise VideoError(f"features are not {dimension}-dimensional", array.shape)
    with np.errstate(over="ignore"):
        halves: Float16Array = matrix.astype(np.float32).astype(np.float16)
    if infinite := np.count_nonzero(~np.isfinite(halves)):
        raise VideoError("features are not finite in half precision", f"{infinite} of {halves.size}")
    return halves


@dataclass(frozen=True)
class ImportedFeatures(VideoStage):
    """Features that others have extracted; each row covers `clip_length` seconds."""

    imports: Imports
    clip_length: float

    @cached_property
    def opened(self) -> list[FeatureFolder | Hdf5File]:
        opened = list[FeatureFolder | Hdf5File]()
        for source in self.imports.sources:
            path = data_folder() / self.annotations.dataset / Path(source.path).expanduser()
            if not path.is_dir() and not path.is_file():
                raise FeatureError(f"no folder or file {path} of features: name it in imports.sources")
            opened.append(FeatureFolder(path, source.key) if path.is_dir() else Hdf5File(path, source.key))
        return opened

    @cached_property
    def dimensions(self) -> list[int]:
        """The dimension of each source; by default the most frequent one of its first videos."""
        dimensions = []
        for source, place in zip(self.imports.sources, self.opened, strict=True):
            seen = Counter[int]()
            for vid in () if source.dimension else self.durations:
                with suppress(VideoError):
                    if (matrix := read_matrix(place, vid)) is not None:
                        seen[matrix.shape[1]] += 1
                if seen.total() == VIDEOS_FOR_DIMENSION:
                    break
            dimensions.append(max(seen, key=seen.__getitem__, default=source.dimension))
        return dimensions

    def parameters(self) -> dict[str, Any]:
        sources = [source.model_dump(exclude={"path"}) | {"name": source.called()} for source in self.imports.sources]
        own = {"imported": sources, "clip_length": self.clip_length, "tolerance": TOLERANCE}
        return own | {"videos_a_part": VIDEOS_A_PART}

    def inputs(self) -> dict[str, str]:
        names = [f"{number}: {source.called()}" for number, source in enumerate(self.imports.sources)]
        return {name: place.digest(self.durations) for name, place in zip(names, self.opened, strict=True)}

    def read(self, vid: str) -> tuple[Float16Array, list[str]]:
        """Return a video's features (clips, sum of dimensions) and notes; raise `VideoError` if it is unusable."""
        matrices, lengths, notes = [], [], []
        expected = max(1, ceil(self.durations[vid] / self.clip_length - 1e-9))
        for source, place, dimension in zip(self.imports.sources, self.opened, self.dimensions, strict=True):
            matrix = read_matrix(place, vid, dimension)
            if matrix is None:
                raise VideoError(f"no features in {source.called()}")
            matrices.append(matrix)
            lengths.append(min(len(matrix), source.longest or len(matrix)))
            expected = min(expected, source.longest or expected)
        clips = min(lengths)
        if abs(clips - expected) > max(1, TOLERANCE * expected):
            raise VideoError("number of clips does not match the duration", f"{clips} instead of {expected}")
        if len({len(matrix) for matrix in matrices}) > 1:
            notes.append("sources of different lengths cut to the shortest")
        if clips != expected:
            notes.append("number of clips differs slightly from the duration")
        return np.concatenate([matrix[:clips] for matrix in matrices], axis=1), notes

    def part(self, piece: Sequence[str]) -> Part:
        rows, rejected, notes = [], [], Counter[str]()
        for vid in piece:
            try:
                features, video_notes = self.read(vid)
            except VideoError as error:
                rejected.append(rejection(vid, STAGE, error.reason, error.value))
                continue
            notes.update(video_notes)
            rows.append((vid, self.durations[vid], features))
        encoder = "+".join(source.called() for source in self.imports.sources)
        table = features_table(encoder, self.clip_length, rows, sum(self.dimensions) or 1)
        return Part(table, len(piece), len(rows), rejected, notes)
