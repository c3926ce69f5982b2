"""Encode the frames of many videos in full batches, and keep the features of each finished video as a draft.

Batches are always full (the last one is padded with zeros), so the features of a frame do not depend on the frames
that are encoded with it: a run that was killed and continues gives the same bytes. While one batch is computed, the
next one is gathered.
"""

import io
import json
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
import torch

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import DRAFTS, Store
from penumbra.tasks.devices import fast_cpu_matmul
from penumbra.tasks.features.clip import Encoder, encoder_threads, normalise
from penumbra.tasks.features.decoders import DecoderMessage
from penumbra.tasks.features.frames import Picture, VideoSummary
from penumbra.tasks.features.reading import Float16Array

BATCHES_AHEAD = 4  # decoded frames that wait for the encoder; they are lost when a run is killed

States = Callable[[Any, torch.Tensor], torch.Tensor]  # a CLIP model and pixels of frames → states, one row a frame


def frame_states(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Return the frames' vectors in the space that they share with texts [frames, dimension]."""
    states: torch.Tensor = model.get_image_features(pixels).pooler_output
    return states


def patch_states(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Return the last hidden states of the frames' patches, before the projection [frames, patches, width]."""
    states: torch.Tensor = model.vision_model(pixel_values=pixels).last_hidden_state[:, 1:]  # without the class token
    return states


@dataclass(frozen=True)
class EncodedVideo:
    """The features (clips, …) of a video with what decoding has shown; or the reason why there are none."""

    vid: str
    features: Float16Array | None = None
    summary: VideoSummary = field(default_factory=VideoSummary)
    thumbnails: tuple[tuple[int, bytes], ...] = ()  # index of the frame, JPEG
    reason: str = ""
    value: str = ""


@dataclass
class _OpenVideo:
    """A video whose features are incomplete: `missing` of its clips have none yet."""

    clip: list[Picture] = field(default_factory=list)  # frames of the unfinished clip
    rows: list[Float16Array | None] = field(default_factory=list)
    missing: int = 0
    end: DecoderMessage | None = None


class FrameEncoder:
    """Takes decoded frames, which have the encoder's size, and gives finished videos.

    A clip has as many frames as the encoder sees at once (`Encoder.frames`); an incomplete last clip is padded with the
    last frame. `states` says which features of a frame are kept.
    """

    def __init__(self, encoder: Encoder, batch_size: int, states: States = frame_states) -> None:
        self.encoder, self.batch_size, self.states = encoder, batch_size, states
        self._open: dict[str, _OpenVideo] = {}
        self._pictures: list[Picture] = []  # of the next batch
        self._places: list[tuple[_OpenVideo, int]] = []  # the rows that their features belong to
        self._running: deque[tuple[Future[Float16Array], list[tuple[_OpenVideo, int]]]] = deque()
        self._threads, self._number = encoder_threads(encoder)

    def encode(self, messages: Iterable[DecoderMessage]) -> Generator[EncodedVideo, None, None]:
        """Yield each video once: with its features, or with the reason why it has none."""
        try:
            with fast_cpu_matmul(self.encoder.device):
                for message in messages:
                    if message.reason:
                        self._open.pop(message.video.vid, None)
                        yield EncodedVideo(message.video.vid, reason=message.reason, value=message.value)
                    else:
                        self._take(message)
                        yield from self._finished(self._number + 1)
                if self._places:
                    self._launch()
                yield from self._finished(0)
        finally:
            self._threads.shutdown(cancel_futures=True)

    def _take(self, message: DecoderMessage) -> None:
        """Add a frame to its clip, and a complete clip to the next batch; start the batch once it is full."""
        video, frames = self._open.setdefault(message.video.vid, _OpenVideo()), self.encoder.frames
        if message.picture is not None:
            video.clip.append(message.picture)
        else:
            video.end = message
            video.clip += video.clip[-1:] * (frames - len(video.clip))
        if len(video.clip) == frames:
            self._pictures.append(video.clip[0] if frames == 1 else np.concatenate(video.clip, axis=2))
            self._places.append((video, len(video.rows)))
            video.clip = []
            video.rows.append(None)
            video.missing += 1
        if len(self._places) == self.batch_size:
            self._launch()

    def _launch(self) -> None:
        self._running.append((self._threads.submit(self._compute, self._pictures), self._places))
        self._pictures, self._places = [], []

    def _compute(self, pictures: Sequence[Picture]) -> Float16Array:
        """Return the features (frames, …) of at most `batch_size` frames."""
        with torch.inference_mode():
            pixels = normalise(pictures, self.encoder.processing, self.encoder.device)
            missing = self.batch_size - len(pixels)
            pixels = torch.cat([pixels, pixels.new_zeros(missing, *pixels.shape[1:])]) if missing else pixels
            features = self.states(self.encoder.model, pixels.to(self.encoder.dtype))
            halves: Float16Array = features[: len(pictures)].half().cpu().numpy()
        return halves

    def _finished(self, running: int) -> Iterator[EncodedVideo]:
        """Wait until at most so many batches run, and yield the videos that are complete."""
        while len(self._running) > running:
            batch, places = self._running.popleft()
            for (video, clip), row in zip(places, batch.result(), strict=True):
                video.rows[clip] = row
                video.missing -= 1
        for vid, video in list(self._open.items()):
            if video.end and video.end.summary and not video.missing:
                del self._open[vid]
                features = np.stack([row for row in video.rows if row is not None])
                yield EncodedVideo(vid, features, video.end.summary, video.end.thumbnails)


# -- drafts: the finished videos of an unfinished artifact, which are not decoded again after kill -9 -----------------


def draft_name(vid: str) -> str:
    """Return the path of a video's draft in the artifact's folder."""
    return f"{DRAFTS}/{sha256(vid.encode(errors='replace')).hexdigest()[:32]}.npz"


def write_draft(store: Store, artifact: Artifact, video: EncodedVideo) -> None:
    """Keep the features of a video, or the reason why there are none."""
    facts = {"vid": video.vid, "summary": asdict(video.summary), "reason": video.reason, "value": video.value}
    features = video.features if video.features is not None else np.zeros((0, 0), np.float16)
    data = io.BytesIO()
    np.savez(data, features=features, video=np.frombuffer(json.dumps(facts).encode(), np.uint8))
    store.write_file(artifact, draft_name(video.vid), data.getvalue())


def read_draft(store: Store, artifact: Artifact, vid: str) -> EncodedVideo | None:
    """Return a finished video, or None."""
    data = store.read_file(artifact, draft_name(vid))
    if data is None:
        return None
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        facts = json.loads(arrays["video"].tobytes())
        features = None if facts["reason"] else arrays["features"]
        return EncodedVideo(**facts | {"summary": VideoSummary(**facts["summary"])}, features=features)
