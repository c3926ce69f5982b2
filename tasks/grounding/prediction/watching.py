"""A video as a trained model sees it: the features of its clips, as `extract-features` makes them, and some frames."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.features.clip import Encoder
from penumbra.tasks.features.decoders import DecoderMessage, Pool, Video
from penumbra.tasks.features.encode import BATCHES_AHEAD, Draft, Encoded, FrameEncoder
from penumbra.tasks.features.frames import VideoSummary, thumbnail
from penumbra.tasks.features.reading import Float16Array
from penumbra.tasks.features.video import Videos, changes

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


class FilmStrip:
    """Keeps some frames, evenly spread, of a video whose length is known at its end only."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, bytes]] = []
        self._every, self._place = 1, 0

    def see(self, messages: Iterable[DecoderMessage]) -> Iterator[DecoderMessage]:
        """Hand on what is told of a video, and keep every so many frames, fewer the longer it gets."""
        for message in messages:
            if message.picture is not None:
                if self._place % self._every == 0:
                    self.kept.append((self._place, thumbnail(message.picture)))
                if len(self.kept) > 2 * FRAMES:
                    self.kept, self._every = self.kept[::2], 2 * self._every
                self._place += 1
            yield message


def watch(path: Path, encoders: Sequence[Encoder], clip_length: float) -> Watched:
    """Decode a video in a process of its own, and encode the frames of each clip; raises `UnreadableError`."""
    if not path.is_file():
        raise UnreadableError(f"no file {path}")
    features: list[Float16Array] = []
    strip, summary = FilmStrip(), VideoSummary()
    for encoder in encoders:
        strip = FilmStrip()
        encoded = _encode(path, encoder, clip_length, strip)
        if encoded.features is None:
            raise UnreadableError(f"{path}: {encoded.reason}{f' ({encoded.value})' if encoded.value else ''}")
        features.append(encoded.features)
        summary = encoded.summary
    notes = changes(Draft(path.name, summary), summary.duration, clip_length)
    seconds = clip_length / encoders[-1].frames
    frames = tuple(((place + 0.5) * seconds, frame) for place, frame in strip.kept)
    return Watched(tuple(features), clip_length, summary.duration, frames, tuple(notes))


def _encode(path: Path, encoder: Encoder, clip_length: float, strip: FilmStrip) -> Encoded:
    usual = Videos(clip_length=clip_length)
    ahead = BATCHES_AHEAD * usual.batch_size * encoder.frames
    seconds = clip_length / encoder.frames
    pool = Pool(1, seconds, "", usual.seconds_a_frame, usual.memory_mb << 20, ahead, usual.most)
    try:
        messages = strip.see(pool.decode([Video(path.name, path)]))
        [encoded] = FrameEncoder(encoder, usual.batch_size).encode(messages)
    finally:
        pool.close()
    return encoded
