"""Frames of many videos in full batches through CLIP, and the features of each video as soon as its last one is there.

Batches are always full (the last one is filled up with zeros) and so each frame's features are the same in whatever
company it comes: a run that was killed and goes on ends with the same bytes. While one batch is computed, the next one
is gathered. An encoder that sees n frames of a clip gets them as one picture of 3·n channels.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from penumbra.tasks.devices import fast_cpu_matmul
from penumbra.tasks.features.clip import Encoder, encoder_threads
from penumbra.tasks.features.decoding.frames import Picture, VideoSummary
from penumbra.tasks.features.decoding.pixels import RESIZED_AT_ONCE, preprocess
from penumbra.tasks.features.decoding.pool import DecoderMessage, Video
from penumbra.tasks.features.reading import Float16Array

States = Callable[[Any, torch.Tensor], torch.Tensor]  # of CLIP and of frames' pixels, one row a frame


def frame_states(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Frames in the space that they share with texts [frames, dimension]."""
    states: torch.Tensor = model.get_image_features(pixels).pooler_output
    return states


def patch_states(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """The last hidden states of frames' patches, before the projection [frames, patches, width]."""
    states: torch.Tensor = model.vision_model(pixel_values=pixels).last_hidden_state[:, 1:]  # the first is the class
    return states


@dataclass(frozen=True)
class Encoded:
    """A video's features (clips, …) with what is known of it; or the reason why it has none."""

    video: Video
    features: Float16Array | None = None
    summary: VideoSummary = field(default_factory=VideoSummary)
    thumbnail: Picture | None = None
    reason: str = ""
    value: str = ""


@dataclass
class _Open:
    """A video whose features are not all there."""

    video: Video
    rows: list[Float16Array | None] = field(default_factory=list)
    summary: VideoSummary | None = None
    missing: int = 0
    thumbnail: Picture | None = None
    clip: list[Picture] = field(default_factory=list)  # frames of the clip that has begun

    def middle(self) -> Picture:
        """The frame that is shown of the clip."""
        return self.clip[len(self.clip) // 2]


@dataclass
class _Batch:
    """Frames, those under way to the encoder's form, the places where their features go, and at last the features."""

    pictures: list[Picture] = field(default_factory=list)
    pixels: "list[Future[torch.Tensor]]" = field(default_factory=list)
    places: list[tuple[_Open, int]] = field(default_factory=list)
    features: "Future[Float16Array] | None" = None


class FrameEncoder:
    """Takes frames as they come, hands out videos as they are done; `states` says which features a clip has.

    A clip has as many frames as the encoder sees at once (`Encoder.frames`); the last frame of a video fills its last
    clip up. `seen` are the clips whose frame, or the last one before it, is handed out as a thumbnail, by video id.
    """

    def __init__(
        self, encoder: Encoder, batch_size: int, seen: Mapping[str, int] | None = None, states: States = frame_states
    ) -> None:
        self.states, self.encoder, self.batch_size, self.seen = states, encoder, batch_size, seen or {}
        self._filling = _Batch()
        self._under_way: deque[_Batch] = deque()
        self._preparing: deque[Future[torch.Tensor]] = deque()
        self._open: dict[str, _Open] = {}
        self._threads, self._together = encoder_threads(encoder)

    def encode(self, messages: Iterable[DecoderMessage]) -> Generator[Encoded, None, None]:
        """Yield each video once: with its features, or with the reason why it has none."""
        try:
            with fast_cpu_matmul(self.encoder.device):
                for message in messages:
                    yield from self._take(message)
                if self._filling.places:
                    yield from self._launch()
                while self._under_way:
                    yield from self._collect()
        finally:
            self._threads.shutdown(cancel_futures=True)

    def _take(self, message: DecoderMessage) -> Iterator[Encoded]:
        vid = message.video.vid
        video = self._open.setdefault(vid, _Open(message.video))
        if message.picture is not None:
            video.clip.append(message.picture)
            if len(video.clip) == self.encoder.frames:
                yield from self._end_clip(video)
        elif message.summary is not None:
            if video.clip:
                video.clip += video.clip[-1:] * (self.encoder.frames - len(video.clip))
                yield from self._end_clip(video)
            video.summary = message.summary
            if not video.missing:
                yield self._done(video)
        else:
            del self._open[vid]
            yield Encoded(message.video, reason=message.reason, value=message.value)

    def _end_clip(self, video: _Open) -> Iterator[Encoded]:
        """Take a clip whose frames are all there."""
        if len(video.rows) <= self.seen.get(video.video.vid, -1):
            video.thumbnail = video.middle()
        picture = video.clip[0] if len(video.clip) == 1 else np.concatenate(video.clip, axis=2)
        video.clip = []
        yield from self._add(video, picture)

    def _add(self, video: _Open, picture: Picture) -> Iterator[Encoded]:
        batch = self._filling
        batch.pictures.append(picture)
        batch.places.append((video, len(video.rows)))
        video.rows.append(None)
        video.missing += 1
        if len(batch.places) == self.batch_size:
            yield from self._launch()
        elif sum(picture.nbytes for picture in batch.pictures) > RESIZED_AT_ONCE:
            self._prepare(batch)

    def _prepare(self, batch: _Batch) -> None:
        """Start preprocessing, of a part of a batch where frames are large; so many parts may be under way."""
        if batch.pictures:
            ready = self._threads.submit(preprocess, batch.pictures, self.encoder.processing, self.encoder.device)
            batch.pixels.append(ready)
            batch.pictures = []
            self._preparing.append(ready)
        if len(self._preparing) > self._together + 1:
            self._preparing.popleft().result()

    def _launch(self) -> Iterator[Encoded]:
        """Start on the batch; collect the oldest one when as many are under way as can be."""
        batch, self._filling = self._filling, _Batch()
        self._prepare(batch)
        batch.features = self._threads.submit(self._compute, batch.pixels)
        self._under_way.append(batch)
        if len(self._under_way) > self._together + 1:
            yield from self._collect()

    def _compute(self, ready: "list[Future[torch.Tensor]]") -> Float16Array:
        """Features (frames, …) of at most batch_size frames; whose preprocessing was started before."""
        with torch.inference_mode():
            pixels = torch.cat([part.result() for part in ready])
            frames = len(pixels)
            if frames < self.batch_size:
                pixels = torch.cat([pixels, pixels.new_zeros(self.batch_size - frames, *pixels.shape[1:])])
            features = self.states(self.encoder.model, pixels.to(self.encoder.dtype))
            halves: Float16Array = features[:frames].half().cpu().numpy()
        return halves

    def _collect(self) -> Iterator[Encoded]:
        batch = self._under_way.popleft()
        features = batch.features.result() if batch.features else np.zeros((0, 0), np.float16)
        for (video, clip), row in zip(batch.places, features, strict=True):
            video.rows[clip] = row
            video.missing -= 1
            if not video.missing and video.summary is not None:
                yield self._done(video)

    def _done(self, video: _Open) -> Encoded:
        del self._open[video.video.vid]
        features = np.stack([row for row in video.rows if row is not None])
        return Encoded(video.video, features, video.summary or VideoSummary(), video.thumbnail)
