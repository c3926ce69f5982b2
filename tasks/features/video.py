"""Stages `video_features` and `patch_features`: CLIP features of the frames of every video of a data set.

`patch_features` are the last hidden states of the patches of one frame every `PATCH_INTERVAL` seconds, stored as bytes
(VDI, section 3.4). A damaged file is used if its decodable part is at most a clip shorter than the annotated duration,
an intact file if it has nine tenths of this duration.

Other processes decode. All batches have the same size (the last batch of a video is padded with zeros), so that a
resumed run gives the same bytes. A GPU computes a batch while the next batch is decoded.
"""

import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pydantic import Field

from penumbra.artifacts.errors import ArtifactError, MissingError
from penumbra.artifacts.files import check_unchanged, named_digest, status_of
from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.processes import cores
from penumbra.artifacts.store import Store
from penumbra.tasks.devices import fast_cpu_matmul
from penumbra.tasks.features.clip import Clip, Encoder, encoder_threads, load, normalise, patch_sizes, required_digests
from penumbra.tasks.features.decoders import Decoder, each_decoded
from penumbra.tasks.features.errors import VideoError
from penumbra.tasks.features.files import VideoFolder
from penumbra.tasks.features.frames import Picture, VideoSummary
from penumbra.tasks.features.reading import Float16Array, lists_of
from penumbra.tasks.parameter_group import Parameters
from penumbra.tasks.progress import counting, logger
from penumbra.tasks.stage import Stage, require_made

STAGE, PATCHES = "video_features", "patch_features"
VIDEOS_A_PART = 64
BATCH_SIZE = 32  # clips
MIN_SHARE = 0.9  # smallest share of the annotated duration
LARGEST_BYTE = 127
PATCH_INTERVAL = 4.0  # seconds between two frames whose patches are kept
NO_STATUS = (-1, -1)  # status of a file that did not exist when the digests were computed

Row = tuple[str, float, Float16Array]  # a video's id, its duration in seconds, and its features (clips, …)
States = Callable[[Any, torch.Tensor], torch.Tensor]  # a CLIP model and pixels of frames → states, one row a frame


class Videos(Parameters):
    """The folder of the videos, and how clips are sampled."""

    folder: str | None = Field(
        None, description="Folder of video files named by video id. Default: videos/ in the data set's folder."
    )
    clip_length: float = Field(1.0, gt=0, le=3600, description="Seconds of a clip; each clip has one feature.")
    patches: bool = Field(
        False, description="Also keep features of the frames' patches, which VDI's loss spatial_dynamics needs."
    )


def video_files(folder: Path) -> VideoFolder:
    """Return the video files of a folder; raise `MissingError` if it does not exist."""
    if not folder.is_dir():
        raise MissingError(
            f"no folder {folder} of video files: name one with --param videos.folder=…, or import features"
        )
    return VideoFolder(folder)


# -- encoding a video -------------------------------------------------------------------------------------------------


def frame_states(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Return the vectors [frames, dimension] of frames in the common space of frames and texts."""
    states: torch.Tensor = model.get_image_features(pixels).pooler_output
    return states


def patch_states(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Return each frame's patches (last hidden states), then its vector [frames, patches·width + dimension]."""
    states = model.vision_model(pixel_values=pixels)
    patches = states.last_hidden_state[:, 1:].flatten(1)
    return torch.cat((patches, model.visual_projection(states.pooler_output)), dim=1)


@dataclass(frozen=True)
class EncodedVideo:
    """The features (clips, …) of a video and the results of decoding, or the reason why there are no features."""

    features: Float16Array | None = None
    summary: VideoSummary = field(default_factory=VideoSummary)
    thumbnails: tuple[tuple[int, bytes], ...] = ()  # index of the frame, JPEG
    reason: str = ""
    value: str = ""


def encode_video(
    encoder: Encoder,
    decoder: Decoder,
    path: Path,
    batch_size: int = BATCH_SIZE,
    states: States = frame_states,
    thumbnails: int = 0,
) -> EncodedVideo:
    """Decode and encode a video, `Encoder.frames` frames per clip; `states` computes the features."""
    summary, rows, counts = VideoSummary(), list[torch.Tensor](), list[int]()
    frames = decoder.frames(path, summary, thumbnails)

    def clips() -> Iterator[Picture]:
        """Yield the frames of each clip as one picture of 3·n channels; the last frame is repeated as needed.

        Equal consecutive pictures are yielded once and counted, because a still picture may be shown for a day.
        """
        last: Picture | None = None
        while clip := list(islice(frames, encoder.frames)):
            clip += clip[-1:] * (encoder.frames - len(clip))
            picture = np.concatenate(clip, axis=2)
            if last is not None and np.array_equal(picture, last):
                counts[-1] += 1
                continue
            counts.append(1)
            last = picture
            yield picture

    pictures = clips()
    try:
        with torch.inference_mode():
            while batch := list(islice(pictures, batch_size)):
                pixels = normalise(batch, encoder)
                padding = pixels.new_zeros(batch_size - len(batch), *pixels.shape[1:])
                rows.append(states(encoder.model, torch.cat([pixels, padding]))[: len(batch)].half())
            features: Float16Array = np.repeat(torch.cat(rows).cpu().numpy(), counts, axis=0)
    except VideoError as error:
        return EncodedVideo(reason=error.reason, value=error.value)
    return EncodedVideo(features, summary, tuple(decoder.thumbnails))


# -- the stages -------------------------------------------------------------------------------------------------------


def notes_on(summary: VideoSummary, annotated: float, clip_length: float) -> list[str]:
    """Return the notes on a video that is used."""
    notes = {
        "video is damaged in places": summary.damaged > 0,
        "video turned as its metadata asks": summary.rotated,
        "video ends more than a clip before its annotations": annotated - summary.duration > clip_length,
        "video ends more than a clip after its annotations": summary.duration - annotated > clip_length,
    }
    return [note for note, holds in notes.items() if holds]


@dataclass(frozen=True)
class VideoStage(Stage):
    """Base class of the stages with one row per video; a part has `VIDEOS_A_PART` videos."""

    name = STAGE
    version = 1
    unit = "video"

    annotations: Artifact

    @cached_property
    def durations(self) -> dict[str, float]:
        """The longest annotated duration of each video in seconds, in the order of the annotations."""
        durations: dict[str, float] = {}
        for row in Store().rows(require_made(self.annotations), ["vid", "duration"]):
            durations[row["vid"]] = max(row["duration"], durations.get(row["vid"], 0.0))
        return durations

    @cached_property
    def pieces(self) -> Sequence[list[str]]:
        vids = list(self.durations)
        return [vids[start : start + VIDEOS_A_PART] for start in range(0, len(vids), VIDEOS_A_PART)]

    def key_parameters(self) -> dict[str, Any]:
        return self.parameters()


@dataclass(frozen=True)
class VideoFeatures(VideoStage):
    """CLIP's feature of every clip of every video."""

    on_device = True  # several decoders work for one encoder; a GPU holds no second one
    by_workers = True
    states = staticmethod(frame_states)

    folder: Path
    clip: Clip
    videos: Videos

    @property
    def interval(self) -> float:
        return self.videos.clip_length

    def table(self, rows: Sequence[Row]) -> pa.Table:
        return features_table(self.encoder.name, self.interval, rows, self.encoder.model.config.projection_dim)

    def parameters(self) -> dict[str, Any]:
        made = {"encoder": self.clip.encoder, "precision": "float32"}
        return made | {"clip_length": self.interval, "videos_a_part": VIDEOS_A_PART}

    def inputs(self) -> dict[str, str]:
        # computed first, so that a plan reports a missing encoder or folder before it reads rows
        encoder, files = required_digests(self.clip), self.files
        return {**encoder, "videos": named_digest((vid, files.find(vid)) for vid in self.durations)}

    @cached_property
    def files(self) -> VideoFolder:
        return video_files(self.folder)

    @cached_property
    def encoder(self) -> Encoder:
        encoder = load(self.clip)
        logger().info("%s: on %s", self.name, encoder.device)
        return encoder

    def parts(self) -> Iterator[Callable[[], Part]]:
        """Yield the work of each part; videos of later missing parts are encoded ahead."""
        store = Store()
        missing = [vid for i, chunk in enumerate(self.pieces) if not store.record(self.artifact, i) for vid in chunk]
        with closing(self._encoded(missing)) as encoded:
            for vids in self.pieces:
                yield partial(self._part, vids, encoded)

    def part(self, piece: list[str]) -> Part:
        """Make one part in a worker of a cluster."""
        with closing(self._encoded(piece)) as encoded:
            return self._part(piece, encoded)

    def _encoded(self, vids: Iterable[str]) -> Generator[tuple[Path, EncodedVideo], None, None]:
        """Yield the videos that have a file, in order; several threads decode and encode videos ahead."""
        files = [file for vid in vids if (file := self.files.find(vid))]
        tick, encoder, noted = counting("videos", len(files)), self.encoder, self.work.files
        number = torch.get_num_threads() if encoder.device.type == "cpu" else cores()

        def encode(file: Path, decoder: Decoder) -> tuple[Path, EncodedVideo]:
            path = os.path.abspath(file)
            status = noted.get(path, NO_STATUS) if noted else status_of(path)
            video = encode_video(encoder, decoder, file, states=self.states)
            check_unchanged({path: status})
            tick(1)
            return file, video

        decoders = [Decoder(self.interval / encoder.frames, encoder.resizing) for _ in range(number)]
        with fast_cpu_matmul(encoder.device):
            yield from each_decoded(encode, files, encoder_threads(encoder, number), decoders)

    def _part(self, vids: list[str], encoded: Iterator[tuple[Path, EncodedVideo]]) -> Part:
        """Make one part of the next encoded videos; videos without features are rejected."""
        rows, rejected, notes = [], [], Counter[str]()
        for vid in vids:
            file = self.files.find(vid)
            found, video = next(encoded, (None, None)) if file else (None, None)
            if found != file:
                raise ArtifactError(f"{self.artifact.path}: a part was changed during the run: run the command again")
            if video is None and vid in self.files.outside:
                video = EncodedVideo(reason="link leads out of the folder", value="name its target with videos.folder")
            elif video is None:
                video = EncodedVideo(reason="no video file")
            features, summary, annotated = video.features, video.summary, self.durations[vid]
            missing, is_short = annotated - summary.duration, summary.duration < MIN_SHARE * annotated - self.interval
            reason, value = video.reason, video.value
            if features is not None and missing > self.interval and (summary.damaged or is_short):
                reason = "damaged video breaks off" if summary.damaged else "video is shorter than its annotations say"
                value = f"{summary.duration:.2f} of {annotated:.2f} s"
            elif features is not None and not np.isfinite(features).all():
                reason = "features are not finite in half precision"
            if reason or features is None:
                rejected.append(rejection(vid, self.name, reason, value))
                continue
            notes.update(notes_on(summary, annotated, self.interval))
            rows.append((vid, summary.duration, features))
        return Part(self.table(rows), len(vids), len(rows), rejected, notes)


def features_table(encoder: str, clip_length: float, rows: Sequence[Row], dimension: int) -> pa.Table:
    """Return rows (video id, duration, features [clips, dimension]) as a table of `video_features`."""
    vids, durations, features = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {"vid": vids, "encoder": [encoder] * len(rows), "clip_length": [clip_length] * len(rows)}
    return pa.table(columns | {"duration": durations, "features": lists_of(features, dimension)})


@dataclass(frozen=True)
class PatchFeatures(VideoFeatures):
    """The states of the patches of a few frames of every video, and the frames' own vectors."""

    name = PATCHES
    version = 2
    states = staticmethod(patch_states)

    @property
    def interval(self) -> float:
        return PATCH_INTERVAL

    def table(self, rows: Sequence[Row]) -> pa.Table:
        """Return rows (video id, duration, states) as a table: patches as bytes with one scale per frame."""
        side, width = patch_sizes(self.encoder)
        size = side**2 * width
        scales, quantised = [], []
        for _, _, states in rows:
            patches = states[:, :size].astype(np.float32)  # [frames, patches·width]
            largest = np.abs(patches).max(axis=1)
            scales.append(np.where(largest > 0, largest / LARGEST_BYTE, 1).astype(np.float32))
            quantised.append(np.rint(patches / scales[-1][:, None]).astype(np.int8).tobytes())
        seconds = [np.minimum((np.arange(len(states)) + 0.5) * self.interval, end) for _, end, states in rows]
        dimension = self.encoder.model.config.projection_dim
        columns = {
            "vid": [vid for vid, _, _ in rows],
            "encoder": [self.encoder.name] * len(rows),
            "seconds": pa.array(seconds, pa.list_(pa.float32())),
            "grid": pa.array([[side, side]] * len(rows), pa.list_(pa.int32(), 2)),
            "scale": pa.array(scales, pa.list_(pa.float32())),
            "patches": pa.array(quantised, pa.large_binary()),
            "frames": lists_of([states[:, size:] for _, _, states in rows], dimension),
        }
        return pa.table(columns)
