"""A video as a trained model sees it: the features of its clips, as `extract-features` makes them, and some frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.features.clip import Encoder
from penumbra.tasks.features.decoders import DecoderPool, Video
from penumbra.tasks.features.encode import BATCHES_AHEAD, EncodedVideo, FrameEncoder
from penumbra.tasks.features.reading import Float16Array
from penumbra.tasks.features.video import Videos, notes_on

FRAMES = 24  # kept for a picture, twice as many at most


class UnreadableError(PenumbraError):
    """A video can't be used; the message names it and the reason."""


@dataclass(frozen=True)
class Watched:
    """A video: features (clips, dimension) of each encoder, seconds, and small JPEGs by the second of their clip.

    `notes` say what was wrong with the file and could be borne.
    """

    features: tuple[Float16Array, ...]
    clip_length: float
    duration: float
    frames: tuple[tuple[float, bytes], ...]
    notes: tuple[str, ...] = ()


def watch(path: Path, encoders: Sequence[Encoder], clip_length: float) -> Watched:
    """Decode a video in a process of its own, and encode the frames of each clip; raises `UnreadableError`."""
    if not path.is_file():
        raise UnreadableError(f"no file {path}")
    videos = [_encode(path, encoder, clip_length) for encoder in encoders]
    for video in videos:
        if video.features is None:
            raise UnreadableError(f"{path}: {video.reason}{f' ({video.value})' if video.value else ''}")
    features = tuple(video.features for video in videos if video.features is not None)
    summary = videos[-1].summary
    seconds = clip_length / encoders[-1].frames
    frames = tuple(((index + 0.5) * seconds, frame) for index, frame in videos[-1].thumbnails)
    notes = tuple(notes_on(summary, summary.duration, clip_length))
    return Watched(features, clip_length, summary.duration, frames, notes)


def _encode(path: Path, encoder: Encoder, clip_length: float) -> EncodedVideo:
    batch_size = Videos().batch_size
    ahead = BATCHES_AHEAD * batch_size * encoder.frames
    pool = DecoderPool(1, clip_length / encoder.frames, encoder.processing.resizing, ahead)
    try:
        [video] = FrameEncoder(encoder, batch_size).encode(pool.decode([Video(path.name, path, FRAMES)]))
    finally:
        pool.close()
    return video
