"""Frames of many videos in full batches through CLIP, and the features of each video as soon as its last one is there.

Batches are always full (the last one is filled up with zeros) and so each frame's features are the same in whatever
company it comes: a run that was killed and goes on ends with the same bytes. While the device computes a batch, the
next one is gathered.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tasks.clip import Encoder
from tasks.video.frames import Film, Picture
from tasks.video.pixels import TOGETHER, preprocess
from tasks.video.pool import Decoded, Video

Halves = npt.NDArray[np.float16]


@dataclass(frozen=True)
class Encoded:
    """A video's features (clips, dimension) with what is known of it; or the reason why it has none."""

    video: Video
    features: Halves | None = None
    film: Film = field(default_factory=Film)
    thumbnail: Picture | None = None
    reason: str = ""
    value: str = ""


@dataclass
class _Open:
    """A video whose features are not all there."""

    video: Video
    rows: list[Halves | None] = field(default_factory=list)
    film: Film | None = None
    missing: int = 0
    thumbnail: Picture | None = None


@dataclass
class _Batch:
    """Frames, as decoded or preprocessed, where their features go, and those on the device once they are under way."""

    pictures: list[Picture] = field(default_factory=list)
    pixels: list[torch.Tensor] = field(default_factory=list)
    places: list[tuple[_Open, int]] = field(default_factory=list)
    features: Any = None


class FrameEncoder:
    """Takes frames as they come, hands out videos as they are done.

    `seen` are the clips whose frame, or the last one before it, is handed out as a thumbnail, by video id.
    """

    def __init__(self, encoder: Encoder, batch_size: int, seen: Mapping[str, int] | None = None) -> None:
        self.encoder, self.batch_size, self.seen = encoder, batch_size, seen or {}
        self._filling = _Batch()
        self._under_way: _Batch | None = None
        self._open: dict[str, _Open] = {}

    def encode(self, told: Iterable[Decoded]) -> Generator[Encoded, None, None]:
        """Yield each video once: with its features, or with the reason why it has none."""
        for decoded in told:
            yield from self._take(decoded)
        yield from self._flush()

    def _take(self, decoded: Decoded) -> Iterator[Encoded]:
        vid = decoded.video.vid
        video = self._open.setdefault(vid, _Open(decoded.video))
        if decoded.picture is not None:
            self._filling.pictures.append(decoded.picture)
            self._filling.places.append((video, len(video.rows)))
            if len(video.rows) <= self.seen.get(vid, -1):
                video.thumbnail = decoded.picture
            video.rows.append(None)
            video.missing += 1
            if len(self._filling.places) == self.batch_size:
                yield from self._launch()
            elif sum(picture.nbytes for picture in self._filling.pictures) > TOGETHER:
                self._preprocess(self._filling)
        elif decoded.film is not None:
            video.film = decoded.film
            if not video.missing:
                yield self._done(video)
        else:
            del self._open[vid]
            yield Encoded(decoded.video, reason=decoded.reason, value=decoded.value)

    def _launch(self) -> Iterator[Encoded]:
        """Start the device on the full batch, then collect the one before."""
        batch, self._filling = self._filling, _Batch()
        self._preprocess(batch)
        with torch.inference_mode():
            pixels = torch.cat(batch.pixels)
            batch.pixels.clear()
            empty = self.batch_size - len(pixels)
            if empty:
                pixels = torch.cat([pixels, pixels.new_zeros(empty, *pixels.shape[1:])])
            batch.features = self.encoder.model.get_image_features(pixels.to(self.encoder.dtype)).pooler_output.half()
        before, self._under_way = self._under_way, batch
        if before is not None:
            yield from self._collect(before)

    def _preprocess(self, batch: _Batch) -> None:
        """Let go of large frames before the batch is full."""
        if batch.pictures:
            with torch.inference_mode():
                batch.pixels.append(preprocess(batch.pictures, self.encoder.processing, self.encoder.device))
            batch.pictures.clear()

    def _collect(self, batch: _Batch) -> Iterator[Encoded]:
        features: Halves = batch.features.cpu().numpy()
        for (video, clip), row in zip(batch.places, features, strict=False):  # the filling-up has no place
            video.rows[clip] = row
            video.missing -= 1
            if not video.missing and video.film is not None and video.video.vid in self._open:
                yield self._done(video)

    def _flush(self) -> Iterator[Encoded]:
        if self._filling.places:
            yield from self._launch()
        if self._under_way is not None:
            yield from self._collect(self._under_way)
            self._under_way = None

    def _done(self, video: _Open) -> Encoded:
        del self._open[video.video.vid]
        features = np.stack([row for row in video.rows if row is not None])
        return Encoded(video.video, features, video.film or Film(), video.thumbnail)
