"""Stage `video_features`: a CLIP feature for every clip of every video of a data set.

`penumbra.tasks.features.frames` says which frame stands for a clip and how the last, partial clip is counted.
Workers decode ahead of the encoder; each video that is done is kept at once, so that a run that is killed decodes no
finished video again.

A video without a file, or that can't be used, is rejected with its reason. A damaged file is used where what can be
decoded of it reaches the end that its annotations tell, to within a clip; one that is not damaged is used where it has
nine tenths of it.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from penumbra.artifacts.digests import named_digest
from penumbra.artifacts.errors import MissingError
from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.processes import cores
from penumbra.artifacts.store import Store
from penumbra.tasks.data.dataset import videos_of
from penumbra.tasks.devices import device_name
from penumbra.tasks.features.clip import Clip, Encoder, digests, load, patch_sizes
from penumbra.tasks.features.encode import Draft, Drafts, Extraction, States, frame_states, patch_states
from penumbra.tasks.features.files import VideoFolder, is_inside
from penumbra.tasks.features.reading import Float16Array, lists_of
from penumbra.tasks.stage import Parameters, Stage, logger, require_made, run

STAGE = "video_features"
VIDEOS_A_PART = 64
SHEET = "_sheet.jpg"
ON_SHEET = 12
ENOUGH = 0.9  # of the annotated duration

Row = tuple[str, float, Float16Array]  # a video's id, its duration in seconds, and its features (clips, …)


class Videos(Parameters):
    """Where the videos are and how they are sampled."""

    folder: str | None = Field(
        None, description="Folder of video files named by video id. Default: videos/ in the data set's folder."
    )
    clip_length: float = Field(1.0, gt=0, le=3600, description="Seconds of a clip; a clip is one feature.")
    batch_size: int = Field(32, ge=1, description="Frames encoded at once.")
    workers: int = Field(0, ge=0, description="Processes that decode; 0: as many as there are cores.")
    decoder: Literal["software", "cuda", "qsv", "amf"] = Field(
        "software", description="`cuda` decodes on an NVIDIA GPU (NVDEC) what it can, the rest in software."
    )
    seconds_a_frame: float = Field(60.0, gt=0, description="A decoder that gives no frame for so long is ended.")
    patches: bool = Field(
        False, description="Keep frames' patches too, which VDI's motion (losses.spatial_dynamics) needs."
    )
    patch_interval: float = Field(4.0, gt=0, le=3600, description="Seconds from one frame of patches to the next.")
    memory_mb: int = Field(512, ge=1, description="Frames that may wait for the encoder, in MB.")
    decoder_mb: int | None = Field(
        4096, ge=512, description="What a process that decodes in software may take, in MB; null: any."
    )

    @property
    def most(self) -> int:
        """Bytes that a decoding process may take; 0: any."""
        return (self.decoder_mb or 0) << 20


class VideosError(MissingError):
    """The folder of videos is not there."""


def videos_folder(dataset: str, videos: Videos) -> Path:
    """Return the folder of a data set's video files."""
    return Path(videos.folder).expanduser() if videos.folder else videos_of(dataset)


def durations_of(annotations: Artifact) -> dict[str, float]:
    """Each video of a data set with its longest annotated duration, in seconds, in the order of the annotations."""
    durations: dict[str, float] = {}
    for part in Store().parts(annotations, ["vid", "duration"]):
        for vid, duration in zip(part["vid"].to_pylist(), part["duration"].to_pylist(), strict=True):
            durations[vid] = max(duration, durations.get(vid, 0.0))
    return durations


def refusal(draft: Draft | None, annotated: float, clip_length: float) -> tuple[str, str]:
    """Why a video is rejected and what was found, or two empty strings."""
    if draft is None:
        return "no video file", ""
    if draft.reason or draft.features is None:
        return draft.reason, draft.value
    missing = annotated - draft.summary.duration
    if missing > clip_length and (draft.summary.damaged or draft.summary.duration < ENOUGH * annotated - clip_length):
        kind = "damaged video breaks off" if draft.summary.damaged else "video is shorter than its annotations say"
        return kind, f"{draft.summary.duration:.2f} of {annotated:.2f} s"
    if not np.isfinite(draft.features).all():
        return "features are not finite in half precision", ""
    return "", ""


def changes(draft: Draft, annotated: float, clip_length: float) -> list[str]:
    """What is to be said of a video that is used."""
    notes = {
        "video is damaged in places": draft.summary.damaged > 0,
        "video turned as its metadata asks": draft.summary.rotated,
        "decoded in software, for want of the hardware decoder": draft.summary.software,
        "video ends more than a clip before its annotations": annotated - draft.summary.duration > clip_length,
        "video ends more than a clip after its annotations": draft.summary.duration - annotated > clip_length,
    }
    return [change for change, holds in notes.items() if holds]


def features_table(encoder: str, clip_length: float, rows: Sequence[Row], dimension: int) -> pa.Table:
    """Rows (video id, duration, features) as the stage's table; all features must be of this dimension."""
    return pa.table(
        {
            "vid": pa.array([vid for vid, _, _ in rows], pa.string()),
            "encoder": pa.array([encoder] * len(rows), pa.string()),
            "clip_length": pa.array([clip_length] * len(rows), pa.float64()),
            "duration": pa.array([duration for _, duration, _ in rows], pa.float64()),
            "features": lists_of([features for _, _, features in rows], dimension),
        }
    )


def part_of(
    stage: str,
    vids: Sequence[str],
    wanted: "Wanted",
    drafts: Callable[[Sequence[str]], dict[str, Draft]],
    clip_length: float,
    table: Callable[[Sequence[Row]], pa.Table],
) -> Part:
    """One part: the table of the videos that have features; a video without any is rejected."""
    by_vid = drafts(vids)
    rows, rejected, notes = [], [], Counter[str]()
    for vid in vids:
        draft = by_vid.get(vid)
        reason, value = refusal(draft, wanted.durations[vid], clip_length)
        if draft is None and not is_inside(vid):
            reason, value = "video id points outside the folder", vid
        elif draft is None and vid in wanted.outside:
            reason, value = "link leads out of the folder", "name the folder it leads to with videos.folder"
        if reason or draft is None or draft.features is None:
            rejected.append(rejection(vid, stage, reason, value))
            continue
        notes.update(changes(draft, wanted.durations[vid], clip_length))
        rows.append((vid, draft.summary.duration, draft.features))
    return Part(table(rows), len(vids), len(rows), rejected, notes)


@dataclass(frozen=True)
class Wanted:
    """The videos of a data set: their annotated durations in seconds, the files that are there, and links elsewhere."""

    durations: dict[str, float]
    files: dict[str, Path]
    outside: Set[str]


def wanted_videos(annotations: Artifact, folder: Path) -> Wanted:
    """The videos that the annotations name; raises `VideosError` where their folder is not there."""
    if not folder.is_dir():
        raise VideosError(
            f"no folder {folder} of video files: name one with --param videos.folder=…, or import features"
        )
    durations, files = durations_of(annotations), VideoFolder(folder)
    return Wanted(durations, {vid: file for vid in durations if (file := files.find(vid))}, files.outside)


@dataclass(frozen=True)
class FrameStage(Stage):
    """What is computed of frames of videos: one frame for every so many seconds, encoded by CLIP."""

    version = 1
    unit = "video"
    on_device = True  # processes of its own decode for one encoder: a GPU holds no second
    by_workers = True

    annotations: Artifact
    folder: Path
    clip: Clip
    videos: Videos

    @property
    @abstractmethod
    def interval(self) -> float:
        """Seconds from one frame to the next."""

    @property
    @abstractmethod
    def states(self) -> States:
        """What of a frame is kept."""

    @abstractmethod
    def table(self, rows: Sequence[Row]) -> pa.Table:
        """A part's rows as the stage's table."""

    def parameters(self) -> dict[str, Any]:
        """The encoder, what it computes in, and how clips are sampled."""
        return {
            "encoder": self.clip.encoder,
            "precision": self.clip.precision,
            "clip_length": self.interval,
            "videos_a_part": VIDEOS_A_PART,
        }

    def determines(self) -> dict[str, Any]:
        """The same: decoders, devices and batch sizes change no key."""
        return self.parameters()

    def inputs(self) -> dict[str, str]:
        """The encoder's files where it is a folder, and the videos' files."""
        files = named_digest((vid, self.wanted.files.get(vid)) for vid in self.wanted.durations)
        return {**digests(self.clip), "videos": files}

    @cached_property
    def wanted(self) -> Wanted:
        """The videos that the annotations name."""
        return wanted_videos(require_made(self.annotations), self.folder)

    @cached_property
    def pieces(self) -> Sequence[list[str]]:
        """The videos of each part."""
        return chunks(self.wanted.durations)

    @cached_property
    def encoder(self) -> Encoder:
        """CLIP, on its device."""
        encoder = load(self.clip)
        logger().info("%s: on %s", self.name, device_name(encoder.device))
        return encoder

    @property
    def on_sheet(self) -> dict[str, float]:
        """The videos whose frames are shown, and at which second."""
        return {}

    def parts(self) -> Iterator[Callable[[], Part]]:
        """Yield the work of each part; processes decode the videos of all missing parts ahead of it."""
        store, artifact = Store(), self.artifact
        missing = [vid for i, chunk in enumerate(self.pieces) if not store.record(artifact, i) for vid in chunk]
        with self._extraction(missing, cores()) as extraction:
            for vids in self.pieces:
                yield partial(self._part, vids, extraction)
            sheet = extraction.contact_sheet()
            if sheet:
                store.write_file(artifact, SHEET, sheet)

    def part(self, piece: list[str]) -> Part:
        """One part, made by a worker of a cluster: on a CPU with as many decoders as its encoder has threads."""
        import torch

        decoders = torch.get_num_threads() if self.encoder.device.type == "cpu" else cores()
        with self._extraction(piece, decoders) as extraction:
            return self._part(piece, extraction)

    @contextmanager
    def _extraction(self, vids: Iterable[str], decoders: int) -> Iterator[Extraction]:
        """Inside, these videos are decoded ahead, as far as they are not done."""
        videos, files = self.videos, {vid: self.wanted.files[vid] for vid in vids if vid in self.wanted.files}
        extraction = Extraction(files, Drafts(Store(), self.artifact), self.on_sheet, self.states)
        if not files:
            yield extraction
            return
        with extraction.start(
            self.encoder,
            videos.workers or decoders,
            self.interval,
            videos.decoder.replace("software", ""),
            videos.seconds_a_frame,
            videos.memory_mb << 20,
            videos.batch_size,
            videos.most,
        ):
            yield extraction

    def _part(self, vids: list[str], extraction: Extraction) -> Part:
        return part_of(self.name, vids, self.wanted, extraction.finish, self.interval, self.table)


@dataclass(frozen=True)
class VideoFeatures(FrameStage):
    """A feature for every clip of every video."""

    name = STAGE
    states = staticmethod(frame_states)

    @property
    def interval(self) -> float:
        """Seconds of a clip."""
        return self.videos.clip_length

    @property
    def on_sheet(self) -> dict[str, float]:
        """A dozen videos, evenly drawn, at their middle."""
        shown = list(self.wanted.files)[:: max(1, len(self.wanted.files) // ON_SHEET)][:ON_SHEET]
        return {vid: self.wanted.durations[vid] / 2 for vid in shown}

    def table(self, rows: Sequence[Row]) -> pa.Table:
        """See `features_table`."""
        return features_table(self.encoder.name, self.interval, rows, self.encoder.model.config.projection_dim)


def chunks(vids: Iterable[str]) -> list[list[str]]:
    """The videos of each part."""
    several = list(vids)
    return [several[start : start + VIDEOS_A_PART] for start in range(0, len(several), VIDEOS_A_PART)]


def encode_videos(annotations: Artifact, folder: Path, clip: Clip, videos: Videos) -> Artifact:
    """Encode the videos of a data set, whose files are in a folder."""
    return run(VideoFeatures(annotations, folder, clip, videos))


PATCHES = "patch_features"
LARGEST = 127


def quantised(states: Float16Array) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """States (frames, patches, width) as bytes of the same shape, and the scale (frames) that they are to be times."""
    exact = states.astype(np.float32)
    largest = np.abs(exact).max(axis=(1, 2))
    scale = np.where(largest > 0, largest / LARGEST, 1).astype(np.float32)
    return np.rint(exact / scale[:, None, None]).astype(np.int8), scale


def patches_table(encoder: str, interval: float, rows: Sequence[Row], side: int) -> pa.Table:
    """Rows (video id, duration, states) as the stage's table; `side` is how many patches a frame is high and wide."""
    quantised_rows = [quantised(states) for _, _, states in rows]
    seconds = [np.minimum((np.arange(len(states)) + 0.5) * interval, duration) for _, duration, states in rows]
    return pa.table(
        {
            "vid": pa.array([vid for vid, _, _ in rows], pa.string()),
            "encoder": pa.array([encoder] * len(rows), pa.string()),
            "seconds": pa.array(seconds, pa.list_(pa.float32())),
            "grid": pa.array([[side, side]] * len(rows), pa.list_(pa.int32(), 2)),
            "scale": pa.array([scale for _, scale in quantised_rows], pa.list_(pa.float32())),
            "patches": pa.array([values.tobytes() for values, _ in quantised_rows], pa.large_binary()),
        }
    )


@dataclass(frozen=True)
class PatchFeatures(FrameStage):
    """What CLIP sees in each place of a few frames of every video."""

    name = PATCHES
    states = staticmethod(patch_states)

    @property
    def interval(self) -> float:
        """Seconds from one frame of patches to the next."""
        return self.videos.patch_interval

    def table(self, rows: Sequence[Row]) -> pa.Table:
        """See `patches_table`."""
        return patches_table(self.encoder.name, self.interval, rows, patch_sizes(self.encoder)[0])


def encode_patches(annotations: Artifact, folder: Path, clip: Clip, videos: Videos) -> Artifact:
    """Encode the patches of the videos of a data set, whose files are in a folder."""
    return run(PatchFeatures(annotations, folder, clip, videos))
