"""Encode the frames of many videos in full batches, and keep the features of each finished video.

Batches are always full (the last one is padded with zeros), so the features of a frame do not depend on the frames
that are encoded with it: a run that was killed and continues gives the same bytes. While one batch is computed, the
next one is gathered.
"""

import io
import json
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import DRAFTS, Store
from penumbra.tasks.devices import fast_cpu_matmul
from penumbra.tasks.features.clip import Encoder, encoder_threads, normalise
from penumbra.tasks.features.decoders import DecoderMessage, DecoderPool, Video
from penumbra.tasks.features.frames import Picture, VideoSummary, contact_sheet
from penumbra.tasks.features.reading import Float16Array
from penumbra.tasks.progress import counting

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
    """A video whose features are incomplete."""

    vid: str
    rows: list[Float16Array | None] = field(default_factory=list)
    missing: int = 0
    end: DecoderMessage | None = None
    clip: list[Picture] = field(default_factory=list)  # frames of the unfinished clip


@dataclass
class _Batch:
    """Frames, the rows that their features belong to, and the future features."""

    pictures: list[Picture] = field(default_factory=list)
    places: list[tuple[_OpenVideo, int]] = field(default_factory=list)
    features: "Future[Float16Array] | None" = None


class FrameEncoder:
    """Takes decoded frames, which have the encoder's size, and gives finished videos.

    A clip has as many frames as the encoder sees at once (`Encoder.frames`); an incomplete last clip is padded with the
    last frame. `states` says which features of a frame are kept.
    """

    def __init__(self, encoder: Encoder, batch_size: int, states: States = frame_states) -> None:
        self.encoder, self.batch_size, self.states = encoder, batch_size, states
        self._next = _Batch()
        self._running: deque[_Batch] = deque()
        self._open: dict[str, _OpenVideo] = {}
        self._threads, self._number = encoder_threads(encoder)

    def encode(self, messages: Iterable[DecoderMessage]) -> Generator[EncodedVideo, None, None]:
        """Yield each video once: with its features, or with the reason why it has none."""
        try:
            with fast_cpu_matmul(self.encoder.device):
                for message in messages:
                    yield from self._take(message)
                if self._next.places:
                    yield from self._launch()
                while self._running:
                    yield from self._collect()
        finally:
            self._threads.shutdown(cancel_futures=True)

    def _take(self, message: DecoderMessage) -> Iterator[EncodedVideo]:
        vid = message.video.vid
        video = self._open.setdefault(vid, _OpenVideo(vid))
        if message.picture is not None:
            video.clip.append(message.picture)
            if len(video.clip) == self.encoder.frames:
                yield from self._add_clip(video)
        elif message.summary is not None:
            if video.clip:
                video.clip += video.clip[-1:] * (self.encoder.frames - len(video.clip))
                yield from self._add_clip(video)
            video.end = message
            if not video.missing:
                yield self._finish(video)
        else:
            del self._open[vid]
            yield EncodedVideo(vid, reason=message.reason, value=message.value)

    def _add_clip(self, video: _OpenVideo) -> Iterator[EncodedVideo]:
        """Add a complete clip to the next batch."""
        self._next.pictures.append(video.clip[0] if len(video.clip) == 1 else np.concatenate(video.clip, axis=2))
        self._next.places.append((video, len(video.rows)))
        video.clip = []
        video.rows.append(None)
        video.missing += 1
        if len(self._next.places) == self.batch_size:
            yield from self._launch()

    def _launch(self) -> Iterator[EncodedVideo]:
        """Start the batch; wait for the oldest one if all threads are busy."""
        batch, self._next = self._next, _Batch()
        batch.features = self._threads.submit(self._compute, batch.pictures)
        self._running.append(batch)
        if len(self._running) > self._number + 1:
            yield from self._collect()

    def _compute(self, pictures: Sequence[Picture]) -> Float16Array:
        """Return the features (frames, …) of at most `batch_size` frames."""
        with torch.inference_mode():
            pixels = normalise(pictures, self.encoder.processing, self.encoder.device)
            missing = self.batch_size - len(pixels)
            pixels = torch.cat([pixels, pixels.new_zeros(missing, *pixels.shape[1:])]) if missing else pixels
            features = self.states(self.encoder.model, pixels.to(self.encoder.dtype))
            halves: Float16Array = features[: len(pictures)].half().cpu().numpy()
        return halves

    def _collect(self) -> Iterator[EncodedVideo]:
        batch = self._running.popleft()
        features = batch.features.result() if batch.features else np.zeros((0, 0), np.float16)
        for (video, clip), row in zip(batch.places, features, strict=True):
            video.rows[clip] = row
            video.missing -= 1
            if not video.missing and video.end is not None:
                yield self._finish(video)

    def _finish(self, video: _OpenVideo) -> EncodedVideo:
        end = self._open.pop(video.vid).end
        features = np.stack([row for row in video.rows if row is not None])
        summary, thumbnails = (end.summary, end.thumbnails) if end else (None, ())
        return EncodedVideo(video.vid, features, summary or VideoSummary(), thumbnails)


# -- keeping finished videos -------------------------------------------------------------------------------------------


class Drafts:
    """The finished videos of an unfinished artifact: after kill -9 they are not decoded again."""

    def __init__(self, store: Store, artifact: Artifact) -> None:
        self.store, self.artifact = store, artifact

    def write(self, video: EncodedVideo) -> None:
        """Keep the features of a video, or the reason why there are none."""
        facts = {"vid": video.vid, "summary": asdict(video.summary), "reason": video.reason, "value": video.value}
        features = video.features if video.features is not None else np.zeros((0, 0), np.float16)
        middle = video.thumbnails[len(video.thumbnails) // 2][1] if video.thumbnails else b""
        data = io.BytesIO()
        as_array = partial(np.frombuffer, dtype=np.uint8)
        np.savez(data, features=features, video=as_array(json.dumps(facts).encode()), thumbnail=as_array(middle))
        self.store.write_file(self.artifact, draft_name(video.vid), data.getvalue())

    def read(self, vid: str) -> EncodedVideo | None:
        """Return a finished video, or None."""
        data = self.store.read_file(self.artifact, draft_name(vid))
        if data is None:
            return None
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            if "video" not in arrays:
                return None  # written by an earlier version: the video is decoded again
            facts = json.loads(arrays["video"].tobytes())
            thumbnail = arrays["thumbnail"].tobytes()
            return EncodedVideo(
                **facts | {"summary": VideoSummary(**facts["summary"])},
                features=None if facts["reason"] else arrays["features"],
                thumbnails=((0, thumbnail),) if thumbnail else (),
            )


def draft_name(vid: str) -> str:
    """Return the path of a video's draft in the artifact's folder."""
    return f"{DRAFTS}/{sha256(vid.encode(errors='replace')).hexdigest()[:32]}.npz"


class Extraction:
    """Decodes and encodes videos ahead of the parts that need them, and keeps each finished one as a draft.

    Args:
        files: file of each video, in the order in which they are needed
        drafts: where finished videos are kept
        on_sheet: ids of the videos that the contact sheet shows

    """

    def __init__(self, files: dict[str, Path], drafts: Drafts, on_sheet: Sequence[str]) -> None:
        self.files, self.drafts, self.on_sheet = files, drafts, on_sheet
        self._finished: Iterator[EncodedVideo] = iter(())
        self._tick: Callable[[int], None] = lambda number: None

    @contextmanager
    def running(
        self, encoder: Encoder, processes: int, clip_length: float, batch_size: int, states: States
    ) -> Iterator["Extraction"]:
        """Decode in so many processes inside this context; nothing starts before the first video is asked for.

        An encoder that sees n frames of a clip gets those at the middles of the clip's n parts.
        """
        ahead = BATCHES_AHEAD * batch_size * encoder.frames
        pool = DecoderPool(processes, clip_length / encoder.frames, encoder.processing.resizing, ahead)
        self._tick = counting("videos", len(self.files), whole=True)
        finished = FrameEncoder(encoder, batch_size, states).encode(pool.decode(self._unfinished()))
        self._finished = finished
        try:
            yield self
        finally:
            finished.close()
            pool.close()

    def _unfinished(self) -> Iterator[Video]:
        for vid, file in self.files.items():
            if self.drafts.read(vid) is None:
                yield Video(vid, file, thumbnails=2 if vid in self.on_sheet else 0)
            else:
                self._tick(1)

    def finish(self, vids: Sequence[str]) -> dict[str, EncodedVideo]:
        """Return these videos as soon as all that have a file are finished."""
        finished = {vid: video for vid in vids if (video := self.drafts.read(vid))}
        missing = {vid for vid in vids if vid in self.files} - finished.keys()
        while missing:
            video = next(self._finished)
            self._tick(1)
            self.drafts.write(video)
            if video.vid in missing:
                missing.remove(video.vid)
                finished[video.vid] = video
        return finished

    def contact_sheet(self) -> bytes:
        """Return a JPEG of the videos that are to be shown, or nothing if there is none."""
        drafts = [self.drafts.read(vid) for vid in self.on_sheet]
        thumbnails = [draft.thumbnails[0][1] for draft in drafts if draft and draft.thumbnails]
        return contact_sheet(thumbnails) if thumbnails else b""
