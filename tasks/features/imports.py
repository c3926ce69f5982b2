"""Stage `video_features` from features that others have extracted, one source or several side by side.

Lengths are reconciled as Moment-DETR does it: each source may be cut to its first rows, all are cut to the shortest
among them, and their columns stand side by side. Nothing is normalised: that is training's. What a source has none of,
that is no number, of another dimension, or of another number of clips than the duration asks for (ceil(duration /
clip_length), give or take `tolerance`) is rejected.
"""

import struct
import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy
from pydantic import Field

from penumbra.artifacts.digests import file_digest, named_digest
from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.locations import data_folder
from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.tasks.features.files import VideoFolder, is_inside
from penumbra.tasks.features.reading import Float16Array
from penumbra.tasks.features.video import STAGE, VIDEOS_A_PART, chunks, durations_of, features_table
from penumbra.tasks.stage import Parameters, Stage, logger, require_made, run

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


LARGEST_HALF = float(np.finfo(np.float16).max)


class Source(Parameters):
    """One extractor's features."""

    path: str = Field(
        description="An HDF5 file, or a folder of .npy or .npz files named by video id; from the data set's folder "
        "below PENUMBRA_DATA if it is relative."
    )
    name: str = Field("", description="What the encoder is called. Default: the name of the folder or file.")
    key: str = Field("", description="The array of a video where its file or group holds several.")
    dimension: int = Field(0, ge=0, description="Columns that every video must have; 0: as the first one has.")
    longest: int = Field(0, ge=0, description="Rows that count; 0: all (max_v_l of the DETR family cuts to 75).")

    def called(self) -> str:
        """The name that is written down."""
        return self.name or Path(self.path).stem


class Imports(Parameters):
    """Features of videos that others have extracted, instead of our own."""

    sources: list[Source] = Field([], description="Sources whose columns stand side by side, as SlowFast and CLIP.")
    tolerance: float = Field(
        0.05, ge=0, description="Share of the clips that may be missing or too many; one clip always may."
    )
    largest_mb: int = Field(MOST >> 20, ge=1, description="What a video's array may take, in MB.")


Opened = FeatureFolder | Hdf5File


def check_matrix(array: Array, dimension: int) -> npt.NDArray[np.float32]:
    """A video's features, which are numbers, as (clips, dimension); raises `FeatureFault`."""
    matrix = array.reshape(array.shape[0], -1) if array.ndim > 2 and array[:1].size == array.shape[-1] else array
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise FeatureFault("features are no matrix of clips and dimensions", array.shape)
    if dimension and matrix.shape[1] != dimension:
        raise FeatureFault(f"features are not {dimension}-dimensional", array.shape)
    floats: npt.NDArray[np.float32] = matrix.astype(np.float32)
    if not np.isfinite(floats).all():
        raise FeatureFault("features hold NaN or infinity", f"{(~np.isfinite(floats)).sum()} of {floats.size}")
    if np.abs(floats).max() > LARGEST_HALF:
        raise FeatureFault("features are not finite in half precision", float(np.abs(floats).max()))
    return floats


def reconcile(matrices: Sequence[npt.NDArray[np.float32]], longest: Sequence[int]) -> Float16Array:
    """Sources side by side, each cut to its longest, all to the shortest: (clips, sum of dimensions)."""
    cut = [matrix[:most] if most else matrix for matrix, most in zip(matrices, longest, strict=True)]
    clips = min(len(matrix) for matrix in cut)
    return np.concatenate([matrix[:clips] for matrix in cut], axis=1).astype(np.float16)


def check_length(clips: int, duration: float, clip_length: float, imports: Imports) -> int:
    """How many clips the duration asks for; raises `FeatureFault` where there is quite another number."""
    asked = max(1, ceil(duration / clip_length - 1e-9))
    cuts = [source.longest for source in imports.sources if source.longest]
    asked = min([asked, *cuts])
    if abs(clips - asked) > max(1, imports.tolerance * asked):
        raise FeatureFault("another number of clips than the duration asks for", f"{clips} instead of {asked}")
    return asked


class Importer:
    """Reads videos from all sources; the first good video settles each source's dimension where none is asked for."""

    def __init__(self, imports: Imports, clip_length: float, opened: Sequence[Opened], vids: Sequence[str]) -> None:
        self.imports, self.clip_length, self.opened = imports, clip_length, opened
        self._told: set[type[Exception]] = set()
        self.dimensions = [
            source.dimension or self._usual(place, vids) for source, place in zip(imports.sources, opened, strict=True)
        ]

    def _usual(self, place: Opened, vids: Sequence[str]) -> int:
        """The commonest dimension among the first videos that are there."""
        seen: Counter[int] = Counter()
        for vid in vids:
            with suppress(FeatureFault), self._boundary(vid):
                array = place.read(vid)
                if array is not None:
                    seen[check_matrix(array, 0).shape[1]] += 1
            if seen.total() == 9:
                break
        return seen.most_common(1)[0][0] if seen else 0

    @contextmanager
    def _boundary(self, vid: str) -> Iterator[None]:
        """Whatever goes wrong inside is this video's `FeatureFault`; what nobody expected is logged in full once."""
        try:
            yield
        except FeatureFault:
            raise
        except Exception as error:
            if type(error) not in self._told:
                self._told.add(type(error))
                logger().exception("%s: reading its features failed unexpectedly; the video is rejected", vid)
            raise FeatureFault("reading failed unexpectedly", f"{type(error).__name__}: {error}") from None

    def read(self, vid: str, duration: float) -> tuple[Float16Array, list[str]]:
        """A video's features and what is to be said of them; raises `FeatureFault` and nothing else."""
        with self._boundary(vid):
            return self._read(vid, duration)

    def _read(self, vid: str, duration: float) -> tuple[Float16Array, list[str]]:
        if not is_inside(vid):
            raise FeatureFault("video id points outside the folder", vid)
        matrices = []
        for source, place, dimension in zip(self.imports.sources, self.opened, self.dimensions, strict=True):
            array = place.read(vid)
            if array is None:
                raise FeatureFault(f"no features in {source.called()}")
            matrices.append(check_matrix(array, dimension))
        lengths = {len(matrix) for matrix in matrices}
        features = reconcile(matrices, [source.longest for source in self.imports.sources])
        asked = check_length(len(features), duration, self.clip_length, self.imports)
        notes = ["sources of different lengths cut to the shortest"] if len(lengths) > 1 else []
        notes += ["a clip more or fewer than the duration asks for"] if len(features) != asked else []
        return features, notes


def import_part(vids: Sequence[str], durations: dict[str, float], importer: Importer) -> Part:
    """One part's features; a video without any is rejected."""
    rows, rejected, notes = [], [], Counter[str]()
    for vid in vids:
        try:
            features, changes = importer.read(vid, durations[vid])
        except FeatureFault as fault:
            rejected.append(rejection(vid, STAGE, fault.reason, fault.value))
            continue
        notes.update(changes)
        rows.append((vid, durations[vid], features))
    encoder = "+".join(source.called() for source in importer.imports.sources)
    table = features_table(encoder, importer.clip_length, rows, sum(importer.dimensions) or 1)
    return Part(table, len(vids), len(rows), rejected, notes)


@dataclass(frozen=True)
class ImportedFeatures(Stage):
    """Features that others have extracted; each row of them covers `clip_length` seconds."""

    name = STAGE
    version = 1
    unit = "video"

    annotations: Artifact
    imports: Imports
    clip_length: float

    @cached_property
    def opened(self) -> list[Opened]:
        """The sources, opened; raises `SourceError` naming one that is not there."""
        folder = data_folder() / self.annotations.dataset
        most = self.imports.largest_mb << 20
        return [
            open_source(folder / Path(source.path).expanduser(), source.key, most) for source in self.imports.sources
        ]

    @cached_property
    def durations(self) -> dict[str, float]:
        """The videos that are wanted, and their annotated durations in seconds."""
        return durations_of(require_made(self.annotations))

    def parameters(self) -> dict[str, Any]:
        """How the sources are read."""
        sources = [source.model_dump(exclude={"path"}) | {"name": source.called()} for source in self.imports.sources]
        return {
            "imported": sources,
            "clip_length": self.clip_length,
            "tolerance": self.imports.tolerance,
            "videos_a_part": VIDEOS_A_PART,
        }

    def determines(self) -> dict[str, Any]:
        """All of them, and the ceiling where it isn't the usual one."""
        return self.parameters() | self.imports.model_dump(include={"largest_mb"}, exclude_defaults=True)

    def inputs(self) -> dict[str, str]:
        """The digests of the sources' files."""
        digests = {}
        for number, (source, place) in enumerate(zip(self.imports.sources, self.opened, strict=True)):
            if isinstance(place, FeatureFolder):
                files = ((vid, file) for vid in self.durations for file in [place.file(vid)])
                digests[f"{number}: {source.called()}"] = named_digest(files)
            else:
                digests[f"{number}: {source.called()}"] = file_digest(place.path)
        return digests

    @cached_property
    def pieces(self) -> Sequence[list[str]]:
        """The videos of each part."""
        return chunks(self.durations)

    @cached_property
    def importer(self) -> Importer:
        """What reads the sources."""
        return Importer(self.imports, self.clip_length, self.opened, list(self.durations))

    def part(self, piece: list[str]) -> Part:
        """One part's features."""
        return import_part(piece, self.durations, self.importer)


def import_features(annotations: Artifact, imports: Imports, clip_length: float) -> Artifact:
    """Bring others' features into our table; each row of them covers `clip_length` seconds."""
    return run(ImportedFeatures(annotations, imports, clip_length))
