"""Stage `video_features`: a CLIP feature for every clip of every video of a data set.

`penumbra.tasks.features.decoding.frames` says which frame stands for a clip and how the last, partial clip is counted.
Workers decode ahead of the encoder; each video that is done is kept at once, so that a run that is killed decodes no
finished video again.

A video without a file, or that can't be used, is rejected with its reason. A damaged file is used where what can be
decoded of it reaches the end that its annotations tell, to within a clip; one that is not damaged is used where it has
nine tenths of it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact, Part, Work, rejection
from penumbra.artifacts.settings import data_folder
from penumbra.artifacts.store import Store
from penumbra.tasks.features.clip import Clip, Encoder, digests, load
from penumbra.tasks.features.decoding.drafts import Draft, Drafts
from penumbra.tasks.features.decoding.encode import States, frame_states
from penumbra.tasks.features.decoding.extraction import Extraction, cores
from penumbra.tasks.features.decoding.files import VideoFolder, content_digest, is_inside
from penumbra.tasks.features.reading import Halves, lists_of
from penumbra.tasks.stage import Parameters, run_stage
from prefect import task
from pydantic import Field

STAGE = "video_features"
VERSION = 1
VIDEOS_A_PART = 64
SHEET = "_sheet.jpg"
ON_SHEET = 12
ENOUGH = 0.9  # of the annotated duration

Row = tuple[str, float, Halves]  # a video's id, its duration in seconds, and its features (clips, …)


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
    patches: bool = Field(False, description="Keep frames' patches too, which VDI's motion (injection.dynamic) needs.")
    patch_interval: float = Field(4.0, gt=0, le=3600, description="Seconds from one frame of patches to the next.")
    memory_mb: int = Field(512, ge=1, description="Frames that may wait for the encoder, in MB.")


class VideosError(PenumbraError):
    """The folder of videos is not there."""


def videos_folder(dataset: str, videos: Videos) -> Path:
    """The folder that holds a data set's video files."""
    return Path(videos.folder).expanduser() if videos.folder else data_folder() / dataset / "videos"


def durations_of(annotations: Artifact) -> dict[str, float]:
    """Each video of a data set with its longest annotated duration, in seconds, in the order of the annotations."""
    found: dict[str, float] = {}
    for part in Store().parts(annotations, ["vid", "duration"]):
        for vid, duration in zip(part["vid"].to_pylist(), part["duration"].to_pylist(), strict=True):
            found[vid] = max(duration, found.get(vid, 0.0))
    return found


def refusal(draft: Draft | None, annotated: float, clip_length: float) -> tuple[str, str]:
    """Why a video is rejected and what was found, or two empty strings."""
    if draft is None:
        return "no video file", ""
    if draft.reason or draft.features is None:
        return draft.reason, draft.value
    missing = annotated - draft.film.duration
    if missing > clip_length and (draft.film.damaged or draft.film.duration < ENOUGH * annotated - clip_length):
        kind = "damaged video breaks off" if draft.film.damaged else "video is shorter than its annotations say"
        return kind, f"{draft.film.duration:.2f} of {annotated:.2f} s"
    if not np.isfinite(draft.features).all():
        return "features are not finite in half precision", ""
    return "", ""


def changes(draft: Draft, annotated: float, clip_length: float) -> list[str]:
    """What is to be said of a video that is used."""
    told = {
        "video is damaged in places": draft.film.damaged > 0,
        "video turned as its metadata asks": draft.film.rotated,
        "decoded in software, for want of the hardware decoder": draft.film.software,
        "video ends more than a clip before its annotations": annotated - draft.film.duration > clip_length,
        "video ends more than a clip after its annotations": draft.film.duration - annotated > clip_length,
    }
    return [change for change, holds in told.items() if holds]


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
    stage: str, vids: Sequence[str], durations: dict[str, float], drafts: Callable[[Sequence[str]], dict[str, Draft]],
    clip_length: float, table: Callable[[Sequence[Row]], pa.Table],
) -> Part:  # fmt: skip
    """One part: the table of the videos that have features; a video without any is rejected."""
    found = drafts(vids)
    rows, rejected, notes = [], [], Counter[str]()
    for vid in vids:
        draft = found.get(vid)
        reason, value = refusal(draft, durations[vid], clip_length)
        if draft is None and not is_inside(vid):
            reason, value = "video id points outside the folder", vid
        if reason or draft is None or draft.features is None:
            rejected.append(rejection(vid, stage, reason, value))
            continue
        notes.update(changes(draft, durations[vid], clip_length))
        rows.append((vid, draft.film.duration, draft.features))
    return Part(table(rows), len(vids), len(rows), rejected, notes)


@dataclass(frozen=True)
class Wanted:
    """The videos of a data set: their annotated durations in seconds, and the files that are there."""

    durations: dict[str, float]
    files: dict[str, Path]


def wanted_videos(annotations: Artifact, videos: Videos) -> Wanted:
    """The videos that the annotations name; raises `VideosError` where their folder is not there."""
    folder = videos_folder(annotations.dataset, videos)
    if not folder.is_dir():
        raise VideosError(
            f"no folder {folder} of video files: name one with --param videos.folder=…, or import features"
        )
    durations, there = durations_of(annotations), VideoFolder(folder)
    return Wanted(durations, {vid: file for vid in durations if (file := there.find(vid))})


def work(annotations: Artifact, wanted: Wanted, clip: Clip, stage: str, version: int, clip_length: float) -> Work:
    """Key material: the videos that are wanted, the files that are there, the encoder, and how clips are sampled."""
    files = content_digest((vid, wanted.files.get(vid)) for vid in wanted.durations)
    return Work(
        dataset=annotations.dataset,
        stage=stage,
        version=version,
        parameters={"encoder": clip.encoder, "precision": clip.precision, "clip_length": clip_length,
                    "videos_a_part": VIDEOS_A_PART},
        parents=(annotations,),
        inputs={**digests(clip), "videos": files},
        unit="video",
    )  # fmt: skip


def extract(
    key: Work, wanted: Wanted, clip: Clip, videos: Videos, clip_length: float, states: States,
    table: Callable[[Encoder, Sequence[Row]], pa.Table], on_sheet: dict[str, float],
) -> Artifact:  # fmt: skip
    """Decode and encode the videos; `states` are a frame's features, `table` makes a part's table of them."""
    store, vids = Store(), list(wanted.durations)
    artifact = store.artifact(key)
    chunks = [vids[start : start + VIDEOS_A_PART] for start in range(0, len(vids), VIDEOS_A_PART)]

    def parts() -> Iterator[Callable[[], Part]]:
        missing = [vid for i, chunk in enumerate(chunks) if not store.has_part(artifact, i) for vid in chunk]
        files = {vid: wanted.files[vid] for vid in missing if vid in wanted.files}
        drafts, encoder = Drafts(store, artifact), load(clip)
        extraction = Extraction(files, drafts, encoder, on_sheet, states)
        with extraction.start(videos.workers or cores(), clip_length, videos.decoder.replace("software", ""),
                              videos.seconds_a_frame, videos.memory_mb << 20, videos.batch_size):  # fmt: skip
            for chunk in chunks:
                make = partial(part_of, key.stage, chunk, wanted.durations, extraction.finish, clip_length)
                yield partial(make, partial(table, encoder))
            sheet = extraction.contact_sheet()
            if sheet:
                store.keep(artifact, SHEET, sheet)

    return run_stage(key, parts, len(chunks))


@task(name=STAGE)
def encode_videos(annotations: Artifact, clip: Clip, videos: Videos) -> Artifact:
    """Encode the videos of a data set."""
    wanted, length = wanted_videos(annotations, videos), videos.clip_length
    shown = list(wanted.files)[:: max(1, len(wanted.files) // ON_SHEET)][:ON_SHEET]

    def table(encoder: Encoder, rows: Sequence[Row]) -> pa.Table:
        return features_table(encoder.name, length, rows, encoder.model.config.projection_dim)

    key = work(annotations, wanted, clip, STAGE, VERSION, length)
    on_sheet = {vid: wanted.durations[vid] / 2 for vid in shown}
    return extract(key, wanted, clip, videos, length, frame_states, table, on_sheet)
